//! Reading logits: which token the target says. In: a row of scores. Out: its argmax.
//!
//! The tie rule stands here and nowhere else: of equal scores the lowest token id wins. Losslessness
//! depends on it, since plain decoding and verification must break ties alike.

pub mod logprobs;
pub(crate) mod scores;
pub mod top_k;

use self::scores::{max_without_nan, position};
use self::top_k::{TopK, top_k};
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};

/// Scores read at a time: small enough for the second look at the best block to hit the cache.
const BLOCK: usize = 4096;

/// A step's logits, `(rows, vocab_size) f32`; rows are read only when they are asked for.
///
/// They are borrowed: whoever runs the target owns the buffer, and writes it again once the call
/// that brought it here is over.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    values: &'a [f32],
    vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// Wraps the scores of `rows` rows. Fails when the number of scores is another one.
    pub fn new(values: &'a [f32], rows: usize, vocab_size: usize) -> Result<Self> {
        let expected = rows * vocab_size;
        if values.len() != expected {
            return Err(Error::WrongLength { what: "logits", got: values.len(), expected });
        }
        Ok(Self { values, vocab_size })
    }

    /// Number of scores of a row.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token that the target says after `node`. Cost: one pass over `vocab_size` scores.
    ///
    /// Fails when the row holds NaN or has no finite maximum.
    pub fn argmax(&self, node: NodeId) -> Result<TokenId> {
        argmax(self.row(node)).ok_or(Error::NonFiniteLogits { row: node.index() })
    }

    /// What is likely after `node`; `None` when the row holds NaN or has no finite maximum.
    pub fn top_k(&self, node: NodeId) -> Option<TopK> {
        top_k(self.row(node))
    }

    fn row(&self, node: NodeId) -> &'a [f32] {
        let start = node.index() * self.vocab_size;
        &self.values[start..start + self.vocab_size]
    }
}

/// The lowest index of the largest score; `None` when there is NaN or no finite maximum.
pub fn argmax(row: &[f32]) -> Option<TokenId> {
    let (mut best, mut best_start) = (f32::NEG_INFINITY, 0);
    for (index, block) in row.chunks(BLOCK).enumerate() {
        let largest = max_without_nan(block)?;
        if largest > best {
            (best, best_start) = (largest, index * BLOCK);
        }
    }
    if !best.is_finite() {
        return None;
    }
    let offset = position(&row[best_start..], best)?;
    Some(TokenId((best_start + offset) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_argmax(row: &[f32]) -> Option<TokenId> {
        let mut best = 0;
        for (index, score) in row.iter().enumerate() {
            if score.is_nan() {
                return None;
            }
            if *score > row[best] {
                best = index;
            }
        }
        row.get(best).filter(|score| score.is_finite()).map(|_| TokenId(best as u32))
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(argmax(&[0.0, 2.0, 2.0]), Some(TokenId(1)));
        assert_eq!(argmax(&[-0.0, 0.0]), Some(TokenId(0)));
    }

    #[test]
    fn rows_without_a_usable_maximum_are_named() {
        let values = [1.0, f32::NAN, f32::INFINITY, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
        let logits = Logits::new(&values, 3, 2).unwrap();
        for row in 0..3 {
            let error = logits.argmax(NodeId(row)).unwrap_err();
            assert_eq!(error, Error::NonFiniteLogits { row: row as usize });
        }
    }

    #[test]
    fn masked_tokens_may_be_minus_infinity() {
        assert_eq!(argmax(&[f32::NEG_INFINITY, -3.0]), Some(TokenId(1)));
    }

    proptest! {
        #[test]
        fn argmax_equals_its_naive_twin(
            scores in prop::collection::vec(-2i8..3, 0..100),
            copies in 1usize..100,
            nan_at in prop::option::of(0usize..9000),
        ) {
            let mut row: Vec<f32> = scores.repeat(copies).into_iter().map(f32::from).collect();
            if let Some(score) = nan_at.and_then(|at| row.get_mut(at)) {
                *score = f32::NAN;
            }
            prop_assert_eq!(argmax(&row), naive_argmax(&row));
        }
    }
}
