//! `plan` and `Plan` for Python.

use pyo3::prelude::*;

use super::convert::non_negative;
use crate::error::Result;
use crate::load::plan::{Held, Plan, Problem, Strategy, plan as plan_for};
use crate::load::profile::{BlockCost, GraphCost, Profile};
use crate::load::timetable::ActionKind;

/// Load time, compute time and bytes under G1, then under G2.
type BlockFigures = (i128, i128, i128, i128, i128, i128);
/// Block, chunk, graph, start, end.
type RunTuple = (u32, usize, &'static str, u64, u64);
/// Kind, block, graph, runs that are over before, start, end.
type ActionTuple = (&'static str, u32, &'static str, usize, u64, u64);

/// What is in memory at the start: one word for all blocks, or one for each.
#[derive(FromPyObject)]
enum Start {
    All(String),
    Each(Vec<String>),
}

/// What is loaded and released when, and what it comes to.
#[pyclass(name = "Plan", module = "coordgen_rs._core", frozen)]
pub struct PyPlan {
    pub(super) core: Plan,
}

#[pymethods]
impl PyPlan {
    #[getter]
    fn strategy(&self) -> &'static str {
        self.core.strategy.name()
    }

    #[getter]
    fn makespan_us(&self) -> u64 {
        self.core.makespan_us
    }

    #[getter]
    fn prefill_us(&self) -> u64 {
        self.core.prefill_us
    }

    #[getter]
    fn exposed_load_us(&self) -> u64 {
        self.core.exposed_load_us
    }

    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.core.peak_bytes
    }

    #[getter]
    fn lower_bound_us(&self) -> u64 {
        self.core.lower_bound_us
    }

    #[getter]
    fn num_blocks(&self) -> usize {
        self.core.timetable.num_blocks
    }

    #[getter]
    fn runs(&self) -> Vec<RunTuple> {
        let runs = self.core.timetable.runs.iter();
        runs.map(|run| (run.block.0, run.chunk, run.graph.name(), run.start_us, run.end_us))
            .collect()
    }

    #[getter]
    fn actions(&self) -> Vec<ActionTuple> {
        let actions = self.core.timetable.actions.iter();
        actions
            .map(|action| {
                let kind = match action.kind {
                    ActionKind::Load => "load",
                    ActionKind::Release => "release",
                };
                let (block, graph) = (action.block.0, action.graph.name());
                (kind, block, graph, action.after_runs, action.start_us, action.end_us)
            })
            .collect()
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

/// The plan that a strategy makes for a prompt.
#[pyfunction]
#[pyo3(
    signature = (
        blocks, prefill_rows, decode_rows, num_tokens, *,
        strategy = "auto", start = Start::All("prefill".into()), memory_budget = None
    ),
    text_signature = "(blocks, prefill_rows, decode_rows, num_tokens, *, \
        strategy='auto', start='prefill', memory_budget=None)"
)]
fn plan(
    blocks: Vec<BlockFigures>,
    prefill_rows: i128,
    decode_rows: i128,
    num_tokens: i128,
    strategy: &str,
    start: Start,
    memory_budget: Option<i128>,
) -> PyResult<PyPlan> {
    let strategy = Strategy::named(strategy)?;
    let profile = Profile::new(
        blocks.into_iter().map(block_cost).collect::<Result<_>>()?,
        non_negative("prefill_rows", prefill_rows)?,
        non_negative("decode_rows", decode_rows)?,
    )?;
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
    Ok(PyPlan { core: plan_for(strategy, &problem)? })
}

fn block_cost(figures: BlockFigures) -> Result<BlockCost> {
    let (load1, compute1, bytes1, load2, compute2, bytes2) = figures;
    let graph = |load, compute, bytes| -> Result<GraphCost> {
        Ok(GraphCost {
            load_us: non_negative("load_us", load)?,
            compute_us: non_negative("compute_us", compute)?,
            num_bytes: non_negative("num_bytes", bytes)?,
        })
    };
    Ok(BlockCost {
        prefill: graph(load1, compute1, bytes1)?,
        decode: graph(load2, compute2, bytes2)?,
    })
}

/// Adds the class and the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPlan>()?;
    module.add_function(wrap_pyfunction!(plan, module)?)
}
