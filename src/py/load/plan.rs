//! `plan` and `Plan` for Python: a timetable is its runs and actions, with every part by its name.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::block_cost::{PyBlockCost, profile};
use crate::error::Result;
use crate::ids::Graph;
use crate::load::plan::{Plan, Problem, ResidentGraphs, Strategy, plan as plan_for};
use crate::load::prompt_rows as rows_for;
use crate::load::timetable::{Action, Run, Timetable};
use crate::py::convert::non_negative;
use crate::py::errors::OptionError;

/// What is in memory at the start: one word for all blocks, or one for each.
#[derive(FromPyObject)]
pub enum Start {
    All(String),
    Each(Vec<String>),
}

#[doc = stub_doc!("Plan")]
#[pyclass(name = "Plan", module = "coordgen_rs._core", frozen)]
pub struct PyPlan {
    pub(super) core: Plan,
}

impl PyPlan {
    /// Its figures, without the timetable.
    pub(super) fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = PyDict::new(py);
        for (name, figure) in [
            ("makespan_us", self.core.makespan_us),
            ("prefill_us", self.core.prefill_us),
            ("exposed_load_us", self.core.exposed_load_us),
            ("peak_bytes", self.core.peak_bytes),
            ("lower_bound_us", self.core.lower_bound_us),
        ] {
            figures.set_item(name, figure)?;
        }
        Ok(figures)
    }
}

#[pymethods]
impl PyPlan {
    #[doc = stub_doc!("Plan.strategy")]
    #[getter]
    fn strategy(&self) -> &'static str {
        self.core.strategy.name()
    }

    #[doc = stub_doc!("Plan.makespan_us")]
    #[getter]
    fn makespan_us(&self) -> u64 {
        self.core.makespan_us
    }

    #[doc = stub_doc!("Plan.prefill_us")]
    #[getter]
    fn prefill_us(&self) -> u64 {
        self.core.prefill_us
    }

    #[doc = stub_doc!("Plan.exposed_load_us")]
    #[getter]
    fn exposed_load_us(&self) -> u64 {
        self.core.exposed_load_us
    }

    #[doc = stub_doc!("Plan.peak_bytes")]
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.core.peak_bytes
    }

    #[doc = stub_doc!("Plan.lower_bound_us")]
    #[getter]
    fn lower_bound_us(&self) -> u64 {
        self.core.lower_bound_us
    }

    #[doc = stub_doc!("Plan.num_blocks")]
    #[getter]
    fn num_blocks(&self) -> usize {
        self.core.timetable.num_blocks
    }

    #[doc = stub_doc!("Plan.runs")]
    #[getter]
    fn runs(&self) -> Vec<PyRun> {
        runs(&self.core.timetable)
    }

    #[doc = stub_doc!("Plan.actions")]
    #[getter]
    fn actions(&self) -> Vec<PyAction> {
        actions(&self.core.timetable)
    }

    fn __repr__(&self) -> String {
        format!(
            "Plan({}, makespan {} us, prefill {} us, peak {} bytes)",
            self.core.strategy.name(),
            self.core.makespan_us,
            self.core.prefill_us,
            self.core.peak_bytes
        )
    }
}

#[doc = stub_doc!("plan")]
#[pyfunction]
#[pyo3(
    signature = (
        blocks, prefill_rows, decode_rows, num_tokens, *,
        strategy = "auto", start = Start::All("prefill".into()), memory_budget = None
    ),
    text_signature = "(blocks, prefill_rows, decode_rows, num_tokens, *, \
        strategy='auto', start='prefill', memory_budget=None)"
)]
pub fn plan(
    py: Python<'_>,
    blocks: Vec<PyBlockCost>,
    prefill_rows: i128,
    decode_rows: i128,
    num_tokens: i128,
    strategy: &str,
    start: Start,
    memory_budget: Option<i128>,
) -> PyResult<PyPlan> {
    let strategy = Strategy::named(strategy)?;
    let profile = profile(blocks, prefill_rows, decode_rows)?;
    let start = match start {
        Start::All(word) => vec![ResidentGraphs::named(&word)?; profile.blocks().len()],
        Start::Each(words) => {
            words.iter().map(|word| ResidentGraphs::named(word)).collect::<Result<_>>()?
        }
    };
    let problem = Problem {
        profile: &profile,
        num_tokens: non_negative("the number of prompt tokens", num_tokens)?,
        start,
        memory_budget: memory_budget
            .map(|bytes| non_negative("memory_budget", bytes))
            .transpose()?,
    };
    Ok(PyPlan { core: py.detach(|| plan_for(strategy, &problem))? })
}

#[doc = stub_doc!("strategies")]
#[pyfunction]
pub fn strategies(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for strategy in Strategy::ALL {
        all.set_item(strategy.name(), strategy.about())?;
    }
    Ok(all)
}

#[doc = stub_doc!("starts")]
#[pyfunction]
pub fn starts() -> Vec<&'static str> {
    ResidentGraphs::ALL.iter().map(|&(name, _)| name).collect()
}

#[doc = stub_doc!("prompt_rows")]
#[pyfunction]
#[pyo3(signature = (remaining, decode_rows, prefill_rows, *, every_row_costs))]
pub fn prompt_rows(
    remaining: usize,
    decode_rows: Vec<usize>,
    prefill_rows: Option<usize>,
    every_row_costs: bool,
) -> PyResult<Option<usize>> {
    if decode_rows.is_empty() {
        return Err(OptionError::new_err("decode_rows is empty, but must hold a width"));
    }
    Ok(rows_for(remaining, &decode_rows, prefill_rows, every_row_costs))
}

#[doc = stub_doc!("Run")]
#[pyclass(name = "Run", module = "coordgen_rs._core", frozen, get_all)]
pub struct PyRun {
    block: u32,
    chunk: usize,
    graph: &'static str,
    start_us: u64,
    end_us: u64,
}

#[pymethods]
impl PyRun {
    fn __repr__(&self) -> String {
        let Self { block, chunk, graph, start_us, end_us } = self;
        format!("Run(block {block}, chunk {chunk}, {graph}, {start_us} to {end_us} us)")
    }
}

#[doc = stub_doc!("Action")]
#[pyclass(name = "Action", module = "coordgen_rs._core", frozen, get_all)]
pub struct PyAction {
    kind: &'static str,
    block: u32,
    graph: &'static str,
    after_runs: usize,
    start_us: u64,
    end_us: u64,
}

#[pymethods]
impl PyAction {
    fn __repr__(&self) -> String {
        let Self { kind, block, graph, after_runs, start_us, end_us } = self;
        format!(
            "Action({kind} block {block}, {graph}, after {after_runs} runs, {start_us} to {end_us} us)"
        )
    }
}

/// The runs of a timetable.
pub fn runs(timetable: &Timetable) -> Vec<PyRun> {
    let of = |run: &Run| {
        let Run { block, chunk, graph, start_us, end_us } = *run;
        PyRun { block: block.0, chunk, graph: graph.name(), start_us, end_us }
    };
    timetable.runs.iter().map(of).collect()
}

/// The actions of a timetable.
pub fn actions(timetable: &Timetable) -> Vec<PyAction> {
    let of = |action: &Action| {
        let Action { kind, block, graph, after_runs, start_us, end_us } = *action;
        let (kind, graph) = (kind.name(), graph.name());
        PyAction { kind, block: block.0, graph, after_runs, start_us, end_us }
    };
    timetable.actions.iter().map(of).collect()
}

/// The graph of that name.
pub fn graph(name: &str) -> PyResult<Graph> {
    Graph::BOTH.into_iter().find(|graph| graph.name() == name).ok_or_else(|| {
        let known = Graph::BOTH.map(Graph::name).join(", ");
        OptionError::new_err(format!("graph is {name:?}, but must be one of {known}"))
    })
}
