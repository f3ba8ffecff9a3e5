//! What can be read from a drafter between its calls. Nothing here changes it.

use super::{Drafter, Statistics};
use crate::commit::FinishReason;
use crate::draft::choose::origins::Origin;
use crate::ids::TokenId;
use crate::tree::draft_tree::DraftTree;

impl Drafter {
    /// Whether a source asks for the logits of the prompt's rows, see [`Drafter::prefilled`].
    pub fn reads_prefill(&self) -> bool {
        self.sources.reads_prefill()
    }

    /// The tree of the last `propose`; before it, the root alone.
    pub fn tree(&self) -> &DraftTree {
        self.draft.tree()
    }

    /// Tokens accepted on a side branch, which the next tree starts with.
    pub fn carried(&self) -> &[TokenId] {
        self.request.as_ref().map_or(&[], |request| &request.carried)
    }

    /// Who put the tokens given out last into the tree, in their order; none before the first step.
    pub fn origins(&self) -> &[Origin] {
        self.draft.origins().given_out()
    }

    /// Who put each node into the tree that `accept` is to verify next, the root being the target's;
    /// none where no tree waits.
    pub fn node_origins(&self) -> Vec<Origin> {
        let proposed = self.request.as_ref().and_then(|request| request.proposed.as_ref());
        proposed.map_or(Vec::new(), |proposed| self.draft.node_origins(proposed.is_given))
    }

    /// The name of an origin in results.
    pub fn origin_name(&self, origin: Origin) -> &'static str {
        match origin {
            Origin::Target => Origin::TARGET,
            Origin::Given => Origin::GIVEN,
            Origin::Grammar => Origin::GRAMMAR,
            Origin::Source(index) => self.sources.name(index),
        }
    }

    /// Why the request ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// What happened since `begin`.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The names of the sources, in their order.
    pub fn source_names(&self) -> impl Iterator<Item = &'static str> {
        self.sources.names()
    }

    /// Whether a grammar rules what the target may say in this request.
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Bytes held on the heap by the sources, the growing tree and the tokens seen.
    pub fn memory_bytes(&self) -> usize {
        self.sources.memory_bytes() + self.draft.memory_bytes() + self.seen.memory_bytes()
    }
}
