//! DIAA's dynamic tree ("Dynamic Tree Construction and Drafting", Eq. 1 and Eq. 2, Figure 7). In: a
//! source and what a tree may cost. Out: a shape, the paths of the highest scores.
//!
//! A shape is kept for some steps, in which other tokens fill it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::ranked_tree::{RankedNode, RankedTree};
use crate::draft::setting::{Setting, Settings};
use crate::draft::source::{Cursor, Propose};
use crate::error::{Error, Result};

/// What the paper leaves to the user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTreeOptions {
    /// B: tokens on all paths from the root to a leaf together, a shared token counted for each
    /// (the C(T) below DIAA's Eq. 1). `None` for as many as the step has rows.
    pub budget: Option<usize>,
    /// Whether the rows of a step bound C(T), too, as in the paper, or the number of nodes alone.
    pub counts_paths: bool,
    /// delta, 0 to 1: factor on the score for each edge beyond the first.
    pub depth_decay: f32,
    /// alpha, 0 to 1: factor on the score for each rank that the path's last token is below the
    /// likeliest.
    pub width_decay: f32,
    /// tau: paths that score less are left out, but for those of one token.
    pub threshold: f32,
    /// N: steps that a shape is kept for, at least 1.
    pub update_interval: usize,
}

impl Default for DynamicTreeOptions {
    fn default() -> Self {
        Self::FIGURE_7
    }
}

impl DynamicTreeOptions {
    /// delta, alpha and tau of Figure 7; a new shape in every step, which costs little.
    pub const FIGURE_7: Self = Self {
        budget: None,
        counts_paths: false,
        depth_decay: 0.8,
        width_decay: 0.7,
        threshold: 5e-3,
        update_interval: 1,
    };

    /// As published: C(T) is bounded. B and N of the paper's experiments are not in its text.
    pub const PUBLISHED: Self = Self { counts_paths: true, ..Self::FIGURE_7 };

    /// What a user may set, by the names of its fields.
    pub fn settings(&mut self) -> Settings<'_> {
        vec![
            ("budget", Setting::Bound(&mut self.budget, 1..=usize::MAX)),
            ("depth_decay", Setting::Share(&mut self.depth_decay, 0.0)),
            ("width_decay", Setting::Share(&mut self.width_decay, 0.0)),
            ("threshold", Setting::Share(&mut self.threshold, 0.0)),
            ("update_interval", Setting::Count(&mut self.update_interval, 1..=usize::MAX)),
        ]
    }

    /// The options, if a tree can be built by them. Fails when one is out of its range.
    pub fn checked(self) -> Result<Self> {
        let decays = [("depth_decay", self.depth_decay), ("width_decay", self.width_decay)];
        for (what, got) in decays.into_iter().chain([("threshold", self.threshold)]) {
            if !(0.0..=1.0).contains(&got) {
                return Err(Error::BadOption { what, got: got.to_string(), must: "0 to 1" });
            }
        }
        let counts =
            [("budget", self.budget.unwrap_or(1)), ("update_interval", self.update_interval)];
        for (what, got) in counts {
            if got == 0 {
                return Err(Error::BadOption { what, got: "0".into(), must: "at least 1" });
            }
        }
        Ok(self)
    }

    /// The score s of a path (DIAA, Eq. 2): `path_probability` is the product of its probabilities,
    /// `depth` its number of tokens, `rank` that of its last token, from 0.
    fn score(&self, path_probability: f32, depth: usize, rank: usize) -> f32 {
        let deep = self.depth_decay.powi(depth as i32 - 1);
        path_probability * deep * self.width_decay.powi(rank as i32)
    }

    /// The shape of at most `max_nodes` nodes and `max_depth` edges that is built from the place
    /// `start` of `source`.
    ///
    /// The path of the highest score is taken from a queue; its successors that score enough join
    /// the tree and the queue; until the next would exceed the budget. Cost: a look-up for each
    /// path that is taken, a place in a heap for each node.
    pub fn build(
        &self,
        source: &dyn Propose,
        start: Cursor,
        max_nodes: usize,
        max_depth: usize,
    ) -> RankedTree {
        let (mut tree, mut queue) = (RankedTree::default(), BinaryHeap::new());
        let root = Path { score: 1.0, probability: 1.0, node: None, depth: 0, cursor: start };
        queue.push(root);
        let (mut successors, mut cost) = (Vec::new(), 0);
        let budget = self.budget.or(self.counts_paths.then_some(max_nodes));
        while let Some(path) = queue.pop() {
            successors.clear();
            if path.depth < max_depth {
                source.successors(path.cursor, &mut successors);
            }
            for (rank, next) in successors.iter().enumerate() {
                let depth = path.depth + 1;
                let probability = path.probability * next.probability;
                let score = self.score(probability, depth, rank);
                if path.node.is_some() && score < self.threshold {
                    continue;
                }
                // The first successor makes a path longer, each further one is a path of its own.
                cost += if rank == 0 { 1 } else { depth };
                if budget.is_some_and(|budget| cost > budget) || tree.nodes.len() == max_nodes {
                    return tree;
                }
                let (node, cursor) = (Some(tree.nodes.len()), next.cursor);
                tree.nodes.push(RankedNode { parent: path.node, rank });
                queue.push(Path { score, probability, node, depth, cursor });
            }
        }
        tree
    }
}

/// A path in the queue, by its last node; `None` for the root.
#[derive(Clone, Copy, Debug)]
struct Path {
    score: f32,
    probability: f32,
    node: Option<usize>,
    depth: usize,
    cursor: Cursor,
}

impl Ord for Path {
    /// By score; of equals the older path is the greater.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Path {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Path {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::source::Learn;
    use crate::draft::sources::lookup_table::source::TableSource;
    use crate::draft::sources::lookup_table::{LookupTable, SharedTable};
    use crate::ids::TokenId;
    use crate::logits::top_k::{TOP_K, TopK};
    use proptest::prelude::*;

    fn source_of(rows: &[(u32, &[(u32, f32)])]) -> TableSource {
        let mut table = LookupTable::default();
        for (context, row) in rows {
            let mut seen = TopK { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
            for (rank, &(token, probability)) in row.iter().enumerate() {
                (seen.token_ids[rank], seen.probabilities[rank]) = (TokenId(token), probability);
            }
            table.learn(TokenId(*context), &seen);
        }
        let mut source = TableSource::new(SharedTable::new(table));
        source.extend(&[TokenId(0)]);
        source
    }

    /// Figure 7 as far as the text tells it: t1, t2, t3 by default; t1 is expanded first, t13 is
    /// below the threshold, and with t11 and t12 the paths t11, t12, t2, t3 have 6 tokens.
    #[test]
    fn figure_7_ends_with_a_cost_of_6() {
        let rows: &[(u32, &[(u32, f32)])] = &[
            (0, &[(1, 0.5), (2, 0.3), (3, 0.1)]),
            (1, &[(11, 0.6), (12, 0.3), (13, 0.005)]),
            (2, &[(21, 0.9)]),
        ];
        let source = source_of(rows);
        let node = |parent, rank| RankedNode { parent, rank };
        let options = DynamicTreeOptions { budget: Some(6), ..DynamicTreeOptions::default() };
        let tree = options.build(&source, source.cursor().unwrap(), 99, 99);
        let first = [node(None, 0), node(None, 1), node(None, 2)];
        assert_eq!(tree.nodes, [&first[..], &[node(Some(0), 0), node(Some(0), 1)]].concat());
        let more = DynamicTreeOptions { budget: Some(7), ..options };
        let tree = more.build(&source, source.cursor().unwrap(), 99, 99);
        assert_eq!(tree.nodes[5..], [node(Some(1), 0)]);
    }

    /// Paths as ranks, in the order of the shape.
    fn paths(tree: &RankedTree) -> Vec<Vec<usize>> {
        let mut paths: Vec<Vec<usize>> = Vec::new();
        for node in &tree.nodes {
            let parent = node.parent.map_or(vec![], |parent| paths[parent].clone());
            paths.push([parent, vec![node.rank]].concat());
        }
        paths
    }

    /// Eq. 2 of a path, and the probability of it, from the table itself.
    fn naive_score(source: &TableSource, options: &DynamicTreeOptions, path: &[usize]) -> f32 {
        let (mut cursor, mut probability) = (source.cursor().unwrap(), 1.0);
        for &rank in path {
            let mut successors = Vec::new();
            source.successors(cursor, &mut successors);
            (cursor, probability) =
                (successors[rank].cursor, probability * successors[rank].probability);
        }
        let decay = options.depth_decay.powi(path.len() as i32 - 1);
        probability * decay * options.width_decay.powi(path[path.len() - 1] as i32)
    }

    fn is_leaf(paths: &[Vec<usize>], path: &[usize]) -> bool {
        !paths.iter().any(|other| other.len() > path.len() && other.starts_with(path))
    }

    proptest! {
        #[test]
        fn a_tree_keeps_budget_threshold_and_the_order_of_scores(
            weights in prop::collection::vec(prop::collection::vec(1u32..9, 1..4), 4),
            budget in prop::option::of(1usize..30),
            (max_nodes, counts_paths) in (1usize..16, any::<bool>()),
            max_depth in 1usize..6,
            decays in (1u8..=10, 1u8..=10),
            threshold in 0u8..30,
        ) {
            let rows: Vec<(u32, Vec<(u32, f32)>)> = weights.iter().enumerate().map(|(context, row)| {
                let total: u32 = row.iter().sum();
                let entry = |(token, weight): (usize, &u32)| (token as u32, *weight as f32 / total as f32);
                (context as u32, row.iter().enumerate().map(entry).collect())
            }).collect();
            let rows: Vec<(u32, &[(u32, f32)])> = rows.iter().map(|(c, row)| (*c, &row[..])).collect();
            let source = source_of(&rows);
            let options = DynamicTreeOptions {
                budget,
                counts_paths,
                depth_decay: f32::from(decays.0) / 10.0,
                width_decay: f32::from(decays.1) / 10.0,
                threshold: f32::from(threshold) / 200.0,
                update_interval: 1,
            };
            let tree = options.build(&source, source.cursor().unwrap(), max_nodes, max_depth);
            let paths = paths(&tree);
            let cost: usize =
                paths.iter().filter(|path| is_leaf(&paths, path)).map(Vec::len).sum();
            let most = budget.or(counts_paths.then_some(max_nodes));
            prop_assert!(most.is_none_or(|most| cost <= most));
            prop_assert!(paths.len() <= max_nodes);
            for path in &paths {
                prop_assert!(path.len() <= max_depth);
                let score = naive_score(&source, &options, path);
                prop_assert!(path.len() == 1 || score >= options.threshold);
            }
            // A path that was expanded scores no less than any left in the queue at that time.
            let score = |path: &[usize]| naive_score(&source, &options, path);
            for (index, path) in paths.iter().enumerate().filter(|(_, path)| path.len() > 1) {
                let parent = &path[..path.len() - 1];
                for other in paths[..index].iter().filter(|other| is_leaf(&paths, other)) {
                    let waited = !other.starts_with(parent) && other.len() < max_depth;
                    let had_successors = waited && budget.is_none() && threshold == 0;
                    if had_successors && paths.len() == max_nodes {
                        prop_assert!(score(parent) >= score(other) - 1e-6);
                    }
                }
            }
        }
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let options = DynamicTreeOptions::default();
        assert!(options.checked().is_ok());
        for wrong in [
            DynamicTreeOptions { depth_decay: 1.1, ..options },
            DynamicTreeOptions { width_decay: f32::NAN, ..options },
            DynamicTreeOptions { threshold: -0.1, ..options },
            DynamicTreeOptions { budget: Some(0), ..options },
            DynamicTreeOptions { update_interval: 0, ..options },
        ] {
            assert!(wrong.checked().is_err());
        }
    }
}
