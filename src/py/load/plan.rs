//! `plan` and `Plan` for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::block_cost::{PyBlockCost, profile};
use super::timetable::{PyAction, PyRun, actions, runs};
use crate::error::Result;
use crate::load::plan::{Held, Plan, Problem, Strategy, plan as plan_for};
use crate::load::prompt_rows as rows_for;
use crate::py::convert::non_negative;
use crate::py::errors::OptionError;

/// What is in memory at the start: one word for all blocks, or one for each.
#[derive(FromPyObject)]
enum Start {
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
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
fn plan(
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
        Start::All(word) => vec![Held::named(&word)?; profile.blocks().len()],
        Start::Each(words) => words.iter().map(|word| Held::named(word)).collect::<Result<_>>()?,
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
fn strategies(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for strategy in Strategy::ALL {
        all.set_item(strategy.name(), strategy.about())?;
    }
    Ok(all)
}

#[doc = stub_doc!("starts")]
#[pyfunction]
fn starts() -> Vec<&'static str> {
    Held::ALL.iter().map(|&(name, _)| name).collect()
}

#[doc = stub_doc!("prompt_rows")]
#[pyfunction]
#[pyo3(signature = (remaining, decode_rows, prefill_rows, *, every_row_costs))]
fn prompt_rows(
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

/// Adds the class and the functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPlan>()?;
    module.add_function(wrap_pyfunction!(strategies, module)?)?;
    module.add_function(wrap_pyfunction!(starts, module)?)?;
    module.add_function(wrap_pyfunction!(prompt_rows, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)
}
