//! Where the graphs of blocks come from and go to: what a loader asks for. In: a block and a graph.
//! Out: that it can run, or why not. When which is loaded is the switcher's and the loader's.

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
