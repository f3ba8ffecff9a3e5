//! `HostDrafter` for Python: drafts for an engine that runs the model itself.

use std::collections::BTreeMap;
use std::sync::Mutex;

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
use crate::locks;
use crate::py::convert::{Arg, integers, to_array, token_ids};
use crate::py::interpreter::{detached, detached_if};

/// Tokens whose observing takes as long as a thread switch.
const MANY_TOKENS: usize = 1 << 10;

#[doc = stub_doc!("HostDrafter")]
#[pyclass(name = "HostDrafter", module = "coordgen_rs._core", frozen)]
pub struct PyHostDrafter {
    core: Mutex<HostDrafter>,
}

impl PyHostDrafter {
    /// Calls what is short, unless a file may be read.
    fn shortly<T: Send>(
        &self,
        py: Python<'_>,
        is_long: bool,
        call: impl FnOnce(&mut HostDrafter) -> T + Send,
    ) -> T {
        let is_long = is_long || locks::lock(&self.core).reads_disk();
        detached_if(py, is_long, || call(&mut locks::lock(&self.core)))
    }

    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut HostDrafter) -> T + Send,
    ) -> T {
        detached(py, || call(&mut locks::lock(&self.core)))
    }
}

#[pymethods]
impl PyHostDrafter {
    #[new]
    #[pyo3(
        signature = (
            vocab_size, *, rows=None, costs=Arg::Valid(None), method=Arg::Valid("auto".into()),
            commit=Arg::Valid("compact".into()), end_token_ids=None, history=Arg::Valid(None)
        ),
        text_signature = "(vocab_size, *, rows=..., costs=None, method='auto', commit='compact', \
            end_token_ids=..., history=None)"
    )]
    fn new(
        vocab_size: Arg<usize>,
        rows: Option<&Bound<'_, PyAny>>,
        costs: Arg<Option<Vec<CostOption>>>,
        method: Arg<String>,
        commit: Arg<String>,
        end_token_ids: Option<&Bound<'_, PyAny>>,
        history: Arg<Option<PyRef<'_, PySharedHistory>>>,
    ) -> PyResult<Self> {
        let rows = rows.map(|rows| integers(rows, "rows")).transpose()?;
        let rows = rows.map(|rows| rows.into_iter().map(|rows| rows as usize).collect());
        let costs = costs.named("costs")?;
        let end_tokens = end_token_ids.map(|ids| token_ids(ids, "end_token_ids")).transpose()?;
        let options = HostOptions {
            vocab_size: vocab_size.named("vocab_size")?,
            rows: rows.unwrap_or_else(|| HostOptions::ROWS.collect()),
            costs: costs.map(|costs| costs.into_iter().map(StepCost::from).collect()),
            commit: commit.named("commit")?.parse::<CommitPolicy>()?,
            end_tokens: end_tokens.unwrap_or_default(),
        };
        let (method, history) = (method.named("method")?, history.named("history")?);
        let history = history.as_ref().map(|history| history.core());
        let core = HostDrafter::new(Method::named(&method)?, history, options)?;
        Ok(Self { core: Mutex::new(core) })
    }

    #[doc = stub_doc!("HostDrafter.begin")]
    #[pyo3(signature = (prompt_ids, prediction=None))]
    fn begin(
        &self,
        py: Python<'_>,
        prompt_ids: &Bound<'_, PyAny>,
        prediction: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let prompt = token_ids(prompt_ids, "prompt_ids")?;
        let prediction = prediction.map_or(Ok(vec![]), |ids| token_ids(&ids, "prediction"))?;
        Ok(self.detached(py, |core| core.begin(&prompt, &prediction))?)
    }

    #[doc = stub_doc!("HostDrafter.propose_chain")]
    #[pyo3(signature = (max_tokens=Arg::Valid(usize::MAX)), text_signature = "($self, max_tokens=...)")]
    fn propose_chain(&self, py: Python<'_>, max_tokens: Arg<usize>) -> PyResult<Py<PyArray1<u32>>> {
        let max_tokens = max_tokens.named("max_tokens")?;
        let propose =
            |core: &mut HostDrafter| core.propose_chain(max_tokens).map(<[TokenId]>::to_vec);
        let chain = self.shortly(py, false, propose)?;
        Ok(to_array(py, chain.iter().map(|token| token.0)))
    }

    #[doc = stub_doc!("HostDrafter.propose_tree")]
    #[pyo3(signature = (max_tokens=Arg::Valid(usize::MAX)), text_signature = "($self, max_tokens=...)")]
    fn propose_tree(&self, py: Python<'_>, max_tokens: Arg<usize>) -> PyResult<TreeArrays> {
        let max_tokens = max_tokens.named("max_tokens")?;
        let tree = self.shortly(py, false, |core| core.propose_tree(max_tokens).cloned())?;
        Ok(tree_arrays(py, &tree))
    }

    #[doc = stub_doc!("HostDrafter.observe")]
    fn observe(&self, token_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, tokens) = (token_ids.py(), self::token_ids(token_ids, "token_ids")?);
        Ok(self.shortly(py, tokens.len() > MANY_TOKENS, |core| core.observe(&tokens))?)
    }

    #[doc = stub_doc!("HostDrafter.rewind")]
    fn rewind(&self, py: Python<'_>, num_tokens: Arg<usize>) -> PyResult<()> {
        let num_tokens = num_tokens.named("num_tokens")?;
        Ok(self.detached(py, |core| core.rewind(num_tokens))?)
    }

    #[doc = stub_doc!("HostDrafter.follow")]
    fn follow(&self, py: Python<'_>, token_ids: &Bound<'_, PyAny>) -> PyResult<bool> {
        let text = self::token_ids(token_ids, "token_ids")?;
        Ok(self.detached(py, |core| core.follow(&text))?)
    }

    #[doc = stub_doc!("HostDrafter.end")]
    fn end(&self, py: Python<'_>) {
        self.detached(py, HostDrafter::end);
    }

    #[doc = stub_doc!("HostDrafter.token_ids")]
    #[getter]
    fn token_ids(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        to_array(py, locks::lock(&self.core).text().iter().map(|token| token.0))
    }

    #[doc = stub_doc!("HostDrafter.prompt_len")]
    #[getter]
    fn prompt_len(&self) -> usize {
        locks::lock(&self.core).prompt_len()
    }

    #[doc = stub_doc!("HostDrafter.accept_histogram")]
    #[getter]
    fn accept_histogram(&self) -> Vec<usize> {
        locks::lock(&self.core).statistics().accept_histogram.clone()
    }

    #[doc = stub_doc!("HostDrafter.per_source")]
    #[getter]
    fn per_source(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, usize>> {
        let core = locks::lock(&self.core);
        let counts = core.statistics().sources.iter();
        core.source_names().zip(counts.map(by_kind)).collect()
    }

    #[doc = stub_doc!("HostDrafter.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        locks::lock(&self.core).memory_bytes()
    }
}
