//! The likeliest tokens of a row of logits, in one pass over it. In: scores. Out: the ids and
//! probabilities of the best [`TOP_K`].
//!
//! What a prompt's rows are reduced to as they appear, so that none has to be kept whole. It only
//! feeds drafts: what the target says is decided in `logits` alone.

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logits::scores::max_without_nan;

/// Entries kept of each row.
pub const TOP_K: usize = 8;

/// Parts of a row whose maxima are taken first; at most `TOP_K` of them hold its best scores.
const MAX_BLOCKS: usize = 128;
/// Shortest part that a maximum is taken of.
const MIN_BLOCK: usize = 512;
/// Independent running sums, so that the compiler keeps them in vector registers.
const LANES: usize = 16;
/// Scores that are compared at once with what is kept.
const GROUP: usize = 32;
/// Rows up to this length have every score in the denominator.
const WHOLE_DENOMINATOR: usize = 32_768;
/// Of longer ones the denominator is estimated from one score in this many.
const SAMPLED: usize = 32;

/// The likeliest tokens of one row, likeliest first; of equal scores the lowest id first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    /// The tokens; 0 where the probability is 0.
    pub token_ids: [TokenId; TOP_K],
    /// Their probabilities; 0 for entries that the row is too short for, or has no finite score
    /// for.
    pub probabilities: [f32; TOP_K],
}

impl TopK {
    /// A row that holds one token possible, and no other.
    pub fn certain(token: TokenId) -> Self {
        let mut only = Self { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
        (only.token_ids[0], only.probabilities[0]) = (token, 1.0);
        only
    }
}

/// The likeliest tokens of `row`; `None` when it holds NaN or has no finite maximum.
///
/// # Cost
/// One pass at the pace of a plain maximum, and a second look at 8 of 128 parts: `pytest
/// benches/test_logits.py` compares them. The exponentials of a whole row took three times as long,
/// so in long rows the softmax denominator is exact for the tokens kept, and estimated for the
/// others from one score in 32. To leave the others out would cost as little, but takes a flat row
/// for a sure one. Entering scores as they come, block by block, took half as long again.
///
/// ```
/// use coordgen_rs::ids::TokenId;
/// use coordgen_rs::logits::top_k::top_k;
///
/// let best = top_k(&[0.0, 2.0, f32::NEG_INFINITY, 2.0]).unwrap();
/// assert_eq!(best.token_ids[..3], [1, 3, 0].map(TokenId));
/// assert!((best.probabilities[0] - 0.4683).abs() < 1e-3);
/// assert_eq!(best.probabilities[3], 0.0);
/// ```
pub fn top_k(row: &[f32]) -> Option<TopK> {
    let block_len = row.len().div_ceil(MAX_BLOCKS).next_multiple_of(GROUP).max(MIN_BLOCK);
    let mut maxima = [f32::NEG_INFINITY; MAX_BLOCKS];
    let mut sample = Sample::new(row.len(), block_len);
    for (block, block_max) in row.chunks(block_len).zip(&mut maxima) {
        *block_max = max_without_nan(block)?;
        sample.add(block, *block_max);
    }
    // At least `TOP_K` scores, the maxima themselves, are not below the lowest of the best maxima.
    let mut ordered = maxima;
    let (better, floor, _) = ordered.select_nth_unstable_by(TOP_K - 1, |a, b| b.total_cmp(a));
    let largest = better.iter().copied().fold(*floor, f32::max);
    if !largest.is_finite() {
        return None;
    }
    let mut best = Best { scores: [f32::NEG_INFINITY; TOP_K], ids: [0; TOP_K] };
    for (index, block) in row.chunks(block_len).enumerate() {
        if maxima[index] >= *floor && maxima[index] > best.worst() {
            best.take(block, index * block_len);
        }
    }
    Some(best.with_probabilities(row.len(), &sample))
}

/// The likeliest tokens of every row of `logits`, `(rows, vocab_size) f32`, as arrays `(rows,
/// TOP_K)`, written over what `token_ids` and `probabilities` hold.
///
/// Fails when `vocab_size` is 0, when the number of scores is no multiple of it, or when a row is not
/// usable: then `first_row` plus its index is named.
pub fn top_k_rows(
    logits: &[f32],
    vocab_size: usize,
    first_row: usize,
    token_ids: &mut Vec<TokenId>,
    probabilities: &mut Vec<f32>,
) -> Result<()> {
    if vocab_size == 0 {
        return Err(Error::BadOption { what: "vocab_size", got: "0".into(), must: "at least 1" });
    }
    let rest = logits.len() % vocab_size;
    if rest != 0 {
        let (got, expected) = (logits.len(), logits.len() - rest);
        return Err(Error::WrongLength { what: "logits", got, expected });
    }
    token_ids.clear();
    probabilities.clear();
    for (index, row) in logits.chunks_exact(vocab_size).enumerate() {
        let best = top_k(row).ok_or(Error::NonFiniteLogits { row: first_row + index })?;
        token_ids.extend(best.token_ids);
        probabilities.extend(best.probabilities);
    }
    Ok(())
}

/// The best scores so far, best first.
struct Best {
    scores: [f32; TOP_K],
    ids: [usize; TOP_K],
}

impl Best {
    /// What a score must exceed to be among them.
    fn worst(&self) -> f32 {
        self.scores[TOP_K - 1]
    }

    /// Takes in what is good enough of `block`, whose first score has the id `first`.
    fn take(&mut self, block: &[f32], first: usize) {
        let (groups, rest) = block.as_chunks::<GROUP>();
        for (index, group) in groups.iter().enumerate() {
            // All of a group is compared, without a branch: so the compiler uses vectors.
            let worst = self.worst();
            if group.iter().fold(0, |any, &score| any | u32::from(score > worst)) != 0 {
                self.take_each(group, first + index * GROUP);
            }
        }
        self.take_each(rest, first + groups.len() * GROUP);
    }

    fn take_each(&mut self, scores: &[f32], first: usize) {
        for (offset, &score) in scores.iter().enumerate() {
            if score > self.worst() {
                self.insert(score, first + offset);
            }
        }
    }

    /// Replaces the worst. Ids come in increasing order, so an equal score stays behind.
    fn insert(&mut self, score: f32, id: usize) {
        let mut place = TOP_K - 1;
        while place > 0 && score > self.scores[place - 1] {
            self.scores[place] = self.scores[place - 1];
            self.ids[place] = self.ids[place - 1];
            place -= 1;
        }
        (self.scores[place], self.ids[place]) = (score, id);
    }

    /// Softmax over the row: exact terms for the entries, an estimate for the others.
    fn with_probabilities(&self, row_len: usize, sample: &Sample) -> TopK {
        let (mut others, mut num_others) = (sample.sum, sample.num_scores);
        let (mut terms, mut kept, mut num_kept) = ([0.0; TOP_K], 0.0, 0);
        for (rank, (&score, &id)) in self.scores.iter().zip(&self.ids).enumerate() {
            if score.is_finite() {
                terms[rank] = exp(score - sample.largest);
                kept += terms[rank];
                num_kept += 1;
                if id % sample.block_len < sample.sampled_len {
                    others -= terms[rank];
                    num_others -= 1;
                }
            }
        }
        let scale = (row_len - num_kept) as f32 / num_others.max(1) as f32;
        let denominator = kept + others.max(0.0) * scale;
        TopK {
            token_ids: self.ids.map(|id| TokenId(id as u32)),
            probabilities: terms.map(|term| term / denominator),
        }
    }
}

/// Exponentials of the first scores of every block, relative to the largest score so far.
struct Sample {
    block_len: usize,
    sampled_len: usize,
    largest: f32,
    sum: f32,
    num_scores: usize,
}

impl Sample {
    fn new(row_len: usize, block_len: usize) -> Self {
        let sampled_len = match row_len {
            0..=WHOLE_DENOMINATOR => block_len,
            _ => block_len / SAMPLED,
        };
        Self { block_len, sampled_len, largest: f32::NEG_INFINITY, sum: 0.0, num_scores: 0 }
    }

    fn add(&mut self, block: &[f32], block_max: f32) {
        if block_max > self.largest {
            self.sum *= exp(self.largest - block_max);
            self.largest = block_max;
        }
        let sampled = &block[..block.len().min(self.sampled_len)];
        self.num_scores += sampled.len();
        // Before the first finite score there is nothing that they could be relative to.
        if self.largest > f32::NEG_INFINITY {
            self.sum += sum_of_exp(sampled, self.largest);
        }
    }
}

fn sum_of_exp(scores: &[f32], largest: f32) -> f32 {
    let (lanes, rest) = scores.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for scores in lanes {
        for lane in 0..LANES {
            sums[lane] += exp(scores[lane] - largest);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|score| exp(score - largest)).sum::<f32>()
}

/// `e^x` for `x <= 0`, to four digits, in steps that vectorise; below -80 what it is there.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let power = x.max(-80.0) * std::f32::consts::LOG2_E;
    let rounded = power + ROUND;
    let rest = power - (rounded - ROUND);
    // The Taylor series of 2^rest, its last term fitted to -0.5 .. 0.5.
    let tail = 0.240_226_5 + rest * (0.055_504_1 + rest * 0.009_618_1);
    let fraction = 1.0 + rest * (std::f32::consts::LN_2 + rest * tail);
    f32::from_bits(fraction.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(row: &[f32]) -> Option<Vec<(usize, f64)>> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if row.iter().any(|score| score.is_nan()) || !largest.is_finite() {
            return None;
        }
        let term = |score: f32| f64::from(score - largest).exp();
        let denominator: f64 = row.iter().map(|&score| term(score)).sum();
        let mut ids: Vec<usize> = (0..row.len()).filter(|&id| row[id].is_finite()).collect();
        ids.sort_by(|&one, &other| row[other].total_cmp(&row[one]).then(one.cmp(&other)));
        ids.truncate(TOP_K);
        Some(ids.into_iter().map(|id| (id, term(row[id]) / denominator)).collect())
    }

    fn assert_equals_its_naive_twin(row: &[f32], tolerance: f64) {
        let (found, expected) = (top_k(row), naive(row));
        assert_eq!(found.is_some(), expected.is_some());
        let (Some(found), Some(expected)) = (found, expected) else { return };
        for rank in 0..TOP_K {
            let (id, probability) = expected.get(rank).copied().unwrap_or_default();
            assert_eq!(found.token_ids[rank], TokenId(id as u32), "rank {rank}");
            let difference = (f64::from(found.probabilities[rank]) - probability).abs();
            assert!(difference <= tolerance * probability + 1e-30, "rank {rank}: {probability}");
        }
    }

    proptest! {
        #[test]
        fn top_k_equals_a_sort(
            scores in prop::collection::vec(-6i8..7, 0..3 * LANES),
            copies in 1usize..100,
            odd in prop::collection::vec((0usize..9000, 0usize..5), 0..3),
        ) {
            let mut row: Vec<f32> = scores.repeat(copies).into_iter().map(f32::from).collect();
            let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38];
            for (at, value) in odd {
                if let Some(score) = row.get_mut(at) {
                    *score = values[value];
                }
            }
            assert_equals_its_naive_twin(&row, 1e-3);
        }

        #[test]
        fn exp_is_right_to_four_digits(x in -79.0f32..0.0) {
            let expected = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) - expected).abs() < 1e-4 * expected);
        }
    }

    #[test]
    fn long_rows_have_estimated_denominators() {
        let noise = |id: usize| (id.wrapping_mul(2_654_435_761) % 1_000_003) as f32 / 250_000.0;
        let mut row: Vec<f32> = (0..151_936).map(noise).collect();
        assert_equals_its_naive_twin(&row, 0.05);
        // A sure row, its best score among those sampled, and not.
        for sure in [0, 1000] {
            let score = std::mem::replace(&mut row[sure], 25.0);
            assert_equals_its_naive_twin(&row, 1e-3);
            row[sure] = score;
        }
    }

    #[test]
    fn rows_without_scores_are_refused() {
        let (mut ids, mut probabilities) = (Vec::new(), Vec::new());
        let none = top_k_rows(&[], 0, 0, &mut ids, &mut probabilities);
        assert!(matches!(none, Err(Error::BadOption { what: "vocab_size", .. })));
        assert_eq!(top_k(&[]), None);
    }

    #[test]
    fn unusable_rows_are_named() {
        let (mut ids, mut probabilities) = (Vec::new(), Vec::new());
        for bad in [f32::NAN, f32::INFINITY] {
            let logits = [0.0, 1.0, bad, 0.0];
            let found = top_k_rows(&logits, 2, 10, &mut ids, &mut probabilities);
            assert_eq!(found, Err(Error::NonFiniteLogits { row: 11 }));
        }
        let short = top_k_rows(&[0.0; 3], 2, 0, &mut ids, &mut probabilities);
        assert!(matches!(short, Err(Error::WrongLength { .. })));
        top_k_rows(&[0.0, 1.0, 1.0, 0.0], 2, 0, &mut ids, &mut probabilities).unwrap();
        assert_eq!((ids[0], ids[TOP_K]), (TokenId(1), TokenId(0)));
    }
}
