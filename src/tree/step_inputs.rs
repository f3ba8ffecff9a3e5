//! What the graph reads in a step: ids, positions, and what each row attends to, at fixed width.
//!
//! In: a draft tree and the number of committed tokens. Out: the caller's own buffers, filled in
//! place. Embeddings, rotary tables and the cache are the session's.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::tree::draft_tree::DraftTree;

/// Additive mask of a slot that a row sees.
pub const VISIBLE: f32 = 0.0;
/// Additive mask of a slot that a row does not see. Finite, so that no row's softmax is NaN, and
/// far enough below any score that its share underflows to an exact zero.
pub const MASKED: f32 = -1e4;

/// A step's buffers, owned by the caller.
#[derive(Debug)]
pub struct StepBuffers<'a> {
    /// Token ids, `(rows,) i64`.
    pub input_ids: &'a mut [i64],
    /// Positions, `(rows,) i64`: committed tokens plus the node's depth.
    pub position_ids: &'a mut [i64],
    /// Additive mask, `(rows, attended) f32` of [`VISIBLE`] and [`MASKED`]; empty where there is
    /// none.
    pub mask: &'a mut [f32],
    /// What takes the place of a mask; empty where there is one.
    pub path: PathBuffers<'a>,
}

/// What attention along the path reads (`src/ort`), of one sequence.
#[derive(Debug, Default)]
pub struct PathBuffers<'a> {
    /// Each node's parent, or -1 for the root, `(attended,) i32`; those of a step's nodes are written.
    pub parents: &'a mut [i32],
    /// Committed tokens, `(1,) i32`.
    pub lengths: &'a mut [i32],
    /// The node of row 0, and how many rows hold nodes, `(2,) i32`.
    pub span: &'a mut [i32],
}

/// The shape of a step, and how far its mask is filled.
///
/// Row `i` holds node `i`, which is written to cache slot `past_len + i` and sees the committed
/// slots `0..past_len`, the slots of its ancestors and its own. Rows without a node are padding:
/// token 0 at position 0.
///
/// Under a mask padding rows see the committed slots and their own, although nothing reads what
/// they compute: so the seen prefix is the same in all rows, and a row that turns from padding into a node costs nothing
/// extra. A fill rewrites only the columns between the last fill's `past_len` and the end of the
/// step: `rows * (rows + |past_len - last past_len|)` entries, whatever `past_len` is.
///
/// All fills of one `StepInputs` must be given the same buffers, and nobody else may write to
/// the mask.
#[derive(Clone, Debug)]
pub struct StepInputs {
    rows: usize,
    attended: usize,
    /// `past_len` of the last fill; `None` while the mask's content is unknown.
    filled_past_len: Option<usize>,
    num_nodes: usize,
    has_path: bool,
}

impl StepInputs {
    /// A step of `rows` rows, each with a mask over `attended` slots, nothing filled yet.
    ///
    /// Fails when `rows` is 0 or does not fit into `attended`.
    pub fn new(rows: usize, attended: usize) -> Result<Self> {
        if rows == 0 {
            let (what, must) = ("rows of a step", "at least 1");
            return Err(Error::BadOption { what, got: rows.to_string(), must });
        }
        if rows > attended {
            return Err(Error::StepOutOfRange { past_len: 0, rows, attended });
        }
        Ok(Self { rows, attended, filled_past_len: None, num_nodes: 0, has_path: false })
    }

    /// The same with paths in place of a mask.
    pub fn with_path(self) -> Self {
        Self { has_path: true, ..self }
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Slots that a row may see: those that the mask covers, or that the cache has.
    pub fn attended(&self) -> usize {
        self.attended
    }

    /// Rows that held a node at the last fill; the others are padding.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// Fills `buffers` for verifying `tree` after `past_len` committed tokens.
    ///
    /// Fails, before anything is written, when the tree has more nodes than the step has rows, the
    /// step reaches beyond the attended slots, or a buffer has another length than the step asks for.
    pub fn fill(
        &mut self,
        tree: &DraftTree,
        past_len: usize,
        buffers: StepBuffers<'_>,
    ) -> Result<()> {
        self.check(tree.num_nodes(), past_len, &buffers)?;
        let StepBuffers { input_ids, position_ids, mask, path } = buffers;
        self.num_nodes = tree.num_nodes();
        input_ids.fill(0);
        position_ids.fill(0);
        for (node, (token, depth)) in tree.token_ids().iter().zip(tree.depths()).enumerate() {
            input_ids[node] = i64::from(token.0);
            position_ids[node] = past_len as i64 + i64::from(*depth);
        }
        if self.has_path {
            path.fill(tree, 0..tree.num_nodes(), past_len);
            return Ok(());
        }
        self.fill_mask(tree.parents(), past_len, mask);
        Ok(())
    }

    /// Fills `buffers` for reading the nodes of `tree` from `first` on, where those before them have
    /// been read: node `i` stands in slot `past_len + i` whatever its depth, row 0 is node `first`.
    ///
    /// So a tree grows row by row, and a branch is left and taken up again without copies (EdgeLLM
    /// III-B). Cost: all of the mask, where there is one. Fails as [`fill`](Self::fill) does, for the rows and slots of
    /// the nodes that are to be read.
    pub fn fill_from(
        &mut self,
        tree: &DraftTree,
        first: usize,
        past_len: usize,
        buffers: StepBuffers<'_>,
    ) -> Result<()> {
        let nodes = first..tree.num_nodes().max(first);
        self.check(nodes.len(), past_len + first, &buffers)?;
        let StepBuffers { input_ids, position_ids, mask, path } = buffers;
        self.num_nodes = nodes.len();
        self.filled_past_len = None;
        input_ids.fill(0);
        position_ids.fill(0);
        for (row, node) in nodes.clone().enumerate() {
            input_ids[row] = i64::from(tree.token_ids()[node].0);
            position_ids[row] = past_len as i64 + i64::from(tree.depths()[node]);
        }
        if self.has_path {
            path.fill(tree, nodes, past_len);
            return Ok(());
        }
        for (row, slots) in mask.chunks_exact_mut(self.attended).enumerate() {
            slots[..past_len].fill(VISIBLE);
            slots[past_len..].fill(MASKED);
            slots[past_len + first + row] = VISIBLE;
            let Some(mut node) = nodes.clone().nth(row) else { continue };
            while node > 0 {
                node = tree.parents()[node].index();
                slots[past_len + node] = VISIBLE;
            }
        }
        Ok(())
    }

    fn fill_mask(&mut self, parents: &[NodeId], past_len: usize, mask: &mut [f32]) {
        let (stale, end) = match self.filled_past_len {
            Some(filled) => (filled.min(past_len), filled.max(past_len) + self.rows),
            None => (0, self.attended),
        };
        mask[stale..past_len].fill(VISIBLE);
        mask[past_len..end].fill(MASKED);
        mask[past_len] = VISIBLE;
        for row in 1..self.rows {
            // A node sees what its parent sees, and itself; padding what the root sees, but for it.
            let start = row * self.attended;
            let seen = parents.get(row).map_or(0, |parent| parent.index() * self.attended);
            mask.copy_within(seen + stale..seen + end, start + stale);
            if row >= parents.len() {
                mask[start + past_len] = MASKED;
            }
            mask[start + past_len + row] = VISIBLE;
        }
        self.filled_past_len = Some(past_len);
    }

    fn check(&self, nodes: usize, past_len: usize, buffers: &StepBuffers<'_>) -> Result<()> {
        let Self { rows, attended, .. } = *self;
        if nodes > rows {
            return Err(Error::TooManyNodes { nodes, rows });
        }
        if past_len > attended - rows {
            return Err(Error::StepOutOfRange { past_len, rows, attended });
        }
        let mask_len = if self.has_path { 0 } else { rows * attended };
        let path_len = |len| if self.has_path { len } else { 0 };
        for (what, got, expected) in [
            ("input_ids", buffers.input_ids.len(), rows),
            ("position_ids", buffers.position_ids.len(), rows),
            ("mask", buffers.mask.len(), mask_len),
            ("parents", buffers.path.parents.len(), path_len(attended)),
            ("lengths", buffers.path.lengths.len(), path_len(1)),
            ("span", buffers.path.span.len(), path_len(2)),
        ] {
            if got != expected {
                return Err(Error::WrongLength { what, got, expected });
            }
        }
        Ok(())
    }
}

impl PathBuffers<'_> {
    /// Fills them for running the nodes of `rows`; those before have been run.
    fn fill(self, tree: &DraftTree, rows: Range<usize>, past_len: usize) {
        for (written, parent) in self.parents.iter_mut().zip(&tree.parents()[..rows.end]) {
            *written = parent.index() as i32;
        }
        self.parents[0] = -1;
        self.lengths[0] = past_len as i32;
        self.span.copy_from_slice(&[rows.start as i32, rows.len() as i32]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TokenId;
    use crate::tree::draft_tree::strategies;

    const ROWS: usize = 6;
    const ATTENDED: usize = 20;

    struct Buffers(Vec<i64>, Vec<i64>, Vec<f32>);

    impl Buffers {
        fn new() -> Self {
            Self(vec![-1; ROWS], vec![-1; ROWS], vec![f32::NAN; ROWS * ATTENDED])
        }

        fn lend(&mut self) -> StepBuffers<'_> {
            let Self(input_ids, position_ids, mask) = self;
            StepBuffers { input_ids, position_ids, mask, path: PathBuffers::default() }
        }
    }

    fn sees(tree: &DraftTree, past_len: usize, row: usize, slot: usize) -> bool {
        let mut ancestors = vec![row];
        if row < tree.num_nodes() {
            while ancestors[ancestors.len() - 1] != 0 {
                ancestors.push(tree.parents()[ancestors[ancestors.len() - 1]].index());
            }
        }
        slot < past_len || ancestors.contains(&(slot - past_len))
    }

    proptest! {
        #[test]
        fn refilled_buffers_equal_a_naive_fill(
            steps in prop::collection::vec(
                (strategies::tree(ROWS), 0..=ATTENDED - ROWS), 1..8)
        ) {
            let mut inputs = StepInputs::new(ROWS, ATTENDED).unwrap();
            let mut buffers = Buffers::new();
            for (tree, past_len) in &steps {
                inputs.fill(tree, *past_len, buffers.lend()).unwrap();
                for row in 0..ROWS {
                    let token = tree.token_ids().get(row).map_or(0, |token| i64::from(token.0));
                    let position =
                        tree.depths().get(row).map_or(0, |depth| (*past_len + *depth as usize) as i64);
                    prop_assert_eq!((buffers.0[row], buffers.1[row]), (token, position));
                    for slot in 0..ATTENDED {
                        let expected = if sees(tree, *past_len, row, slot) { VISIBLE } else { MASKED };
                        prop_assert_eq!(buffers.2[row * ATTENDED + slot], expected);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_tree_read_in_parts_sees_what_it_sees_whole(
            tree in strategies::tree(ROWS),
            first: prop::sample::Index,
            past_len in 0..=ATTENDED - 2 * ROWS,
            whole_before in any::<bool>(),
        ) {
            let first = first.index(tree.num_nodes());
            let (mut inputs, mut buffers) = (StepInputs::new(ROWS, ATTENDED).unwrap(), Buffers::new());
            if whole_before {
                inputs.fill(&tree, past_len + 1, buffers.lend()).unwrap();
            }
            inputs.fill_from(&tree, first, past_len, buffers.lend()).unwrap();
            prop_assert_eq!(inputs.num_nodes(), tree.num_nodes() - first);
            for node in first..tree.num_nodes() {
                let row = node - first;
                prop_assert_eq!(buffers.0[row], i64::from(tree.token_ids()[node].0));
                prop_assert_eq!(buffers.1[row], (past_len + tree.depths()[node] as usize) as i64);
                for slot in 0..ATTENDED {
                    let expected = if sees(&tree, past_len, node, slot) { VISIBLE } else { MASKED };
                    prop_assert_eq!(buffers.2[row * ATTENDED + slot], expected);
                }
            }
            inputs.fill(&tree, past_len, buffers.lend()).unwrap();
            for slot in 0..ATTENDED {
                let expected = if sees(&tree, past_len, 0, slot) { VISIBLE } else { MASKED };
                prop_assert_eq!(buffers.2[slot], expected);
            }
        }
    }

    proptest! {
        #[test]
        fn a_path_is_that_of_the_tree(
            tree in strategies::tree(ROWS),
            first: prop::sample::Index,
            past_len in 0..=ATTENDED - 2 * ROWS,
        ) {
            let mut inputs = StepInputs::new(ROWS, ATTENDED).unwrap().with_path();
            let (mut ids, mut positions) = ([-1; ROWS], [-1; ROWS]);
            let (mut parents, mut lengths, mut span) = ([9; ATTENDED], [9], [9; 2]);
            let first = first.index(tree.num_nodes());
            for first in [0, first] {
                let buffers = StepBuffers {
                    input_ids: &mut ids,
                    position_ids: &mut positions,
                    mask: &mut [],
                    path: PathBuffers {
                        parents: &mut parents,
                        lengths: &mut lengths,
                        span: &mut span,
                    },
                };
                match first {
                    0 => inputs.fill(&tree, past_len, buffers).unwrap(),
                    _ => inputs.fill_from(&tree, first, past_len, buffers).unwrap(),
                }
                prop_assert_eq!(lengths, [past_len as i32]);
                prop_assert_eq!(span, [first as i32, (tree.num_nodes() - first) as i32]);
                prop_assert_eq!(parents[0], -1);
                for (written, parent) in parents.iter().zip(tree.parents()).skip(1) {
                    prop_assert_eq!(*written, parent.index() as i32);
                }
                for node in first..tree.num_nodes() {
                    prop_assert_eq!(ids[node - first], i64::from(tree.token_ids()[node].0));
                    let position = past_len + tree.depths()[node] as usize;
                    prop_assert_eq!(positions[node - first], position as i64);
                }
            }
        }
    }

    #[test]
    fn a_refused_fill_writes_nothing() {
        let mut inputs = StepInputs::new(ROWS, ATTENDED).unwrap();
        let mut buffers = Buffers::new();
        let tree = DraftTree::new(TokenId(1));
        let refused = inputs.fill(&tree, ATTENDED - ROWS + 1, buffers.lend());
        let past_len = ATTENDED - ROWS + 1;
        let expected = Error::StepOutOfRange { past_len, rows: ROWS, attended: ATTENDED };
        assert_eq!(refused, Err(expected));
        assert!(buffers.2.iter().all(|entry| entry.is_nan()));
        let wide = DraftTree::from_arrays(&[TokenId(1); ROWS + 1], &[0; ROWS + 1]).unwrap();
        let refused = inputs.fill(&wide, 0, buffers.lend());
        assert_eq!(refused, Err(Error::TooManyNodes { nodes: ROWS + 1, rows: ROWS }));
        let refused = inputs.fill_from(&wide, 1, ATTENDED - ROWS, buffers.lend());
        let past_len = ATTENDED - ROWS + 1;
        assert_eq!(
            refused,
            Err(Error::StepOutOfRange { past_len, rows: ROWS, attended: ATTENDED })
        );
        assert!(buffers.0.iter().all(|&id| id == -1));
    }
}
