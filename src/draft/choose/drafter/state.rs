//! What a drafter holds between its calls. Out: what can be read from it; what it keeps from request to
//! request and shares with those beside it, which is what was learned last by any of them.

use super::{Drafter, Statistics};
use crate::commit::FinishReason;
use crate::draft::choose::acceptance::Acceptance;
use crate::draft::choose::origins::Origin;
use crate::draft::choose::step_choice::StepChoice;
use crate::draft::sources::prediction::Prediction;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::locks::Shared;
use crate::tree::draft_tree::DraftTree;

/// What a drafter has learned from verifications: the trust in its sources, and how steps paid.
#[derive(Clone, Debug)]
pub struct Learned {
    acceptance: Acceptance,
    steps: StepChoice,
}

/// What drafters that share have learned last; `None` before any of them has ended a request.
pub(super) type SharedLearned = Shared<Option<Learned>>;

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

    /// Shares with `other`, and all that it shares with, what is learned of the sources and of how steps
    /// pay: a request begins with what was learned in the one that ended last.
    ///
    /// Their sources may share more, by what they were made to draw on. Fails when the other's sources
    /// or vocabulary are not the same.
    pub fn share_with(&mut self, other: &Self) -> Result<()> {
        let named = |drafter: &Self| {
            let names = drafter.sources.names().filter(|&name| name != Prediction::NAME);
            (names.collect::<Vec<_>>(), drafter.options.vocab_size)
        };
        let (own, others) = (named(self), named(other));
        if own != others {
            let (what, must) = ("the drafter beside", "of the same sources and vocabulary");
            let got = format!("one of {} tokens that drafts from {:?}", others.1, others.0);
            return Err(Error::BadOption { what, got, must });
        }
        self.take_over(&other.learned());
        self.shared = other.shared.clone();
        Ok(())
    }

    /// What was learned until now, to be put back later.
    pub(crate) fn learned(&self) -> Learned {
        let acceptance = self.draft.acceptance().clone();
        Learned { acceptance, steps: self.options.steps.clone() }
    }

    /// Puts back what was learned up to some time.
    pub(crate) fn set_learned(&mut self, learned: &Learned) {
        self.draft.set_acceptance(learned.acceptance.clone());
        self.options.steps = learned.steps.clone();
    }

    /// A request begins: takes what others have learned since the last one, if there are such.
    pub(super) fn take_learned(&mut self) {
        if self.shared.has_others() {
            let last = self.shared.lock().clone();
            last.iter().for_each(|last| self.take_over(last));
        }
    }

    /// A request has ended: gives what was learned, if there are others.
    pub(super) fn give_learned(&self) {
        if self.shared.has_others() {
            let learned = self.learned();
            *self.shared.lock() = Some(learned);
        }
    }

    /// Goes on from what another drafter has learned, whose steps may be others.
    fn take_over(&mut self, learned: &Learned) {
        let mut acceptance = learned.acceptance.clone();
        acceptance.add_sources(self.sources.len()); // a prediction is a source of one of them
        self.draft.set_acceptance(acceptance);
        self.options.steps.learn_as(&learned.steps);
    }
}
