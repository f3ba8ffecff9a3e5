//! A token tree in the making, as branches (EdgeLLM III-B). In: what the draft model holds likely
//! after each token that it has read. Out: the token to read next, and the tree so far.
//!
//! Which branch grows next is the branch pacer's to say (Eq. 1 and Eq. 2): the one that is shortest of
//! what it should be. What is read while the target verifies (III-D) is known, but not drafted: the next
//! tree is the one that would be grown if nothing of it were known, and only takes fewer runs.

use std::cmp::Reverse;

use super::shape::Growth;
use crate::ids::{NodeId, TokenId};
use crate::logits::top_k::TopK;
use crate::tree::draft_tree::DraftTree;

/// A token of the tree, or the root.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drafted {
    node: NodeId,
    /// C.
    confidence: f32,
    branch: usize,
    /// The next token of its branch and its probability; `None` before what follows it was taken in.
    next: Option<(TokenId, f32)>,
}

/// A token that the model holds likely after one of the tree, and has not read for it yet.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Leaf {
    /// Index of the drafted token that it follows.
    parent: usize,
    token: TokenId,
    /// C of the path that ends with it.
    confidence: f32,
    /// The branch that it continues, as the likeliest after its parent; `None` where it would begin
    /// one of its own.
    branch: Option<usize>,
}

/// How far a tree is drafted, and where it can grow.
#[derive(Clone, Debug)]
struct Pacer {
    /// The root, then the others in the order in which they joined.
    drafted: Vec<Drafted>,
    /// The first of them, after which it is taken in what is likely: all, or all but the last.
    num_taken_in: usize,
    /// T of each branch, its own tokens.
    lens: Vec<usize>,
    tails: Vec<Leaf>,
}

impl Pacer {
    fn at(root: NodeId) -> Self {
        let root = Drafted { node: root, confidence: 1.0, branch: 0, next: None };
        Self { drafted: vec![root], num_taken_in: 0, lens: vec![0], tails: Vec::new() }
    }

    /// Takes in what is likely after the last drafted token. The likeliest token joins the tree; the
    /// others may begin branches. Nothing follows `end_tokens`.
    fn take_in(&mut self, likely: &TopK, end_tokens: &[TokenId]) {
        let parent = self.num_taken_in;
        self.num_taken_in += 1;
        let Drafted { branch, confidence, .. } = self.drafted[parent];
        for (rank, (token, probability)) in entries(likely).enumerate() {
            let continues = (rank == 0).then_some(branch);
            if rank == 0 {
                self.lens[branch] += 1;
                self.drafted[parent].next = Some((token, probability));
            }
            if !end_tokens.contains(&token) {
                let confidence = confidence * probability;
                self.tails.push(Leaf { parent, token, confidence, branch: continues });
            }
        }
    }

    /// The last drafted token of each branch; of a first branch without tokens of its own, the root.
    fn last_of_branches(&self) -> impl Iterator<Item = &Drafted> {
        let last = |branch| self.drafted.iter().rfind(move |drafted| drafted.branch == branch);
        (0..self.lens.len()).filter_map(last)
    }
}

/// A tree of tokens that the draft model has read, below a chain that is certain.
#[derive(Clone, Debug)]
pub struct Branches {
    /// What the model reads: node `i` is its row `i`.
    tree: DraftTree,
    /// Number of nodes, from the first on, that are certain: their chain is the context.
    num_certain: usize,
    /// What the model holds likely after each node; `None` before it has read the node, and for all
    /// certain ones but the last.
    likely: Vec<Option<TopK>>,
    /// Of what the target verifies.
    pacer: Pacer,
    /// Of the tree that grows meanwhile.
    provisional: Option<Pacer>,
}

impl Branches {
    /// A tree of nothing but the certain tokens, at least one, none of which is read.
    pub fn below(certain: &DraftTree) -> Self {
        let num_certain = certain.num_nodes();
        Self {
            tree: certain.clone(),
            num_certain,
            likely: vec![None; num_certain],
            pacer: Pacer::at(NodeId(num_certain as u32 - 1)),
            provisional: None,
        }
    }

    /// All nodes that are read, drafted or not, and one that may be left to read; the certain ones first.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// The last certain node, below which everything is drafted.
    pub fn root(&self) -> NodeId {
        NodeId(self.num_certain as u32 - 1)
    }

    /// From now on the tree grows while the target verifies what was drafted until then; or again as
    /// if it never had.
    pub fn grow_provisionally(&mut self, is_provisional: bool) {
        let grown = self.provisional.take().filter(|_| is_provisional);
        self.provisional = grown.or_else(|| is_provisional.then(|| self.pacer.clone()));
    }

    /// The one that grows.
    fn growing(&self) -> &Pacer {
        self.provisional.as_ref().unwrap_or(&self.pacer)
    }

    /// Tokens of the tree that grows, those that are not read yet included.
    pub fn num_grown(&self) -> usize {
        self.growing().lens.iter().sum()
    }

    /// Tokens that are drafted for the target to verify.
    pub fn num_drafted(&self) -> usize {
        self.pacer.lens.iter().sum()
    }

    /// How sure the surest token is that could be read next, in a branch or as the first of another
    /// one; 0 where there is none.
    pub fn confidence(&self) -> f32 {
        self.growing().tails.iter().map(|tail| tail.confidence).fold(0.0, f32::max)
    }

    /// T_c (EdgeLLM, section III-C) of what is drafted: the largest C of any branch, each up to its
    /// last token, which may be one that is not read yet; 1 where nothing is drafted.
    pub fn tree_confidence(&self) -> f32 {
        let of_branch = |last: &Drafted| last.confidence * last.next.map_or(1.0, |next| next.1);
        self.pacer.last_of_branches().map(of_branch).fold(0.0, f32::max)
    }

    /// Notes what the model holds likely after `node`, which it has just read, and takes it in.
    pub fn read(&mut self, node: NodeId, likely: &TopK, end_tokens: &[TokenId]) {
        self.likely[node.index()] = Some(*likely);
        self.take_in(end_tokens);
    }

    /// Takes in what is likely after the last token that joined the tree; false where that was done, or
    /// the model has not read it.
    pub fn take_in(&mut self, end_tokens: &[TokenId]) -> bool {
        let pacer = self.provisional.as_mut().unwrap_or(&mut self.pacer);
        let last = pacer.drafted.get(pacer.num_taken_in);
        let likely = last.and_then(|last| self.likely[last.node.index()].as_ref());
        likely.inspect(|likely| pacer.take_in(likely, end_tokens)).is_some()
    }

    /// Adds the next token to the tree, a node that the model may have read before, and returns it;
    /// `None` where no branch can grow. It is the surest one, or else that of the branch that the pacer
    /// wants to grow. What follows it is no deeper than `max_depth` below the root.
    pub fn grow(&mut self, growth: Growth, max_depth: usize) -> Option<NodeId> {
        let (pacer, num_tokens) = (self.growing(), self.num_grown() + 1);
        let depth = |tail: &Leaf| {
            let parent = pacer.drafted[tail.parent].node;
            self.tree.depths()[parent.index()] as usize + 2 - self.num_certain
        };
        let tails = pacer.tails.iter().enumerate().filter(|tail| depth(tail.1) < max_depth);
        let whole_lengths = match growth {
            Growth::Chain | Growth::Surest => {
                let surest = tails.max_by(|a, b| a.1.confidence.total_cmp(&b.1.confidence))?;
                return Some(self.add(surest.0));
            }
            Growth::Paced { whole_lengths } => whole_lengths,
        };
        let (tails, paced): (Vec<_>, Vec<_>) = tails
            .map(|(index, tail)| {
                let len = match (whole_lengths, tail.branch) {
                    (false, branch) => branch.map_or(0, |branch| pacer.lens[branch]),
                    (true, branch) => depth(tail) - usize::from(branch.is_none()),
                };
                (index, Paced { confidence: tail.confidence, len })
            })
            .unzip();
        let wanting = largest_shortfall(paced.into_iter(), num_tokens)?;
        Some(self.add(tails[wanting]))
    }

    /// Has a tail join the tree.
    fn add(&mut self, tail: usize) -> NodeId {
        let pacer = self.provisional.as_mut().unwrap_or(&mut self.pacer);
        let Leaf { parent, token, confidence, branch } = pacer.tails.swap_remove(tail);
        let branch = branch.unwrap_or_else(|| {
            pacer.lens.push(1);
            pacer.lens.len() - 1
        });
        let parent = pacer.drafted[parent].node;
        let node = self.tree.child(parent, token).unwrap_or_else(|| {
            self.likely.push(None);
            self.tree.push(parent, token)
        });
        pacer.drafted.push(Drafted { node, confidence, branch, next: None });
        node
    }

    /// What the model holds likely after `node`: tokens and their probabilities.
    pub fn after(&self, node: NodeId) -> impl Iterator<Item = (TokenId, f32)> {
        self.likely[node.index()].iter().flat_map(entries)
    }

    /// Of these, what is drafted, and the nodes of those after which there may be more.
    pub fn drafted_after(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (TokenId, f32, Option<NodeId>)> {
        let is_it = move |drafted: &&Drafted| drafted.node == node;
        let next = self.pacer.drafted.iter().find(is_it).and_then(|drafted| drafted.next);
        self.after(node).filter_map(move |(token, probability)| {
            let is_drafted = |&child: &NodeId| self.pacer.drafted.iter().any(|it| it.node == child);
            let child = self.tree.child(node, token).filter(is_drafted);
            let joined = child.is_some() || next.is_some_and(|next| next.0 == token);
            joined.then_some((token, probability, child))
        })
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

    /// Of the branch that agrees furthest with `said`, the number of right tokens and of all, the
    /// fewest among equals. `None` where nothing was drafted.
    pub fn best_match(&self, said: &[TokenId]) -> Option<(usize, usize)> {
        let agreement = |last: &Drafted| {
            let path = self.path_to(last);
            let num_right = path.iter().zip(said).take_while(|(one, other)| one == other).count();
            (!path.is_empty()).then_some((num_right, path.len()))
        };
        let agreements = self.pacer.last_of_branches().filter_map(agreement);
        agreements.max_by_key(|&(num_right, len)| (num_right, Reverse(len)))
    }

    /// The tokens of the branch that ends with a node, from below the root to its last.
    fn path_to(&self, last: &Drafted) -> Vec<TokenId> {
        let mut node = last.node;
        let mut path: Vec<TokenId> = last.next.into_iter().map(|next| next.0).collect();
        while node != self.root() {
            path.push(self.tree.token(node));
            node = self.tree.parents()[node.index()];
        }
        path.reverse();
        path
    }

    /// What is read below `root`, one of the nodes that are read, of which nothing is drafted; and the
    /// nodes of this one that are in it, in its order.
    pub fn below_node(&self, root: NodeId) -> (Self, Vec<NodeId>) {
        let mut below = Self::below(&DraftTree::new(self.tree.token(root)));
        below.likely[0] = self.likely[root.index()];
        let mut kept = vec![root];
        for index in root.index() + 1..self.tree.num_nodes() {
            let (node, parent) = (NodeId(index as u32), self.tree.parents()[index]);
            let place = kept.iter().position(|&known| known == parent);
            if let (Some(place), Some(likely)) = (place, self.likely[index]) {
                below.tree.push(NodeId(place as u32), self.tree.token(node));
                below.likely.push(Some(likely));
                kept.push(node);
            }
        }
        (below, kept)
    }
}

/// Tokens that are possible, and their probabilities, likeliest first.
fn entries(likely: &TopK) -> impl Iterator<Item = (TokenId, f32)> {
    let all = likely.token_ids.iter().copied().zip(likely.probabilities.iter().copied());
    all.take_while(|entry| entry.1 > 0.0)
}

/// A branch as the pacer sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
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
    branches: impl Iterator<Item = Paced>,
    num_tokens: usize,
) -> Option<usize> {
    let shortfalls =
        branches.map(|branch| num_tokens as f32 * branch.confidence - branch.len as f32);
    let numbered = shortfalls.enumerate();
    let largest = numbered.reduce(|best, next| if next.1 > best.1 { next } else { best });
    largest.map(|(index, _)| index)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::logits::top_k::TOP_K;
    use proptest::prelude::*;

    /// A model whose row after a token depends on that token and on `rule`.
    pub(crate) fn likely(rule: u32, token: TokenId) -> TopK {
        let mut seen = TopK { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
        let first = (token.0 * 3 + rule) % 5;
        let weights = [[8.0, 1.0, 1.0], [4.0, 4.0, 2.0], [6.0, 3.0, 1.0]];
        for (rank, weight) in weights[((token.0 + rule) % 3) as usize].into_iter().enumerate() {
            seen.token_ids[rank] = TokenId((first + rank as u32) % 5);
            seen.probabilities[rank] = weight / 10.0;
        }
        seen
    }

    const PACED: Growth = Growth::Paced { whole_lengths: false };

    fn grown(rule: u32, num_nodes: usize) -> Branches {
        let mut branches = Branches::below(&DraftTree::chain(&[TokenId(1), TokenId(2)]).unwrap());
        branches.read(NodeId(1), &likely(rule, TokenId(2)), &[]);
        for _ in 0..num_nodes {
            let node = branches.grow(PACED, usize::MAX).unwrap();
            branches.read(node, &likely(rule, branches.tree().token(node)), &[]);
        }
        branches
    }

    proptest! {
        #[test]
        fn the_most_wanting_branch_grows(rule in 0u32..15, num_nodes in 0usize..20) {
            let branches = grown(rule, num_nodes);
            // What every token that could be read next would be short of.
            let num_tokens = branches.num_drafted() as f32 + 1.0;
            let before = branches.clone();
            let depth = |tail: &Leaf| {
                let parent = before.pacer.drafted[tail.parent].node;
                before.tree.depths()[parent.index()] as usize
            };
            for whole_lengths in [false, true] {
                let shortfall = |tail: &Leaf| {
                    let len = match (whole_lengths, tail.branch) {
                        (false, Some(branch)) => before.pacer.lens[branch],
                        (false, None) => 0,
                        // Certain are two tokens.
                        (true, Some(_)) => depth(tail),
                        (true, None) => depth(tail) - 1,
                    };
                    num_tokens * tail.confidence - len as f32
                };
                let most = before.pacer.tails.iter().map(shortfall).fold(f32::MIN, f32::max);
                let mut branches = branches.clone();
                let node = branches.grow(Growth::Paced { whole_lengths }, usize::MAX).unwrap();
                let chosen = before.pacer.tails.iter().find(|tail| {
                    let parent = before.pacer.drafted[tail.parent].node;
                    (parent, tail.token) == (branches.tree.parents()[node.index()], branches.tree.token(node))
                });
                prop_assert_eq!(shortfall(chosen.unwrap()), most);
            }
        }

        #[test]
        fn nothing_is_drafted_too_deep(rule in 0u32..15, max_depth in 1usize..5, paced: bool) {
            let growth = if paced { PACED } else { Growth::Surest };
            let mut branches = grown(rule, 0);
            for _ in 0..60 {
                let Some(node) = branches.grow(growth, max_depth) else { break };
                branches.read(node, &likely(rule, branches.tree().token(node)), &[]);
            }
            let last = branches.pacer.last_of_branches();
            let deepest = last.map(|last| branches.path_to(last).len()).max();
            prop_assert_eq!(deepest, Some(max_depth));
        }

        #[test]
        fn confidences_are_products_and_lengths_count_tokens(rule in 0u32..15, num_nodes in 0usize..20) {
            let branches = grown(rule, num_nodes);
            let Pacer { drafted, lens: expected, tails, .. } = &branches.pacer;
            let mut lens = vec![0; expected.len()];
            for it in &drafted[1..] {
                let parent = branches.tree.parents()[it.node.index()];
                let token = branches.tree.token(it.node);
                let probability = branches.after(parent).find(|next| next.0 == token).unwrap().1;
                let above = drafted.iter().find(|other| other.node == parent).unwrap().confidence;
                prop_assert!((it.confidence - above * probability).abs() < 1e-6);
                lens[it.branch] += 1;
            }
            for tail in tails.iter().filter_map(|tail| tail.branch) {
                lens[tail] += 1;
            }
            prop_assert_eq!(&lens, expected);
            let surest = tails.iter().map(|tail| tail.confidence).fold(0.0, f32::max);
            prop_assert_eq!(branches.confidence(), surest);
            let going_on = tails.iter().filter(|tail| tail.branch.is_some());
            let likeliest = going_on.map(|tail| tail.confidence).fold(0.0, f32::max);
            prop_assert_eq!(branches.tree_confidence(), likeliest);
        }

        #[test]
        fn a_match_is_that_of_the_nearest_branch(
            rule in 0u32..15,
            num_nodes in 0usize..12,
            said in prop::collection::vec((0u32..5).prop_map(TokenId), 1..6),
        ) {
            let branches = grown(rule, num_nodes);
            let (num_right, len) = branches.best_match(&said).unwrap();
            let paths: Vec<_> = branches.pacer.last_of_branches().map(|it| branches.path_to(it)).collect();
            let total: usize = paths.iter().map(|path| usize::from(!path.is_empty())).sum();
            prop_assert_eq!(total, branches.pacer.lens.len());
            let right = |path: &Vec<TokenId>| path.iter().zip(&said).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(num_right, paths.iter().map(right).max().unwrap());
            prop_assert!(paths.iter().any(|path| right(path) == num_right && path.len() == len));
        }

        #[test]
        fn what_is_below_a_node_is_known_there(rule in 0u32..15, num_nodes in 1usize..20) {
            let branches = grown(rule, num_nodes);
            for root in 2..branches.tree.num_nodes() {
                let (below, kept) = branches.below_node(NodeId(root as u32));
                prop_assert_eq!(below.num_drafted(), 0);
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
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_surest_token_is_read_first(rule in 0u32..15, num_nodes in 0usize..20) {
            let mut branches = grown(rule, num_nodes);
            let surest = branches.confidence();
            let node = branches.grow(Growth::Surest, usize::MAX).unwrap();
            prop_assert_eq!(branches.pacer.drafted.last().map(|it| (it.node, it.confidence)), Some((node, surest)));
        }
    }

    #[test]
    fn nothing_follows_an_end_token() {
        let mut branches = Branches::below(&DraftTree::new(TokenId(9)));
        branches.read(NodeId(0), &TopK::certain(TokenId(4)), &[TokenId(4)]);
        assert_eq!(branches.grow(PACED, usize::MAX), None);
        assert_eq!(branches.grow(Growth::Surest, usize::MAX), None);
        assert_eq!(branches.confidence(), 0.0);
        assert_eq!(branches.tree_confidence(), 1.0);
        assert_eq!(branches.num_drafted(), 1);
        assert_eq!(branches.best_match(&[TokenId(4)]), Some((1, 1)));
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
                let branches = branches.map(|(&confidence, &len)| Paced { confidence, len });
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
