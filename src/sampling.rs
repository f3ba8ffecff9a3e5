//! Sampling: which token the target says when it is drawn at random. In: a row of logits and the
//! number of the answer's token. Out: the token drawn.
//!
//! Drafts are deterministic, so accepting a draft token with the target's probability, and drawing
//! from the rest after a rejection, is the same as drawing first and accepting what equals the draw.
//! Each draw depends on the seed and the token's number alone, not on how many draws came before:
//! so a sampled answer is the same token for token with and without drafts, as a greedy one is.

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::random::uniform;

/// Candidates sorted at first when only `top_p` cuts them; doubled until they suffice.
const FIRST_SORTED: usize = 256;

/// How tokens are drawn: temperature first, then `top_k`, then `top_p`, as is customary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    seed: u64,
}

/// A token with its weight, the unnormalised probability.
type Candidate = (f32, u32);

impl Sampling {
    /// Draws from the softmax of `logits / temperature`, cut to the `top_k` likeliest tokens (0: all)
    /// and of those to the fewest whose probabilities reach `top_p`.
    ///
    /// Fails when `temperature` is not positive and finite, or `top_p` is not in (0, 1].
    ///
    /// ```
    /// use coordgen_rs::sampling::Sampling;
    ///
    /// let sampling = Sampling::new(0.7, 0, 1.0, 1)?;
    /// let row = [2.0, 1.0, 3.0];
    /// assert_eq!(sampling.draw(&row, 5), sampling.draw(&row, 5));
    /// # Ok::<(), coordgen_rs::error::Error>(())
    /// ```
    pub fn new(temperature: f32, top_k: usize, top_p: f32, seed: u64) -> Result<Self> {
        if !(temperature.is_finite() && temperature > 0.0) {
            let (what, must) = ("temperature", "positive and finite");
            return Err(Error::BadOption { what, got: temperature.to_string(), must });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let (what, must) = ("top_p", "above 0 and at most 1");
            return Err(Error::BadOption { what, got: top_p.to_string(), must });
        }
        Ok(Self { temperature, top_k, top_p, seed })
    }

    /// The answer's token number `index`, drawn from `row`; `None` when the row holds NaN or has
    /// no finite maximum.
    ///
    /// Cost: two passes over the row and an exponential for each score; cut by `top_k` or `top_p`,
    /// also a selection among all candidates.
    pub fn draw(&self, row: &[f32], index: u64) -> Option<TokenId> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !largest.is_finite() || row.iter().any(|score| score.is_nan()) {
            return None;
        }
        let weight = |score: &f32| ((score - largest) / self.temperature).exp();
        let mut candidates: Vec<Candidate> = row.iter().map(weight).zip(0..).collect();
        let kept = self.cut(&mut candidates);
        let total: f64 = kept.iter().map(|&(weight, _)| f64::from(weight)).sum();
        let mut left = uniform(self.seed, index) * total;
        let drawn = kept.iter().find(|&&(weight, _)| {
            left -= f64::from(weight);
            left < 0.0
        });
        // Rounding may leave a crumb behind the last candidate: then the likeliest is drawn.
        let likeliest = || kept.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        drawn.or_else(likeliest).map(|&(_, token)| TokenId(token))
    }

    /// The candidates that `top_k` and `top_p` leave.
    fn cut<'a>(&self, candidates: &'a mut [Candidate]) -> &'a [Candidate] {
        let num_candidates = candidates.len();
        let candidates = match self.top_k {
            0 => candidates,
            k if k >= num_candidates => candidates,
            k => {
                candidates.select_nth_unstable_by(k - 1, likelier_first);
                &mut candidates[..k]
            }
        };
        if self.top_p >= 1.0 {
            // In the order of ids, so that the draw does not depend on how the selection moved them.
            candidates.sort_unstable_by_key(|&(_, token)| token);
            return candidates;
        }
        let total: f64 = candidates.iter().map(|&(weight, _)| f64::from(weight)).sum();
        let wanted = total * f64::from(self.top_p);
        let mut num_sorted = FIRST_SORTED.min(candidates.len());
        loop {
            candidates.select_nth_unstable_by(num_sorted - 1, likelier_first);
            candidates[..num_sorted].sort_unstable_by(likelier_first);
            let mut reached = 0.0;
            let enough = candidates[..num_sorted].iter().position(|&(weight, _)| {
                reached += f64::from(weight);
                reached >= wanted
            });
            match enough {
                Some(last) => return &candidates[..=last],
                None if num_sorted == candidates.len() => return candidates,
                None => num_sorted = (2 * num_sorted).min(candidates.len()),
            }
        }
    }
}

/// Larger weights first, of equals the lower id.
fn likelier_first(one: &Candidate, other: &Candidate) -> std::cmp::Ordering {
    other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The probabilities that a `Sampling` should draw with, by definition.
    fn naive(row: &[f32], temperature: f32, top_k: usize, top_p: f32) -> Vec<f64> {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&one, &other| row[other].total_cmp(&row[one]).then(one.cmp(&other)));
        let weight = |token: usize| f64::from((row[token] - row[order[0]]) / temperature).exp();
        let kept = &order[..if top_k == 0 { row.len() } else { top_k.min(row.len()) }];
        let total: f64 = kept.iter().map(|&token| weight(token)).sum();
        let mut probabilities = vec![0.0; row.len()];
        let mut reached = 0.0;
        for &token in kept {
            if reached < f64::from(top_p) - 1e-6 || top_p >= 1.0 {
                probabilities[token] = weight(token);
            }
            reached += weight(token) / total;
        }
        let total: f64 = probabilities.iter().sum();
        probabilities.iter().map(|probability| probability / total).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn draws_follow_the_cut_softmax(
            row in prop::collection::vec(-3.0f32..3.0, 2..7),
            temperature in 0.5f32..2.0,
            top_k in 0usize..8,
            top_p in prop::sample::select(vec![0.55f32, 0.85, 1.0]),
            seed in any::<u64>(),
        ) {
            const DRAWS: u64 = 4_000;
            let sampling = Sampling::new(temperature, top_k, top_p, seed).unwrap();
            let mut counts = vec![0.0; row.len()];
            for index in 0..DRAWS {
                counts[sampling.draw(&row, index).unwrap().0 as usize] += 1.0;
            }
            for (count, probability) in counts.iter().zip(naive(&row, temperature, top_k, top_p)) {
                let deviation = (probability * (1.0 - probability) / DRAWS as f64).sqrt();
                // The second term is for rare tokens, whose counts are far from normal.
                let tolerance = 5.5 * deviation + 3e-3;
                prop_assert!((count / DRAWS as f64 - probability).abs() <= tolerance);
            }
        }

        #[test]
        fn numbers_are_even_over_seeds_and_indices(seed in any::<u64>(), by_seed in any::<bool>()) {
            const DRAWS: u64 = 4_000;
            let number = |at: u64| {
                if by_seed { uniform(seed.wrapping_add(at), 3) } else { uniform(seed, at) }
            };
            let mut counts = [0u32; 10];
            for at in 0..DRAWS {
                counts[(number(at) * 10.0) as usize] += 1;
            }
            prop_assert!(counts.iter().all(|&count| (290..=510).contains(&count)), "{:?}", counts);
        }
    }

    #[test]
    fn the_likeliest_alone_is_the_lowest_of_equals() {
        for (top_k, top_p) in [(1, 1.0), (0, 1e-6)] {
            let sampling = Sampling::new(1.0, top_k, top_p, 9).unwrap();
            for index in 0..20 {
                assert_eq!(sampling.draw(&[1.0, 4.0, 4.0], index), Some(TokenId(1)));
            }
        }
    }

    #[test]
    fn wide_vocabularies_are_cut_alike() {
        let row: Vec<f32> = (0..5_000).map(|token| ((token * 37 % 5_000) as f32).ln_1p()).collect();
        let sampling = Sampling::new(1.0, 0, 0.9, 3).unwrap();
        let expected = naive(&row, 1.0, 0, 0.9);
        for index in 0..200 {
            assert!(expected[sampling.draw(&row, index).unwrap().0 as usize] > 0.0);
        }
    }

    #[test]
    fn unusable_rows_and_options_are_refused() {
        let sampling = Sampling::new(1.0, 0, 1.0, 0).unwrap();
        assert_eq!(sampling.draw(&[1.0, f32::NAN], 0), None);
        assert_eq!(sampling.draw(&[f32::INFINITY, 1.0], 0), None);
        assert_eq!(sampling.draw(&[f32::NEG_INFINITY; 2], 0), None);
        assert_eq!(sampling.draw(&[1.0, f32::NEG_INFINITY], 0), Some(TokenId(0)));
        for (temperature, top_p) in
            [(0.0, 1.0), (-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.1)]
        {
            assert!(Sampling::new(temperature, 0, top_p, 0).is_err());
        }
    }
}
