//! CoordGen's draft (sections 3.1, 3.3 and 3.4). In: its sources, in order. Out: the chain that was
//! retrieved, and what the others add to it.
//!
//! No probabilities, no trust, no costs: what comes first has the rows. EdgeLLM's trees are the same
//! walk over its one source.

use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::str::FromStr;

use crate::draft::choose::acceptance::{Agreement, Proposal};
use crate::draft::setting::{self, Setting, Settings};
use crate::draft::source::{Cursor, Propose, Successor};
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// What the paper leaves open of the calibrated tree's part in a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedOptions {
    /// Edges below the root.
    pub depth: Option<usize>,
    /// Nodes.
    pub nodes: Option<usize>,
    /// Whether nodes join by the sum of their ranks on the path, not depth first.
    pub by_ranks: bool,
}

impl fmt::Display for AppendedOptions {
    /// The shape with these options.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&setting::spelled(Self::NAME, &{ *self }.settings()))
    }
}

impl FromStr for AppendedOptions {
    type Err = Error;

    /// Fails when an option is unknown, or its value is out of its range.
    fn from_str(spelling: &str) -> Result<Self> {
        let mut options = Self::WHOLE;
        setting::set(&mut options.settings(), setting::split(spelling).1)?;
        Ok(options)
    }
}

/// What may join the draft.
struct Path {
    parent: NodeId,
    next: Successor,
    proposal: Proposal,
    depth: usize,
    /// Sum of the ranks on the path, each counted from 1.
    ranks: usize,
}

impl AppendedOptions {
    /// The name of the shape.
    pub const NAME: &'static str = "appended";

    /// All that fits, depth first.
    pub const WHOLE: Self = Self { depth: None, nodes: None, by_ranks: false };

    /// The likeliest paths first, as far as there are rows.
    pub const PUBLISHED: Self = Self { by_ranks: true, ..Self::WHOLE };

    /// What a user may set, by the names of its fields.
    pub fn settings(&mut self) -> Settings<'_> {
        vec![
            ("depth", Setting::Bound(&mut self.depth, 1..=usize::MAX)),
            ("nodes", Setting::Bound(&mut self.nodes, 1..=usize::MAX)),
            ("by_ranks", Setting::Switch(&mut self.by_ranks)),
        ]
    }

    /// Appends to `tree`, a chain so far, what is known below its last node, where the sources stand
    /// at `starts`: of each that is `asked`, in turn, as many of the likeliest children of a node as
    /// it says, the likeliest first. What is there already is not drafted twice.
    ///
    /// The tree has at most `max_nodes` nodes, and `max_depth` edges below its root. Nodes on the
    /// first path stand first. Cost: for each source and node a look-up, and a place in a heap for
    /// each child.
    pub fn append(
        &self,
        (sources, starts): (&[&dyn Propose], &[Option<Cursor>]),
        asked: &[(usize, usize)],
        (max_nodes, max_depth): (usize, usize),
        tree: &mut DraftTree,
        proposals: &mut Vec<Option<Proposal>>,
    ) {
        let below = NodeId(tree.num_nodes() as u32 - 1);
        let room = max_depth.saturating_sub(below.index());
        let mut drafted: HashMap<(NodeId, TokenId), NodeId> = HashMap::new();
        let mut successors = Vec::new();
        for &(index, most_children) in asked {
            let (source, start) = (sources[index], starts[index]);
            let Self { depth, nodes, by_ranks } =
                if source.is_expectation() { *self } else { Self::WHOLE };
            let (depth, mut nodes) = (depth.unwrap_or(usize::MAX), nodes.unwrap_or(usize::MAX));
            let (mut paths, mut waiting): (Vec<Path>, _) = (Vec::new(), BinaryHeap::new());
            let mut at = start.map(|start| (below, start, 0, 0));
            while let Some((parent, cursor, above, ranks)) = at {
                successors.clear();
                if above < room.min(depth) {
                    source.successors(cursor, &mut successors);
                }
                for (rank, &next) in successors.iter().enumerate().take(most_children).rev() {
                    let (place, ranks) = (paths.len() as i64, ranks + rank + 1);
                    waiting.push(if by_ranks { (-(ranks as i64), -place) } else { (0, place) });
                    let (match_len, probability) = (cursor.match_len, next.probability);
                    let agreement = Agreement::Unopposed;
                    let proposal = Proposal { source: index, match_len, probability, agreement };
                    paths.push(Path { parent, next, proposal, depth: above + 1, ranks });
                }
                at = waiting.pop().and_then(|(_, place)| {
                    let path = &paths[place.unsigned_abs() as usize];
                    let key = (path.parent, path.next.token);
                    let is_new = !drafted.contains_key(&key);
                    if nodes == 0 || is_new && tree.num_nodes() >= max_nodes {
                        return None;
                    }
                    nodes -= 1;
                    let node = *drafted.entry(key).or_insert_with(|| {
                        proposals.push(Some(path.proposal));
                        tree.push(key.0, key.1)
                    });
                    Some((node, path.next.cursor, path.depth, path.ranks))
                });
            }
        }
        first_path_first(tree, proposals);
    }
}

/// Which of CoordGen's sources are asked, for how many children of a node. Those that match a text are
/// one database: of them the one with the longest match is asked, the first among equals, for its
/// likeliest path; each other one for all.
pub fn asked(sources: &[&dyn Propose], starts: &[Option<Cursor>]) -> Vec<(usize, usize)> {
    let match_len = |index: usize| {
        let start = starts[index].filter(|_| !sources[index].is_expectation());
        start.map(|start| start.match_len).filter(|&match_len| match_len > 0)
    };
    let retrieved = (0..sources.len()).rev().max_by_key(|&index| match_len(index));
    let retrieved = retrieved.filter(|&index| match_len(index).is_some());
    let others = (0..sources.len()).filter(|&index| match_len(index).is_none());
    retrieved
        .map(|index| (index, 1))
        .into_iter()
        .chain(others.map(|index| (index, usize::MAX)))
        .collect()
}

/// Puts the nodes on the first path first: of others a canonical commit reads the rows again.
fn first_path_first(tree: &mut DraftTree, proposals: &mut [Option<Proposal>]) {
    let (drafted, said) = (tree.clone(), proposals.to_vec());
    let mut path = vec![0];
    for node in 1..said.len() {
        if path.ends_with(&[drafted.parents()[node].index()]) {
            path.push(node);
        }
    }
    let others = (1..said.len()).filter(|node| path.binary_search(node).is_err());
    let mut places = vec![NodeId::ROOT; said.len()];
    tree.reset(drafted.token(NodeId::ROOT));
    for node in path.iter().copied().skip(1).chain(others) {
        let parent = places[drafted.parents()[node].index()];
        places[node] = tree.push(parent, drafted.token_ids()[node]);
        proposals[places[node].index()] = said[node];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::choose::tests::Scripted;
    use crate::draft::source::{Learn, TopKRows};
    use crate::draft::sources::calibration::{Calibration, CalibrationOptions};
    use crate::draft::sources::prompt_lookup::PromptLookup;

    /// The draft below `root` of sources that stand where their texts end.
    fn drafted(
        options: AppendedOptions,
        sources: &[&dyn Propose],
        (root, max_nodes, depth): (TokenId, usize, usize),
    ) -> DraftTree {
        let starts: Vec<_> = sources.iter().map(|source| source.cursor()).collect();
        let (mut tree, mut proposals) = (DraftTree::new(root), vec![None]);
        let (at, asked) = ((sources, &starts[..]), asked(sources, &starts));
        options.append(at, &asked, (max_nodes, depth), &mut tree, &mut proposals);
        assert_eq!(proposals.len(), tree.num_nodes());
        tree
    }

    fn paths(tree: &DraftTree) -> Vec<Vec<TokenId>> {
        let mut paths = vec![vec![]];
        for node in 1..tree.num_nodes() {
            let mut path = paths[tree.parents()[node].index()].clone();
            path.push(tree.token_ids()[node]);
            paths.push(path);
        }
        paths
    }

    /// What may follow a token of a text.
    type Row = Vec<(TokenId, f32)>;

    /// Figure 9, section 3.3: Sample and Search, depth first, all of it beforehand. A place is known by
    /// the tokens of the text that agree with what leads to it.
    fn eager(
        (text, rows): (&[TokenId], &[Row]),
        (k, least): (usize, f32),
        (agreed, depth): (&[TokenId], usize),
        path: &[TokenId],
        out: &mut Vec<Vec<TokenId>>,
    ) {
        out.push(path.to_vec());
        let common = |end: usize| {
            (0..=end.min(agreed.len()))
                .rev()
                .find(|&len| text[end - len..end] == agreed[agreed.len() - len..])
                .unwrap()
        };
        let best = (1..=rows.len())
            .rev()
            .max_by_key(|&end| (common(end), end))
            .filter(|&end| common(end) > 0);
        let Some(end) = best.filter(|_| depth > 0) else { return };
        let known = &text[end - common(end)..end];
        for &(token, _) in rows[end - 1].iter().take(k).take_while(|(_, likely)| *likely >= least) {
            let agreed = [known, &[token]].concat();
            eager((text, rows), (k, least), (&agreed, depth - 1), &[path, &[token]].concat(), out);
        }
    }

    proptest! {
        #[test]
        fn the_calibrated_tree_walked_lazily_is_the_one_built_depth_first(
            text in prop::collection::vec((0u32..4).prop_map(TokenId), 2..12),
            likely in prop::collection::vec((0u32..4, prop::bool::ANY), 12),
            k in 1usize..4,
            depth in 0usize..4,
        ) {
            // Of each row three tokens, the last of them sometimes too unlikely.
            let row = |&(first, is_likely): &(u32, bool)| -> Row {
                let last = if is_likely { 0.1 } else { 0.01 };
                let ranks = [0.5, 0.3, last].into_iter().enumerate();
                ranks.map(|(rank, p)| (TokenId((first + rank as u32) % 4), p)).collect()
            };
            let rows: Vec<_> = likely.iter().take(text.len() - 1).map(row).collect();
            let options = CalibrationOptions { k, least: 0.05, ..CalibrationOptions::OURS };
            let mut calibration = Calibration::new(options);
            calibration.extend(&text);
            let (token_ids, probabilities): (Vec<_>, Vec<_>) = rows.concat().into_iter().unzip();
            let (token_ids, probabilities) = (&token_ids[..], &probabilities[..]);
            calibration.prefilled(&TopKRows { first_position: 0, k: 3, token_ids, probabilities });

            let mut expected = vec![];
            eager((&text, &rows), (k, 0.05), (&text, depth), &[], &mut expected);
            let silent = PromptLookup::new();
            let shape = AppendedOptions { depth: Some(depth), ..AppendedOptions::WHOLE };
            let tree = drafted(shape, &[&silent, &calibration], (text[0], usize::MAX, 9));
            prop_assert_eq!(paths(&tree), expected);
        }

        #[test]
        fn what_comes_first_has_the_rows_and_nothing_is_drafted_twice(
            rules in prop::collection::vec(0u32..20, 0..4),
            by_ranks in prop::bool::ANY,
            max_nodes in 1usize..25,
            depth in 0usize..6,
        ) {
            let sources = Scripted::sources(&rules);
            let sources: Vec<_> = sources.iter().map(|source| &**source as &dyn Propose).collect();
            let options = AppendedOptions { by_ranks, ..AppendedOptions::WHOLE };
            let tree = drafted(options, &sources, (TokenId(9), max_nodes, depth));
            let found = paths(&tree);
            prop_assert!(found.len() <= max_nodes && found.iter().all(|path| path.len() <= depth));
            let mut distinct = found.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), found.len());
            // The chain of the first leads, and each further source only adds.
            let chain = if rules.is_empty() { 0 } else { depth.min(max_nodes - 1) };
            prop_assert!(tree.first_path_len() >= chain);
            let fewer = drafted(options, &sources[..sources.len().max(1) - 1], (TokenId(9), max_nodes, depth));
            prop_assert!(paths(&fewer).iter().all(|path| found.contains(path)));
            // The first path stands first as far as it goes.
            let end = tree.first_path_len();
            prop_assert!(tree.parents()[1..].iter().all(|parent| parent.index() != end));
        }
    }
}
