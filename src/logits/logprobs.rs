//! How likely the target held the tokens of its answer. In: rows of logits, and the tokens that were
//! chosen from them. Out: natural logarithms of probabilities, with the likeliest alternatives.
//!
//! Probabilities are those of the softmax of a row as the target gave it, at temperature 1: before
//! biases, penalties, a grammar's mask and cuts. That is OpenAI's reading, llama.cpp's
//! (unless `post_sampling_probs` is asked for) and vLLM's default (`raw_logprobs`).

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logits::scores::{count_at_least, max_without_nan, sum_of_exponentials};

/// The most alternatives that are told of a token.
pub const MAX_ALTERNATIVES: usize = 20;

/// Scores that are compared at once with the least of the likeliest so far.
const GROUP: usize = 64;

/// Fails when so many alternatives are more than are told.
pub fn check_num_alternatives(num_alternatives: usize) -> Result<()> {
    if num_alternatives <= MAX_ALTERNATIVES {
        return Ok(());
    }
    Err(Error::BadOption { what: "logprobs", got: num_alternatives.to_string(), must: "0 to 20" })
}

/// How likely a token of the answer was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Of the token itself.
    pub logprob: f64,
    /// Of the likeliest tokens in its place, likeliest first, of equals the lowest id first.
    pub alternatives: Vec<(TokenId, f64)>,
}

/// What a row of logits says of all tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLogprobs {
    /// The logarithm of the sum of the exponentials of all scores.
    log_sum: f64,
    alternatives: Vec<(TokenId, f64)>,
}

impl RowLogprobs {
    /// For a row, and the `num_alternatives` likeliest of its tokens. `None` when it holds NaN or has
    /// no finite maximum.
    ///
    /// Cost: two passes over the row, one of them with an exponential for each score, and a third,
    /// at the pace of a comparison a score, for alternatives. The same row gives the same bits.
    ///
    /// ```
    /// use coordgen_rs::ids::TokenId;
    /// use coordgen_rs::logits::logprobs::RowLogprobs;
    ///
    /// let of_row = RowLogprobs::new(&[1.0, 3.0, 2.0], 2).unwrap();
    /// let of_token = of_row.of(1.0);
    /// assert!((of_token.logprob - -2.4076).abs() < 1e-4);
    /// let best: Vec<_> = of_token.alternatives.iter().map(|&(token, _)| token).collect();
    /// assert_eq!(best, [1, 2].map(TokenId));
    /// ```
    pub fn new(row: &[f32], num_alternatives: usize) -> Option<Self> {
        let largest = max_without_nan(row).filter(|largest| largest.is_finite())?;
        let log_sum = f64::from(largest) + sum_of_exponentials(row, largest).ln();
        let likeliest = likeliest(row, num_alternatives).into_iter();
        let alternatives = likeliest.map(|(token, score)| (token, f64::from(score) - log_sum));
        Some(Self { log_sum, alternatives: alternatives.collect() })
    }

    /// How likely a token is whose score in the row is `score`.
    pub fn of(self, score: f32) -> TokenLogprob {
        let logprob = f64::from(score) - self.log_sum;
        TokenLogprob { logprob, alternatives: self.alternatives }
    }
}

/// The tokens with the largest scores, the largest first, of equals the lowest id first.
fn likeliest(row: &[f32], num_tokens: usize) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> = Vec::with_capacity(num_tokens + 1);
    if num_tokens == 0 {
        return best;
    }
    for (group, scores) in row.chunks(GROUP).enumerate() {
        if best.len() == num_tokens {
            let least = best[num_tokens - 1].1;
            // Most groups have none: of equals the earlier stays.
            if count_at_least(scores, least.next_up()) == 0 {
                continue;
            }
        }
        for (offset, &score) in scores.iter().enumerate() {
            let at = best.partition_point(|&(_, other)| other >= score);
            if at < num_tokens {
                best.insert(at, (TokenId((group * GROUP + offset) as u32), score));
                best.truncate(num_tokens);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32], token: usize, num_alternatives: usize) -> (f64, Vec<usize>) {
        let log_sum = row.iter().map(|&score| f64::from(score).exp()).sum::<f64>().ln();
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&one, &other| row[other].total_cmp(&row[one]).then(one.cmp(&other)));
        order.truncate(num_alternatives);
        (f64::from(row[token]) - log_sum, order)
    }

    proptest! {
        #[test]
        fn logprobs_equal_their_naive_twin(
            scores in prop::collection::vec(
                prop_oneof![4 => -30.0f32..30.0, 2 => (1i8..4).prop_map(f32::from)], 1..90),
            copies in 1usize..60,
            token in any::<prop::sample::Index>(),
            num_alternatives in 0usize..=MAX_ALTERNATIVES,
        ) {
            let row = scores.repeat(copies);
            let token = token.index(row.len());
            let told = RowLogprobs::new(&row, num_alternatives).unwrap().of(row[token]);
            let (expected, order) = naive(&row, token, num_alternatives);
            prop_assert!((told.logprob - expected).abs() < 4e-6, "{} {expected}", told.logprob);
            let ids: Vec<_> = told.alternatives.iter().map(|it| it.0.0 as usize).collect();
            prop_assert_eq!(&ids, &order);
            for (at, logprob) in order.into_iter().zip(told.alternatives.iter().map(|it| it.1)) {
                prop_assert!((logprob - naive(&row, at, 0).0).abs() < 4e-6);
            }
        }
    }

    #[test]
    fn what_is_impossible_has_no_part_and_unusable_rows_have_no_logprobs() {
        let row = [0.0, f32::NEG_INFINITY, 0.0, -1e30];
        let told = RowLogprobs::new(&row, 4).unwrap().of(row[0]);
        assert_eq!(told.logprob, -std::f64::consts::LN_2);
        assert_eq!(told.alternatives[3], (TokenId(1), f64::NEG_INFINITY));
        for row in [&[][..], &[1.0, f32::NAN], &[f32::INFINITY], &[f32::NEG_INFINITY]] {
            assert_eq!(RowLogprobs::new(row, 1), None);
        }
    }
}
