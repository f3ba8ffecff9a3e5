//! The mask of layers with a sliding window: a row sees the last tokens only, by position.
//!
//! In: a draft tree and the number of committed tokens. Out: the caller's mask, filled in place.
//! What all of the context is seen by, and the rest of a step, is `step_inputs.rs`.

use crate::tree::draft_tree::DraftTree;
use crate::tree::mask::{MASKED, VISIBLE};

/// A mask in which a row at position `p` sees, of what it descends from, positions above
/// `p - window`: its own and the `window - 1` before it.
///
/// Depth counts, not rows: two branches of a tree have the same positions, and see equally far
/// back. A committed token's position is its slot.
///
/// A fill rewrites only what differs from the last one: as `StepInputs::fill`, and the slots that
/// have left a row's window or come back into it.
#[derive(Clone, Debug)]
pub(super) struct WindowMask {
    window: usize,
    attended: usize,
    /// Committed tokens at the last fill; `None` while the mask's content is unknown.
    filled_past_len: Option<usize>,
    /// The first slot that each row sees, as of the last fill.
    firsts: Vec<usize>,
}

impl WindowMask {
    /// Nothing filled yet, for `rows` rows over `attended` slots.
    pub(super) fn new(window: usize, rows: usize, attended: usize) -> Self {
        Self { window, attended, filled_past_len: None, firsts: vec![0; rows] }
    }

    /// Fills `mask` `(rows, attended)` for verifying `tree`: row `i` is node `i`, in slot
    /// `past_len + i`. Rows without a node are padding, as near as the root.
    pub(super) fn fill(&mut self, tree: &DraftTree, past_len: usize, mask: &mut [f32]) {
        let (stale, end) = match self.filled_past_len {
            Some(filled) => (filled.min(past_len), filled.max(past_len) + self.firsts.len()),
            None => (0, self.attended),
        };
        for (row, slots) in mask.chunks_exact_mut(self.attended).enumerate() {
            let first = first_seen(tree, row, past_len, self.window);
            let before = self.firsts[row];
            slots[before.min(first)..first].fill(MASKED);
            slots[first..before.max(first)].fill(VISIBLE);
            slots[stale..end].fill(MASKED);
            slots[stale.max(first)..past_len].fill(VISIBLE);
            slots[past_len + row] = VISIBLE;
            show_ancestors(tree, row, past_len, self.window, slots);
            self.firsts[row] = first;
        }
        self.filled_past_len = Some(past_len);
    }

    /// Fills `mask` for reading the nodes of `tree` from `from` on: row 0 is node `from`, in slot
    /// `past_len + from`. Cost: all of the mask.
    pub(super) fn fill_from(
        &mut self,
        tree: &DraftTree,
        from: usize,
        past_len: usize,
        mask: &mut [f32],
    ) {
        self.filled_past_len = None;
        self.firsts.fill(0);
        for (row, slots) in mask.chunks_exact_mut(self.attended).enumerate() {
            let node = from + row;
            let first = first_seen(tree, node, past_len, self.window);
            slots.fill(MASKED);
            slots[first..past_len].fill(VISIBLE);
            slots[past_len + node] = VISIBLE;
            show_ancestors(tree, node, past_len, self.window, slots);
        }
    }
}

/// The first committed slot that a node sees; `past_len` if it sees none.
fn first_seen(tree: &DraftTree, node: usize, past_len: usize, window: usize) -> usize {
    let depth = tree.depths().get(node).map_or(0, |&depth| depth as usize);
    (past_len + depth + 1).saturating_sub(window).min(past_len)
}

/// Lets a node see those of its ancestors that are in its window; padding has none.
fn show_ancestors(
    tree: &DraftTree,
    mut node: usize,
    past_len: usize,
    window: usize,
    slots: &mut [f32],
) {
    for _ in 1..window {
        if node == 0 || node >= tree.num_nodes() {
            break;
        }
        node = tree.parents()[node].index();
        slots[past_len + node] = VISIBLE;
    }
}
