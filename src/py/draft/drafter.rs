//! `Drafter` for Python, and what its calls return.

use std::collections::BTreeMap;

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};

use super::history::PySharedHistory;
use super::lookup_table::PyLookupTable;
use super::methods::TreeOption;
use super::model::PyModelDraft;
use super::sources::PyPhraseTable;
use super::step_choice::{CostOption, step_choice};
use crate::commit::{Commit, CommitPolicy, FinishReason};
use crate::draft::choose::drafter::{Drafter, DrafterOptions, SourceStatistics};
use crate::draft::choose::expert_reads::StepReads;
use crate::draft::choose::model_choice::ModelPrice;
use crate::draft::choose::origins::Origin;
use crate::draft::methods::{SourceInputs, source_from};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::earlier_requests::SharedRequests;
use crate::ids::{NodeId, TokenId};
use crate::logits::logprobs::check_num_alternatives;
use crate::py::constraint::{Grammar, PyConstraint, Raised};
use crate::py::convert::{Arg, integers, matrix, to_array, token_ids};
use crate::py::errors::ShapeError;
use crate::py::interpreter::{detached, detached_if};
use crate::py::logits::{LogprobTuple, logprob_tuple};
use crate::py::sampling::PySampling;
use crate::py::step_inputs::PyStepInputs;
use crate::tree::draft_tree::DraftTree;

/// Scores that take long to read: half a millisecond. Sources that read so many do so on several
/// threads (`lookup_table/source.rs`).
const LONG: usize = 1 << 20;

/// Two `(n,) uint32` arrays: token ids and parents.
pub(super) type TreeArrays = (Py<PyArray1<u32>>, Py<PyArray1<u32>>);

/// Token ids and parents of a tree.
pub(super) fn tree_arrays(py: Python<'_>, tree: &DraftTree) -> TreeArrays {
    let token_ids = to_array(py, tree.token_ids().iter().map(|token| token.0));
    (token_ids, to_array(py, tree.parents().iter().map(|parent| parent.0)))
}

/// Rows that are reduced to their likeliest tokens, `(rows, 8)` each, as flat copies.
fn reduced_rows(
    token_ids: &Bound<'_, PyAny>,
    probabilities: &Bound<'_, PyAny>,
) -> PyResult<(Vec<TokenId>, Vec<f32>)> {
    let token_ids = matrix::<u32>(token_ids, "token ids of recorded rows")?.0.try_readonly()?;
    let probabilities = matrix::<f32>(probabilities, "probabilities of recorded rows")?.0;
    let token_ids = token_ids.as_slice()?.iter().map(|&token| TokenId(token)).collect();
    Ok((token_ids, probabilities.try_readonly()?.as_slice()?.to_vec()))
}

/// Counts by their names.
pub(super) fn by_kind(counts: &SourceStatistics) -> BTreeMap<&'static str, usize> {
    [("proposed", counts.proposed), ("accepted", counts.accepted)].into()
}

#[doc = stub_doc!("Accepted")]
#[pyclass(name = "Accepted", module = "coordgen_rs._core", frozen)]
pub struct PyAccepted {
    #[doc = stub_doc!("Accepted.token_ids")]
    #[pyo3(get)]
    token_ids: Py<PyArray1<u32>>,
    row_ids: Vec<NodeId>,
    /// Of `row_ids`, once it was asked for: only those who move rows ask.
    rows: PyOnceLock<Py<PyArray1<u32>>>,
    #[doc = stub_doc!("Accepted.accept_len")]
    #[pyo3(get)]
    accept_len: usize,
    #[doc = stub_doc!("Accepted.num_drafted")]
    #[pyo3(get)]
    num_drafted: usize,
    #[doc = stub_doc!("Accepted.finish_reason")]
    #[pyo3(get)]
    finish_reason: Option<&'static str>,
    sources: Vec<&'static str>,
    logprobs: Option<Vec<LogprobTuple>>,
}

#[pymethods]
impl PyAccepted {
    #[doc = stub_doc!("Accepted.rows")]
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        let rows = self.row_ids.iter().map(|row| row.0);
        self.rows.get_or_init(py, || to_array(py, rows)).clone_ref(py)
    }

    #[doc = stub_doc!("Accepted.sources")]
    #[getter]
    fn sources(&self) -> Vec<&'static str> {
        self.sources.clone()
    }

    #[doc = stub_doc!("Accepted.logprobs")]
    #[getter]
    fn logprobs(&self) -> Option<Vec<LogprobTuple>> {
        self.logprobs.clone()
    }
}

impl PyAccepted {
    fn new(py: Python<'_>, accepted: Commit, drafter: &Drafter) -> Self {
        let origins = drafter.origins().iter();
        Self {
            sources: origins.map(|&origin| drafter.origin_name(origin)).collect(),
            logprobs: drafter.logprobs().map(|tokens| tokens.iter().map(logprob_tuple).collect()),
            token_ids: to_array(py, accepted.token_ids.iter().map(|token| token.0)),
            row_ids: accepted.rows,
            rows: PyOnceLock::new(),
            accept_len: accepted.accept_len,
            num_drafted: accepted.num_drafted,
            finish_reason: accepted.finish_reason.map(FinishReason::name),
        }
    }
}

#[doc = stub_doc!("Drafter")]
#[pyclass(name = "Drafter", module = "coordgen_rs._core")]
pub struct PyDrafter {
    core: Drafter,
    /// With the drafters beside this one.
    earlier_requests: SharedRequests,
    step_inputs: Vec<Py<PyStepInputs>>,
    vocab_size: usize,
    /// The request's grammar, which the core holds.
    grammar: Grammar,
    /// By the grammar of the request.
    raised: Raised,
}

impl PyDrafter {
    /// Fails where filling a step's buffers would: once a tree is proposed, nothing may fail any more,
    /// since a failed call changes nothing.
    fn check_writeable(&self, py: Python<'_>) -> PyResult<()> {
        let mut all = self.step_inputs.iter();
        all.try_for_each(|inputs| inputs.borrow_mut(py).check_writeable(py))
    }

    /// The inputs of the step that verifies the proposed tree, filled with it.
    fn filled(&mut self, py: Python<'_>) -> PyResult<Py<PyStepInputs>> {
        let (step, past_len) = self.core.proposed_step().expect("a tree was proposed");
        let inputs = &self.step_inputs[step];
        let filled = inputs.borrow_mut(py).fill_tree(py, self.core.tree(), past_len);
        match filled {
            Ok(()) => Ok(inputs.clone_ref(py)),
            Err(error) => {
                self.core.withdraw();
                Err(error)
            }
        }
    }

    /// `object` as `(rows, vocab_size) f32`.
    fn logits<'a, 'py>(
        &self,
        object: &'a Bound<'py, PyAny>,
    ) -> PyResult<&'a Bound<'py, PyArrayDyn<f32>>> {
        let (logits, _, columns) = matrix::<f32>(object, "logits")?;
        if columns != self.vocab_size {
            let message =
                format!("logits have {columns} columns, the vocabulary {}", self.vocab_size);
            return Err(ShapeError::new_err(message));
        }
        Ok(logits)
    }
}

#[pymethods]
impl PyDrafter {
    #[new]
    #[pyo3(signature = (
        step_inputs, vocab_size, *, sources=vec![SuffixAutomaton::NAME.into()], costs=None,
        commit="canonical", end_token_ids=vec![], history=None, lookup_table=None,
        model_draft=None, phrases=None, tree=TreeOption::default(), beside=None
    ))]
    fn new(
        py: Python<'_>,
        step_inputs: Vec<Py<PyStepInputs>>,
        vocab_size: usize,
        sources: Vec<String>,
        costs: Option<Vec<CostOption>>,
        commit: &str,
        end_token_ids: Vec<u32>,
        history: Option<PyRef<'_, PySharedHistory>>,
        lookup_table: Option<PyRef<'_, PyLookupTable>>,
        model_draft: Option<PyRef<'_, PyModelDraft>>,
        phrases: Option<PyRef<'_, PyPhraseTable>>,
        tree: TreeOption,
        beside: Option<PyRef<'_, Self>>,
    ) -> PyResult<Self> {
        let options = DrafterOptions {
            steps: step_choice(py, &step_inputs, costs)?,
            vocab_size,
            commit: commit.parse::<CommitPolicy>()?,
            end_tokens: end_token_ids.into_iter().map(TokenId).collect(),
            shape: tree.shape()?,
        };
        let earlier_requests =
            beside.as_ref().map(|drafter| drafter.earlier_requests.clone()).unwrap_or_default();
        let inputs = SourceInputs {
            earlier_requests: earlier_requests.clone(),
            lookup_table: lookup_table.map(|table| table.core.clone()).unwrap_or_default(),
            draft_model: model_draft.map(|draft| draft.core.clone()),
            phrases: phrases.as_ref().map(|table| table.core.clone()),
            token_variants: phrases.map(|table| table.token_variants.clone()),
        };
        let sources = sources.iter().map(|name| source_from(name, &inputs));
        let mut sources = sources.collect::<Result<Vec<_>, _>>()?;
        if let Some(history) = history {
            sources.extend(history.sources(vocab_size)?);
        }
        let mut core = Drafter::new(sources, options)?;
        if let Some(beside) = beside {
            core.share_with(&beside.core)?;
        }
        let (grammar, raised) = (Grammar::new(), Raised::default());
        Ok(Self { core, earlier_requests, step_inputs, vocab_size, grammar, raised })
    }

    #[doc = stub_doc!("Drafter.begin")]
    #[pyo3(signature = (
        prompt_ids, max_new_tokens, sampling=None, prediction=None, *, ignore_eos=false,
        num_reused=0, grammar=None, logprobs=None
    ))]
    fn begin(
        &mut self,
        py: Python<'_>,
        prompt_ids: &Bound<'_, PyAny>,
        max_new_tokens: Arg<usize>,
        sampling: Option<PySampling>,
        prediction: Option<Bound<'_, PyAny>>,
        ignore_eos: bool,
        num_reused: usize,
        grammar: Option<Py<PyAny>>,
        logprobs: Option<usize>,
    ) -> PyResult<()> {
        let prompt = token_ids(prompt_ids, "prompt_ids")?;
        let prediction = prediction.map_or(Ok(vec![]), |ids| token_ids(&ids, "prediction"))?;
        let sampling = sampling.map(|sampling| sampling.0);
        if let Some(sampling) = &sampling {
            sampling.check_tokens(self.vocab_size)?; // before anything is changed
        }
        check_num_alternatives(logprobs.unwrap_or_default())?;
        let max_new_tokens = max_new_tokens.named("max_new_tokens")?;
        let limits = (max_new_tokens, &prediction[..], num_reused);
        detached(py, || self.core.begin_resumed(&prompt, limits.0, limits.1, limits.2))?;
        self.core.set_sampling(sampling)?;
        self.core.report_logprobs(logprobs)?;
        self.core.ignore_end_tokens(ignore_eos);
        if let Some(grammar) = grammar {
            let constraint = PyConstraint::new(grammar, self.raised.clone());
            self.grammar = constraint.grammar();
            self.core.constrain(Box::new(constraint));
        }
        Ok(())
    }

    #[doc = stub_doc!("Drafter.reads_prefill")]
    #[getter]
    fn reads_prefill(&self) -> bool {
        self.core.reads_prefill()
    }

    #[doc = stub_doc!("Drafter.prefilled")]
    fn prefilled(&mut self, logits: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = logits.py();
        let logits = self.logits(logits)?.try_readonly()?;
        let scores = logits.as_slice()?;
        // A chunk of the prompt: 15 ms for 256 rows of a large vocabulary.
        Ok(detached(py, || self.core.prefilled(scores))?)
    }

    #[doc = stub_doc!("Drafter.prefilled_top_k")]
    fn prefilled_top_k(
        &mut self,
        token_ids: &Bound<'_, PyAny>,
        probabilities: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (token_ids, probabilities) = reduced_rows(token_ids, probabilities)?;
        Ok(self.core.prefilled_top_k(&token_ids, &probabilities)?)
    }

    #[doc = stub_doc!("Drafter.model_pays")]
    #[pyo3(signature = (past_len, *, a_token=0.0, catching_up=0.0))]
    fn model_pays(
        &mut self,
        py: Python<'_>,
        past_len: Arg<usize>,
        a_token: f32,
        catching_up: f32,
    ) -> PyResult<bool> {
        let (past_len, price) = (past_len.named("past_len")?, ModelPrice { a_token, catching_up });
        let pays =
            detached_if(py, self.core.reads_disk(), || self.core.model_pays(past_len, price));
        pays.map_err(|error| self.raised.error(error))
    }

    #[doc = stub_doc!("Drafter.draft_room")]
    fn draft_room(&mut self, past_len: Arg<usize>) -> PyResult<(usize, usize)> {
        let room = self.core.draft_room(past_len.named("past_len")?);
        room.map_err(|error| self.raised.error(error))
    }

    #[doc = stub_doc!("Drafter.model_ran")]
    #[pyo3(signature = (cost, *, catching_up=0.0))]
    fn model_ran(&mut self, cost: f32, catching_up: f32) -> PyResult<()> {
        Ok(self.core.model_ran(cost, catching_up)?)
    }

    #[doc = stub_doc!("Drafter.propose")]
    #[pyo3(signature = (past_len, draft=None))]
    fn propose(
        &mut self,
        py: Python<'_>,
        past_len: Arg<usize>,
        draft: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<Py<PyStepInputs>> {
        let past_len = past_len.named("past_len")?;
        self.check_writeable(py)?;
        let step = match draft {
            None => detached_if(py, self.core.reads_disk(), || self.core.propose(past_len)),
            Some((tokens, parents)) => {
                let tokens = token_ids(&tokens, "token_ids of the draft")?;
                let parents = integers(&parents, "parents of the draft")?;
                self.core.propose_draft(past_len, &tokens, &parents)
            }
        };
        step.map_err(|error| self.raised.error(error))?;
        self.filled(py)
    }

    #[doc = stub_doc!("Drafter.offer")]
    fn offer(
        &mut self,
        py: Python<'_>,
        past_len: Arg<usize>,
    ) -> PyResult<(Py<PyArray1<f32>>, usize)> {
        let past_len = past_len.named("past_len")?;
        let offer = detached_if(py, self.core.reads_disk(), || self.core.offer(past_len));
        let offer = offer.map_err(|error| self.raised.error(error))?;
        Ok((PyArray1::from_vec(py, offer.worths).unbind(), offer.least))
    }

    #[doc = stub_doc!("Drafter.take")]
    #[pyo3(signature = (num_nodes, cost=None))]
    fn take(
        &mut self,
        py: Python<'_>,
        num_nodes: Arg<usize>,
        cost: Option<f32>,
    ) -> PyResult<Py<PyStepInputs>> {
        let num_nodes = num_nodes.named("num_nodes")?;
        self.check_writeable(py)?;
        self.core.take(num_nodes, cost)?;
        self.filled(py)
    }

    #[doc = stub_doc!("Drafter.accept")]
    fn accept(&mut self, logits: &Bound<'_, PyAny>) -> PyResult<PyAccepted> {
        let py = logits.py();
        let logits = self.logits(logits)?;
        let step = self.core.proposed_step().map(|(step, _)| self.step_inputs[step].clone_ref(py));
        let counts = step.as_ref().and_then(|step| step.borrow(py).experts_read);
        self.core.experts_read(counts.map(|(first_row, all)| StepReads { first_row, all }));
        let is_long = self.core.reads_disk() || self.core.num_scores_learned_from() >= LONG;
        let core = &mut self.core;
        let mut accept = |scores: &mut [f32]| detached_if(py, is_long, || core.accept(scores));
        let accepted = match logits.try_readwrite() {
            Ok(mut scores) => accept(scores.as_slice_mut()?),
            Err(_) => accept(&mut logits.try_readonly()?.as_slice()?.to_vec()),
        };
        let accepted = accepted.map_err(|error| self.raised.error(error))?;
        if let Some(step) = step {
            step.borrow_mut(py).experts_read = None;
        }
        Ok(PyAccepted::new(py, accepted, &self.core))
    }

    #[doc = stub_doc!("Drafter.accept_recorded")]
    #[pyo3(signature = (answer, rows=None))]
    fn accept_recorded(
        &mut self,
        py: Python<'_>,
        answer: &Bound<'_, PyAny>,
        rows: Option<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<PyAccepted> {
        let answer = token_ids(answer, "answer")?;
        let rows =
            rows.map(|(ids, probabilities)| reduced_rows(&ids, &probabilities)).transpose()?;
        let rows = rows.as_ref().map(|(ids, probabilities)| (&ids[..], &probabilities[..]));
        self.core.experts_read(None); // nothing has run
        let accepted = detached_if(py, self.core.reads_disk(), || {
            self.core.accept_recorded_rows(&answer, rows)
        });
        let accepted = accepted.map_err(|error| self.raised.error(error))?;
        Ok(PyAccepted::new(py, accepted, &self.core))
    }

    #[doc = stub_doc!("Drafter.end")]
    fn end(&mut self, py: Python<'_>) {
        detached(py, || self.core.end());
    }

    #[doc = stub_doc!("Drafter.draft_on")]
    fn draft_on(&self, wait_us: f64) -> bool {
        let _ = wait_us;
        false
    }

    #[doc = stub_doc!("Drafter.draft")]
    #[getter]
    fn draft(&self, py: Python<'_>) -> TreeArrays {
        tree_arrays(py, self.core.tree())
    }

    #[doc = stub_doc!("Drafter.node_sources")]
    #[getter]
    fn node_sources(&self) -> Vec<&'static str> {
        let origins = self.core.node_origins().into_iter();
        origins.map(|origin| self.core.origin_name(origin)).collect()
    }

    #[doc = stub_doc!("Drafter.finish_reason")]
    #[getter]
    fn finish_reason(&self) -> Option<&'static str> {
        self.core.finish_reason().map(FinishReason::name)
    }

    #[doc = stub_doc!("Drafter.num_carried")]
    #[getter]
    fn num_carried(&self) -> usize {
        self.core.carried().len()
    }

    #[doc = stub_doc!("Drafter.accept_histogram")]
    #[getter]
    fn accept_histogram(&self) -> Vec<usize> {
        self.core.statistics().accept_histogram.clone()
    }

    #[doc = stub_doc!("Drafter.per_source")]
    #[getter]
    fn per_source(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, usize>> {
        let counts = self.core.statistics().sources.iter();
        let forced = self.core.is_constrained().then_some(&self.core.statistics().forced);
        let forced = forced.map(|counts| (Origin::GRAMMAR, by_kind(counts)));
        self.core.source_names().zip(counts.map(by_kind)).chain(forced).collect()
    }

    #[doc = stub_doc!("Drafter.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.memory_bytes()
    }

    /// A grammar may hold what holds the drafter.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.grammar.upgrade().map_or(Ok(()), |grammar| visit.call(&*grammar))
    }
}
