//! A draft model's tree (EdgeLLM III-B and III-C). In: the request's tokens, and what the draft
//! model holds likely. Out: what it is to read next, and how its cache follows the request.
//!
//! [`branches`] says which token is read next, [`shape`] when it is enough and which of this a method
//! does, [`source`] what of it is proposed. Runs no model.

pub mod branches;
pub mod shape;
pub mod source;
#[cfg(test)]
mod tests;

use self::branches::Branches;
use self::shape::{Fallback, Growth, ModelShape, Stop};
use crate::error::Result;
use crate::ids::{NodeId, TokenId};
use crate::logits::top_k::TopK;
use crate::tree::draft_tree::DraftTree;

/// What the draft model's session is to do with its cache: forget all but the first `base` slots, but
/// for those of `rows` behind them, which become the next ones in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realignment {
    /// Slots that stay as they are.
    pub base: usize,
    /// Slots to keep of those behind, counted from `base`.
    pub rows: Vec<NodeId>,
}

/// A step of the draft model: the nodes of a tree from `first` on, of which node `i` is written to
/// slot `base + i` and sees the slots before `base` and those of its ancestors.
#[derive(Clone, Copy, Debug)]
pub struct ReadStep<'a> {
    /// All nodes of which the rows before `first` are in their slots.
    pub tree: &'a DraftTree,
    /// The first node to read.
    pub first: usize,
    /// Slots of the tokens before the tree.
    pub base: usize,
}

/// What a draft model reads and has read.
///
/// Each step it reads one token, on the branch that the pacer chooses: its row stands behind all
/// others and sees its own branch alone (the paper's branch decoder), so that nothing is
/// copied to change from one to another. When the target has spoken, rows on the path that it took
/// are moved together, and where the model has gone on below the last of them, what it read there
/// is kept.
///
/// # Cost
/// A step: a scan of the tokens that could be read next, 8 for each that was.
#[derive(Clone, Debug)]
pub struct ModelDraft {
    vocab_size: usize,
    end_tokens: Vec<TokenId>,
    fallback: Fallback,
    pub(crate) shape: ModelShape,
    /// What is certain: the text, and the tokens carried behind it.
    context: Vec<TokenId>,
    /// Number of tokens of the context that are text.
    text_len: usize,
    /// Slots that hold the first tokens of the context; the tree's nodes follow them.
    base: usize,
    /// `None` until the first step below a new context.
    branches: Option<Branches>,
    /// Nodes whose rows are in their slots.
    num_read: usize,
    /// Drafted tokens that were read before.
    num_promoted: usize,
    /// What the session has not done yet.
    realignment: Option<Realignment>,
}

impl ModelDraft {
    /// For a model that knows `vocab_size` ids, the target's, and whose answers end with `end_tokens`.
    /// `least_that_pays` is the share of a step of the target that it costs to draft a token; 0, as in
    /// the paper, where that is negligible.
    ///
    /// Fails when that is not 0 to 1.
    pub fn new(vocab_size: usize, end_tokens: Vec<TokenId>, least_that_pays: f32) -> Result<Self> {
        Ok(Self {
            vocab_size,
            end_tokens,
            fallback: Fallback::new(least_that_pays)?,
            shape: ModelShape::OURS,
            context: Vec::new(),
            text_len: 0,
            base: 0,
            branches: None,
            num_read: 0,
            num_promoted: 0,
            realignment: None,
        })
    }

    /// Drafting as `shape` says; ours without it.
    pub fn shaped(self, shape: ModelShape) -> Self {
        Self { shape, fallback: self.fallback.shaped(shape), ..self }
    }

    /// Starts a request; the learned threshold stays.
    pub fn begin(&mut self, prompt: &[TokenId]) {
        self.context.clear();
        self.context.extend(prompt);
        self.text_len = prompt.len();
        self.realign(Realignment::default());
    }

    /// Follows what was given out, and what is carried behind it.
    ///
    /// The threshold learns from it; where the tree foretold all of it, the part below stays. Where the
    /// model is not run, it costs what the new tokens do, whatever was not read before.
    pub fn extend(&mut self, given: &[TokenId], carried: &[TokenId]) {
        let old_len = self.context.len();
        let said = [given, carried].concat();
        let known = &self.context[self.text_len..];
        if self.realignment.is_some() || !said.starts_with(known) {
            // The session is behind, or the target took back what it had said: all is read again.
            let base = self.base.min(self.text_len);
            let base = self.realignment.as_ref().map_or(base, |waiting| base.min(waiting.base));
            self.context.truncate(self.text_len);
            self.context.extend(said);
            self.realign(Realignment { base, rows: vec![] });
        } else {
            let new = &said[known.len()..];
            self.learn(new);
            self.context.extend(new);
            self.keep_what_was_said(old_len);
        }
        self.text_len += given.len();
    }

    /// What the session has to do with its cache before anything else, once; nothing where no token
    /// would pay, so that the model is never run.
    pub fn take_realignment(&mut self) -> Option<Realignment> {
        if self.fallback.never_pays() { None } else { self.realignment.take() }
    }

    /// Tokens of the context that the model has not read; none where it is never run.
    pub fn unread(&self) -> &[TokenId] {
        let has_read = self.num_read > 0 || self.fallback.never_pays();
        if has_read { &[] } else { &self.context[self.base..] }
    }

    /// Skips the next `num_tokens` tokens of the context, which the session has read by itself; the
    /// last one is always left.
    pub fn skip(&mut self, num_tokens: usize) {
        self.base += num_tokens.min(self.unread().len().saturating_sub(1));
    }

    /// What the model is to read now; `None` when it is enough: the fallback is due, `max_tokens`
    /// tokens are drafted, or all that may be within `max_depth` of what is certain, the realignment was
    /// not taken, or no token would pay. The branch that the last token begins is not read.
    ///
    /// While the target verifies what was drafted before, steps are `provisional` (EdgeLLM, section
    /// III-D): they go on whatever the fallback says, since they take no time of the target's. What they
    /// read is known when it is drafted, and changes nothing else.
    ///
    /// A step that is never answered by [`read`](Self::read) is asked for again.
    pub fn next_step(
        &mut self,
        (max_tokens, max_depth): (usize, usize),
        provisional: bool,
    ) -> Option<ReadStep<'_>> {
        let cannot = self.realignment.is_some() || self.context.is_empty() || max_depth == 0;
        if cannot || self.fallback.never_pays() {
            return None;
        }
        if self.branches.is_none() {
            let certain = DraftTree::chain(&self.context[self.base..]).ok()?;
            self.branches = Some(Branches::below(&certain));
        }
        let branches = self.branches.as_mut()?;
        branches.grow_provisionally(provisional);
        while branches.num_grown() < max_tokens {
            if self.num_read < branches.tree().num_nodes() {
                let (tree, first) = (self.branches.as_ref()?.tree(), self.num_read);
                return Some(ReadStep { tree, first, base: self.base });
            }
            let is_known = branches.take_in(&self.end_tokens);
            self.num_promoted += usize::from(is_known && !provisional);
            if !is_known {
                if !provisional && is_due(&self.fallback, self.shape.stop, branches) {
                    return None;
                }
                branches.grow(self.shape.growth, max_depth)?;
            }
        }
        None
    }

    /// Takes in what the model holds likely after the last node that it read.
    pub fn read(&mut self, likely: &TopK) {
        let Some(branches) = &mut self.branches else { return };
        let last = branches.tree().num_nodes();
        let mut likely = *likely;
        if self.shape.growth == Growth::Chain {
            likely.probabilities[1..].fill(0.0);
        }
        if self.num_read < last {
            branches.read(NodeId(last as u32 - 1), &likely, &self.end_tokens);
            self.num_read = last;
        }
    }

    /// Tokens that are drafted for the target to verify.
    pub fn num_drafted(&self) -> usize {
        self.branches.as_ref().map_or(0, Branches::num_drafted)
    }

    /// Drafted tokens that were read before, in total: each saved a step.
    pub fn num_promoted(&self) -> usize {
        self.num_promoted
    }

    /// Number of ids that it knows.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// alpha.
    pub fn threshold(&self) -> f32 {
        self.fallback.threshold()
    }

    /// Bytes held on the heap, about: the context, and a row of 8 for each node.
    pub fn memory_bytes(&self) -> usize {
        let num_nodes = self.branches.as_ref().map_or(0, |branches| branches.tree().num_nodes());
        self.context.capacity() * size_of::<TokenId>() + num_nodes * size_of::<Option<TopK>>()
    }

    /// Starts again behind the slots that stay.
    fn realign(&mut self, realignment: Realignment) {
        self.base = realignment.base + realignment.rows.len();
        (self.branches, self.num_read) = (None, 0);
        self.realignment = Some(realignment);
    }

    fn learn(&mut self, said: &[TokenId]) {
        let adapts = matches!(self.shape.stop, Stop::TreeConfidence | Stop::NextToken);
        let learns = adapts && !said.is_empty();
        let Some(branches) = self.branches.as_ref().filter(|_| learns) else { return };
        if let Some((num_right, mut num_drafted)) = branches.best_match(said) {
            // Where all that was said was foretold, no error was found: what was drafted beyond it was
            // not verified, which the paper, where all is, does not know.
            if num_right == said.len() && !self.shape.drafted_only {
                num_drafted = num_right;
            }
            self.fallback.verified(num_right, num_drafted, branches.tree_confidence());
        }
    }

    /// Keeps the rows of what the context has become, of which `old_len` tokens were certain before.
    fn keep_what_was_said(&mut self, old_len: usize) {
        let Some(branches) = self.branches.take().filter(|_| self.num_read > 0) else {
            (self.branches, self.num_read) = (None, 0);
            return;
        };
        let said = &self.context[old_len..];
        let path = branches.follow(said);
        let base = self.base;
        let certain = (0..=branches.root().0).map(NodeId);
        let mut rows: Vec<NodeId> = certain.chain(path.iter().copied()).collect();
        if path.len() < said.len() {
            self.realign(Realignment { base, rows });
            return;
        }
        let root = rows.pop().unwrap_or(NodeId::ROOT);
        let (below, kept) = branches.below_node(root);
        self.base = base + rows.len();
        self.num_read = kept.len();
        rows.extend(kept);
        self.branches = Some(below);
        self.realignment = Some(Realignment { base, rows });
    }
}

/// Whether the target is to verify now: by the stop's own measure, or because no token would pay.
fn is_due(fallback: &Fallback, stop: Stop, branches: &Branches) -> bool {
    let next = branches.confidence();
    let is_enough = match stop {
        Stop::Count => false,
        Stop::Fixed | Stop::TreeConfidence => fallback.is_due(branches.tree_confidence()),
        Stop::NextToken => fallback.is_due(next),
    };
    is_enough || !fallback.pays(next)
}
