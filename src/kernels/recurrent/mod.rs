//! Recurrent layers along draft trees: a row starts from the state behind its parent.
//!
//! In: rows, the nodes that they are of, which nodes of the last tree were committed since; states and
//! updates. Out: what each row gives, states with what is committed, and the rows' updates. The bits of
//! a row, and of a state, depend on the tokens of a path alone: not on siblings, other sequences, the
//! number of rows, whether they were read or drafted, tasks or the processor.
//!
//! # What a run does
//!
//! A sequence's state is of some committed tokens. In a *step* its rows are a tree: they leave the
//! state as it is, and are kept as updates, a small fraction of a state each. The next run is told which of
//! them were committed, and applies those first, in the same pass over the state. A state that has
//! them already is left alone, so that a run which failed in another layer can be repeated. In a *read* a
//! sequence's rows are a chain that will be committed whole: each is applied as it is computed, and the
//! state before is kept, so that a run which failed can be undone.
//!
//! A chain gives the same bits whether it is read, in parts or at once, or drafted row by row.
//!
//! | file | |
//! |---|---|
//! | `run.rs` | the contract: what is applied, what is refused |
//! | `states.rs`, `updates.rs` | the buffers |
//! | `convolution.rs` | causal convolutions |
//! | `heads.rs`, `task.rs`, `walk.rs`, `tile.rs` | layers whose heads hold a matrix each: their sizes, a task, its way through the tree, the innermost loop |
//! | `delta.rs`, `selective.rs` | two such layers |
//! | `rows.rs` | columns of rows, gated norms |
//!
//! Unsafe: states, updates and outputs are written by several threads through pointers, each head or
//! channel by one; all else is slices whose lengths are checked when a step is made.
#![allow(unsafe_code)]

mod convolution;
mod delta;
mod heads;
mod rows;
mod run;
mod selective;
mod states;
mod task;
mod tile;
mod updates;
mod walk;

pub use self::convolution::{CausalConvolution, Step as ConvolutionStep, convolve};
pub use self::delta::GatedDelta;
pub use self::heads::{Heads, Rule, Step as HeadsStep};
pub use self::rows::Rows;
pub use self::run::{RecurrentError, Run, Sizes, Tree};
pub use self::selective::{SelectiveUpdate, norm_rows};
pub use self::states::{States, applied, half_bytes, restore, undo};
pub use self::task::compute_head;
pub use self::updates::{Updates, updates_bytes};

#[cfg(test)]
mod tests;
