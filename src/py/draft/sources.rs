//! `SuffixAutomaton` and `PromptLookup` for Python, sources by themselves, outside a drafter, and
//! `PhraseTable`, what one draws on.

use std::sync::{Arc, Mutex};

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::draft::source::Learn;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::common_phrases::PhraseTable;
use crate::draft::sources::prompt_lookup::PromptLookup;
use crate::draft::token_variants::TokenVariants;
use crate::ids::TokenId;
use crate::locks;
use crate::py::convert::{flat, matrix, to_array, token_ids};
use crate::py::errors::ShapeError;
use crate::py::interpreter::detached;

#[doc = stub_doc!("SuffixAutomaton")]
#[pyclass(name = "SuffixAutomaton", module = "coordgen_rs._core", frozen)]
pub struct PySuffixAutomaton {
    core: Mutex<SuffixAutomaton>,
}

#[pymethods]
impl PySuffixAutomaton {
    #[new]
    fn new() -> Self {
        Self { core: Mutex::new(SuffixAutomaton::new()) }
    }

    #[doc = stub_doc!("SuffixAutomaton.extend")]
    fn extend(&self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let text = token_ids(tokens, "tokens")?;
        detached(tokens.py(), || locks::lock(&self.core).extend(&text));
        Ok(())
    }

    #[doc = stub_doc!("SuffixAutomaton.clear")]
    fn clear(&self) {
        locks::lock(&self.core).clear();
    }

    #[doc = stub_doc!("SuffixAutomaton.count")]
    fn count(&self, tokens: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(locks::lock(&self.core).count(&token_ids(tokens, "tokens")?))
    }

    #[doc = stub_doc!("SuffixAutomaton.last_end")]
    fn last_end(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        Ok(locks::lock(&self.core).last_end(&token_ids(tokens, "tokens")?))
    }

    #[doc = stub_doc!("SuffixAutomaton.contains")]
    fn contains(&self, tokens: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(locks::lock(&self.core).contains(&token_ids(tokens, "tokens")?))
    }

    fn __len__(&self) -> usize {
        locks::lock(&self.core).text_len()
    }

    #[doc = stub_doc!("SuffixAutomaton.match_len")]
    #[getter]
    fn match_len(&self) -> usize {
        locks::lock(&self.core).match_len()
    }

    #[doc = stub_doc!("SuffixAutomaton.num_states")]
    #[getter]
    fn num_states(&self) -> usize {
        locks::lock(&self.core).num_states()
    }

    #[doc = stub_doc!("SuffixAutomaton.num_edges")]
    #[getter]
    fn num_edges(&self) -> usize {
        locks::lock(&self.core).num_edges()
    }

    #[doc = stub_doc!("SuffixAutomaton.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        locks::lock(&self.core).memory_bytes()
    }
}

#[doc = stub_doc!("PromptLookup")]
#[pyclass(name = "PromptLookup", module = "coordgen_rs._core", frozen)]
pub struct PyPromptLookup {
    core: Mutex<PromptLookup>,
}

#[pymethods]
impl PyPromptLookup {
    #[new]
    fn new() -> Self {
        Self { core: Mutex::new(PromptLookup::new()) }
    }

    #[doc = stub_doc!("PromptLookup.extend")]
    fn extend(&self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let text = token_ids(tokens, "tokens")?;
        detached(tokens.py(), || locks::lock(&self.core).extend(&text));
        Ok(())
    }

    #[doc = stub_doc!("PromptLookup.clear")]
    fn clear(&self) {
        locks::lock(&self.core).clear();
    }

    #[doc = stub_doc!("PromptLookup.propose")]
    fn propose(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        to_array(py, locks::lock(&self.core).chain().iter().map(|token| token.0))
    }

    #[doc = stub_doc!("PromptLookup.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        locks::lock(&self.core).memory_bytes()
    }
}

#[doc = stub_doc!("PhraseTable")]
#[pyclass(name = "PhraseTable", module = "coordgen_rs._core", frozen)]
pub struct PyPhraseTable {
    pub(super) core: Arc<PhraseTable>,
    pub(super) token_variants: Arc<TokenVariants>,
}

#[pymethods]
impl PyPhraseTable {
    #[new]
    #[pyo3(signature = (before, last, next, chances, *, line_ends=None, spaced=None, cased=None))]
    fn new(
        before: &Bound<'_, PyAny>,
        last: &Bound<'_, PyAny>,
        next: &Bound<'_, PyAny>,
        chances: &Bound<'_, PyAny>,
        line_ends: Option<&Bound<'_, PyAny>>,
        spaced: Option<&Bound<'_, PyAny>>,
        cased: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = before.py();
        let before = token_ids(before, "before")?;
        let (last, next) = (token_ids(last, "last")?, token_ids(next, "next")?);
        let chances = flat::<f32>(chances, "chances")?.try_readonly()?;
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
        let core = Arc::new(detached(py, || PhraseTable::new(phrases))?);
        let token_variants = TokenVariants::new(
            pairs(line_ends, "line_ends")?,
            pairs(spaced, "spaced")?,
            pairs(cased, "cased")?,
        );
        Ok(Self { core, token_variants: Arc::new(token_variants) })
    }

    #[doc = stub_doc!("PhraseTable.num_contexts")]
    #[getter]
    fn num_contexts(&self) -> usize {
        self.core.num_contexts()
    }

    #[doc = stub_doc!("PhraseTable.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.memory_bytes() + self.token_variants.memory_bytes()
    }
}

/// The rows of an `(n, 2) uint32` array; none where there is no array.
fn pairs(object: Option<&Bound<'_, PyAny>>, what: &str) -> PyResult<Vec<(TokenId, TokenId)>> {
    let Some(object) = object else { return Ok(Vec::new()) };
    let (pairs, _, columns) = matrix::<u32>(object, what)?;
    if columns != 2 {
        let message = format!("{what} must have shape (n, 2), not {:?}", pairs.shape());
        return Err(ShapeError::new_err(message));
    }
    let pairs = pairs.try_readonly()?;
    let pairs = pairs.as_slice()?.chunks_exact(2);
    Ok(pairs.map(|pair| (TokenId(pair[0]), TokenId(pair[1]))).collect())
}

/// In place of the token before the last, where a context has one token.
const NONE: TokenId = TokenId(u32::MAX);
