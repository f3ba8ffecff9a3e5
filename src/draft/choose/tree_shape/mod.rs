//! Which shape a drafter's trees have: blended from all sources, or that of one published method.
//!
//! In: the choice, a source. Out: a draft tree of that method. The blended tree is grown elsewhere.

pub mod appended_tree;
pub mod dynamic_tree;
pub mod ranked_tree;

use self::appended_tree::{AppendedOptions, asked};
use self::dynamic_tree::DynamicTreeOptions;
use self::ranked_tree::{RankedTree, static_tree};
use crate::draft::choose::acceptance::Proposal;
use crate::draft::source::Propose;
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
    /// CoordGen, from all sources in their order.
    Appended(AppendedOptions),
}

/// Builds the trees of a method that has a shape of its own.
#[derive(Clone, Debug)]
pub struct ShapedTrees {
    shape: TreeShape,
    ranked: RankedTree,
    /// Steps that the ranked shape was used in.
    age: usize,
}

impl ShapedTrees {
    /// For trees of `shape`; `None` where they are blended. Fails when an option is out of range.
    pub fn new(shape: TreeShape) -> Result<Option<Self>> {
        let ranked = match shape {
            TreeShape::BestFirst | TreeShape::Chain => return Ok(None),
            TreeShape::Dynamic(options) => options.checked().map(|_| RankedTree::default())?,
            TreeShape::Static => static_tree(),
            TreeShape::Appended(_) | TreeShape::Drafted => RankedTree::default(),
        };
        Ok(Some(Self { shape, ranked, age: 0 }))
    }

    /// Forgets the shape of the request before.
    pub fn begin(&mut self) {
        self.age = 0;
    }

    /// Builds the tree below `root` and the carried tokens, of at most `max_nodes` nodes, root
    /// included, and `depth` edges.
    pub fn grow(
        &mut self,
        sources: &[&dyn Propose],
        (root, carried): (TokenId, &[TokenId]),
        (max_nodes, depth): (usize, usize),
        tree: &mut DraftTree,
        proposals: &mut Vec<Option<Proposal>>,
    ) {
        tree.reset(root);
        let mut starts: Vec<_> = sources.iter().map(|source| source.cursor()).collect();
        for &token in carried.iter().take(depth.min(max_nodes - 1)) {
            tree.push(NodeId(tree.num_nodes() as u32 - 1), token);
            for (source, start) in sources.iter().zip(&mut starts) {
                *start = start.and_then(|at| source.advance(at, token));
            }
        }
        proposals.clear();
        proposals.resize(tree.num_nodes(), None);
        let appended = match self.shape {
            TreeShape::Appended(options) => Some((options, asked(sources, &starts))),
            TreeShape::Drafted => {
                Some((AppendedOptions::WHOLE, vec![(0, usize::MAX); sources.len().min(1)]))
            }
            _ => None,
        };
        if let Some((options, asked)) = appended {
            let at = (sources, &starts[..]);
            return options.append(at, &asked, (max_nodes, depth), tree, proposals);
        }
        let (Some(&source), Some(&Some(start))) = (sources.first(), starts.first()) else { return };
        if let TreeShape::Dynamic(options) = self.shape {
            if self.age.is_multiple_of(options.update_interval) {
                let (room, left) = (max_nodes - tree.num_nodes(), depth + 1 - tree.num_nodes());
                self.ranked = options.build(source, start, room, left);
            }
            self.age += 1;
        }
        self.ranked.fill((0, source), start, (max_nodes, depth), tree, proposals);
    }
}
