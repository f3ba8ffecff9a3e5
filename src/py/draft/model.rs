//! `ModelDraft` for Python: what a draft model is to read, what it has read, and what pays.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use super::methods::PyDraftMethod;
use super::step_choice::{CostOption, step_choice};
use crate::draft::choose::model_choice;
use crate::draft::choose::step_choice::StepChoice;
use crate::draft::sources::model::source::SharedModelDraft;
use crate::draft::sources::model::{ModelDraft, ReadStep};
use crate::error::Error;
use crate::ids::{NodeId, TokenId};
use crate::logits::Logits;
use crate::py::convert::{matrix, to_array};
use crate::py::errors::{OptionError, ShapeError};
use crate::py::step_inputs::PyStepInputs;

#[doc = stub_doc!("ModelDraft")]
#[pyclass(name = "ModelDraft", module = "coordgen_rs._core", frozen)]
pub struct PyModelDraft {
    pub(crate) core: SharedModelDraft,
    step_inputs: Vec<Py<PyStepInputs>>,
    steps: StepChoice,
    /// Tokens that the model scores: the first of the vocabulary.
    num_scored: usize,
}

#[pymethods]
impl PyModelDraft {
    #[new]
    #[pyo3(signature = (
        step_inputs, vocab_size, *, end_token_ids=vec![], costs=None, least_that_pays=0.0,
        method=None, num_scored=None
    ))]
    fn new(
        py: Python<'_>,
        step_inputs: Vec<Py<PyStepInputs>>,
        vocab_size: usize,
        end_token_ids: Vec<u32>,
        costs: Option<Vec<CostOption>>,
        least_that_pays: f32,
        method: Option<PyRef<'_, PyDraftMethod>>,
        num_scored: Option<usize>,
    ) -> PyResult<Self> {
        let num_scored = num_scored.unwrap_or(vocab_size);
        if !(1..=vocab_size).contains(&num_scored) {
            let message =
                format!("num_scored is {num_scored}, expected 1 to vocab_size, {vocab_size}");
            return Err(OptionError::new_err(message));
        }
        let steps = step_choice(py, &step_inputs, costs)?;
        let end_tokens = end_token_ids.into_iter().map(TokenId).collect();
        let mut draft = ModelDraft::new(vocab_size, end_tokens, least_that_pays)?;
        if let Some(method) = method {
            draft = draft.shaped(method.core.model);
        }
        let core = SharedModelDraft::new(draft);
        Ok(Self { core, step_inputs, steps, num_scored })
    }

    #[doc = stub_doc!("ModelDraft.drafts_as")]
    fn drafts_as(&self, method: &PyDraftMethod) -> bool {
        self.core.lock().shape == method.core.model
    }

    #[doc = stub_doc!("ModelDraft.take_realignment")]
    fn take_realignment(&self, py: Python<'_>) -> Option<(usize, Py<PyArray1<u32>>)> {
        let realignment = self.core.lock().take_realignment()?;
        let rows = to_array(py, realignment.rows.iter().map(|row| row.0));
        Some((realignment.base, rows))
    }

    #[doc = stub_doc!("ModelDraft.unread")]
    fn unread(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        let draft = self.core.lock();
        to_array(py, draft.unread().iter().map(|token| token.0))
    }

    #[doc = stub_doc!("ModelDraft.num_unread")]
    #[getter]
    fn num_unread(&self) -> usize {
        self.core.lock().unread().len()
    }

    #[doc = stub_doc!("ModelDraft.reading_cost")]
    fn reading_cost(&self) -> f32 {
        self.steps.reading_cost(self.core.lock().unread().len())
    }

    #[doc = stub_doc!("ModelDraft.skip")]
    fn skip(&self, num_tokens: usize) {
        self.core.lock().skip(num_tokens);
    }

    #[doc = stub_doc!("ModelDraft.next_step")]
    #[pyo3(signature = (max_tokens, max_depth=usize::MAX, *, provisional=false))]
    fn next_step(
        &self,
        py: Python<'_>,
        max_tokens: usize,
        max_depth: usize,
        provisional: bool,
    ) -> PyResult<Option<Py<PyStepInputs>>> {
        let mut draft = self.core.lock();
        let step = draft.next_step((max_tokens, max_depth), provisional);
        let Some(ReadStep { tree, first, base }) = step else {
            return Ok(None);
        };
        let nodes = tree.num_nodes() - first;
        let most = self.steps.most_rows();
        if nodes > most {
            return Err(Error::TooManyNodes { nodes, rows: most }.into());
        }
        let fitting = self.steps.narrowest(nodes, base + first).ok();
        let Some(index) = fitting.filter(|&index| self.steps.rows(index) >= nodes) else {
            return Ok(None);
        };
        let inputs = &self.step_inputs[index];
        inputs.borrow_mut(py).fill_from(py, tree, first, base)?;
        Ok(Some(inputs.clone_ref(py)))
    }

    #[doc = stub_doc!("ModelDraft.read")]
    fn read(&self, logits: &Bound<'_, PyAny>, row: u32) -> PyResult<()> {
        let (logits, rows, columns) = matrix::<f32>(logits, "logits")?;
        if columns != self.num_scored || row as usize >= rows {
            let message = format!(
                "logits have shape ({rows}, {columns}), not ({row} and more, {})",
                self.num_scored
            );
            return Err(ShapeError::new_err(message));
        }
        let logits = logits.try_readonly()?;
        let likely = Logits::new(logits.as_slice()?, rows, columns)?.top_k(NodeId(row));
        let likely = likely.ok_or(Error::NonFiniteLogits { row: row as usize })?;
        self.core.lock().read(&likely);
        Ok(())
    }

    #[doc = stub_doc!("ModelDraft.num_drafted")]
    #[getter]
    fn num_drafted(&self) -> usize {
        self.core.lock().num_drafted()
    }

    #[doc = stub_doc!("ModelDraft.num_promoted")]
    #[getter]
    fn num_promoted(&self) -> usize {
        self.core.lock().num_promoted()
    }

    #[doc = stub_doc!("ModelDraft.threshold")]
    #[getter]
    fn threshold(&self) -> f32 {
        self.core.lock().threshold()
    }

    #[doc = stub_doc!("ModelDraft.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.lock().memory_bytes()
    }
}

#[doc = stub_doc!("least_that_pays")]
#[pyfunction]
pub fn least_that_pays(
    py: Python<'_>,
    step_inputs: Vec<Py<PyStepInputs>>,
    costs: Option<Vec<CostOption>>,
    target_step_inputs: Vec<Py<PyStepInputs>>,
    target_costs: Option<Vec<CostOption>>,
) -> PyResult<f32> {
    let model = step_choice(py, &step_inputs, costs)?;
    let target = step_choice(py, &target_step_inputs, target_costs)?;
    Ok(model_choice::least_that_pays(&model, &target))
}
