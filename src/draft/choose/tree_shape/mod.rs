//! Which shape a drafter's trees have: blended from all sources, or that of one published method.
//!
//! In: the choice, a source. Out: a draft tree of that method. The blended tree is grown elsewhere.

pub mod dynamic_tree;
pub mod ranked_tree;

use self::dynamic_tree::DynamicTreeOptions;
use self::ranked_tree::{RankedTree, static_tree};
use crate::draft::choose::acceptance::{Agreement, Proposal};
use crate::draft::source::{Cursor, Propose};
use crate::error::Result;
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// Who decides on the shape of the trees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TreeShape {
    /// Best first from all sources, as wide as it pays.
    #[default]
    BestFirst,
    /// The likeliest path of the same, for targets that verify chains alone.
    Chain,
    /// DIAA, from the first source alone.
    Dynamic(DynamicTreeOptions),
    /// Token Recycling, from the first source alone.
    Static,
    /// EdgeLLM (III-B): all that the first source says, whatever rows cost.
    Drafted,
}

/// Builds the trees of a method that has a shape of its own.
#[derive(Clone, Debug)]
pub struct ShapedTrees {
    /// `None` where the shape never changes.
    dynamic: Option<DynamicTreeOptions>,
    /// `None` where it is whatever the source says.
    shape: Option<RankedTree>,
    /// Steps that the shape was used in.
    age: usize,
}

impl ShapedTrees {
    /// For trees of `shape`; `None` where they are blended. Fails when an option is out of range.
    pub fn new(shape: TreeShape) -> Result<Option<Self>> {
        let (dynamic, shape) = match shape {
            TreeShape::BestFirst | TreeShape::Chain => return Ok(None),
            TreeShape::Dynamic(options) => (Some(options.checked()?), None),
            TreeShape::Static => (None, Some(static_tree())),
            TreeShape::Drafted => (None, None),
        };
        Ok(Some(Self { dynamic, shape, age: 0 }))
    }

    /// Forgets the shape of the request before.
    pub fn begin(&mut self) {
        self.age = 0;
    }

    /// Builds the tree below `root` and the carried tokens, of at most `max_nodes` nodes, root
    /// included, and `depth` edges.
    pub fn grow(
        &mut self,
        source: Option<&dyn Propose>,
        (root, carried): (TokenId, &[TokenId]),
        (max_nodes, depth): (usize, usize),
        tree: &mut DraftTree,
        proposals: &mut Vec<Option<Proposal>>,
    ) {
        tree.reset(root);
        let mut cursor = source.and_then(|source| source.cursor());
        for &token in carried.iter().take(depth.min(max_nodes - 1)) {
            tree.push(NodeId(tree.num_nodes() as u32 - 1), token);
            cursor = source.zip(cursor).and_then(|(source, at)| source.advance(at, token));
        }
        proposals.clear();
        proposals.resize(tree.num_nodes(), None);
        let Some((source, start)) = source.zip(cursor) else { return };
        if let Some(options) = self.dynamic {
            if self.age.is_multiple_of(options.update_interval) {
                let (room, left) = (max_nodes - tree.num_nodes(), depth + 1 - tree.num_nodes());
                self.shape = Some(options.build(source, start, room, left));
            }
            self.age += 1;
        }
        match &self.shape {
            Some(shape) => shape.fill((0, source), start, (max_nodes, depth), tree, proposals),
            None => take_all(source, start, (max_nodes, depth), tree, proposals),
        }
    }
}

/// Appends what `source` says to `tree`, a chain so far, below its last node, where the source is at
/// `start`: depth first by rank, so that nodes on the first path stand first.
fn take_all(
    source: &dyn Propose,
    start: Cursor,
    (max_nodes, depth): (usize, usize),
    tree: &mut DraftTree,
    proposals: &mut Vec<Option<Proposal>>,
) {
    let (mut node, mut cursor) = (NodeId(tree.num_nodes() as u32 - 1), start);
    let (mut successors, mut waiting) = (Vec::new(), Vec::new());
    while tree.num_nodes() < max_nodes {
        successors.clear();
        if (tree.depths()[node.index()] as usize) < depth {
            source.successors(cursor, &mut successors);
        }
        waiting.extend(successors.iter().rev().map(|&next| (node, cursor.match_len, next)));
        let Some((parent, match_len, next)) = waiting.pop() else { return };
        (node, cursor) = (tree.push(parent, next.token), next.cursor);
        let (probability, agreement) = (next.probability, Agreement::Unopposed);
        proposals.push(Some(Proposal { source: 0, match_len, probability, agreement }));
    }
}
