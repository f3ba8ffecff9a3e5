//! The tree of a step. In: committed tokens. Out: what the sources say behind them, or the caller, as a
//! tree, and the step that is to verify it.

use super::Drafter;
use super::request::Proposed;
use crate::draft::choose::tree_shape::TreeShape;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::tree::draft_tree::DraftTree;

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
        let (cost, reads) = (None, None);
        request.proposed = Some(Proposed { step, past_len, is_given: false, rows, cost, reads });
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
        let rows = steps.rows(step);
        let (cost, reads) = (None, None);
        request.proposed = Some(Proposed { step, past_len, is_given: true, rows, cost, reads });
        Ok(step)
    }
}
