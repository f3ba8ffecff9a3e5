//! Growing one draft tree from all sources, best first. In: sources, carried tokens, trust. Out:
//! nodes in the order of their worth, from which a tree of any number of nodes can be cut.
//!
//! How many nodes pay is the drafter's decision.

mod frontier;
mod guesses;
mod prune;
mod retokenised;

use self::frontier::{Candidate, Frontier};
use self::guesses::{ActiveSource, ActiveSources, Guesses};
use crate::draft::choose::acceptance::{Acceptance, Proposal};
use crate::draft::choose::step_choice::Prospect;
use crate::draft::source::{Cursor, DraftSource};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// Sources are asked for nothing below this share of an even worth of all nodes, unless rows stay
/// empty for it. Without it `coordgen replay` counts as many steps (within 0.4 %), each of which
/// takes up to a third longer to draft; half and twice as much were worse.
const EXPECTED_SHARE: f32 = 1.0 / 6.0;

/// How large a tree may grow.
#[derive(Clone, Copy, Debug)]
pub struct GrowthLimits {
    /// Nodes, the root included; at least 1.
    pub num_nodes: usize,
    /// Edges from the root to the deepest node.
    pub depth: usize,
    /// Worth of a node beside the first path, relative to one on it: 1 where every accepted node
    /// is committed, less where only those on the first path are.
    pub side_worth: f32,
    /// Whether a node may have several children; without, the tree is a chain of the likeliest.
    pub branches: bool,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    token: TokenId,
    parent: u32,
    depth: u32,
    /// Estimated probability that the target says all tokens from the root to here.
    path_probability: f32,
    worth: f32,
    on_first_path: bool,
    /// Where its cursors start, once the sources have followed to it.
    first_cursor: u32,
    /// Index among all guesses; `None` for the root and for carried tokens, which no source guessed.
    guess: Option<u32>,
}

/// The growing tree, with buffers that are used again for every tree.
#[derive(Debug, Default)]
pub struct TreeGrower {
    /// Number of ids that the target knows: no other is drafted.
    vocab_size: usize,
    /// What ends an answer. It is not drafted: where all before it is accepted, the target says it by
    /// itself, and nothing follows. Its guesses still take their share from the others.
    end_tokens: Vec<TokenId>,
    nodes: Vec<Node>,
    /// Worth below which nothing is asked for.
    least_expected: f32,
    /// `(nodes, active)`: where each source that knows a place is after each node that it was asked
    /// about, in the order of the asking.
    cursors: Vec<Option<Cursor>>,
    /// What may become a node.
    frontier: Frontier,
    /// What the sources propose after the nodes.
    guesses: Guesses,
    /// Place of each node in the tree that is cut.
    places: Vec<NodeId>,
}

impl TreeGrower {
    /// For ids below `vocab_size`, and answers that end with `end_tokens`, which are not grown.
    pub fn new(vocab_size: usize, end_tokens: Vec<TokenId>) -> Self {
        Self { vocab_size, end_tokens, ..Self::default() }
    }

    /// Grows a tree below `root`: first the carried tokens as a chain, since the target has said
    /// them already, then what the sources propose after them, the worthiest first.
    ///
    /// Cost: a call to each source for every node whose children could still be among the
    /// worthiest, and a sorted list of the answers; twice that where the first pass leaves rows
    /// empty.
    pub fn grow(
        &mut self,
        sources: &[Box<dyn DraftSource>],
        acceptance: &Acceptance,
        root: TokenId,
        carried: &[TokenId],
        limits: GrowthLimits,
    ) {
        let asked = &ActiveSources::among(sources, acceptance, self.vocab_size, root);
        self.guesses.begin(asked);
        self.least_expected = EXPECTED_SHARE / limits.num_nodes as f32;
        self.grow_expected(asked, root, carried, limits);
        if self.nodes.len() < limits.num_nodes {
            self.least_expected = 0.0;
            self.grow_expected(asked, root, carried, limits);
        }
    }

    /// Grows a tree from what is at least of the expected worth.
    fn grow_expected(
        &mut self,
        asked: &ActiveSources<'_>,
        root: TokenId,
        carried: &[TokenId],
        limits: GrowthLimits,
    ) {
        self.nodes.clear();
        self.frontier.clear();
        self.guesses.clear();
        self.cursors.clear();
        self.cursors.extend(asked.active.iter().map(|one| Some(one.cursor)));
        self.nodes.push(Node::certain(root, 0, 0));
        for &token in carried.iter().take(limits.depth.min(limits.num_nodes - 1)) {
            let parent = self.nodes.len() as u32 - 1;
            self.nodes.push(Node::certain(token, parent, parent + 1));
            self.follow(&asked.active);
        }
        self.expand(asked, limits);
        while self.nodes.len() < limits.num_nodes {
            let Some(worthiest) = self.frontier.pop() else { break };
            self.push(worthiest);
            self.expand(asked, limits);
        }
    }

    /// The worth of each node, never increasing: root and carried tokens stand first, with 1.
    pub fn worths(&self) -> impl ExactSizeIterator<Item = f32> + Clone {
        self.nodes.iter().map(|node| node.worth)
    }

    /// What is expected of each node, in the order of their worth.
    pub fn prospects(&self) -> impl ExactSizeIterator<Item = Prospect> + Clone {
        self.nodes.iter().map(|node| Prospect {
            worth: node.worth,
            reach: node.on_first_path.then_some(node.path_probability),
        })
    }

    /// Writes the worthiest `num_nodes` nodes into `tree`, those on the first path first, and
    /// their proposals into `proposals`.
    pub fn cut(
        &mut self,
        num_nodes: usize,
        tree: &mut DraftTree,
        proposals: &mut Vec<Option<Proposal>>,
    ) {
        let nodes = &self.nodes[..num_nodes.min(self.nodes.len())];
        tree.reset(nodes[0].token);
        proposals.clear();
        proposals.push(None);
        self.places.clear();
        self.places.resize(nodes.len(), NodeId::ROOT);
        for on_first_path in [true, false] {
            for (index, node) in nodes.iter().enumerate().skip(1) {
                if node.on_first_path == on_first_path {
                    let parent = self.places[node.parent as usize];
                    self.places[index] = tree.push(parent, node.token);
                    proposals.push(node.guess.map(|guess| self.guesses.get(guess).proposal));
                }
            }
        }
    }

    /// What was guessed after nodes of the tree and cut off: the node, the token, and who says it.
    pub fn cut_off(&self) -> impl Iterator<Item = (NodeId, TokenId, Proposal)> {
        let rest = self.nodes.iter().skip(self.places.len());
        rest.filter_map(|node| {
            let parent = *self.places.get(node.parent as usize)?;
            Some((parent, node.token, self.guesses.get(node.guess?).proposal))
        })
    }

    /// Forgets the tree: another one is verified.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.places.clear();
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.cursors.capacity() * size_of::<Option<Cursor>>()
            + self.frontier.memory_bytes()
            + self.guesses.memory_bytes()
            + self.places.capacity() * size_of::<NodeId>()
    }

    /// Makes a candidate the newest node.
    fn push(&mut self, candidate: Candidate) {
        let Candidate { guess, parent, path_probability, worth, on_first_path } = candidate;
        self.nodes.push(Node {
            token: self.guesses.get(guess).token,
            parent,
            depth: self.nodes[parent as usize].depth + 1,
            path_probability,
            worth,
            on_first_path,
            first_cursor: 0,
            guess: Some(guess),
        });
    }

    /// Lets every source follow to the newest node, whose parent they have reached before.
    fn follow(&mut self, active: &[ActiveSource<'_>]) {
        let index = self.nodes.len() - 1;
        let Node { token, parent, guess, .. } = self.nodes[index];
        if index == 0 {
            return;
        }
        let before = self.nodes[parent as usize].first_cursor as usize;
        self.nodes[index].first_cursor = self.cursors.len() as u32;
        let guess = guess.map(|guess| self.guesses.get(guess));
        for (number, one) in active.iter().enumerate() {
            let cursor = one.follow(self.cursors[before + number], token, guess);
            self.cursors.push(cursor);
        }
    }

    /// Adds to the frontier what the sources propose after the newest node.
    fn expand(&mut self, asked: &ActiveSources<'_>, limits: GrowthLimits) {
        let parent = self.nodes.len() - 1;
        let Node { token, depth, path_probability, on_first_path, .. } = self.nodes[parent];
        // The root is no part of the answer: a prompt may well end with such a token.
        if parent > 0 && self.end_tokens.contains(&token) {
            return;
        }
        let num_missing = limits.num_nodes - self.nodes.len();
        let largest = path_probability * if on_first_path { 1.0 } else { limits.side_worth };
        let admitted = self.frontier.admits(largest * self.guesses.largest(), num_missing);
        if depth as usize == limits.depth || !admitted {
            return;
        }
        let least = self.frontier.least_worth(num_missing).unwrap_or(0.0);
        let at_least = least.max(self.least_expected) / largest;
        if self.guesses.are_none_above(at_least) {
            return;
        }
        self.follow(&asked.active);
        let cursors = &self.cursors[self.nodes[parent].first_cursor as usize..];
        self.guesses.ask(asked, cursors, at_least);
        let (of_first, of_others) = self.guesses.scales();
        let num_children = if limits.branches { usize::MAX } else { 1 };
        let (guesses, ends) = (&self.guesses, &self.end_tokens);
        let goes_on = |&(guess, _): &(u32, f32)| !ends.contains(&guesses.get(guess).token);
        let children = guesses.newest().filter(goes_on).take(num_children);
        for (rank, (guess, probability)) in children.enumerate() {
            let scale = if rank == 0 { of_first } else { of_others };
            let path_probability = path_probability * probability * scale;
            let on_first_path = on_first_path && rank == 0;
            let worth = path_probability * if on_first_path { 1.0 } else { limits.side_worth };
            if !self.frontier.admits(worth, num_missing) {
                break; // nor what is worth no more
            }
            let parent = parent as u32;
            let new = Candidate { guess, parent, path_probability, worth, on_first_path };
            self.frontier.push(new, num_missing);
        }
    }
}

impl Node {
    /// A node that the target has said already.
    fn certain(token: TokenId, parent: u32, depth: u32) -> Self {
        let (path_probability, worth, on_first_path) = (1.0, 1.0, true);
        let (first_cursor, guess) = (0, None);
        Self { token, parent, depth, path_probability, worth, on_first_path, first_cursor, guess }
    }
}

#[cfg(test)]
mod tests;
