//! What a drafter keeps from request to request, and shares with those beside it. In: requests that
//! begin and end. Out: what was learned last by any of them.

use super::Drafter;
use crate::draft::choose::acceptance::Acceptance;
use crate::draft::choose::step_choice::StepChoice;
use crate::draft::sources::prediction::Prediction;
use crate::draft::sources::shared::Shared;
use crate::error::{Error, Result};

/// What a drafter has learned from verifications: the trust in its sources, and how steps paid.
#[derive(Clone, Debug)]
pub struct Learned {
    acceptance: Acceptance,
    steps: StepChoice,
}

/// What drafters that share have learned last; `None` before any of them has ended a request.
pub(super) type SharedLearned = Shared<Option<Learned>>;

impl Drafter {
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
