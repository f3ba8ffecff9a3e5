//! Which graph of a block is in memory when: what a device costs, what to do when, doing it. Graphs come
//! from a [`BlockStore`].
//!
//! Where nothing has to be loaded, [`prompt_rows`] cuts a prompt into runs so that the rows that are paid
//! for are rows that are used.

pub mod experts;
pub mod loader;
pub mod plan;
pub mod profile;
pub mod stream;
pub mod switcher;
pub mod timetable;

use crate::ids::{BlockId, Graph};

/// Brings graphs of blocks into memory, and drops them.
///
/// `load` and `release` are called from the loader's thread, one at a time, while other blocks
/// compute. A panic in `load` counts as its failure; after one in `release` the graph counts as
/// released.
pub trait BlockStore: Send + Sync {
    /// Loads a graph; returns when it can run. Fails with a reason, and then nothing stays behind.
    fn load(&self, block: BlockId, graph: Graph) -> Result<(), String>;

    /// Drops a loaded graph.
    fn release(&self, block: BlockId, graph: Graph);

    /// Whether a wait for the loader goes on; if not, it fails with
    /// [`WaitInterrupted`](crate::Error::WaitInterrupted). Asked on the thread that waits, about
    /// twenty times a second.
    fn keep_waiting(&self) -> bool {
        true
    }
}

/// The decode graph, by its rows, that computes the next of `remaining` tokens; `None` for the
/// prefill graph.
///
/// `decode_rows` ascend, and there is one at least. `prefill_rows` is `None` where the prefill graph
/// is not to be used. Where every row costs time, as on a CPU, it runs full chunks only; elsewhere a
/// run costs about the same however few of its rows are used, so it runs all that one step cannot.
///
/// ```
/// use coordgen_rs::load::prompt_rows;
///
/// let decode_rows = [1, 8, 32];
/// assert_eq!(prompt_rows(300, &decode_rows, Some(256), true), None);
/// assert_eq!(prompt_rows(44, &decode_rows, Some(256), true), Some(32));
/// assert_eq!(prompt_rows(12, &decode_rows, Some(256), true), Some(32));
/// assert_eq!(prompt_rows(44, &decode_rows, Some(256), false), None);
/// ```
pub fn prompt_rows(
    remaining: usize,
    decode_rows: &[usize],
    prefill_rows: Option<usize>,
    every_row_costs: bool,
) -> Option<usize> {
    let widest = *decode_rows.last().expect("a session has a decode graph");
    let least = prefill_rows.map(|rows| if every_row_costs { rows } else { widest + 1 });
    if least.is_some_and(|least| remaining >= least) {
        return None;
    }
    Some(decode_rows.iter().copied().find(|&rows| rows >= remaining).unwrap_or(widest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_narrowest_graph_that_holds_the_rest_is_taken_else_the_widest(
            remaining in 1usize..600,
            rows in proptest::collection::btree_set(1usize..64, 1..5),
            prefill_rows in 64usize..256,
            every_row_costs: bool,
        ) {
            let rows: Vec<_> = rows.into_iter().collect();
            let widest = rows[rows.len() - 1];
            match prompt_rows(remaining, &rows, Some(prefill_rows), every_row_costs) {
                None if every_row_costs => prop_assert!(remaining >= prefill_rows),
                None => prop_assert!(remaining > widest),
                Some(taken) if taken < remaining => prop_assert_eq!(taken, widest),
                Some(taken) => prop_assert!(rows.iter().all(|&r| r >= taken || r < remaining)),
            }
            prop_assert!(prompt_rows(remaining, &rows, None, every_row_costs).is_some());
        }
    }
}
