//! A tree by ranks: which of its parent's successors each node is, whatever tokens they turn out to
//! be. In: a source. Out: a draft tree of that shape.
//!
//! The shape of a method that keeps one: Token Recycling's, the same in every step, is here; others
//! decide on theirs.

use crate::draft::choose::acceptance::{Agreement, Proposal};
use crate::draft::source::{Cursor, Propose, Successor};
use crate::ids::NodeId;
use crate::tree::draft_tree::DraftTree;

/// A node of the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankedNode {
    /// Index of the parent; `None` for the children of the root.
    pub parent: Option<usize>,
    /// Which of the parent's successors it is, likeliest first, from 0.
    pub rank: usize,
}

/// A shape: nodes below a root, parents before children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankedTree {
    /// The nodes, the root excluded.
    pub nodes: Vec<RankedNode>,
}

/// A node of the shape, with its token.
#[derive(Clone, Copy, Debug)]
struct Filled {
    successor: Successor,
    proposal: Proposal,
    depth: usize,
    on_first_path: bool,
}

impl RankedTree {
    /// Appends the nodes of the shape to `tree`, which is a chain so far, below its last node.
    /// `start` is the cursor of `source` at that node, `source_index` its number in the drafter.
    ///
    /// Nodes whose rank the source does not reach are left out, and what is below them; and so are
    /// nodes below `depth`, and from the last on those that exceed `max_nodes` of the whole tree.
    /// Nodes on the first path stand first. Cost: a look-up for each inner node.
    pub fn fill(
        &self,
        (source_index, source): (usize, &dyn Propose),
        start: Cursor,
        (max_nodes, depth): (usize, usize),
        tree: &mut DraftTree,
        proposals: &mut Vec<Option<Proposal>>,
    ) {
        let below = NodeId(tree.num_nodes() as u32 - 1);
        let start_depth = tree.depths()[below.index()] as usize;
        let filled = self.filled((source_index, source), start, depth.saturating_sub(start_depth));
        let room = max_nodes.saturating_sub(tree.num_nodes());
        let in_use = filled.iter().flatten().count().min(room);
        let mut places = vec![below; self.nodes.len()];
        for on_first_path in [true, false] {
            let known =
                filled.iter().enumerate().filter_map(|(index, node)| Some((index, (*node)?)));
            for (index, node) in known.take(in_use) {
                if node.on_first_path == on_first_path {
                    let parent = self.nodes[index].parent.map_or(below, |parent| places[parent]);
                    places[index] = tree.push(parent, node.successor.token);
                    proposals.push(Some(node.proposal));
                }
            }
        }
    }

    /// The nodes that the source reaches.
    fn filled(
        &self,
        (source_index, source): (usize, &dyn Propose),
        start: Cursor,
        depth: usize,
    ) -> Vec<Option<Filled>> {
        let mut filled: Vec<Option<Filled>> = Vec::with_capacity(self.nodes.len());
        // The successors of one node after another: children of one parent mostly stand together.
        let (mut successors, mut known, mut cursor) = (Vec::new(), None, start);
        for node in &self.nodes {
            let parent = node.parent.map(|parent| filled[parent]);
            let (parent, parent_depth, on_first_path) = match parent {
                None => (None, 0, true),
                Some(Some(parent)) => (Some(parent.successor), parent.depth, parent.on_first_path),
                Some(None) => {
                    filled.push(None);
                    continue;
                }
            };
            if known != Some(node.parent) {
                known = Some(node.parent);
                cursor = parent.map_or(start, |parent| source.place_of(&parent));
                successors.clear();
                source.successors_above(cursor, 0.0, &mut successors);
            }
            let Cursor { match_len, .. } = cursor;
            let found = successors.get(node.rank).filter(|_| parent_depth < depth);
            filled.push(found.map(|&successor| {
                let Successor { probability, .. } = successor;
                Filled {
                    successor,
                    proposal: Proposal {
                        source: source_index,
                        match_len,
                        probability,
                        agreement: Agreement::Unopposed,
                    },
                    depth: parent_depth + 1,
                    on_first_path: on_first_path && node.rank == 0,
                }
            }));
        }
        filled
    }
}

/// Children of the nodes of the published tree of 80 nodes, breadth first from the root on; the
/// nodes after the last entry have none. A node with n children has the n likeliest.
const NUM_CHILDREN: [usize; 74] = [
    8, 8, 4, 3, 2, 1, 1, 1, 1, 8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 5, 2,
    1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 3, 1, 1, 0, 0, 1, 0, 0, 0,
    0, 1, 0, 1, 0, 0, 2, 0, 0, 1,
];

/// The published tree of 80 nodes below the root.
///
/// The paper has no tree for fewer rows, so the nodes stand in an order that can be cut anywhere:
/// by the sum of the ranks on the path, each counted from 1, and of equals breadth first.
pub fn static_tree() -> RankedTree {
    // (the node breadth first, its parent, rank, and the sum on its path)
    let mut nodes: Vec<(Option<usize>, usize, usize)> = Vec::new();
    for (number, &num_children) in NUM_CHILDREN.iter().enumerate() {
        let parent = number.checked_sub(1);
        let sum = parent.map_or(0, |parent| nodes[parent].2);
        nodes.extend((0..num_children).map(|rank| (parent, rank, sum + rank + 1)));
    }
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&node| nodes[node].2);
    let mut places = vec![0; nodes.len()];
    for (place, &node) in order.iter().enumerate() {
        places[node] = place;
    }
    let ranked = |&node: &usize| {
        let (parent, rank, _) = nodes[node];
        RankedNode { parent: parent.map(|parent| places[parent]), rank }
    };
    RankedTree { nodes: order.iter().map(ranked).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::choose::tests::Scripted;
    use crate::ids::TokenId;

    fn shapes() -> impl Strategy<Value = RankedTree> {
        let node = (any::<prop::sample::Index>(), 0usize..4);
        prop::collection::vec(node, 0..20).prop_map(|nodes| {
            let mut tree = RankedTree::default();
            for (parent, rank) in nodes {
                let parent = parent.index(tree.nodes.len() + 1).checked_sub(1);
                if !tree.nodes.contains(&RankedNode { parent, rank }) {
                    tree.nodes.push(RankedNode { parent, rank });
                }
            }
            tree
        })
    }

    proptest! {
        #[test]
        fn a_filled_shape_holds_the_successors_by_rank(
            shape in shapes(),
            rule in 0u32..20,
            max_nodes in 1usize..25,
            depth in 0usize..6,
            chain_len in 0usize..3,
        ) {
            let source = Scripted::sources(&[rule]).pop().unwrap();
            let start = source.cursor().unwrap();
            let mut tree = DraftTree::chain(&vec![TokenId(9); chain_len + 1]).unwrap();
            let mut proposals = vec![None; chain_len + 1];
            shape.fill((0, &*source), start, (max_nodes, depth), &mut tree, &mut proposals);

            prop_assert_eq!(proposals.len(), tree.num_nodes());
            prop_assert!(tree.num_nodes() <= max_nodes.max(chain_len + 1));
            prop_assert!(tree.depths().iter().all(|&at| at as usize <= depth.max(chain_len)));
            let below = NodeId(chain_len as u32);
            let mut filled: Vec<Option<(NodeId, Cursor)>> = vec![];
            let mut num_filled = 0;
            for node in &shape.nodes {
                let parent = node.parent.map_or(Some((below, start)), |parent| filled[parent]);
                let found = parent.and_then(|(parent, cursor)| {
                    let mut successors = vec![];
                    source.successors(cursor, &mut successors);
                    let next = *successors.get(node.rank)?;
                    Some((tree.child(parent, next.token)?, next.cursor))
                });
                num_filled += usize::from(found.is_some());
                filled.push(found);
            }
            prop_assert_eq!(num_filled, tree.num_nodes() - 1 - chain_len);
        }
    }

    #[test]
    fn the_tree_has_the_published_levels() {
        let tree = static_tree();
        let mut depths: Vec<usize> = Vec::new();
        for (index, node) in tree.nodes.iter().enumerate() {
            assert!(
                node.parent.is_none_or(|parent| parent < index),
                "parents stand before children"
            );
            depths.push(node.parent.map_or(1, |parent| depths[parent] + 1));
        }
        let level = |depth: usize| depths.iter().filter(|&&at| at == depth).count();
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(level), [8, 21, 25, 15, 8, 3, 0]);
    }
}
