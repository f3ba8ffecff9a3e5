//! `PhraseTable` for Python.

use std::sync::Arc;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use crate::draft::sources::common_phrases::PhraseTable;
use crate::ids::TokenId;
use crate::py::convert::token_ids;
use crate::py::errors::ShapeError;

#[doc = stub_doc!("PhraseTable")]
#[pyclass(name = "PhraseTable", module = "coordgen_rs._core", frozen)]
pub struct PyPhraseTable {
    pub(super) core: Arc<PhraseTable>,
}

#[pymethods]
impl PyPhraseTable {
    #[new]
    fn new(
        before: &Bound<'_, PyAny>,
        last: &Bound<'_, PyAny>,
        next: &Bound<'_, PyAny>,
        chances: &Bound<'_, PyArray1<f32>>,
    ) -> PyResult<Self> {
        let before = token_ids(before, "before")?;
        let (last, next) = (token_ids(last, "last")?, token_ids(next, "next")?);
        let chances = chances.try_readonly()?;
        let chances = chances.as_slice()?;
        if [before.len(), last.len(), next.len()] != [chances.len(); 3] {
            return Err(ShapeError::new_err(format!(
                "{} tokens before, {} last and {} next ones for {} chances",
                before.len(),
                last.len(),
                next.len(),
                chances.len()
            )));
        }
        let context = |at: usize| ((before[at] != NONE).then_some(before[at]), last[at]);
        let phrases = (0..chances.len()).map(|at| (context(at), next[at], chances[at]));
        Ok(Self { core: Arc::new(PhraseTable::new(phrases)?) })
    }

    #[doc = stub_doc!("PhraseTable.num_contexts")]
    #[getter]
    fn num_contexts(&self) -> usize {
        self.core.num_contexts()
    }

    #[doc = stub_doc!("PhraseTable.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.memory_bytes()
    }
}

/// In place of the token before the last, where a context has one token.
const NONE: TokenId = TokenId(u32::MAX);
