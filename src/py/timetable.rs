//! Timetables and block costs as tuples of Python.

use pyo3::prelude::*;

use super::convert::non_negative;
use super::errors::OptionError;
use crate::error::Result;
use crate::ids::BlockId;
use crate::load::profile::{BlockCost, Graph, GraphCost, Profile};
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

/// `(block, chunk, graph, start_us, end_us)`.
pub type RunTuple<Name = &'static str> = (u32, usize, Name, u64, u64);
/// `(kind, block, graph, after_runs, start_us, end_us)`.
pub type ActionTuple<Name = &'static str> = (Name, u32, Name, usize, u64, u64);
/// Load time, compute time and bytes under G1, then under G2.
pub type BlockFigures = (i128, i128, i128, i128, i128, i128);

/// The runs of a timetable.
pub fn runs(timetable: &Timetable) -> Vec<RunTuple> {
    let tuple = |run: &Run| (run.block.0, run.chunk, run.graph.name(), run.start_us, run.end_us);
    timetable.runs.iter().map(tuple).collect()
}

/// The actions of a timetable.
pub fn actions(timetable: &Timetable) -> Vec<ActionTuple> {
    let tuple = |action: &Action| {
        let Action { kind, block, graph, after_runs, start_us, end_us } = *action;
        (kind.name(), block.0, graph.name(), after_runs, start_us, end_us)
    };
    timetable.actions.iter().map(tuple).collect()
}

/// A timetable from its tuples.
pub fn timetable(
    num_blocks: usize,
    runs: Vec<RunTuple<String>>,
    actions: Vec<ActionTuple<String>>,
) -> PyResult<Timetable> {
    let run = |(block, chunk, name, start_us, end_us): RunTuple<String>| {
        Ok(Run { block: BlockId(block), chunk, graph: graph(&name)?, start_us, end_us })
    };
    let action = |(kind, block, name, after_runs, start_us, end_us): ActionTuple<String>| {
        let kind = named(&kind, "kind", &ActionKind::BOTH, ActionKind::name)?;
        let (block, graph) = (BlockId(block), graph(&name)?);
        Ok(Action { kind, block, graph, after_runs, start_us, end_us })
    };
    let runs = runs.into_iter().map(run).collect::<PyResult<_>>()?;
    let actions = actions.into_iter().map(action).collect::<PyResult<_>>()?;
    Ok(Timetable { num_blocks, runs, actions })
}

/// The graph of that name.
pub fn graph(name: &str) -> PyResult<Graph> {
    named(name, "graph", &Graph::BOTH, Graph::name)
}

/// A profile from figures of each block.
pub fn profile(
    blocks: Vec<BlockFigures>,
    prefill_rows: i128,
    decode_rows: i128,
) -> Result<Profile> {
    Profile::new(
        blocks.into_iter().map(block_cost).collect::<Result<_>>()?,
        non_negative("prefill_rows", prefill_rows)?,
        non_negative("decode_rows", decode_rows)?,
    )
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

fn named<T: Copy>(
    name: &str,
    what: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> PyResult<T> {
    all.iter().copied().find(|&one| name_of(one) == name).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|&one| name_of(one)).collect();
        OptionError::new_err(format!("{what} is {name:?}, but must be one of {}", known.join(", ")))
    })
}
