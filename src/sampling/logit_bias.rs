//! What is added to the scores of some tokens. In: tokens with a number each, a row. Out: the row with
//! them added, for as long as it is read.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::TokenId;

/// The largest bias, and the negative of the least finite one: it decides between any two tokens.
const MOST: f32 = 100.0;

/// Biases by token. A copy shares them.
///
/// ```
/// use coordgen_rs::ids::TokenId;
/// use coordgen_rs::sampling::{LogitBias, Sampling, SeenTokens};
///
/// let bias = LogitBias::new(&[(TokenId(0), 1.5)])?;
/// let greedy = Sampling::new(0.0, 0, 1.0, 1)?.with_logit_bias(bias);
/// let mut row = [2.0, 1.0, 3.0];
/// assert_eq!(greedy.choose(&mut row, 0, &mut SeenTokens::default()), Some(TokenId(0)));
/// assert_eq!(row, [2.0, 1.0, 3.0]);
/// # Ok::<(), coordgen_rs::error::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias {
    /// By id; `None` where there are none.
    biases: Option<Arc<[(TokenId, f32)]>>,
}

impl LogitBias {
    /// For tokens and what is added to their scores: -100 to 100, or minus infinity, with which a
    /// token is never said.
    ///
    /// Fails when a number is another one, or a token is given twice.
    pub fn new(biases: &[(TokenId, f32)]) -> Result<Self> {
        let mut biases = biases.to_vec();
        biases.sort_by_key(|&(token, _)| token);
        let (what, must) = ("logit_bias", "-100 to 100, or minus infinity, once for each token");
        let is_bias = |bias: f32| bias == f32::NEG_INFINITY || (-MOST..=MOST).contains(&bias);
        if let Some((TokenId(token), bias)) = biases.iter().find(|&&(_, bias)| !is_bias(bias)) {
            return Err(Error::BadOption { what, got: format!("{bias} for token {token}"), must });
        }
        if let Some(twice) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let got = format!("token {} twice", twice[0].0.0);
            return Err(Error::BadOption { what, got, must });
        }
        Ok(Self { biases: (!biases.is_empty()).then(|| biases.into()) })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.biases.is_none()
    }

    /// The tokens and their biases, by id.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f32)> {
        self.biases.iter().flat_map(|biases| biases.iter().copied())
    }

    /// Fails when a token is not in a vocabulary of so many.
    pub fn check_tokens(&self, vocab_size: usize) -> Result<()> {
        match self.biases.as_ref().and_then(|biases| biases.last()) {
            Some(&(token, _)) if token.0 as usize >= vocab_size => {
                Err(Error::TokenOutOfRange { token, vocab_size })
            }
            _ => Ok(()),
        }
    }

    /// What `read` makes of the row with the biases added; afterwards it is as before.
    ///
    /// # Panics
    /// When a token is not in the row.
    pub(super) fn added<T>(&self, row: &mut [f32], read: impl FnOnce(&mut [f32]) -> T) -> T {
        let Some(biases) = &self.biases else { return read(row) };
        let change = |&(TokenId(token), bias): &(TokenId, f32)| {
            let score = &mut row[token as usize];
            std::mem::replace(score, *score + bias)
        };
        let scores: Vec<f32> = biases.iter().map(change).collect();
        let found = read(row);
        for (&(TokenId(token), _), score) in biases.iter().zip(scores) {
            row[token as usize] = score;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_biased_row_equals_its_naive_twin_and_is_put_back(
            mut row in prop::collection::vec(-5.0f32..5.0, 50),
            biases in prop::collection::btree_map(0u32..50, -100.0f32..100.0, 0..20),
        ) {
            let given: Vec<_> = biases.iter().map(|(&id, &bias)| (TokenId(id), bias)).collect();
            let mut expected = row.clone();
            biases.iter().for_each(|(&id, &bias)| expected[id as usize] += bias);
            let before = row.clone();
            let read = LogitBias::new(&given).unwrap().added(&mut row, |row| row.to_vec());
            prop_assert_eq!(read, expected);
            prop_assert_eq!(row, before);
        }
    }

    #[test]
    fn what_is_no_bias_is_refused_and_what_is_unknown_is_named() {
        for bias in [100.5, -101.0, f32::NAN, f32::INFINITY] {
            assert!(LogitBias::new(&[(TokenId(1), bias)]).is_err());
        }
        assert!(
            LogitBias::new(&[(TokenId(1), 2.0), (TokenId(0), 1.0), (TokenId(1), 2.0)]).is_err()
        );
        let bias = LogitBias::new(&[(TokenId(9), f32::NEG_INFINITY), (TokenId(1), 100.0)]).unwrap();
        assert_eq!(bias.check_tokens(10), Ok(()));
        let error = Error::TokenOutOfRange { token: TokenId(9), vocab_size: 9 };
        assert_eq!(bias.check_tokens(9), Err(error));
        assert!(LogitBias::new(&[]).unwrap().is_empty() && !bias.is_empty());
    }
}
