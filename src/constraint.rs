//! What a grammar lets the target say. In: the tokens of an answer, a row of logits. Out: the tokens
//! that may follow, and the row without the others.
//!
//! The grammar itself is the caller's: it is asked by a trait. Each row is masked for the state
//! behind its own node, as in plain decoding, so drafts change no token of a constrained answer.

use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Tokens of a word of a mask.
const WORD: usize = u32::BITS as usize;

/// The bit of each of them.
const BITS: [u32; WORD] = {
    let mut bits = [0; WORD];
    let mut token = 0;
    while token < WORD {
        bits[token] = 1 << token;
        token += 1;
    }
    bits
};

/// A grammar that follows one answer. A path is the tokens behind those of [`Constraint::extend`].
pub trait Constraint: Send + Sync {
    /// The tokens that must come after `path`, as far as each is the only one allowed.
    fn forced(&mut self, path: &[TokenId]) -> Result<Vec<TokenId>>;

    /// Whether the grammar may allow each node of a tree, in the order of nodes, the root included.
    /// The root stays whatever is said of it, and nothing stays below a node that is refused. A node
    /// too many only costs its row.
    fn possible(&mut self, tokens: &[TokenId], parents: &[u32]) -> Result<Vec<bool>>;

    /// What may follow `path`.
    fn after(&mut self, path: &[TokenId]) -> Result<Allowed<'_>>;

    /// Takes the tokens that were given out, end tokens excluded. Whether the grammar is complete
    /// with them: nothing may follow.
    fn extend(&mut self, tokens: &[TokenId]) -> Result<bool>;
}

/// What may follow a path.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// Bit `i % 32` of word `i / 32` is set where token `i` may follow, `(vocab_size / 32,) u32`,
    /// rounded up.
    pub words: &'a [u32],
    /// Whether the answer is complete: nothing but an end token may follow.
    pub is_complete: bool,
}

/// Makes the tokens that are not allowed impossible: their scores become minus infinity.
///
/// Cost: a pass over the words, and over the scores of those that refuse a token. Fails when there
/// are too few words, no token is allowed, or a refused score is NaN or infinite, which no answer
/// may rest on.
///
/// ```
/// use coordgen_rs::constraint::keep_allowed;
///
/// let mut row = [3.0, 2.0, 1.0];
/// keep_allowed(&mut row, &[0b110])?;
/// assert_eq!(row, [f32::NEG_INFINITY, 2.0, 1.0]);
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
pub fn keep_allowed(row: &mut [f32], words: &[u32]) -> Result<()> {
    let expected = row.len().div_ceil(WORD);
    if words.len() != expected {
        return Err(Error::WrongLength {
            what: "the mask of allowed tokens",
            got: words.len(),
            expected,
        });
    }
    let (mut is_any_allowed, mut is_any_unusable) = (false, false);
    let (whole, rest) = row.as_chunks_mut::<WORD>();
    for (scores, &word) in whole.iter_mut().zip(words) {
        is_any_allowed |= word != 0;
        // Most words of a string's mask refuse nothing.
        is_any_unusable |= word != u32::MAX && refuse(scores, word);
    }
    if let Some(&word) = words.get(whole.len()) {
        is_any_allowed |= word & ((1 << rest.len()) - 1) != 0;
        is_any_unusable |= refuse(rest, word);
    }
    match (is_any_allowed, is_any_unusable) {
        (false, _) => Err(Error::NothingAllowed),
        (true, true) => Err(Error::NonFiniteLogits { row: 0 }),
        (true, false) => Ok(()),
    }
}

/// Masks the scores of a word; whether a refused one is NaN or infinite. Inlined for 32 scores, and
/// without branches, so that the compiler takes several at a time: four times as fast.
#[inline(always)]
fn refuse(scores: &mut [f32], word: u32) -> bool {
    let mut unusable = 0;
    for (score, bit) in scores.iter_mut().zip(BITS) {
        let is_refused = word & bit == 0;
        let is_unusable = score.is_nan() | (*score == f32::INFINITY);
        unusable |= u32::from(is_refused & is_unusable);
        *score = if is_refused { f32::NEG_INFINITY } else { *score };
    }
    unusable != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_masked_row_equals_its_naive_twin(
            row in prop::collection::vec(-5.0f32..5.0, 1..200),
            words in prop::collection::vec(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()], 7),
        ) {
            let words = &words[..row.len().div_ceil(32)];
            let is_allowed = |id: usize| words[id / 32] >> (id % 32) & 1 == 1;
            let mut masked = row.clone();
            let kept = keep_allowed(&mut masked, words);
            prop_assert_eq!(kept.is_ok(), (0..row.len()).any(is_allowed));
            for (id, (&score, &given)) in masked.iter().zip(&row).enumerate() {
                prop_assert_eq!(score, if is_allowed(id) { given } else { f32::NEG_INFINITY });
            }
        }
    }

    #[test]
    fn what_is_unusable_is_an_error_though_it_is_refused() {
        for score in [f32::NAN, f32::INFINITY] {
            let unusable = keep_allowed(&mut [1.0, score], &[0b01]);
            assert_eq!(unusable, Err(Error::NonFiniteLogits { row: 0 }));
        }
        assert_eq!(keep_allowed(&mut [1.0, f32::NEG_INFINITY], &[0b01]), Ok(()));
        assert_eq!(keep_allowed(&mut [1.0], &[0b10]), Err(Error::NothingAllowed));
        assert!(matches!(keep_allowed(&mut [1.0], &[1, 1]), Err(Error::WrongLength { .. })));
    }
}
