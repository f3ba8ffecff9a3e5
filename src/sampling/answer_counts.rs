//! How often an answer has each of its tokens. In: its tokens, one after the other, and how many of
//! them are to be forgotten. Out: a row in which each is less likely by its count.

use super::penalties::Penalties;
use crate::ids::TokenId;

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
