//! `SharedHistory` for Python: what the drafters of one namespace read from.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::draft::source::DraftSource;
use crate::draft::sources::history::History;
use crate::draft::sources::history::format::{TERMINATOR, write_index};
use crate::draft::sources::history::gather::{DocumentSpan, IndexOptions, write_gathered_index};
use crate::draft::sources::history::index::HistoryIndex;
use crate::py::convert::{self, Arg, Argument, token_ids};
use crate::py::errors::OptionError;
use crate::py::interpreter::detached;

#[doc = stub_doc!("SharedHistory")]
#[pyclass(name = "SharedHistory", module = "coordgen_rs._core", frozen)]
pub struct PySharedHistory {
    core: History,
}

impl PySharedHistory {
    /// The history itself.
    pub(crate) fn core(&self) -> &History {
        &self.core
    }

    /// Sources for a drafter over `vocab_size` tokens.
    pub(super) fn sources(&self, vocab_size: usize) -> PyResult<Vec<Box<dyn DraftSource>>> {
        if vocab_size != self.core.vocab_size() as usize {
            let message = format!(
                "the history is of a vocabulary of {}, the drafter of {vocab_size}",
                self.core.vocab_size()
            );
            return Err(OptionError::new_err(message));
        }
        Ok(self.core.all_sources().collect())
    }
}

impl Argument for PyRef<'_, PySharedHistory> {
    const MUST: &'static str = "a SharedHistory";
}

#[pymethods]
impl PySharedHistory {
    #[new]
    #[pyo3(
        signature = (vocab_size, *, fleet=Arg::Valid(false), corpus=Arg::Valid(false)),
        text_signature = "(vocab_size, *, fleet=False, corpus=False)"
    )]
    fn new(vocab_size: Arg<u32>, fleet: Arg<bool>, corpus: Arg<bool>) -> PyResult<Self> {
        let (fleet, corpus) = (fleet.named("fleet")?, corpus.named("corpus")?);
        let vocab_size = vocab_size.named("vocab_size")?;
        if vocab_size == 0 {
            return Err(OptionError::new_err("vocab_size is 0, but must be 1 or more"));
        }
        let new = if fleet { History::above_fleet } else { History::new };
        let core = new(vocab_size);
        Ok(Self { core: if corpus { core.above_corpus() } else { core } })
    }

    #[doc = stub_doc!("SharedHistory.remember")]
    #[pyo3(
        signature = (token_ids, number=Arg::Valid(None)),
        text_signature = "($self, token_ids, number=None)"
    )]
    fn remember(&self, token_ids: &Bound<'_, PyAny>, number: Arg<Option<u64>>) -> PyResult<()> {
        let tokens = self::token_ids(token_ids, "token_ids")?;
        Ok(match number.named("number")? {
            None => self.core.remember(&tokens),
            Some(number) => self.core.remember_stored(number, &tokens),
        }?)
    }

    #[doc = stub_doc!("SharedHistory.open_index")]
    fn open_index(&self, py: Python<'_>, path: PathBuf, key: &[u8]) -> PyResult<()> {
        let key = convert::key(key)?;
        Ok(detached(py, || self.core.open_index(&path, &key))?)
    }

    #[doc = stub_doc!("SharedHistory.open_fleet_index")]
    fn open_fleet_index(&self, py: Python<'_>, path: PathBuf, key: &[u8]) -> PyResult<()> {
        let key = convert::key(key)?;
        Ok(detached(py, || self.core.open_fleet_index(&path, &key))?)
    }

    #[doc = stub_doc!("SharedHistory.open_corpus")]
    fn open_corpus(&self, py: Python<'_>, paths: Vec<PathBuf>, key: &[u8]) -> PyResult<()> {
        let key = convert::key(key)?;
        Ok(detached(py, || self.core.open_corpus(paths, &key))?)
    }

    #[doc = stub_doc!("SharedHistory.is_whole_index")]
    #[staticmethod]
    fn is_whole_index(py: Python<'_>, path: PathBuf, key: &[u8]) -> PyResult<bool> {
        let key = convert::key(key)?;
        let is_whole = || HistoryIndex::open(&path, &key).is_ok_and(|index| index.check_all());
        Ok(detached(py, is_whole))
    }

    #[doc = stub_doc!("SharedHistory.write_gathered_index")]
    #[pyo3(signature = (path, files, places, vocab_size, key, *, private=false))]
    #[staticmethod]
    fn write_gathered_index(
        py: Python<'_>,
        path: PathBuf,
        files: Vec<PathBuf>,
        places: Vec<(usize, u64, usize)>,
        vocab_size: u32,
        key: &[u8],
        private: bool,
    ) -> PyResult<u64> {
        let options = IndexOptions { vocab_size, key: convert::key(key)?, is_private: private };
        let place = |(file, start, num_tokens)| DocumentSpan { file, start, num_tokens };
        let places: Vec<DocumentSpan> = places.into_iter().map(place).collect();
        Ok(detached(py, || write_gathered_index(&path, &files, &places, options))?)
    }

    #[doc = stub_doc!("SharedHistory.write_index")]
    #[staticmethod]
    fn write_index(
        py: Python<'_>,
        path: PathBuf,
        documents: &Bound<'_, PyAny>,
        vocab_size: u32,
        covers: u64,
        key: &[u8],
    ) -> PyResult<u64> {
        let key = convert::key(key)?;
        let tokens = token_ids(documents, "documents")?;
        Ok(detached(py, || write_index(&path, &tokens, vocab_size, covers, key))?)
    }

    #[doc = stub_doc!("SharedHistory.check_index")]
    fn check_index(&self, py: Python<'_>) -> bool {
        detached(py, || self.core.check_index())
    }

    #[doc = stub_doc!("SharedHistory.warm_shared")]
    fn warm_shared(&self, py: Python<'_>) -> bool {
        detached(py, || self.core.warm_shared())
    }

    #[doc = stub_doc!("SharedHistory.is_shared_cold")]
    #[getter]
    fn is_shared_cold(&self) -> bool {
        self.core.is_shared_cold()
    }

    #[doc = stub_doc!("SharedHistory.clear")]
    fn clear(&self, py: Python<'_>) {
        detached(py, || self.core.clear());
    }

    #[classattr]
    #[pyo3(name = "TERMINATOR")]
    const END: u32 = TERMINATOR.0;

    #[doc = stub_doc!("SharedHistory.vocab_size")]
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.core.vocab_size()
    }

    #[doc = stub_doc!("SharedHistory.is_damaged")]
    #[getter]
    fn is_damaged(&self) -> bool {
        self.core.is_damaged()
    }

    #[doc = stub_doc!("SharedHistory.num_indexed_tokens")]
    #[getter]
    fn num_indexed_tokens(&self) -> usize {
        self.core.num_indexed_tokens()
    }

    #[doc = stub_doc!("SharedHistory.is_fleet_damaged")]
    #[getter]
    fn is_fleet_damaged(&self) -> bool {
        self.core.is_fleet_damaged()
    }

    #[doc = stub_doc!("SharedHistory.num_fleet_tokens")]
    #[getter]
    fn num_fleet_tokens(&self) -> usize {
        self.core.num_fleet_tokens()
    }

    #[doc = stub_doc!("SharedHistory.is_corpus_damaged")]
    #[getter]
    fn is_corpus_damaged(&self) -> bool {
        self.core.is_corpus_damaged()
    }

    #[doc = stub_doc!("SharedHistory.num_corpus_tokens")]
    #[getter]
    fn num_corpus_tokens(&self) -> usize {
        self.core.num_corpus_tokens()
    }

    #[doc = stub_doc!("SharedHistory.num_recent_tokens")]
    #[getter]
    fn num_recent_tokens(&self) -> usize {
        self.core.num_recent_tokens()
    }

    #[doc = stub_doc!("SharedHistory.covers")]
    #[getter]
    fn covers(&self) -> u64 {
        self.core.covers()
    }
}
