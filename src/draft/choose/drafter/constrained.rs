//! A request under a grammar. In: the path that the target takes through a tree. Out: what it may say
//! after each node, where the answer is complete, and what must come next.

use std::ops::ControlFlow;

use super::Drafter;
use crate::commit::{Commit, FinishReason};
use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

impl Drafter {
    /// Asks the grammar what must come next, for the next tree to start with, up to the answer's end.
    /// Whatever waited for its answer is taken back. Without a grammar nothing happens.
    pub(super) fn force(&mut self) -> Result<()> {
        let Some(grammar) = &mut self.constraint else { return Ok(()) };
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        request.proposed = None;
        request.forced.clear();
        let end_tokens = if self.ignores_end { &[][..] } else { &self.options.end_tokens };
        let is_end = |token: &TokenId| end_tokens.contains(token);
        let mut forced = match request.carried.last() {
            Some(last) if is_end(last) => Vec::new(),
            _ => grammar.forced(&request.carried)?,
        };
        let end = forced.iter().position(is_end);
        forced.truncate(end.map_or(forced.len(), |end| end + 1));
        if !forced.is_empty() {
            request.forced.extend_from_slice(&request.carried);
            request.forced.extend_from_slice(&forced);
        }
        self.draft.start_certain(request);
        self.check_tokens(&forced)
    }
}

/// How far the target has gone through a tree.
#[derive(Debug, Default)]
pub(super) struct PathState {
    /// The tokens of the visited nodes below the root.
    tokens: Vec<TokenId>,
    /// After how many of them the answer is complete.
    complete_at: Option<usize>,
}

impl PathState {
    /// The mask of a node's row, whose parent was visited before, unless the answer is complete with
    /// it: then its row is not read. Fails when the grammar does.
    pub fn visit<'a>(
        &mut self,
        grammar: &'a mut dyn Constraint,
        tree: &DraftTree,
        node: NodeId,
    ) -> Result<ControlFlow<(), &'a [u32]>> {
        if node != NodeId::ROOT {
            self.tokens.push(tree.token(node));
        }
        let allowed = grammar.after(&self.tokens)?;
        if allowed.is_complete && !self.tokens.is_empty() {
            self.complete_at = Some(self.tokens.len());
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(allowed.words))
    }

    /// How many tokens may be given out, where the request has `remaining` left.
    pub fn at_most(&self, remaining: usize) -> usize {
        self.complete_at.map_or(remaining, |complete_at| complete_at.min(remaining))
    }

    /// Tells the grammar what is given out, and ends the answer where that makes it complete.
    pub fn end(&self, grammar: &mut dyn Constraint, decided: &mut Commit) -> Result<()> {
        let is_stop = decided.finish_reason == Some(FinishReason::Stop);
        let num_tokens = decided.token_ids.len() - usize::from(is_stop);
        let is_complete = grammar.extend(&decided.token_ids[..num_tokens])?;
        if !is_stop && (is_complete || self.complete_at == Some(num_tokens)) {
            decided.finish_reason = Some(FinishReason::Grammar);
            decided.carried.clear();
        }
        Ok(())
    }
}
