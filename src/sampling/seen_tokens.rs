//! The tokens of a text so far, and a row in which they are less likely. In: tokens, a row,
//! penalties. Out: whatever is read of the penalised row; afterwards the row is as it was.

use super::penalties::{AnswerCounts, Penalties};
use crate::error::{Error, Result};
use crate::ids::{MAX_VOCAB_SIZE, TokenId};

/// The distinct tokens of a text, prompt and answer together, and the answer's own with their counts.
///
/// # How it stores
/// A bit for each id up to the largest that was seen, and the tokens: those of the prompt by id, so
/// that a row is gone through in its own order, then the others as they were first seen. Room for
/// their scores. So an id costs memory up to 512 MB: callers check ids against a vocabulary, and that
/// with [`check_vocab_size`]. The answer's tokens are kept in order besides, and counted once their
/// counts matter.
///
/// # Cost
/// `insert` O(1); `go_back` O(1) a token that it forgets; `restart` a scan of the bits besides.
/// `penalised` two accesses to the row for each distinct token, however long the row is.
#[derive(Clone, Debug, Default)]
pub struct SeenTokens {
    is_seen: Vec<u64>,
    tokens: Vec<TokenId>,
    /// What the scores of the tokens were, while a row is read.
    scores: Vec<f32>,
    answer: AnswerCounts,
}

/// How far a text had come, see [`SeenTokens::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    num_distinct: usize,
    answer_len: usize,
}

/// Fails when nobody has a vocabulary of so many ids.
pub fn check_vocab_size(vocab_size: usize) -> Result<()> {
    if (1..=MAX_VOCAB_SIZE).contains(&vocab_size) {
        return Ok(());
    }
    let must = "1 to 16,777,216";
    Err(Error::BadOption { what: "vocab_size", got: vocab_size.to_string(), must })
}

impl SeenTokens {
    /// Number of distinct tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a token of the answer.
    pub fn insert(&mut self, token: TokenId) {
        self.see(token);
        self.answer.push(token);
    }

    /// Adds tokens of the answer.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        tokens.iter().for_each(|&token| self.insert(token));
    }

    /// Where the text stands, to [go back](Self::go_back) to.
    pub fn mark(&self) -> Mark {
        Mark { num_distinct: self.tokens.len(), answer_len: self.answer.len() }
    }

    /// Forgets what was inserted since `mark`, which was taken of this text.
    pub fn go_back(&mut self, mark: Mark) {
        self.forget_distinct(mark.num_distinct);
        self.answer.truncate(mark.answer_len);
    }

    /// Forgets all tokens, for an answer to `prompt`.
    pub fn restart(&mut self, prompt: &[TokenId]) {
        self.forget_distinct(0);
        self.answer.truncate(0);
        prompt.iter().for_each(|&token| self.see(token));
        self.tokens.clear();
        for (word, &bits) in self.is_seen.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                self.tokens.push(TokenId((word * 64) as u32 + left.trailing_zeros()));
                left &= left - 1;
            }
        }
    }

    /// What `read` makes of the row in which the tokens are less likely: first the repetition penalty
    /// is on those of prompt and answer, then the others are on the answer's, by their counts. Finite
    /// scores stay finite.
    ///
    /// The row is changed in place and put back: a copy of 151,936 scores would cost half as much as
    /// drawing from them.
    ///
    /// # Panics
    /// When a token is not in the row.
    pub fn penalised<T>(
        &mut self,
        row: &mut [f32],
        penalties: Penalties,
        read: impl FnOnce(&[f32]) -> T,
    ) -> T {
        self.scores.clear();
        if penalties.repetition != 1.0 {
            for &TokenId(token) in &self.tokens {
                let score = &mut row[token as usize];
                self.scores.push(*score);
                *score = penalties.repeated(*score);
            }
        }
        if penalties.counts() {
            self.answer.penalise(row, penalties);
        }
        let found = read(row);
        self.answer.put_back(row);
        for (&TokenId(token), &score) in self.tokens.iter().zip(&self.scores) {
            row[token as usize] = score;
        }
        found
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.is_seen.capacity() * size_of::<u64>()
            + self.tokens.capacity() * size_of::<TokenId>()
            + self.scores.capacity() * size_of::<f32>()
            + self.answer.memory_bytes()
    }

    fn see(&mut self, token: TokenId) {
        let (word, bit) = place(token);
        if word >= self.is_seen.len() {
            self.is_seen.resize(word + 1, 0);
        }
        if self.is_seen[word] & bit == 0 {
            self.is_seen[word] |= bit;
            self.tokens.push(token);
        }
    }

    fn forget_distinct(&mut self, len: usize) {
        for &token in self.tokens.get(len..).unwrap_or_default() {
            let (word, bit) = place(token);
            self.is_seen[word] &= !bit;
        }
        self.tokens.truncate(len);
    }
}

fn place(TokenId(token): TokenId) -> (usize, u64) {
    (token as usize / 64, 1 << (token % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32], prompt: &[TokenId], answer: &[TokenId], by: Penalties) -> Vec<f32> {
        let mut row = row.to_vec();
        for (id, score) in row.iter_mut().enumerate() {
            let count = answer.iter().filter(|token| token.0 as usize == id).count() as f32;
            if count > 0.0 || prompt.contains(&TokenId(id as u32)) {
                *score = if *score > 0.0 { *score / by.repetition } else { *score * by.repetition };
            }
            if count > 0.0 {
                *score -= count * by.frequency + by.presence;
            }
        }
        row
    }

    fn tokens(most: usize) -> impl Strategy<Value = Vec<TokenId>> {
        prop::collection::vec((0u32..30).prop_map(TokenId), 0..most)
    }

    proptest! {
        #[test]
        fn a_penalised_row_equals_its_naive_twin_and_is_put_back(
            mut row in prop::collection::vec(-5.0f32..5.0, 30),
            (prompt, answer, path) in (tokens(20), tokens(60), tokens(20)),
            earlier in tokens(60),
            repetition in prop_oneof![Just(1.0f32), 0.5f32..2.0],
            presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
            frequency in prop_oneof![Just(0.0f32), -2.0f32..2.0],
            looks_between in any::<bool>(),
        ) {
            let penalties = Penalties { repetition, presence, frequency };
            let before = row.clone();
            let mut seen = SeenTokens::default();
            seen.restart(&earlier);
            seen.extend(&prompt);
            seen.penalised(&mut row, penalties, |_| ());
            seen.restart(&prompt);
            seen.extend(&answer);
            if looks_between {
                seen.penalised(&mut row, penalties, |_| ());
            }
            let mark = seen.mark();
            seen.extend(&path);
            let read = seen.penalised(&mut row, penalties, <[f32]>::to_vec);
            let longer = [&answer[..], &path].concat();
            prop_assert_eq!(read, naive(&row, &prompt, &longer, penalties));
            seen.go_back(mark);
            let read = seen.penalised(&mut row, penalties, <[f32]>::to_vec);
            prop_assert_eq!(read, naive(&row, &prompt, &answer, penalties));
            prop_assert_eq!(row, before);
        }
    }

    #[test]
    fn what_is_not_finite_stays_and_what_is_finite_stays_finite() {
        let mut row = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
        let mut seen = SeenTokens::default();
        seen.extend(&[0, 1, 2, 3, 4].map(TokenId));
        let half = Penalties { repetition: 0.5, ..Penalties::default() };
        let read = seen.penalised(&mut row, half, <[f32]>::to_vec);
        assert!(read[0].is_nan());
        let less = f32::MIN * 0.5;
        assert_eq!(read[1..], [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, less]);
        let double = Penalties { repetition: 2.0, presence: 2.0, frequency: 2.0 };
        let read = seen.penalised(&mut row, double, <[f32]>::to_vec);
        assert!(read[0].is_nan() && read[1] == f32::INFINITY && read[4] == f32::MIN);
    }
}
