//! The loop's two calls. In: committed tokens and logits. Out: a draft tree with the step that is
//! to verify it (`propose`), then what the answer gains from it (`accept`).
//!
//! Asks all sources, chooses how wide a step pays, verifies, commits, and learns how far each
//! source can be trusted. Runs no model and owns no step buffers.

mod answer;
mod constrained;
mod draft;
mod propose;
mod request;
mod source_list;
mod state;

use std::ops::ControlFlow;

use self::answer::{Answer, RequestLogprobs, StepLogprobs};
use self::constrained::PathState;
use self::draft::Draft;
pub use self::propose::Offer;
use self::request::{PendingStep, Request};
use self::source_list::SourceList;
pub use self::state::Learned;
use self::state::SharedLearned;
use crate::commit::{Commit, CommitPolicy, FinishReason, Limits, commit};
use crate::constraint::Constraint;
use crate::draft::choose::expert_reads::StepReads;
use crate::draft::choose::model_choice::{ModelChoice, ModelPrice};
pub use crate::draft::choose::origins::{SourceStatistics, Statistics};
use crate::draft::choose::step_choice::StepChoice;
use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::source::{DraftSource, TopKRows, Verification};
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::logits::top_k::TOP_K;
use crate::sampling::{Sampling, SeenTokens, check_vocab_size};
use crate::verify::verify;

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

/// Drafts, verifies and commits for one request after the other.
///
/// `begin`, then `propose` and `accept` in turn until a [`FinishReason`] is set. A failed call
/// changes nothing, but that under a grammar a failed proposal takes the one before back; and a tree
/// that is never accepted is simply replaced by the next `propose`. Where a step is shared with other
/// requests, [`Drafter::offer`] and [`Drafter::take`] stand in place of `propose`.
pub struct Drafter {
    sources: SourceList,
    options: DrafterOptions,
    sampling: Option<Sampling>,
    /// The tokens of the request so far.
    seen: SeenTokens,
    /// How likely the tokens given out last were.
    logprobs: RequestLogprobs,
    ignores_end: bool,
    /// What the target may say in this request; `None` for all.
    constraint: Option<Box<dyn Constraint>>,
    model_choice: ModelChoice,
    draft: Draft,
    request: Option<Request>,
    finish_reason: Option<FinishReason>,
    statistics: Statistics,
    /// With the drafters beside this one.
    shared: SharedLearned,
}

impl Drafter {
    /// A drafter that asks `sources`; with none of them it verifies carried tokens only.
    ///
    /// Fails when an option of the shape is out of its range, the vocabulary has more than
    /// [`MAX_VOCAB_SIZE`](crate::ids::MAX_VOCAB_SIZE) ids, or a source draws on another one.
    pub fn new(sources: Vec<Box<dyn DraftSource>>, options: DrafterOptions) -> Result<Self> {
        check_vocab_size(options.vocab_size)?;
        Ok(Self {
            draft: Draft::new(sources.len(), &options)?,
            model_choice: ModelChoice::default(),
            request: None,
            finish_reason: None,
            statistics: Statistics::default(),
            sampling: None,
            seen: SeenTokens::default(),
            logprobs: RequestLogprobs::default(),
            ignores_end: false,
            constraint: None,
            shared: SharedLearned::default(),
            sources: SourceList::new(sources, options.vocab_size)?,
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
        self.begin_resumed(prompt, max_new_tokens, prediction, 0)
    }

    /// [`Drafter::begin_predicted`] where the session has kept the prompt's first `num_reused` tokens
    /// from earlier requests: [`Drafter::prefilled`] goes on behind them. Fails too when the prompt
    /// has fewer tokens.
    pub fn begin_resumed(
        &mut self,
        prompt: &[TokenId],
        max_new_tokens: usize,
        prediction: &[TokenId],
        num_reused: usize,
    ) -> Result<()> {
        let mut request = Request::new(prompt, max_new_tokens)?;
        request.skip_prefilled(num_reused)?;
        self.check_tokens(prompt)?;
        self.check_tokens(prediction)?;
        if self.request.is_some() {
            self.give_learned();
        }
        self.take_learned();
        self.sources.begin(prompt, prediction);
        self.sources.reused(num_reused);
        self.seen.restart(prompt);
        self.draft.begin(request.root, self.sources.len());
        self.finish_reason = None;
        self.constraint = None;
        self.statistics = Statistics::new(self.sources.len());
        self.request = Some(request);
        Ok(())
    }

    /// Tells the sources what the target expects after the prompt's next tokens: logits
    /// `(rows, vocab_size) f32`, of row after row from the prompt's first token on.
    ///
    /// Cost: a pass over the logits, of which only the top-k is kept. Fails without a request, when
    /// there are more rows than prompt tokens, or when a row is not finite; the position in the
    /// prompt is named.
    pub fn prefilled(&mut self, logits: &[f32]) -> Result<()> {
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let vocab_size = self.options.vocab_size;
        let first_position = request.position_of(logits.len(), vocab_size)?;
        self.sources.prefilled(logits, vocab_size, first_position)?;
        request.num_prefilled += logits.len() / vocab_size;
        Ok(())
    }

    /// [`Drafter::prefilled`] of rows that are reduced already, as a record has them: token ids and
    /// probabilities `(rows, TOP_K)`. Fails too when they are no such rows, or a token is unknown.
    pub fn prefilled_top_k(&mut self, token_ids: &[TokenId], probabilities: &[f32]) -> Result<()> {
        let rows = self.reduced((token_ids, probabilities), token_ids.len().div_ceil(TOP_K))?;
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let first_position = request.position_of(token_ids.len(), TOP_K)?;
        self.sources.prefilled_top_k(&TopKRows { first_position, ..rows });
        request.num_prefilled += token_ids.len() / TOP_K;
        Ok(())
    }

    /// Token ids and probabilities as so many rows. Fails when they are not, or a token is unknown.
    fn reduced<'a>(
        &self,
        (token_ids, probabilities): (&'a [TokenId], &'a [f32]),
        num_rows: usize,
    ) -> Result<TopKRows<'a>> {
        let (what, expected) = ("recorded rows", num_rows * TOP_K);
        if let Some(got) =
            [token_ids.len(), probabilities.len()].into_iter().find(|&it| it != expected)
        {
            return Err(Error::WrongLength { what, got, expected });
        }
        self.check_tokens(token_ids)?;
        Ok(TopKRows { first_position: 0, k: TOP_K, token_ids, probabilities })
    }

    /// How the target's tokens are chosen from its logits: by `sampling`, or greedily without one.
    ///
    /// Fails when it has a bias on a token that is not in the vocabulary.
    pub fn set_sampling(&mut self, sampling: Option<Sampling>) -> Result<()> {
        if let Some(sampling) = &sampling {
            sampling.check_tokens(self.options.vocab_size)?;
        }
        self.sampling = sampling;
        Ok(())
    }

    /// Lets the target say only what a grammar allows in this request; called after `begin`. Tokens
    /// that it forces are drafted first, and what it refuses is not drafted.
    pub fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(constraint);
    }

    /// Whether end tokens end an answer, as they do unless this is called, or are tokens like others.
    pub fn ignore_end_tokens(&mut self, ignores_end: bool) {
        self.ignores_end = ignores_end;
    }

    /// Whether the draft model is to run before the next step, which stands behind `past_len`
    /// tokens: always where rows are free, else where it is worth more than what is known already,
    /// and what it has to read first comes in again.
    ///
    /// Cost: that of a tree where there are costs. Fails as [`Drafter::propose`] does.
    pub fn model_pays(&mut self, past_len: usize, price: ModelPrice) -> Result<bool> {
        let widest = self.options.steps.widest(past_len)?;
        check_costs([price.a_token, price.catching_up])?;
        self.force()?;
        let branches = self.branches();
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let steps = &self.options.steps;
        if self.draft.is_shaped() || steps.cost(0, past_len).is_none() {
            return Ok(true);
        }
        let limits = request.limits(steps.rows(widest), self.options.commit, branches);
        request.offered = None;
        self.draft.grow(self.sources.all(), request, limits, (steps, widest, past_len));
        if let Some(grammar) = &mut self.constraint {
            self.draft.prune_grown(&mut **grammar)?;
        }
        let known = steps.best_gain(widest, past_len, self.draft.worths());
        let (_, gain) = known.unwrap_or_default();
        let so_far = (request.num_given, request.remaining);
        Ok(self.model_choice.pays(steps, (past_len, gain), price, so_far))
    }

    /// How many tokens a draft behind `past_len` tokens has rows for, and how deep it may be: behind
    /// what is certain, as far as it may still be given out. Fails as [`Drafter::propose`] does.
    pub fn draft_room(&mut self, past_len: usize) -> Result<(usize, usize)> {
        self.force()?;
        let steps = &self.options.steps;
        let rows = steps.rows(steps.widest(past_len)?);
        let request = self.request.as_ref().ok_or(Error::NoRequest)?;
        let num_certain = 1 + request.certain().len();
        Ok((rows.saturating_sub(num_certain), request.remaining.saturating_sub(num_certain)))
    }

    /// Records what the draft model's run for the next step cost, and what reading the text had cost
    /// before it, in the unit of the steps' costs. Fails without a request, or when one is no cost:
    /// negative, infinite or not a number.
    pub fn model_ran(&mut self, cost: f32, catching_up: f32) -> Result<()> {
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        check_costs([cost, catching_up])?;
        request.model_cost = Some(cost);
        self.model_choice.ran(cost + catching_up);
        Ok(())
    }

    /// Gives up the request, if there is one, and gives back what is shared with others: the files of
    /// an index, and texts of other requests. Whoever gives an answer up calls it; one that comes to
    /// its end does so by itself.
    pub fn end(&mut self) {
        if self.request.take().is_some() {
            self.give_learned();
        }
        self.sources.ended();
    }

    /// How many scores `accept` reads for what the sources learn, beside those of the accepted path.
    pub fn num_scores_learned_from(&self) -> usize {
        let num_nodes = self.draft.tree().num_nodes();
        self.sources.rows_read(num_nodes).saturating_mul(self.options.vocab_size)
    }

    /// Whether proposing and accepting may read a file: an index of a history draws on one.
    pub fn reads_disk(&self) -> bool {
        self.sources.reads_disk()
    }

    /// Takes the last proposal back: nothing waits for its answer.
    pub fn withdraw(&mut self) {
        if let Some(request) = &mut self.request {
            request.proposed = None;
        }
    }

    /// The index of the step whose answer is waited for, if there is one, and how many committed tokens
    /// it stands behind.
    pub fn proposed_step(&self) -> Option<(usize, usize)> {
        self.pending().ok().map(|(proposed, _)| (proposed.step, proposed.past_len))
    }

    /// Tells what the step that was proposed has read of experts, where it is known: it is learned from
    /// once the step's answer is accepted. Nothing happens where nothing was proposed, or where costs
    /// tell of no experts.
    pub fn experts_read(&mut self, reads: Option<StepReads>) {
        let proposed = self.request.as_mut().and_then(|request| request.proposed.as_mut());
        if let Some(proposed) = proposed {
            proposed.reads = reads;
        }
    }

    /// Verifies the proposed tree against the step's logits, `(rows, vocab_size) f32`, after
    /// [`Drafter::take`] `(nodes, vocab_size) f32`, and tells the sources what was given out.
    ///
    /// Cost: a pass over the logits of each visited row, two and more where they are drawn from, and
    /// the sources' `extend`. Fails when nothing was proposed, the number of logits is wrong, or a
    /// visited row is not finite, or the grammar does. A row is changed while it is read under a
    /// penalty or a bias; afterwards the logits are as they were, but for the visited rows under a
    /// grammar, which stay masked.
    pub fn accept(&mut self, logits: &mut [f32]) -> Result<Commit> {
        let (PendingStep { rows, .. }, request) = self.pending()?;
        let shape = (rows, self.options.vocab_size);
        let answer = Answer::computed(logits, shape, (self.sampling.clone(), request.num_given))?;
        self.accept_answer(answer)
    }

    /// [`Drafter::accept`] for a target that says `answer`, its tokens from the next one on: a
    /// recorded answer is replayed without a model.
    ///
    /// After a node whose path leaves the record the target says nothing. Fails when nothing was
    /// proposed, the record ends before the answer does, or a token of it that this step reaches is
    /// not in the vocabulary.
    pub fn accept_recorded(&mut self, answer: &[TokenId]) -> Result<Commit> {
        self.accept_recorded_rows(answer, None)
    }

    /// [`Drafter::accept_recorded`] of a record that also has what the target held likely after the
    /// nodes: token ids and probabilities, `(nodes, TOP_K)`, all 0 for a node whose row is unknown.
    /// Fails too when they are no such rows.
    pub fn accept_recorded_rows(
        &mut self,
        answer: &[TokenId],
        rows: Option<(&[TokenId], &[f32])>,
    ) -> Result<Commit> {
        self.pending()?;
        let num_nodes = self.draft.tree().num_nodes();
        let rows = rows.map(|rows| self.reduced(rows, num_nodes)).transpose()?;
        let deepest = self.draft.tree().depths().iter().max().map_or(0, |&depth| depth as usize);
        self.check_tokens(&answer[..answer.len().min(deepest + 1)])?;
        self.accept_answer(Answer::Recorded { answer, rows })
    }

    /// What waits for its answer, and the request.
    fn pending(&self) -> Result<(PendingStep, &Request)> {
        let request = self.request.as_ref().ok_or(Error::NothingProposed)?;
        Ok((request.proposed.ok_or(Error::NothingProposed)?, request))
    }

    /// Verifies the proposed tree against the target's answer.
    fn accept_answer(&mut self, mut answer: Answer<'_>) -> Result<Commit> {
        let (proposed, request) = self.pending()?;
        let (remaining, model_cost) = (request.remaining, request.model_cost);
        let num_carried = request.carried.len();
        let mut path = PathState::default();
        let tree = self.draft.tree();
        let end_tokens = if self.ignores_end { &[][..] } else { &self.options.end_tokens };
        let before = self.seen.mark();
        let mut logprobs = StepLogprobs::new(&self.logprobs);
        let verified = verify(tree, |node| {
            // The root is no part of the answer: a prompt may well end with such a token.
            if node != NodeId::ROOT && end_tokens.contains(&tree.token(node)) {
                return Ok(None);
            }
            if node != NodeId::ROOT {
                self.seen.insert(tree.token(node)); // the root was given out, or is the prompt's
            }
            let mask = match &mut self.constraint {
                None => None,
                Some(grammar) => match path.visit(&mut **grammar, tree, node)? {
                    ControlFlow::Continue(words) => Some(words),
                    ControlFlow::Break(()) => return Ok(None),
                },
            };
            let row = logprobs.row(&answer, node)?;
            if let Some(words) = mask {
                answer.keep_allowed(node, words)?;
            }
            let says = answer.says(tree, node, &mut self.seen)?;
            let says = says.expect("something is said after every accepted node");
            logprobs.says(row, &answer, (node, says));
            Ok(Some(says))
        });
        self.seen.go_back(before); // of the path, not all need be given out
        let verified = verified?;
        let limits = Limits { end_tokens, remaining: path.at_most(remaining) };
        let mut decided = commit(self.options.commit, tree, &verified, limits);
        if let Some(grammar) = &mut self.constraint {
            path.end(&mut **grammar, &mut decided)?;
        }
        self.sources.verified(&mut Verification {
            tree,
            verified: &verified,
            commit: &decided,
            says: &mut |node| verified.says(tree, node).or_else(|| answer.would_say(tree, node)),
            top_k: &mut |node| answer.likely(tree, node),
            logits: answer.logits(),
        });
        self.seen.extend(&decided.token_ids);
        logprobs.end(decided.token_ids.len(), &mut self.logprobs);
        if self.constraint.is_some() && !proposed.is_given {
            self.draft.count_forced(num_carried, &verified, &mut self.statistics.forced);
        }
        if let Some(reads) = proposed.reads {
            self.options.steps.experts_read(tree.num_nodes(), reads);
        }
        self.draft.follow(&verified, &decided, proposed.is_given);
        self.draft.learn(&verified, &mut self.statistics);
        self.learn_rate(proposed, model_cost, decided.token_ids.len());
        self.statistics.count_step(decided.accept_len);
        self.finish_reason = decided.finish_reason;
        if let Some(request) = self.request.take() {
            let num_given = request.num_given + decided.token_ids.len();
            self.request = request.after(&decided);
            if self.request.is_none() {
                self.model_choice.ended(num_given);
                self.sources.ended();
                self.give_learned();
            }
        }
        Ok(decided)
    }

    pub(crate) fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        let vocab_size = self.options.vocab_size;
        match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
            Some(&token) => Err(Error::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// Learns what the step, and a draft model's run for it, have brought for their cost.
    fn learn_rate(&mut self, proposed: PendingStep, model_cost: Option<f32>, num_tokens: usize) {
        let Some(cost) = self.options.steps.cost(proposed.step, proposed.past_len) else { return };
        let cost = proposed.cost.unwrap_or(cost) + model_cost.unwrap_or(0.0);
        if model_cost.is_some() {
            self.model_choice.took(num_tokens, cost);
        }
        self.model_choice.spent(cost);
        self.options.steps.took(num_tokens, cost);
    }
}

/// Fails when one of a draft model's costs is none.
fn check_costs(costs: [f32; 2]) -> Result<()> {
    let Some(bad) = costs.iter().find(|cost| !(cost.is_finite() && **cost >= 0.0)) else {
        return Ok(());
    };
    let (what, must) = ("the cost of the draft model", "finite and not negative");
    Err(Error::BadOption { what, got: bad.to_string(), must })
}

#[cfg(test)]
mod tests;
