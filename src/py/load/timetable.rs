//! Timetables for Python: runs and actions with every part by its name.

use pyo3::prelude::*;

use crate::ids::Graph;
use crate::load::timetable::{Action, Run, Timetable};
use crate::py::errors::OptionError;

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
