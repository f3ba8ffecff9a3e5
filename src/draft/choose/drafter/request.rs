//! How far a request has come. In: what each step gave out. Out: where the next one starts, and
//! how far it may reach. Knows no tree.

use crate::commit::{Commit, CommitPolicy};
use crate::draft::choose::expert_reads::StepReads;
use crate::draft::choose::grow::GrowthLimits;
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Worth of a node beside the first path under canonical commit. Were it accepted, its own token
/// would be given out anyway as the target's, and what follows it would have to be fed again.
/// Replaying real answers: against 1, about 1 % more speed where rows cost; against 0, about 5 %
/// more tokens a step where they are free.
const CANONICAL_SIDE_WORTH: f32 = 0.25;

/// A request between its first step and its last.
#[derive(Debug)]
pub(super) struct Request {
    /// Tokens of the prompt.
    prompt_len: usize,
    /// Tokens of the prompt whose rows the sources were told of.
    pub num_prefilled: usize,
    /// Tokens given out.
    pub num_given: usize,
    /// Tokens that may still be given out, at least 1.
    pub remaining: usize,
    /// The last token given out, which the next step computes first.
    pub root: TokenId,
    /// Tokens accepted on a side branch, to be fed again first.
    pub carried: Vec<TokenId>,
    /// The carried tokens and those that the grammar forces behind them; empty where it forces none.
    pub forced: Vec<TokenId>,
    /// `None` when no tree waits.
    pub proposed: Option<PendingStep>,
    /// `None` when nothing can be taken of a tree.
    pub offered: Option<PendingOffer>,
    /// What a draft model's run for the next step has cost; `None` where it did not run.
    pub model_cost: Option<f32>,
}

/// A tree that waits for the target's answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingStep {
    /// Index of the step that verifies it.
    pub step: usize,
    /// Committed tokens that it stands behind.
    pub past_len: usize,
    /// Whether it is the caller's own.
    pub is_given: bool,
    /// Rows of the logits that it is verified against.
    pub rows: usize,
    /// What the request pays for them; `None` for what the step costs.
    pub cost: Option<f32>,
    /// What the step has read of experts, where it is known.
    pub reads: Option<StepReads>,
}

/// A tree of which some nodes are to be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingOffer {
    /// Committed tokens that it stands behind.
    pub past_len: usize,
    /// The fewest nodes that can be taken.
    pub least: usize,
    /// The most.
    pub most: usize,
}

impl Request {
    /// A request that gives out at most `max_new_tokens` tokens. Fails when the prompt is empty or
    /// that is 0.
    pub fn new(prompt: &[TokenId], max_new_tokens: usize) -> Result<Self> {
        let root = *prompt.last().ok_or(Error::EmptyPrompt)?;
        if max_new_tokens == 0 {
            let (what, must) = ("max_new_tokens", "at least 1");
            return Err(Error::BadOption { what, got: "0".into(), must });
        }
        Ok(Self {
            prompt_len: prompt.len(),
            num_prefilled: 0,
            num_given: 0,
            remaining: max_new_tokens,
            root,
            carried: Vec::new(),
            forced: Vec::new(),
            proposed: None,
            offered: None,
            model_cost: None,
        })
    }

    /// Position in the prompt of the first of `num_logits` logits. Fails when they have more rows
    /// than the prompt has left.
    pub fn position_of(&self, num_logits: usize, vocab_size: usize) -> Result<usize> {
        let (got, expected) =
            (self.num_prefilled * vocab_size + num_logits, self.prompt_len * vocab_size);
        if got > expected {
            return Err(Error::WrongLength { what: "logits of the prompt", got, expected });
        }
        Ok(self.num_prefilled)
    }

    /// Counts rows as told that the target does not compute again. Fails when the prompt has fewer.
    pub fn skip_prefilled(&mut self, num_tokens: usize) -> Result<()> {
        if num_tokens > self.prompt_len {
            let (what, got, expected) = ("reused tokens", num_tokens, self.prompt_len);
            return Err(Error::WrongLength { what, got, expected });
        }
        self.num_prefilled = num_tokens;
        Ok(())
    }

    /// What the target says next for certain: the next tree starts with it.
    pub fn certain(&self) -> &[TokenId] {
        if self.forced.is_empty() { &self.carried } else { &self.forced }
    }

    /// How large the next tree may grow, in a step of `num_nodes` rows, with or without `branches`.
    pub fn limits(&self, num_nodes: usize, commit: CommitPolicy, branches: bool) -> GrowthLimits {
        let side_worth = match commit {
            CommitPolicy::Canonical => CANONICAL_SIDE_WORTH,
            CommitPolicy::Compact => 1.0,
        };
        GrowthLimits { num_nodes, depth: self.remaining - 1, side_worth, branches }
    }

    /// Takes in tokens that were given out, at least one, and fewer than may still be given out; none is
    /// carried.
    pub fn take_in(&mut self, tokens: &[TokenId]) {
        self.num_given += tokens.len();
        self.remaining -= tokens.len();
        self.root = tokens[tokens.len() - 1];
        self.carried.clear();
        self.forced.clear();
        self.proposed = None;
        self.offered = None;
        self.model_cost = None;
    }

    /// The request after a step; `None` where it has ended.
    pub fn after(mut self, decided: &Commit) -> Option<Self> {
        let Commit { token_ids, carried, finish_reason: None, .. } = decided else { return None };
        self.take_in(token_ids);
        self.carried.clone_from(carried);
        Some(self)
    }
}
