//! `SuffixAutomaton` and `PromptLookup` for Python: sources by themselves, outside a drafter.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::draft::source::Learn;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::prompt_lookup::PromptLookup;
use crate::py::convert::{to_array, token_ids};
use crate::py::interpreter::detached;
use crate::waiting;

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
        detached(tokens.py(), || waiting::lock(&self.core).extend(&text));
        Ok(())
    }

    #[doc = stub_doc!("SuffixAutomaton.clear")]
    fn clear(&self) {
        waiting::lock(&self.core).clear();
    }

    #[doc = stub_doc!("SuffixAutomaton.count")]
    fn count(&self, tokens: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(waiting::lock(&self.core).count(&token_ids(tokens, "tokens")?))
    }

    #[doc = stub_doc!("SuffixAutomaton.last_end")]
    fn last_end(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        Ok(waiting::lock(&self.core).last_end(&token_ids(tokens, "tokens")?))
    }

    #[doc = stub_doc!("SuffixAutomaton.contains")]
    fn contains(&self, tokens: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(waiting::lock(&self.core).contains(&token_ids(tokens, "tokens")?))
    }

    fn __len__(&self) -> usize {
        waiting::lock(&self.core).text_len()
    }

    #[doc = stub_doc!("SuffixAutomaton.match_len")]
    #[getter]
    fn match_len(&self) -> usize {
        waiting::lock(&self.core).match_len()
    }

    #[doc = stub_doc!("SuffixAutomaton.num_states")]
    #[getter]
    fn num_states(&self) -> usize {
        waiting::lock(&self.core).num_states()
    }

    #[doc = stub_doc!("SuffixAutomaton.num_edges")]
    #[getter]
    fn num_edges(&self) -> usize {
        waiting::lock(&self.core).num_edges()
    }

    #[doc = stub_doc!("SuffixAutomaton.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        waiting::lock(&self.core).memory_bytes()
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
        detached(tokens.py(), || waiting::lock(&self.core).extend(&text));
        Ok(())
    }

    #[doc = stub_doc!("PromptLookup.clear")]
    fn clear(&self) {
        waiting::lock(&self.core).clear();
    }

    #[doc = stub_doc!("PromptLookup.propose")]
    fn propose(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        to_array(py, waiting::lock(&self.core).chain().iter().map(|token| token.0))
    }

    #[doc = stub_doc!("PromptLookup.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        waiting::lock(&self.core).memory_bytes()
    }
}

/// Adds the classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySuffixAutomaton>()?;
    module.add_class::<PyPromptLookup>()
}
