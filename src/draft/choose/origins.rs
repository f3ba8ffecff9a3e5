//! Where the tokens given out came from, and what came true of what was drafted. In: accepted paths, and
//! who proposed their nodes. Out: the origin of each token, counts by source. A token that is fed again
//! keeps its first origin.

use crate::commit::Commit;
use crate::draft::choose::acceptance::Proposal;
use crate::ids::NodeId;

/// Who put a token into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: it is the target's own.
    Target,
    /// The caller, with a draft of its own.
    Given,
    /// The source of that index in the drafter's list.
    Source(usize),
    /// The grammar of the request, which allows no other token there.
    Grammar,
}

impl Origin {
    /// The name in results of [`Origin::Target`].
    pub const TARGET: &'static str = "target";
    /// The name in results of [`Origin::Given`].
    pub const GIVEN: &'static str = "given";
    /// The name in results of [`Origin::Grammar`].
    pub const GRAMMAR: &'static str = "grammar";
}

/// The origins of one step's tokens, in buffers that are used again.
#[derive(Debug, Default)]
pub struct Origins {
    given_out: Vec<Origin>,
    carried: Vec<Origin>,
}

impl Origins {
    /// Of the tokens given out last, in their order.
    pub fn given_out(&self) -> &[Origin] {
        &self.given_out
    }

    /// Of the tokens that are fed again.
    #[cfg(test)]
    pub fn carried(&self) -> &[Origin] {
        &self.carried
    }

    /// Forgets the request before.
    pub fn clear(&mut self) {
        self.given_out.clear();
        self.carried.clear();
    }

    /// Behind the first `num_carried` tokens that are fed again, the next tree has `num_forced` ones of
    /// the grammar.
    pub fn force(&mut self, num_carried: usize, num_forced: usize) {
        self.carried.truncate(num_carried);
        self.carried.resize(num_carried + num_forced, Origin::Grammar);
    }

    /// Who put each node into a tree that is yet to be verified; the root is the target's.
    ///
    /// `proposals` and `is_given` are those of [`Origins::follow`].
    pub fn of_tree(&self, proposals: &[Option<Proposal>], is_given: bool) -> Vec<Origin> {
        let below = (1..proposals.len() as u32).map(NodeId);
        let below = below.map(|node| of_node(node, proposals, is_given, &self.carried));
        std::iter::once(Origin::Target).chain(below).collect()
    }

    /// Follows an accepted path and the target's own token after it: `commit` gives out the first
    /// of these tokens and carries the others.
    ///
    /// `proposals` are those of the tree's nodes. A node without one is the caller's if
    /// `is_given`, else a carried or forced token below the root.
    pub fn follow(
        &mut self,
        path: &[NodeId],
        proposals: &[Option<Proposal>],
        is_given: bool,
        commit: &Commit,
    ) {
        self.given_out.clear();
        let carried = &self.carried;
        let origin = |node: &NodeId| of_node(*node, proposals, is_given, carried);
        self.given_out.extend(path.iter().map(origin));
        self.given_out.push(Origin::Target);
        self.carried.clear();
        let rest = self.given_out.drain(commit.token_ids.len()..);
        self.carried.extend(rest.take(commit.carried.len()));
    }
}

/// Who put a node below the root into its tree.
fn of_node(
    node: NodeId,
    proposals: &[Option<Proposal>],
    is_given: bool,
    carried: &[Origin],
) -> Origin {
    match proposals[node.index()] {
        Some(proposal) => Origin::Source(proposal.source),
        None if is_given => Origin::Given,
        None => carried[node.index() - 1],
    }
}

/// What happened since `begin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of steps by `accept_len`, up to the largest that occurred.
    pub accept_histogram: Vec<usize>,
    /// Draft nodes of each source, in the order of the sources.
    pub sources: Vec<SourceStatistics>,
    /// Draft nodes that a grammar forced.
    pub forced: SourceStatistics,
}

/// The draft nodes of one source. Tokens fed again after a side branch are counted where they
/// were first proposed, and a caller's own drafts nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatistics {
    /// Nodes verified.
    pub proposed: usize,
    /// Nodes that the target agreed with, side branches included.
    pub accepted: usize,
}

impl Statistics {
    /// Nothing counted yet.
    pub(super) fn new(num_sources: usize) -> Self {
        let sources = vec![SourceStatistics::default(); num_sources];
        Self { sources, ..Self::default() }
    }

    /// A step ended.
    pub(super) fn count_step(&mut self, accept_len: usize) {
        if self.accept_histogram.len() <= accept_len {
            self.accept_histogram.resize(accept_len + 1, 0);
        }
        self.accept_histogram[accept_len] += 1;
    }

    /// A node that a source proposed was verified.
    pub(super) fn count_node(&mut self, source: usize, came_true: bool) {
        let counts = &mut self.sources[source];
        counts.proposed += 1;
        counts.accepted += usize::from(came_true);
    }
}
