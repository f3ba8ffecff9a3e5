//! Candidates first, how many of them later: for a step that several requests share. In: how many rows
//! of it this request gets. Out: what its candidates are worth, then the tree of the worthiest.

use super::Drafter;
use super::request::{Offered, Proposed};
use crate::error::{Error, Result};

/// What a request could fill rows of a step with.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Tokens that each node is expected to bring, the root's 1 first, never increasing.
    pub worths: Vec<f32>,
    /// The fewest nodes that can be taken: all of them where the method has a shape of its own.
    pub least: usize,
}

impl Drafter {
    /// Drafts a tree as [`Drafter::propose`] does, behind `past_len` committed tokens, and leaves open
    /// how many of its nodes are verified: [`Drafter::take`] says so.
    ///
    /// It has as many nodes as the sources know, and the widest step that fits has rows; of more than
    /// 32 only where so many could pay by the drafter's own costs. A proposal that waits for its answer
    /// is taken back, and an offer that nothing is taken of is replaced by the next one. Fails as
    /// [`Drafter::propose`] does.
    pub fn offer(&mut self, past_len: usize) -> Result<Offer> {
        self.grow(past_len, usize::MAX, self.branches())?;
        let offer = if self.draft.is_shaped() {
            let num_nodes = self.draft.tree().num_nodes();
            Offer { worths: vec![1.0; num_nodes], least: num_nodes }
        } else {
            Offer { worths: self.draft.worths().collect(), least: 1 }
        };
        let (least, most) = (offer.least, offer.worths.len());
        self.request.as_mut().ok_or(Error::NoRequest)?.offered =
            Some(Offered { past_len, least, most });
        Ok(offer)
    }

    /// Cuts the offered tree to its worthiest `num_nodes` and proposes it. Returns the index of the
    /// narrowest step that holds it. [`Drafter::accept`] takes `num_nodes` rows of logits, whatever rows
    /// the step has.
    ///
    /// `cost` is this request's part of what the shared step costs, in the unit of the steps' costs;
    /// without it, what the step would cost alone. Fails when nothing was offered, the number is not
    /// one that was, or the cost is negative or not finite.
    pub fn take(&mut self, num_nodes: usize, cost: Option<f32>) -> Result<usize> {
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let Offered { past_len, least, most } = request.offered.ok_or(Error::NothingOffered)?;
        if !(least..=most).contains(&num_nodes) {
            return Err(Error::NotOffered { num_nodes, least, most });
        }
        if let Some(bad) = cost.filter(|cost| !(cost.is_finite() && *cost >= 0.0)) {
            let (what, must) = ("the cost of the request's rows", "finite and not negative");
            return Err(Error::BadOption { what, got: bad.to_string(), must });
        }
        let step = self.options.steps.narrowest(num_nodes, past_len)?;
        if !self.draft.is_shaped() {
            self.draft.cut(num_nodes);
        }
        request.offered = None;
        request.proposed =
            Some(Proposed { step, past_len, is_given: false, rows: num_nodes, cost, reads: None });
        Ok(step)
    }
}
