//! A plan, written out: which block computes when under which graph, and what is loaded and
//! released meanwhile. In: what a planner decided. Out: what a loader carries out, a simulator
//! checks and a plot shows. It decides nothing.
//!
//! There are two lanes. Compute does the runs one after another; the loader does the actions one
//! after another. A run needs its graph loaded; an action waits until `after_runs` runs are over.

use crate::ids::{BlockId, Graph};

/// One block computes one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The block.
    pub block: BlockId,
    /// Number of the chunk, from 0.
    pub chunk: usize,
    /// The graph that it is planned to run under.
    pub graph: Graph,
    /// Planned start, microseconds from the start of the prefill.
    pub start_us: u64,
    /// Planned end.
    pub end_us: u64,
}

/// What the loader does with a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// Bring it into memory.
    Load,
    /// Drop it; takes no time in a plan.
    Release,
}

impl ActionKind {
    /// The name in timetables and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Release => "release",
        }
    }
}

/// One act of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// What is done.
    pub kind: ActionKind,
    /// The block.
    pub block: BlockId,
    /// The graph of it.
    pub graph: Graph,
    /// Number of runs, from the first, that must be over before it starts.
    pub after_runs: usize,
    /// Planned start, microseconds from the start of the prefill.
    pub start_us: u64,
    /// Planned end.
    pub end_us: u64,
}

/// A plan for one prompt.
///
/// Its order holds, its clock need not: runs stand in the order in which compute does them, actions
/// in the order in which the loader does them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// Number of blocks.
    pub num_blocks: usize,
    /// Chunk after chunk, in each of them block after block.
    pub runs: Vec<Run>,
    /// All loads and releases.
    pub actions: Vec<Action>,
}

impl Timetable {
    /// No runs, and the same done at once to each of `graphs`, in their order.
    pub fn immediate(num_blocks: usize, kind: ActionKind, graphs: &[(BlockId, Graph)]) -> Self {
        let action =
            |&(block, graph)| Action { kind, block, graph, after_runs: 0, start_us: 0, end_us: 0 };
        Self { num_blocks, runs: Vec::new(), actions: graphs.iter().map(action).collect() }
    }
}

impl Run {
    /// Microseconds that it is planned to take.
    pub fn duration_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }
}

impl Action {
    /// Microseconds that it is planned to take.
    pub fn duration_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }
}
