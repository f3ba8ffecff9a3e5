//! A token tree in the making, as branches (EdgeLLM III-B). In: what the draft model holds likely
//! after each token that it has read. Out: the token to read next, and the tree so far.
//!
//! Which branch grows next is the branch pacer's to say (Eq. 1 and Eq. 2): the one that is shortest of
//! what it should be.

use std::cmp::Reverse;

use crate::ids::{NodeId, TokenId};
use crate::logits::top_k::TopK;
use crate::tree::draft_tree::DraftTree;

/// A token that the model holds likely after a node, and has not read yet.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Leaf {
    parent: NodeId,
    token: TokenId,
    /// C of the path that ends with it.
    confidence: f32,
    /// The branch that it continues, as the likeliest after its parent; `None` where it would begin
    /// one of its own.
    branch: Option<usize>,
}

/// A tree of tokens that the draft model has read, below a chain that is certain.
#[derive(Clone, Debug)]
pub struct Branches {
    /// What the model reads: node `i` is its row `i`.
    tree: DraftTree,
    /// Number of nodes, from the first on, that are certain: their chain is the context.
    num_certain: usize,
    /// C of each node.
    confidences: Vec<f32>,
    /// The branch of each node; of certain ones the first.
    branch_of: Vec<usize>,
    /// What the model holds likely after each node; `None` before it has read the node, and for all
    /// certain ones but the last.
    likely: Vec<Option<TopK>>,
    /// T of each branch.
    lens: Vec<usize>,
    tails: Vec<Leaf>,
}

impl Branches {
    /// A tree of nothing but the certain tokens, at least one, none of which is read.
    pub fn below(certain: &DraftTree) -> Self {
        let num_certain = certain.num_nodes();
        Self {
            tree: certain.clone(),
            num_certain,
            confidences: vec![1.0; num_certain],
            branch_of: vec![0; num_certain],
            likely: vec![None; num_certain],
            lens: vec![0],
            tails: Vec::new(),
        }
    }

    /// All nodes, the certain ones first.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// The last certain node, below which everything is drafted.
    pub fn root(&self) -> NodeId {
        NodeId(self.num_certain as u32 - 1)
    }

    /// Drafted tokens, those that are not read yet included.
    pub fn num_drafted(&self) -> usize {
        self.lens.iter().sum()
    }

    /// How sure the surest token is that could be read next, in a branch or as the first of another
    /// one; 0 where there is none.
    pub fn confidence(&self) -> f32 {
        self.tails.iter().map(|tail| tail.confidence).fold(0.0, f32::max)
    }

    /// T_c (EdgeLLM, section III-C) of the tree of the first `num_nodes` nodes: the largest C of any
    /// branch, each up to its last token, which may be one that is not read yet; 1 where nothing is
    /// drafted.
    pub fn tree_confidence(&self, num_nodes: usize) -> f32 {
        let of_branch = |last: NodeId| {
            let likeliest = self.after(last).next().map_or(1.0, |(_, probability)| probability);
            self.confidences[last.index()] * likeliest
        };
        self.last_nodes(num_nodes).map(of_branch).fold(0.0, f32::max)
    }

    /// Takes in what the model holds likely after `node`, which it has just read. The likeliest
    /// token joins the tree; the others may begin branches. Nothing follows `end_tokens`.
    pub fn read(&mut self, node: NodeId, likely: &TopK, end_tokens: &[TokenId]) {
        self.likely[node.index()] = Some(*likely);
        let (branch, confidence) = (self.branch_of[node.index()], self.confidences[node.index()]);
        let entries = likely.token_ids.iter().zip(&likely.probabilities).enumerate();
        for (rank, (&token, &probability)) in entries.take_while(|(_, entry)| *entry.1 > 0.0) {
            let continues = (rank == 0).then_some(branch);
            self.lens[branch] += usize::from(continues.is_some());
            if !end_tokens.contains(&token) {
                let confidence = confidence * probability;
                self.tails.push(Leaf { parent: node, token, confidence, branch: continues });
            }
        }
    }

    /// Adds the token that is to be read next, and returns its node; `None` where no branch can
    /// grow. It is the surest one, or else that of the branch that the pacer wants to grow.
    pub fn grow(&mut self, surest: bool) -> Option<NodeId> {
        if surest {
            let tails = self.tails.iter().enumerate();
            let surest = tails.max_by(|one, other| one.1.confidence.total_cmp(&other.1.confidence));
            let (surest, _) = surest?;
            return Some(self.add(surest));
        }
        let paced = self.tails.iter().map(|tail| BranchStats {
            confidence: tail.confidence,
            len: tail.branch.map_or(0, |branch| self.lens[branch]),
        });
        let wanting = largest_shortfall(paced, self.num_drafted() + 1)?;
        Some(self.add(wanting))
    }

    /// Makes a tail a node.
    fn add(&mut self, tail: usize) -> NodeId {
        let Leaf { parent, token, confidence, branch } = self.tails.swap_remove(tail);
        let branch = branch.unwrap_or_else(|| {
            self.lens.push(1);
            self.lens.len() - 1
        });
        self.confidences.push(confidence);
        self.branch_of.push(branch);
        self.likely.push(None);
        self.tree.push(parent, token)
    }

    /// What is drafted after `node`: tokens that the model holds likely, and their probabilities.
    pub fn after(&self, node: NodeId) -> impl Iterator<Item = (TokenId, f32)> {
        let entries = self.likely[node.index()].iter();
        let entries = entries.flat_map(|likely| likely.token_ids.iter().zip(&likely.probabilities));
        entries
            .take_while(|entry| *entry.1 > 0.0)
            .map(|(&token, &probability)| (token, probability))
    }

    /// The nodes below the root along `tokens`, as far as the model has read them.
    pub fn follow(&self, tokens: &[TokenId]) -> Vec<NodeId> {
        let (mut path, mut node) = (Vec::new(), self.root());
        for &token in tokens {
            let next =
                self.tree.child(node, token).filter(|node| self.likely[node.index()].is_some());
            let Some(next) = next else { break };
            path.push(next);
            node = next;
        }
        path
    }

    /// Of the branch of the first `num_nodes` nodes that agrees furthest with `said`, the number of
    /// right tokens and of all, the fewest among equals. `None` where nothing was drafted.
    pub fn best_match(&self, said: &[TokenId], num_nodes: usize) -> Option<(usize, usize)> {
        let agreement = |last: NodeId| {
            let path = self.path_to(last);
            let num_right = path.iter().zip(said).take_while(|(one, other)| one == other).count();
            (!path.is_empty()).then_some((num_right, path.len()))
        };
        let agreements = self.last_nodes(num_nodes).filter_map(agreement);
        agreements.max_by_key(|&(num_right, len)| (num_right, Reverse(len)))
    }

    /// The last node of each branch of the first `num_nodes` nodes; of a first branch without nodes
    /// of its own, the root.
    fn last_nodes(&self, num_nodes: usize) -> impl Iterator<Item = NodeId> {
        let num_nodes = num_nodes.clamp(self.num_certain, self.branch_of.len());
        let branch_of = &self.branch_of[..num_nodes];
        let last = |branch: usize| branch_of.iter().rposition(|&of| of == branch);
        (0..self.lens.len()).filter_map(last).map(|last| NodeId(last as u32))
    }

    /// The tokens of the branch that ends with a node, from below the root to its last.
    fn path_to(&self, last: NodeId) -> Vec<TokenId> {
        let mut node = last;
        let unread = self.after(node).next().map(|likeliest| likeliest.0);
        let mut path: Vec<TokenId> = unread.into_iter().collect();
        while node != self.root() {
            path.push(self.tree.token(node));
            node = self.tree.parents()[node.index()];
        }
        path.reverse();
        path
    }

    /// The tree below `root`, one of the nodes that are read, and the nodes of this one that are in
    /// it, in its order.
    pub fn below_node(&self, root: NodeId, end_tokens: &[TokenId]) -> (Self, Vec<NodeId>) {
        let mut below = Self::below(&DraftTree::new(self.tree.token(root)));
        let mut kept = vec![root];
        for index in root.index()..self.tree.num_nodes() {
            let node = NodeId(index as u32);
            let Some(likely) = self.likely[index] else { continue };
            if node != root {
                let parent = self.tree.parents()[index];
                let Some(place) = kept.iter().position(|&known| known == parent) else { continue };
                let (parent, token) = (NodeId(place as u32), self.tree.token(node));
                let is_it = |tail: &Leaf| tail.parent == parent && tail.token == token;
                let Some(tail) = below.tails.iter().position(is_it) else { continue };
                below.add(tail);
                kept.push(node);
            }
            below.read(NodeId(kept.len() as u32 - 1), &likely, end_tokens);
        }
        (below, kept)
    }
}

/// A branch as the pacer sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchStats {
    /// C: product of the draft model's probabilities along the branch, up to its last token.
    pub confidence: f32,
    /// T: tokens of the tree that are the branch's own, those before it left its parent not counted.
    pub len: usize,
}

/// Index of the branch with the largest shortfall `D = M * C - T` (EdgeLLM, Eq. 2), the first among
/// equals; `None` without branches. M, `num_tokens`, is the number of tokens that the tree is to
/// have.
///
/// A branch should be as long as its share of the tree (EdgeLLM, Eq. 1: `L = C * M`): what is likely
/// is followed further, and a second branch begins once a whole token of it is missing.
pub fn largest_shortfall(
    branches: impl Iterator<Item = BranchStats>,
    num_tokens: usize,
) -> Option<usize> {
    let shortfalls =
        branches.map(|branch| num_tokens as f32 * branch.confidence - branch.len as f32);
    let numbered = shortfalls.enumerate();
    let largest = numbered.reduce(|best, next| if next.1 > best.1 { next } else { best });
    largest.map(|(index, _)| index)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::logits::top_k::TOP_K;
    use proptest::prelude::*;

    /// A model whose row after a token depends on that token and on `rule`.
    pub(in crate::draft::sources::model) fn likely(rule: u32, token: TokenId) -> TopK {
        let mut seen = TopK { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
        let first = (token.0 * 3 + rule) % 5;
        let weights = [[8.0, 1.0, 1.0], [4.0, 4.0, 2.0], [6.0, 3.0, 1.0]];
        for (rank, weight) in weights[((token.0 + rule) % 3) as usize].into_iter().enumerate() {
            seen.token_ids[rank] = TokenId((first + rank as u32) % 5);
            seen.probabilities[rank] = weight / 10.0;
        }
        seen
    }

    fn grown(rule: u32, num_nodes: usize) -> Branches {
        let mut branches = Branches::below(&DraftTree::chain(&[TokenId(1), TokenId(2)]).unwrap());
        branches.read(NodeId(1), &likely(rule, TokenId(2)), &[]);
        for _ in 0..num_nodes {
            let node = branches.grow(false).unwrap();
            branches.read(node, &likely(rule, branches.tree().token(node)), &[]);
        }
        branches
    }

    proptest! {
        #[test]
        fn the_most_wanting_branch_grows(rule in 0u32..15, num_nodes in 0usize..20) {
            let mut branches = grown(rule, num_nodes);
            // What every token that could be read next would be short of.
            let num_tokens = branches.num_drafted() as f32 + 1.0;
            let wanting = |tail: &Leaf| {
                let len = tail.branch.map_or(0, |branch| branches.lens[branch]);
                num_tokens * tail.confidence - len as f32
            };
            let most = branches.tails.iter().map(wanting).fold(f32::MIN, f32::max);
            let before = branches.clone();
            let node = branches.grow(false).unwrap();
            let (parent, token) = (branches.tree.parents()[node.index()], branches.tree.token(node));
            let chosen = before.tails.iter().find(|t| t.parent == parent && t.token == token).unwrap();
            let len = chosen.branch.map_or(0, |branch| before.lens[branch]);
            prop_assert_eq!(num_tokens * chosen.confidence - len as f32, most);
        }

        #[test]
        fn confidences_are_products_and_lengths_count_tokens(rule in 0u32..15, num_nodes in 0usize..20) {
            let branches = grown(rule, num_nodes);
            let mut lens = vec![0; branches.lens.len()];
            for index in 2..branches.tree.num_nodes() {
                let (node, parent) = (NodeId(index as u32), branches.tree.parents()[index]);
                let probability =
                    branches.after(parent).find(|next| next.0 == branches.tree.token(node)).unwrap().1;
                let expected = branches.confidences[parent.index()] * probability;
                prop_assert!((branches.confidences[index] - expected).abs() < 1e-6);
                lens[branches.branch_of[index]] += 1;
            }
            for tail in branches.tails.iter().filter_map(|tail| tail.branch) {
                lens[tail] += 1;
            }
            prop_assert_eq!(&lens, &branches.lens);
            let surest = branches.tails.iter().map(|tail| tail.confidence).fold(0.0, f32::max);
            prop_assert_eq!(branches.confidence(), surest);
            let going_on = branches.tails.iter().filter(|tail| tail.branch.is_some());
            let likeliest = going_on.map(|tail| tail.confidence).fold(0.0, f32::max);
            prop_assert_eq!(branches.tree_confidence(usize::MAX), likeliest);
        }

        #[test]
        fn a_match_is_that_of_the_nearest_branch(
            rule in 0u32..15,
            num_nodes in 0usize..12,
            said in prop::collection::vec((0u32..5).prop_map(TokenId), 1..6),
        ) {
            let branches = grown(rule, num_nodes);
            let (num_right, len) = branches.best_match(&said, usize::MAX).unwrap();
            let paths: Vec<_> = branches.last_nodes(usize::MAX).map(|n| branches.path_to(n)).collect();
            let total: usize = paths.iter().map(|path| usize::from(!path.is_empty())).sum();
            prop_assert_eq!(total, branches.lens.len());
            let right = |path: &Vec<TokenId>| path.iter().zip(&said).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(num_right, paths.iter().map(right).max().unwrap());
            prop_assert!(paths.iter().any(|path| right(path) == num_right && path.len() == len));
        }

        #[test]
        fn what_is_below_a_node_is_as_if_grown_there(rule in 0u32..15, num_nodes in 1usize..20) {
            let branches = grown(rule, num_nodes);
            for root in 2..branches.tree.num_nodes() {
                let (below, kept) = branches.below_node(NodeId(root as u32), &[]);
                prop_assert_eq!(below.tree.num_nodes(), kept.len());
                let is_below = |mut node: usize| {
                    while node > root {
                        node = branches.tree.parents()[node].index();
                    }
                    node == root
                };
                let expected: Vec<usize> =
                    (root..branches.tree.num_nodes()).filter(|&node| is_below(node)).collect();
                prop_assert_eq!(kept.iter().map(|node| node.index()).collect::<Vec<_>>(), expected);
                for (place, node) in kept.iter().enumerate() {
                    prop_assert_eq!(below.tree.token_ids()[place], branches.tree.token(*node));
                    prop_assert!(below.after(NodeId(place as u32)).eq(branches.after(*node)));
                    let share = branches.confidences[node.index()] / branches.confidences[root];
                    prop_assert!((below.confidences[place] - share).abs() < 1e-4);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_surest_token_is_read_first(rule in 0u32..15, num_nodes in 0usize..20) {
            let mut branches = grown(rule, num_nodes);
            let surest = branches.confidence();
            let node = branches.grow(true).unwrap();
            prop_assert_eq!(branches.confidences[node.index()], surest);
        }

        #[test]
        fn the_first_nodes_are_judged_as_if_there_were_no_others(
            rule in 0u32..15,
            num_nodes in 0usize..12,
            num_later in 0usize..12,
            said in prop::collection::vec((0u32..5).prop_map(TokenId), 1..6),
        ) {
            let (before, after) = (grown(rule, num_nodes), grown(rule, num_nodes + num_later));
            let verified = before.tree().num_nodes();
            prop_assert_eq!(after.tree_confidence(verified), before.tree_confidence(usize::MAX));
            let expected = before.best_match(&said, usize::MAX);
            prop_assert_eq!(after.best_match(&said, verified), expected);
        }
    }

    #[test]
    fn nothing_follows_an_end_token() {
        let mut branches = Branches::below(&DraftTree::new(TokenId(9)));
        branches.read(NodeId(0), &TopK::certain(TokenId(4)), &[TokenId(4)]);
        assert_eq!(branches.grow(false), None);
        assert_eq!(branches.grow(true), None);
        assert_eq!(branches.confidence(), 0.0);
        assert_eq!(branches.tree_confidence(usize::MAX), 1.0);
        assert_eq!(branches.num_drafted(), 1);
        assert_eq!(branches.best_match(&[TokenId(4)], 1), Some((1, 1)));
    }

    proptest! {
        #[test]
        fn lengths_follow_confidences(
            weights in prop::collection::vec(1u32..20, 1..6),
            num_tokens in 1usize..60,
        ) {
            let total: u32 = weights.iter().sum();
            let confidences: Vec<f32> = weights.iter().map(|&w| w as f32 / total as f32).collect();
            let mut lens = vec![0; weights.len()];
            for so_far in 0..num_tokens {
                let branches = confidences.iter().zip(&lens);
                let branches = branches.map(|(&confidence, &len)| BranchStats { confidence, len });
                let branch = largest_shortfall(branches, so_far + 1).unwrap();
                lens[branch] += 1;
            }
            prop_assert_eq!(lens.iter().sum::<usize>(), num_tokens);
            for (confidence, len) in confidences.iter().zip(lens) {
                // Never a token more than its share; short of it by what the others are ahead.
                let share = confidence * num_tokens as f32;
                prop_assert!((len as f32) < share + 1.0 + 1e-3, "{len} of {share}");
                let behind = weights.len() as f32 - 1.0;
                prop_assert!(len as f32 >= share - behind - 1e-3, "{len} of {share}");
            }
        }
    }

    #[test]
    fn nothing_grows_without_branches() {
        assert_eq!(largest_shortfall(std::iter::empty(), 3), None);
    }
}
