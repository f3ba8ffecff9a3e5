//! What the target answers to a tree. In: the logits of a step, or a recorded answer in their
//! place. Out: what it says after a node, what it holds likely there; and for those who asked, how
//! likely each token was that the step gives out.

use super::Drafter;
use crate::constraint::keep_allowed;
use crate::draft::source::TopKRows;
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::logits::logprobs::{RowLogprobs, TokenLogprob, check_num_alternatives};
use crate::logits::top_k::{TOP_K, TopK};
use crate::logits::{Logits, argmax};
use crate::sampling::{Sampling, SeenTokens};
use crate::tree::draft_tree::DraftTree;

/// A target's answer to a step.
pub(super) enum Answer<'a> {
    /// Computed, a row for each node.
    Computed {
        /// Of the step's rows, `(rows, vocab_size) f32`; changed while a row is read.
        scores: &'a mut [f32],
        /// Length of a row.
        vocab_size: usize,
        /// How tokens are chosen from them; `None` for greedy choice.
        sampling: Option<Sampling>,
        /// Number of tokens that the request gave out before.
        num_given: usize,
    },
    /// A recorded answer.
    Recorded {
        /// From its next token on.
        answer: &'a [TokenId],
        /// What the target held likely after each node, where that is on the record, too.
        rows: Option<TopKRows<'a>>,
    },
}

impl<'a> Answer<'a> {
    /// An answer computed by a step of so many rows. Fails when the number of scores is another one.
    pub fn computed(
        scores: &'a mut [f32],
        (rows, vocab_size): (usize, usize),
        (sampling, num_given): (Option<Sampling>, usize),
    ) -> Result<Self> {
        Logits::new(scores, rows, vocab_size)?;
        Ok(Self::Computed { scores, vocab_size, sampling, num_given })
    }

    /// The rows of all nodes; `None` of a recorded answer.
    pub fn logits(&self) -> Option<Logits<'_>> {
        match self {
            Self::Computed { scores, vocab_size, .. } => {
                Some(Logits::new(scores, scores.len() / vocab_size, *vocab_size).expect("checked"))
            }
            Self::Recorded { .. } => None,
        }
    }

    /// Makes impossible what may not follow `node`, by the words of a mask. A record stays as it is.
    /// Fails when nothing may follow, or the row is not finite.
    ///
    /// The row stays masked: what sources learn from it is what the target holds likely of what is
    /// allowed.
    pub fn keep_allowed(&mut self, node: NodeId, words: &[u32]) -> Result<()> {
        let Self::Computed { scores, vocab_size, .. } = self else { return Ok(()) };
        let row = &mut scores[node.index() * *vocab_size..][..*vocab_size];
        keep_allowed(row, words).map_err(|error| match error {
            Error::NonFiniteLogits { .. } => Error::NonFiniteLogits { row: node.index() },
            error => error,
        })
    }

    /// How likely the target holds tokens after `node`, and `num_alternatives` of them by name; `None`
    /// of a recorded answer. Fails when the row is not finite.
    pub fn logprobs(&self, node: NodeId, num_alternatives: usize) -> Result<Option<RowLogprobs>> {
        let Self::Computed { scores, vocab_size, .. } = self else { return Ok(None) };
        let row = &scores[node.index() * vocab_size..][..*vocab_size];
        let told = RowLogprobs::new(row, num_alternatives);
        told.map(Some).ok_or(Error::NonFiniteLogits { row: node.index() })
    }

    /// The score of `token` after `node`, where the row is not masked there; `None` of a record.
    pub fn score(&self, node: NodeId, token: TokenId) -> Option<f32> {
        let Self::Computed { scores, vocab_size, .. } = self else { return None };
        Some(scores[node.index() * vocab_size + token.0 as usize])
    }

    /// What the target says after `node`, which stands on the path that it takes, where `seen` are
    /// the tokens up to the node; `None` after a node whose path leaves the record. Fails when its
    /// row is not finite, biases forbid all that is left, or the record ends before the answer does.
    pub fn says(
        &mut self,
        tree: &DraftTree,
        node: NodeId,
        seen: &mut SeenTokens,
    ) -> Result<Option<TokenId>> {
        let depth = tree.depths()[node.index()] as usize;
        match self {
            Self::Computed { scores, vocab_size, sampling, num_given } => {
                let row = &mut scores[node.index() * *vocab_size..][..*vocab_size];
                let index = (*num_given + depth) as u64;
                let number = node.index();
                let said = match sampling {
                    Some(sampling) => {
                        let said = sampling.choose(row, index, seen);
                        said.ok_or_else(|| sampling.failure(row, number))
                    }
                    None => argmax(row).ok_or(Error::NonFiniteLogits { row: number }),
                };
                said.map(Some)
            }
            Self::Recorded { answer, .. } => Self::recorded(answer, tree, node),
        }
    }

    /// What a record says after a node.
    fn recorded(answer: &[TokenId], tree: &DraftTree, node: NodeId) -> Result<Option<TokenId>> {
        if !tree.path_is(node, answer) {
            return Ok(None);
        }
        let depth = tree.depths()[node.index()] as usize;
        let (what, got, expected) = ("the recorded answer", answer.len(), depth + 1);
        let says = answer.get(depth).copied();
        says.map(Some).ok_or(Error::WrongLength { what, got, expected })
    }

    /// What the target would say after a rejected `node`: its likeliest token, whatever it chooses
    /// elsewhere. It only feeds drafts, and the likeliest is the best of them; to draw it would cost
    /// several times as much. `None` where its row is unusable or not on the record.
    pub fn would_say(&self, tree: &DraftTree, node: NodeId) -> Option<TokenId> {
        match self {
            Self::Computed { .. } => self.logits()?.argmax(node).ok(),
            Self::Recorded { rows: Some(_), .. } => Some(self.likely(tree, node)?.token_ids[0]),
            Self::Recorded { answer, .. } => Self::recorded(answer, tree, node).ok().flatten(),
        }
    }

    /// What the target holds likely after `node`: of a recorded answer its row, `None` where that is
    /// unknown; or what it says, where no rows are known.
    pub fn likely(&self, tree: &DraftTree, node: NodeId) -> Option<TopK> {
        match self {
            Self::Computed { .. } => self.logits()?.top_k(node),
            Self::Recorded { rows: None, .. } => self.would_say(tree, node).map(TopK::certain),
            Self::Recorded { rows: Some(rows), .. } => {
                let row = node.index() * TOP_K..(node.index() + 1) * TOP_K;
                let token_ids = rows.token_ids[row.clone()].try_into().ok()?;
                let probabilities: [f32; TOP_K] = rows.probabilities[row].try_into().ok()?;
                (probabilities[0] > 0.0).then_some(TopK { token_ids, probabilities })
            }
        }
    }
}

/// The logprobs of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLogprobs {
    /// How many alternatives are told of each token; `None` where nothing is asked for.
    num_alternatives: Option<usize>,
    /// Of the tokens given out last.
    tokens: Vec<TokenLogprob>,
}

impl Drafter {
    /// Whether [`Drafter::logprobs`] tells of the tokens from now on: with so many alternatives to
    /// each, or, with `None`, nothing.
    ///
    /// Fails when there are more than [`MAX_ALTERNATIVES`](crate::logits::logprobs::MAX_ALTERNATIVES).
    pub fn report_logprobs(&mut self, num_alternatives: Option<usize>) -> Result<()> {
        check_num_alternatives(num_alternatives.unwrap_or_default())?;
        self.logprobs = RequestLogprobs { num_alternatives, tokens: Vec::new() };
        Ok(())
    }

    /// How likely the target held the tokens given out last, in their order: once each, whatever was
    /// drafted; `None` where nothing is asked for. A recorded answer has none.
    pub fn logprobs(&self) -> Option<&[TokenLogprob]> {
        self.logprobs.num_alternatives.map(|_| &self.logprobs.tokens[..])
    }
}

/// What is told of a step that is being verified.
#[derive(Debug)]
pub(super) struct StepLogprobs {
    num_alternatives: Option<usize>,
    tokens: Vec<TokenLogprob>,
}

impl StepLogprobs {
    /// Of a step of a request.
    pub fn new(logprobs: &RequestLogprobs) -> Self {
        Self { num_alternatives: logprobs.num_alternatives, tokens: Vec::new() }
    }

    /// What the row of a visited node says, before it is masked; `None` where nothing is to be told.
    /// Fails when the row is not finite.
    pub fn row(&self, answer: &Answer<'_>, node: NodeId) -> Result<Option<RowLogprobs>> {
        self.num_alternatives.map_or(Ok(None), |num| answer.logprobs(node, num))
    }

    /// Takes down what the target says after the node.
    pub fn says(
        &mut self,
        row: Option<RowLogprobs>,
        answer: &Answer<'_>,
        (node, token): (NodeId, TokenId),
    ) {
        if let (Some(row), Some(score)) = (row, answer.score(node, token)) {
            self.tokens.push(row.of(score));
        }
    }

    /// What is told of the first `num_tokens` tokens, which are given out. The others are carried, and
    /// told of in the step that gives them out.
    pub fn end(mut self, num_tokens: usize, logprobs: &mut RequestLogprobs) {
        self.tokens.truncate(num_tokens);
        logprobs.tokens = self.tokens;
    }
}
