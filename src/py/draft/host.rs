//! `HostDrafter` for Python: drafts for an engine that runs the model itself.

use std::collections::BTreeMap;

use numpy::PyArray1;
use pyo3::prelude::*;

use super::drafter::{TreeArrays, by_kind, tree_arrays};
use super::history::PySharedHistory;
use super::step_choice::CostOption;
use crate::commit::CommitPolicy;
use crate::draft::choose::step_choice::StepCost;
use crate::draft::host::{HostDrafter, HostOptions};
use crate::draft::methods::Method;
use crate::ids::TokenId;
use crate::py::convert::{to_array, token_ids};

#[doc = stub_doc!("HostDrafter")]
#[pyclass(name = "HostDrafter", module = "coordgen_rs._core")]
pub struct PyHostDrafter {
    core: HostDrafter,
}

#[pymethods]
impl PyHostDrafter {
    #[new]
    #[pyo3(signature = (
        vocab_size, *, rows=(1..=17).collect(), costs=None, method="auto", commit="compact",
        end_token_ids=vec![], history=None
    ))]
    fn new(
        vocab_size: usize,
        rows: Vec<usize>,
        costs: Option<Vec<CostOption>>,
        method: &str,
        commit: &str,
        end_token_ids: Vec<u32>,
        history: Option<PyRef<'_, PySharedHistory>>,
    ) -> PyResult<Self> {
        let options = HostOptions {
            vocab_size,
            rows,
            costs: costs.map(|costs| costs.into_iter().map(StepCost::from).collect()),
            commit: commit.parse::<CommitPolicy>()?,
            end_tokens: end_token_ids.into_iter().map(TokenId).collect(),
        };
        let history = history.as_ref().map(|history| history.core());
        Ok(Self { core: HostDrafter::new(Method::named(method)?, history, options)? })
    }

    #[doc = stub_doc!("HostDrafter.begin")]
    #[pyo3(signature = (prompt_ids, prediction=None))]
    fn begin(
        &mut self,
        py: Python<'_>,
        prompt_ids: &Bound<'_, PyAny>,
        prediction: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let prompt = token_ids(prompt_ids, "prompt_ids")?;
        let prediction = prediction.map_or(Ok(vec![]), |ids| token_ids(&ids, "prediction"))?;
        Ok(py.detach(|| self.core.begin(&prompt, &prediction))?)
    }

    #[doc = stub_doc!("HostDrafter.propose_chain")]
    #[pyo3(signature = (max_tokens=usize::MAX))]
    fn propose_chain(&mut self, py: Python<'_>, max_tokens: usize) -> PyResult<Py<PyArray1<u32>>> {
        let chain = self.core.propose_chain(max_tokens)?;
        Ok(to_array(py, chain.iter().map(|token| token.0)))
    }

    #[doc = stub_doc!("HostDrafter.propose_tree")]
    #[pyo3(signature = (max_tokens=usize::MAX))]
    fn propose_tree(&mut self, py: Python<'_>, max_tokens: usize) -> PyResult<TreeArrays> {
        Ok(tree_arrays(py, self.core.propose_tree(max_tokens)?))
    }

    #[doc = stub_doc!("HostDrafter.observe")]
    fn observe(&mut self, token_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.core.observe(&self::token_ids(token_ids, "token_ids")?)?)
    }

    #[doc = stub_doc!("HostDrafter.rewind")]
    fn rewind(&mut self, py: Python<'_>, num_tokens: usize) -> PyResult<()> {
        Ok(py.detach(|| self.core.rewind(num_tokens))?)
    }

    #[doc = stub_doc!("HostDrafter.follow")]
    fn follow(&mut self, py: Python<'_>, token_ids: &Bound<'_, PyAny>) -> PyResult<bool> {
        let text = self::token_ids(token_ids, "token_ids")?;
        Ok(py.detach(|| self.core.follow(&text))?)
    }

    #[doc = stub_doc!("HostDrafter.end")]
    fn end(&mut self, py: Python<'_>) {
        py.detach(|| self.core.end());
    }

    #[doc = stub_doc!("HostDrafter.token_ids")]
    #[getter]
    fn token_ids(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        to_array(py, self.core.text().iter().map(|token| token.0))
    }

    #[doc = stub_doc!("HostDrafter.prompt_len")]
    #[getter]
    fn prompt_len(&self) -> usize {
        self.core.prompt_len()
    }

    #[doc = stub_doc!("HostDrafter.accept_histogram")]
    #[getter]
    fn accept_histogram(&self) -> Vec<usize> {
        self.core.statistics().accept_histogram.clone()
    }

    #[doc = stub_doc!("HostDrafter.per_source")]
    #[getter]
    fn per_source(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, usize>> {
        let counts = self.core.statistics().sources.iter();
        self.core.source_names().zip(counts.map(by_kind)).collect()
    }

    #[doc = stub_doc!("HostDrafter.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.memory_bytes()
    }
}
