//! How much less likely tokens become that were said before. In: a score, and how often its token was
//! said; the tokens of an answer, one after the other, and how many of them are to be forgotten. Out:
//! the score that is left; a row in which each token is less likely by its count. All tokens of a text
//! are kept elsewhere (`seen_tokens`).

use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Repetition penalties are from this to its inverse: beyond, no token but the penalised counts.
const LEAST_REPETITION: f32 = 0.01;
/// Presence and frequency penalties are at most this, and at least its negative, as OpenAI has them.
const MOST_SUBTRACTED: f32 = 2.0;

/// The penalties of a request. Each alone changes nothing at its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides the positive scores of the tokens of prompt and answer, and multiplies the others; 1
    /// changes nothing.
    pub repetition: f32,
    /// Subtracted from the scores of the answer's tokens; 0 changes nothing.
    pub presence: f32,
    /// Subtracted from a score for each time that the answer has its token; 0 changes nothing.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

impl Penalties {
    /// Fails when `repetition` is not in [0.01, 100], or another one not in [-2, 2].
    pub(super) fn checked(self) -> Result<Self> {
        if !(LEAST_REPETITION..=1.0 / LEAST_REPETITION).contains(&self.repetition) {
            let (what, must) = ("repetition_penalty", "0.01 to 100");
            return Err(Error::BadOption { what, got: self.repetition.to_string(), must });
        }
        let subtracted =
            [("presence_penalty", self.presence), ("frequency_penalty", self.frequency)];
        for (what, penalty) in subtracted {
            if !(-MOST_SUBTRACTED..=MOST_SUBTRACTED).contains(&penalty) {
                return Err(Error::BadOption { what, got: penalty.to_string(), must: "-2 to 2" });
            }
        }
        Ok(self)
    }

    /// Whether they change anything.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether it matters how often a token was said.
    pub(super) fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    /// The score of a token that prompt or answer has. Finite scores stay finite.
    ///
    /// So it is done in CTRL (Keskar et al. 2019, section 4.1) and, for scores that are not positive,
    /// in Hugging Face's `RepetitionPenaltyLogitsProcessor`.
    pub(super) fn repeated(&self, score: f32) -> f32 {
        let penalty = self.repetition;
        let changed = if score > 0.0 { score / penalty } else { score * penalty };
        if score.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { score }
    }

    /// The score of a token that the answer has `count` times, at least once. Finite scores stay
    /// finite.
    pub(super) fn counted(&self, score: f32, count: u32) -> f32 {
        let changed = score - (count as f32 * self.frequency + self.presence);
        if score.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { score }
    }
}

/// The tokens of an answer so far, and how often it has each.
///
/// # How it stores
/// The tokens in order, and a count for each id up to the largest. Tokens are counted when a row is
/// first penalised behind them, so an answer without such a penalty pays for a push a token.
///
/// # Cost
/// `push` O(1); `truncate` and counting O(1) a token; `penalise` and `put_back` two accesses to the
/// row for each distinct token.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerCounts {
    tokens: Vec<TokenId>,
    /// How many of the tokens, from the first, are counted.
    num_counted: usize,
    counts: Vec<u32>,
    /// The counted tokens, once each, in the order in which they came first.
    distinct: Vec<TokenId>,
    /// What the scores of the distinct tokens were, while a row is read.
    scores: Vec<f32>,
}

impl AnswerCounts {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
    }

    /// Forgets all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        for &TokenId(token) in
            self.tokens[..self.num_counted].get(len..).unwrap_or_default().iter().rev()
        {
            let count = &mut self.counts[token as usize];
            *count -= 1;
            if *count == 0 {
                self.distinct.pop(); // the last that came first
            }
        }
        self.num_counted = self.num_counted.min(len);
        self.tokens.truncate(len);
    }

    /// Makes the tokens less likely in a row, until [`put_back`](Self::put_back).
    pub fn penalise(&mut self, row: &mut [f32], penalties: Penalties) {
        self.count();
        self.scores.clear();
        for &TokenId(token) in &self.distinct {
            let score = &mut row[token as usize];
            self.scores.push(*score);
            *score = penalties.counted(*score, self.counts[token as usize]);
        }
    }

    /// Makes a row what it was before it was penalised; nothing where it was not.
    pub fn put_back(&mut self, row: &mut [f32]) {
        for (&TokenId(token), score) in self.distinct.iter().zip(self.scores.drain(..)) {
            row[token as usize] = score;
        }
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        (self.tokens.capacity() + self.distinct.capacity()) * size_of::<TokenId>()
            + self.counts.capacity() * size_of::<u32>()
            + self.scores.capacity() * size_of::<f32>()
    }

    fn count(&mut self) {
        for &token in &self.tokens[self.num_counted..] {
            let id = token.0 as usize;
            if id >= self.counts.len() {
                self.counts.resize(id + 1, 0);
            }
            if self.counts[id] == 0 {
                self.distinct.push(token);
            }
            self.counts[id] += 1;
        }
        self.num_counted = self.tokens.len();
    }
}
