//! The tree of a step. In: committed tokens. Out: what the sources say behind them, or the caller, as a
//! tree, and the step that is to verify it.
//!
//! For a step that several requests share there are candidates first ([`Drafter::offer`]), and how many
//! of them are verified is said later. For a target that another engine runs, tokens that the engine has
//! committed stand in place of its logits.

use super::Drafter;
use super::request::{PendingOffer, PendingStep};
use crate::draft::choose::tree_shape::TreeShape;
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// What a request could fill rows of a step with.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Tokens that each node is expected to bring, the root's 1 first, never increasing.
    pub worths: Vec<f32>,
    /// The fewest nodes that can be taken: all of them where the method has a shape of its own.
    pub least: usize,
}

impl Drafter {
    /// Drafts a tree and chooses the step that verifies it, after `past_len` committed tokens.
    /// Returns the step's index; the tree is [`Drafter::tree`].
    ///
    /// With costs the step is chosen that, with those after it in the same copy, gains most over what
    /// its cost would bring elsewhere, and the tree is cut to its rows; drafting nothing is among the
    /// choices. Without costs the tree grows to the rows of the widest step that fits, as far as the
    /// sources know something.
    /// A method with a shape of its own has it in the narrowest step that holds it.
    /// Fails without a request, when no step fits, or when the grammar does.
    pub fn propose(&mut self, past_len: usize) -> Result<usize> {
        self.propose_within(past_len, usize::MAX, self.branches())
    }

    /// [`Drafter::propose`] with at most `most_nodes` nodes, at least 1, with or without `branches`.
    pub(super) fn propose_within(
        &mut self,
        past_len: usize,
        most_nodes: usize,
        branches: bool,
    ) -> Result<usize> {
        let widest = self.grow(past_len, most_nodes, branches)?;
        let steps = &self.options.steps;
        let step = if self.draft.is_shaped() {
            steps.narrowest(self.draft.tree().num_nodes(), past_len)?
        } else {
            let step = steps.best(widest, past_len, self.draft.prospects());
            self.draft.cut(steps.rows(step).min(most_nodes));
            step
        };
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let rows = steps.rows(step);
        request.proposed = Some(PendingStep { step, past_len, rows, ..PendingStep::default() });
        Ok(step)
    }

    /// Grows a tree of at most `most_nodes` nodes, at least 1, with or without `branches`, and holds it to
    /// the grammar; where the method has a shape of its own, the tree is built. Whatever was proposed or
    /// offered before is gone. Returns the widest step that it may fill.
    pub(super) fn grow(
        &mut self,
        past_len: usize,
        most_nodes: usize,
        branches: bool,
    ) -> Result<usize> {
        self.force()?;
        let steps = &self.options.steps;
        let widest = steps.narrowest(most_nodes, past_len)?;
        let num_nodes = steps.rows(widest).min(most_nodes);
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        (request.proposed, request.offered) = (None, None);
        let sources = self.sources.all();
        let limits = request.limits(num_nodes, self.options.commit, branches);
        if self.draft.is_shaped() {
            self.draft.build_shaped(sources, request, limits);
            if let Some(grammar) = &mut self.constraint {
                self.draft.prune_tree(&mut **grammar)?;
            }
        } else {
            self.draft.grow(sources, request, limits, (steps, widest, past_len));
            if let Some(grammar) = &mut self.constraint {
                self.draft.prune_grown(&mut **grammar)?;
            }
        }
        Ok(widest)
    }

    /// Whether a node of a tree may have several children.
    pub(super) fn branches(&self) -> bool {
        self.options.shape != TreeShape::Chain
    }

    /// Takes the caller's own tree in place of the sources', with node 0 as the root. Returns the
    /// index of the narrowest step that holds it.
    ///
    /// Nodes deeper than what may still be given out, and nodes beyond the widest step that fits,
    /// are left out. Fails as [`Drafter::propose`] does, and when the tree is malformed, holds
    /// an unknown token, or its root is not the last token given out.
    pub fn propose_draft(
        &mut self,
        past_len: usize,
        token_ids: &[TokenId],
        parents: &[u32],
    ) -> Result<usize> {
        let draft = DraftTree::from_arrays(token_ids, parents)?;
        self.check_tokens(token_ids)?;
        let steps = &self.options.steps;
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let widest = steps.widest(past_len)?;
        if token_ids[0] != request.root {
            return Err(Error::WrongRoot { got: token_ids[0], expected: request.root });
        }
        // The grammar may fail on the tree that takes the place of either.
        (request.proposed, request.offered) = (None, None);
        self.draft.take(draft.trimmed(steps.rows(widest), request.remaining - 1));
        if let Some(grammar) = &mut self.constraint {
            self.draft.prune_tree(&mut **grammar)?;
        }
        let step = steps.narrowest(self.draft.tree().num_nodes(), past_len)?;
        let (rows, is_given) = (steps.rows(step), true);
        request.proposed =
            Some(PendingStep { step, past_len, is_given, rows, ..PendingStep::default() });
        Ok(step)
    }

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
            Some(PendingOffer { past_len, least, most });
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
        let PendingOffer { past_len, least, most } =
            request.offered.ok_or(Error::NothingOffered)?;
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
        let rows = num_nodes;
        request.proposed =
            Some(PendingStep { step, past_len, rows, cost, ..PendingStep::default() });
        Ok(step)
    }

    /// Drafts a tree of at most `most_nodes` nodes, the root included, whatever rows a step has;
    /// without `branches` it is a chain.
    ///
    /// Fails as [`Drafter::propose`] does.
    pub(crate) fn propose_hosted(
        &mut self,
        past_len: usize,
        most_nodes: usize,
        branches: bool,
    ) -> Result<&DraftTree> {
        self.propose_within(past_len, most_nodes, branches)?;
        Ok(self.draft.tree())
    }

    /// Learns what the target has said since the last call: what the proposed tree, if there is one,
    /// got right of it, and all of the tokens.
    ///
    /// Where they end within the tree, its deeper nodes count as not verified. Fails without a
    /// request, or when a token is unknown; then nothing is learned.
    pub(crate) fn observe(&mut self, tokens: &[TokenId]) -> Result<()> {
        self.check_tokens(tokens)?;
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let Some(last_depth) = tokens.len().checked_sub(1) else { return Ok(()) };
        let mut num_verified = 0;
        if let Some(proposed) = &mut request.proposed {
            if is_path(self.draft.tree(), tokens) {
                self.draft.trim(last_depth);
                proposed.is_given = true;
            }
            num_verified = self.accept_recorded(tokens)?.token_ids.len();
        }
        let rest = &tokens[num_verified..];
        if let (Some(request), false) = (&mut self.request, rest.is_empty()) {
            self.sources.extend(rest);
            self.seen.extend(rest);
            request.take_in(rest);
        }
        Ok(())
    }
}

/// Whether the tokens are those of a path down from the root.
fn is_path(tree: &DraftTree, tokens: &[TokenId]) -> bool {
    let down = |node: NodeId, token: &TokenId| tree.child(node, *token);
    tokens.iter().try_fold(NodeId::ROOT, down).is_some()
}
