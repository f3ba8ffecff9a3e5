//! The tokens of a text so far, and a row in which they are less likely. In: tokens, a row, a
//! penalty. Out: whatever is read of the penalised row; afterwards the row is as it was.

use crate::error::{Error, Result};
use crate::ids::{MAX_VOCAB_SIZE, TokenId};

/// The distinct tokens of a text, prompt and answer together.
///
/// # How it stores
/// A bit for each id up to the largest that was seen, and the tokens: those of the prompt by id, so
/// that a row is gone through in its own order, then the others as they were first seen. Room for
/// their scores. So an id costs memory up to 512 MB: callers check ids against a vocabulary, and that
/// with [`check_vocab_size`].
///
/// # Cost
/// `insert` O(1); `truncate` O(1) a token that it forgets; `restart` a scan of the bits besides.
/// `penalised` two accesses to the row for each distinct token, however long the row is.
#[derive(Clone, Debug, Default)]
pub struct SeenTokens {
    is_seen: Vec<u64>,
    tokens: Vec<TokenId>,
    /// What the scores of the tokens were, while a row is read.
    scores: Vec<f32>,
}

/// Fails when nobody has a vocabulary of so many ids.
pub fn check_vocab_size(vocab_size: usize) -> Result<()> {
    if vocab_size <= MAX_VOCAB_SIZE {
        return Ok(());
    }
    let must = "at most 16,777,216";
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

    /// Adds a token, if it is new.
    pub fn insert(&mut self, token: TokenId) {
        let (word, bit) = place(token);
        if word >= self.is_seen.len() {
            self.is_seen.resize(word + 1, 0);
        }
        if self.is_seen[word] & bit == 0 {
            self.is_seen[word] |= bit;
            self.tokens.push(token);
        }
    }

    /// Adds tokens.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        tokens.iter().for_each(|&token| self.insert(token));
    }

    /// Forgets all but the first `len` distinct tokens.
    pub fn truncate(&mut self, len: usize) {
        for &token in self.tokens.get(len..).unwrap_or_default() {
            let (word, bit) = place(token);
            self.is_seen[word] &= !bit;
        }
        self.tokens.truncate(len);
    }

    /// Forgets all tokens but those of `text`.
    pub fn restart(&mut self, text: &[TokenId]) {
        self.truncate(0);
        self.extend(text);
        self.tokens.clear();
        for (word, &bits) in self.is_seen.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                self.tokens.push(TokenId((word * 64) as u32 + left.trailing_zeros()));
                left &= left - 1;
            }
        }
    }

    /// What `read` makes of the row in which the score of each token is divided by `penalty` if it is
    /// positive, and multiplied by it if not. Finite scores stay finite.
    ///
    /// So it is done in CTRL (Keskar et al. 2019, section 4.1) and, for scores that are not positive,
    /// in Hugging Face's `RepetitionPenaltyLogitsProcessor`. The row is changed in place and put back:
    /// a copy of 151,936 scores would cost half as much as drawing from them.
    ///
    /// # Panics
    /// When a token is not in the row.
    pub fn penalised<T>(
        &mut self,
        row: &mut [f32],
        penalty: f32,
        read: impl FnOnce(&[f32]) -> T,
    ) -> T {
        self.scores.clear();
        for &TokenId(token) in &self.tokens {
            let score = &mut row[token as usize];
            self.scores.push(*score);
            *score = penalised(*score, penalty);
        }
        let found = read(row);
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
    }
}

fn place(TokenId(token): TokenId) -> (usize, u64) {
    (token as usize / 64, 1 << (token % 64))
}

fn penalised(score: f32, penalty: f32) -> f32 {
    let changed = if score > 0.0 { score / penalty } else { score * penalty };
    if score.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { score }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32], text: &[TokenId], penalty: f32) -> Vec<f32> {
        let distinct: BTreeSet<usize> = text.iter().map(|token| token.0 as usize).collect();
        let mut row = row.to_vec();
        for token in distinct {
            row[token] = if row[token] > 0.0 { row[token] / penalty } else { row[token] * penalty };
        }
        row
    }

    proptest! {
        #[test]
        fn a_penalised_row_equals_its_naive_twin_and_is_put_back(
            mut row in prop::collection::vec(-5.0f32..5.0, 200),
            text in prop::collection::vec((0u32..200).prop_map(TokenId), 0..60),
            further in prop::collection::vec((0u32..200).prop_map(TokenId), 0..60),
            penalty in 0.5f32..2.0,
        ) {
            let mut seen = SeenTokens::default();
            seen.restart(&further);
            seen.restart(&text);
            let num_seen = seen.len();
            seen.extend(&further);
            let both = [&text[..], &further].concat();
            let before = row.clone();
            let read = seen.penalised(&mut row, penalty, <[f32]>::to_vec);
            prop_assert_eq!(read, naive(&row, &both, penalty));
            seen.truncate(num_seen);
            let read = seen.penalised(&mut row, penalty, <[f32]>::to_vec);
            prop_assert_eq!(read, naive(&row, &text, penalty));
            prop_assert_eq!(row, before);
        }
    }

    #[test]
    fn what_is_not_finite_stays_and_what_is_finite_stays_finite() {
        let mut row = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
        let mut seen = SeenTokens::default();
        seen.extend(&[0, 1, 2, 3, 4].map(TokenId));
        let read = seen.penalised(&mut row, 0.5, <[f32]>::to_vec);
        assert!(read[0].is_nan());
        let half = f32::MIN * 0.5;
        assert_eq!(read[1..], [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, half]);
        assert_eq!(seen.penalised(&mut row, 2.0, |row| row[4]), f32::MIN);
    }
}
