//! The loop's two calls. In: committed tokens and logits. Out: a draft tree with the step that is
//! to verify it (`propose`), then what the answer gains from it (`accept`).
//!
//! Asks all sources, chooses how wide a step pays, verifies, commits, and learns how far each
//! source can be trusted. Runs no model and owns no step buffers.

use std::sync::Arc;

use crate::commit::{Commit, CommitPolicy, FinishReason, Limits, commit};
use crate::draft::choose::acceptance::{Acceptance, Proposal};
use crate::draft::choose::grow::{GrowthLimits, TreeGrower};
use crate::draft::choose::model_choice::ModelChoice;
use crate::draft::choose::origins::{Origin, Origins};
use crate::draft::choose::step_choice::StepChoice;
use crate::draft::choose::tree_shape::{ShapedTrees, TreeShape};
use crate::draft::source::{DraftSource, Propose, TopKRows, Verification};
use crate::draft::sources::prediction::Prediction;
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::logits::{Logits, SharedLogits};
use crate::sampling::Sampling;
use crate::top_k::{TOP_K, TopK, top_k_rows};
use crate::tree::draft_tree::DraftTree;
use crate::verify::{Verified, verify};

/// Worth of a node beside the first path under canonical commit. Were it accepted, its own token
/// would be given out anyway as the target's, and what follows it would have to be fed again.
/// Replaying real answers: against 1, about 1 % more speed where rows cost; against 0, about 5 %
/// more tokens a step where they are free.
const CANONICAL_SIDE_WORTH: f32 = 0.25;

/// What is fixed for the life of a drafter.
#[derive(Clone, Debug)]
pub struct DrafterOptions {
    /// The steps that the session can run, and what they cost.
    pub steps: StepChoice,
    /// Number of ids in the target's vocabulary.
    pub vocab_size: usize,
    /// How accepted rows join the cache.
    pub commit: CommitPolicy,
    /// Tokens that end an answer.
    pub end_tokens: Vec<TokenId>,
    /// Who decides on the shape of the trees.
    pub shape: TreeShape,
}

/// What happened since `begin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of steps by `accept_len`, up to the largest that occurred.
    pub accept_histogram: Vec<usize>,
    /// Draft nodes of each source, in the order of the sources.
    pub sources: Vec<SourceStatistics>,
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

#[derive(Debug)]
struct Request {
    /// Tokens of the prompt.
    prompt_len: usize,
    /// Tokens of the prompt whose rows the sources were told of.
    num_prefilled: usize,
    /// Tokens given out.
    num_given: usize,
    /// Tokens that may still be given out, at least 1.
    remaining: usize,
    /// The last token given out, which the next step computes first.
    root: TokenId,
    carried: Vec<TokenId>,
    /// `None` when no tree waits.
    proposed: Option<Proposed>,
    /// What a draft model's run for the next step has cost; `None` where it did not run.
    model_cost: Option<f32>,
}

/// A tree that waits for the target's answer.
#[derive(Clone, Copy, Debug)]
struct Proposed {
    /// Index of the step that verifies it.
    step: usize,
    /// Committed tokens that it stands behind.
    past_len: usize,
    /// Whether it is the caller's own.
    is_given: bool,
}

/// Drafts, verifies and commits for one request after the other.
///
/// `begin`, then `propose` and `accept` in turn until a [`FinishReason`] is set. A failed call
/// changes nothing, and a tree that is never accepted is simply replaced by the next `propose`.
pub struct Drafter {
    sources: Vec<Box<dyn DraftSource>>,
    options: DrafterOptions,
    sampling: Option<Sampling>,
    acceptance: Acceptance,
    model_choice: ModelChoice,
    grower: TreeGrower,
    /// In place of the grower, where the method has a shape of its own.
    shaped: Option<ShapedTrees>,
    tree: DraftTree,
    /// Who proposed each node of the tree: `None` for the root, carried and caller's tokens.
    proposals: Vec<Option<Proposal>>,
    origins: Origins,
    /// The last rows of the prompt, reduced: tokens and probabilities, `(rows, TOP_K)`.
    top_k: (Vec<TokenId>, Vec<f32>),
    request: Option<Request>,
    finish_reason: Option<FinishReason>,
    statistics: Statistics,
}

impl Drafter {
    /// A drafter that asks `sources`; with none of them it verifies carried tokens only.
    ///
    /// Fails when an option of the shape is out of its range.
    pub fn new(sources: Vec<Box<dyn DraftSource>>, options: DrafterOptions) -> Result<Self> {
        Ok(Self {
            shaped: ShapedTrees::new(options.shape)?,
            acceptance: Acceptance::new(sources.len()),
            model_choice: ModelChoice::default(),
            grower: TreeGrower::default(),
            tree: DraftTree::new(TokenId(0)),
            proposals: Vec::new(),
            origins: Origins::default(),
            top_k: (Vec::new(), Vec::new()),
            request: None,
            finish_reason: None,
            statistics: Statistics::default(),
            sampling: None,
            sources,
            options,
        })
    }

    /// Starts a request that gives out at most `max_new_tokens` tokens after `prompt`. Whatever ran
    /// before is dropped; the learned trust in the sources stays.
    ///
    /// The last token of the prompt is the first root: the session has computed the others.
    /// Fails when the prompt is empty or holds an unknown token, or the budget is 0.
    pub fn begin(&mut self, prompt: &[TokenId], max_new_tokens: usize) -> Result<()> {
        self.begin_predicted(prompt, max_new_tokens, &[])
    }

    /// [`Drafter::begin`] with the caller's own prediction of the answer, which becomes one more
    /// source, "prediction", of this request. Fails too when the prediction holds an unknown token.
    pub fn begin_predicted(
        &mut self,
        prompt: &[TokenId],
        max_new_tokens: usize,
        prediction: &[TokenId],
    ) -> Result<()> {
        let root = *prompt.last().ok_or(Error::EmptyPrompt)?;
        self.check_tokens(prompt)?;
        self.check_tokens(prediction)?;
        if max_new_tokens == 0 {
            let (what, must) = ("max_new_tokens", "at least 1");
            return Err(Error::BadOption { what, got: "0".into(), must });
        }
        if !prediction.is_empty() && !self.source_names().any(|name| name == Prediction::NAME) {
            self.sources.push(Box::new(Prediction::new()));
            self.acceptance.add_source();
        }
        for source in &mut self.sources {
            source.predicted(prediction);
            source.clear();
            source.extend(prompt);
        }
        if let Some(shaped) = &mut self.shaped {
            shaped.begin();
        }
        self.tree.reset(root);
        self.origins.clear();
        self.finish_reason = None;
        self.statistics = Statistics {
            sources: vec![SourceStatistics::default(); self.sources.len()],
            ..Statistics::default()
        };
        self.request = Some(Request {
            prompt_len: prompt.len(),
            num_prefilled: 0,
            num_given: 0,
            remaining: max_new_tokens,
            root,
            carried: Vec::new(),
            proposed: None,
            model_cost: None,
        });
        Ok(())
    }

    /// Whether a source asks for the logits of the prompt's rows, see [`Drafter::prefilled`].
    pub fn reads_prefill(&self) -> bool {
        self.sources.iter().any(|source| source.reads_prefill())
    }

    /// Tells the sources what the target expects after the prompt's next tokens: logits
    /// `(rows, vocab_size) f32`, of row after row from the prompt's first token on.
    ///
    /// Cost: a pass over the logits, of which only the top-k is kept. Fails without a request, when
    /// there are more rows than prompt tokens, or when a row is not finite; the position in the
    /// prompt is named.
    pub fn prefilled(&mut self, logits: &[f32]) -> Result<()> {
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let (first_position, vocab_size) = (request.num_prefilled, self.options.vocab_size);
        let expected = request.prompt_len * vocab_size;
        let got = first_position * vocab_size + logits.len();
        if got > expected {
            return Err(Error::WrongLength { what: "logits of the prompt", got, expected });
        }
        let (token_ids, probabilities) = (&mut self.top_k.0, &mut self.top_k.1);
        top_k_rows(logits, vocab_size, first_position, token_ids, probabilities)?;
        let rows = TopKRows { first_position, k: TOP_K, token_ids, probabilities };
        for source in &mut self.sources {
            source.prefilled(&rows);
        }
        request.num_prefilled += logits.len() / vocab_size;
        Ok(())
    }

    /// How the target's tokens are chosen from its logits: drawn, or greedily without a sampling.
    pub fn set_sampling(&mut self, sampling: Option<Sampling>) {
        self.sampling = sampling;
    }

    /// Whether the draft model is to run before the next step, which stands behind `past_len`
    /// tokens: always where rows are free, else where it is worth more than what is known already.
    ///
    /// Cost: that of a tree where there are costs. Fails as [`Drafter::propose`] does.
    pub fn model_pays(&mut self, past_len: usize) -> Result<bool> {
        let widest = self.options.steps.widest(past_len)?;
        let limits = self.limits(widest)?;
        if self.shaped.is_some() || self.options.steps.cost(0, past_len).is_none() {
            return Ok(true);
        }
        self.grow(limits)?;
        let steps = &self.options.steps;
        let known = steps.best_gain(widest, past_len, self.grower.worths());
        let (_, gain) = known.unwrap_or_default();
        Ok(self.model_choice.pays(steps, past_len, gain))
    }

    /// Hears that the draft model has run for the next step, at this cost, in the unit of the steps'.
    pub fn model_ran(&mut self, cost: f32) -> Result<()> {
        self.request.as_mut().ok_or(Error::NoRequest)?.model_cost = Some(cost);
        Ok(())
    }

    /// Drafts a tree and chooses the step that verifies it, after `past_len` committed tokens.
    /// Returns the step's index; the tree is [`Drafter::tree`].
    ///
    /// With costs the step is chosen that gains most over what its cost would bring elsewhere, and
    /// the tree is cut to its rows; drafting nothing is among the choices. Without costs the tree
    /// grows to the rows of the widest step that fits, as far as the sources know something.
    /// A method with a shape of its own has it in the narrowest step that holds it.
    /// Fails without a request, or when no step fits.
    pub fn propose(&mut self, past_len: usize) -> Result<usize> {
        let widest = self.options.steps.widest(past_len)?;
        let limits = self.limits(widest)?;
        let step = if self.shaped.is_some() {
            self.grow_shaped(limits)?;
            self.options.steps.narrowest(self.tree.num_nodes())
        } else {
            self.grow(limits)?;
            let steps = &self.options.steps;
            let step = steps.best(widest, past_len, self.grower.worths());
            self.grower.cut(steps.rows(step), &mut self.tree, &mut self.proposals);
            step
        };
        self.request.as_mut().ok_or(Error::NoRequest)?.proposed =
            Some(Proposed { step, past_len, is_given: false });
        Ok(step)
    }

    /// How large the next tree may grow, in a step of that index.
    fn limits(&self, widest: usize) -> Result<GrowthLimits> {
        let request = self.request.as_ref().ok_or(Error::NoRequest)?;
        Ok(GrowthLimits {
            num_nodes: self.options.steps.rows(widest),
            depth: request.remaining - 1,
            side_worth: match self.options.commit {
                CommitPolicy::Canonical => CANONICAL_SIDE_WORTH,
                CommitPolicy::Compact => 1.0,
            },
        })
    }

    fn grow(&mut self, limits: GrowthLimits) -> Result<()> {
        let request = self.request.as_ref().ok_or(Error::NoRequest)?;
        self.sources.iter_mut().for_each(|source| source.settle());
        let (root, carried) = (request.root, &request.carried[..]);
        self.grower.grow(&self.sources, &self.acceptance, root, carried, limits);
        Ok(())
    }

    fn grow_shaped(&mut self, limits: GrowthLimits) -> Result<()> {
        let request = self.request.as_ref().ok_or(Error::NoRequest)?;
        self.sources.iter_mut().for_each(|source| source.settle());
        let source = self.sources.first().map(|source| &**source as &dyn Propose);
        let certain = (request.root, &request.carried[..]);
        let fits = (limits.num_nodes, limits.depth);
        if let Some(shaped) = &mut self.shaped {
            shaped.grow(source, certain, fits, &mut self.tree, &mut self.proposals);
        }
        Ok(())
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
        self.tree = draft.trimmed(steps.rows(widest), request.remaining - 1);
        self.grower.clear();
        self.proposals.clear();
        self.proposals.resize(self.tree.num_nodes(), None);
        let step = steps.narrowest(self.tree.num_nodes());
        request.proposed = Some(Proposed { step, past_len, is_given: true });
        Ok(step)
    }

    /// Verifies the proposed tree against the step's logits, `(rows, vocab_size) f32`, and tells
    /// the sources what was given out.
    ///
    /// Cost: a pass over the logits of each visited row, and the sources' `extend`. Fails when
    /// nothing was proposed, the number of logits is wrong, or a visited row is not finite.
    pub fn accept(&mut self, logits: &[f32]) -> Result<Commit> {
        self.accept_rows(logits, None)
    }

    /// [`Drafter::accept`] where the logits may be read until the next call: what is learned from
    /// all of their rows is learned beside what the caller does in between.
    pub fn accept_shared(&mut self, logits: &Arc<dyn SharedLogits>) -> Result<Commit> {
        self.accept_rows(logits.values(), Some(logits))
    }

    /// Whether a source learns from the rows of all nodes, so that sharing the logits pays.
    pub fn reads_rows(&self) -> bool {
        self.sources.iter().any(|source| source.reads_rows())
    }

    fn accept_rows(
        &mut self,
        logits: &[f32],
        shared: Option<&Arc<dyn SharedLogits>>,
    ) -> Result<Commit> {
        let step = self.waiting()?.0.step;
        let (rows, vocab_size) = (self.options.steps.rows(step), self.options.vocab_size);
        let logits = Logits::new(logits, rows, vocab_size)?;
        let num_given = self.request.as_ref().map_or(0, |request| request.num_given);
        let sampling = self.sampling;
        let says = |tree: &DraftTree, node: NodeId| {
            let says = match sampling {
                None => logits.argmax(node),
                Some(sampling) => {
                    let index = num_given + tree.depths()[node.index()] as usize;
                    logits.drawn(node, &sampling, index)
                }
            };
            says.map(Some)
        };
        let shared_logits = shared.map(|logits| (logits, vocab_size));
        self.accept_from(says, |_, node| logits.top_k(node), shared_logits)
    }

    /// [`Drafter::accept`] for a target that says `answer`, its tokens from the next one on: a
    /// recorded answer is replayed without a model.
    ///
    /// After a node whose path leaves the record the target says nothing. Fails when nothing was
    /// proposed, or the record ends before the answer does.
    pub fn accept_recorded(&mut self, answer: &[TokenId]) -> Result<Commit> {
        self.waiting()?;
        let says = |tree: &DraftTree, node: NodeId| {
            let depth = tree.depths()[node.index()] as usize;
            if !tree.path_is(node, answer) {
                return Ok(None);
            }
            let (what, got, expected) = ("the recorded answer", answer.len(), depth + 1);
            let says = answer.get(depth).copied();
            says.map(Some).ok_or(Error::WrongLength { what, got, expected })
        };
        let alone = |tree: &DraftTree, node| says(tree, node).ok().flatten().map(TopK::certain);
        self.accept_from(says, alone, None)
    }

    /// What waits for its answer, and how many tokens may still be given out.
    fn waiting(&self) -> Result<(Proposed, usize)> {
        match self.request {
            Some(Request { proposed: Some(proposed), remaining, .. }) => Ok((proposed, remaining)),
            _ => Err(Error::NothingProposed),
        }
    }

    /// Verifies the proposed tree against `target`: what is said after a node, if anything; `likely`
    /// is what is held likely there.
    fn accept_from(
        &mut self,
        target: impl Fn(&DraftTree, NodeId) -> Result<Option<TokenId>>,
        likely: impl Fn(&DraftTree, NodeId) -> Option<TopK>,
        shared_logits: Option<(&Arc<dyn SharedLogits>, usize)>,
    ) -> Result<Commit> {
        let (proposed, remaining) = self.waiting()?;
        let verified = verify(&self.tree, |node| {
            let says = target(&self.tree, node)?;
            Ok(says.expect("something is said after every accepted node"))
        })?;
        let limits = Limits { end_tokens: &self.options.end_tokens, remaining };
        let decided = commit(self.options.commit, &self.tree, &verified, limits);
        let mut seen = Verification {
            tree: &self.tree,
            verified: &verified,
            commit: &decided,
            says: &mut |node| target(&self.tree, node).ok().flatten(),
            top_k: &mut |node| likely(&self.tree, node),
            shared_logits,
        };
        for source in &mut self.sources {
            source.verified(&mut seen);
        }
        self.origins.follow(&verified.path, &self.proposals, proposed.is_given, &decided);
        self.learn(&verified);
        self.learn_rate(proposed, decided.token_ids.len());
        self.advance(&decided);
        Ok(decided)
    }

    /// The tree of the last `propose`; before it, the root alone.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// Tokens accepted on a side branch, which the next tree starts with.
    pub fn carried(&self) -> &[TokenId] {
        self.request.as_ref().map_or(&[], |request| &request.carried)
    }

    /// Who put the tokens given out last into the tree, in their order; none before the first step.
    pub fn origins(&self) -> &[Origin] {
        self.origins.given_out()
    }

    /// The name of an origin in results.
    pub fn origin_name(&self, origin: Origin) -> &'static str {
        match origin {
            Origin::Target => Origin::TARGET,
            Origin::Given => Origin::GIVEN,
            Origin::Source(index) => self.sources[index].name(),
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
        self.sources.iter().map(|source| source.name())
    }

    /// Bytes held on the heap by the sources and the growing tree.
    pub fn memory_bytes(&self) -> usize {
        let sources: usize = self.sources.iter().map(|source| source.memory_bytes()).sum();
        sources + self.grower.memory_bytes()
    }

    fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        let vocab_size = self.options.vocab_size;
        match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
            Some(&token) => Err(Error::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// Every guess after a visited node was one about what the target says there.
    ///
    /// Those that no row was spent on teach as much as the others: so a source that is not drafted
    /// from, because it has been wrong, is drafted from again when it is right.
    fn learn(&mut self, verified: &Verified) {
        let last = verified.path.last().copied().unwrap_or(NodeId::ROOT);
        let visited = |node: NodeId| node == NodeId::ROOT || verified.path.contains(&node);
        for (node, proposal) in self.proposals.iter().enumerate() {
            let Some(proposal) = *proposal else { continue };
            let came_true = verified.path.contains(&NodeId(node as u32));
            let counts = &mut self.statistics.sources[proposal.source];
            counts.proposed += 1;
            counts.accepted += usize::from(came_true);
            if visited(self.tree.parents()[node]) {
                self.acceptance.observe(proposal, came_true);
            }
        }
        for (parent, token, proposal) in self.grower.cut_off() {
            if visited(parent) {
                self.acceptance.observe(proposal, parent == last && token == verified.bonus);
            }
        }
    }

    /// Learns what the step, and a draft model's run for it, have brought for their cost.
    fn learn_rate(&mut self, proposed: Proposed, num_tokens: usize) {
        let Some(cost) = self.options.steps.cost(proposed.step, proposed.past_len) else { return };
        let model_cost = self.request.as_ref().and_then(|request| request.model_cost);
        let cost = cost + model_cost.unwrap_or(0.0);
        if model_cost.is_some() {
            self.model_choice.took(num_tokens, cost);
        }
        self.options.steps.took(num_tokens, cost);
    }

    /// Moves the request on by what was given out.
    fn advance(&mut self, decided: &Commit) {
        let Commit { token_ids, accept_len, carried, finish_reason, .. } = decided;
        for source in &mut self.sources {
            source.extend(token_ids);
        }
        let statistics = &mut self.statistics;
        if statistics.accept_histogram.len() <= *accept_len {
            statistics.accept_histogram.resize(accept_len + 1, 0);
        }
        statistics.accept_histogram[*accept_len] += 1;
        self.finish_reason = *finish_reason;
        self.request = match (self.request.take(), finish_reason) {
            (Some(request), None) => Some(Request {
                num_given: request.num_given + token_ids.len(),
                remaining: request.remaining - token_ids.len(),
                root: token_ids[token_ids.len() - 1],
                carried: carried.clone(),
                proposed: None,
                model_cost: None,
                ..request
            }),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests;
