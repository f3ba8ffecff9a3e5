//! A row of scores to draw from. In: scores and a temperature. Out: the weights of its tokens added
//! up, what of them stands before a token, and which token a share of their sum falls on.
//!
//! Nothing of a row's length is kept: sums are those of a few hundred blocks of it, and only the
//! block that is drawn from is looked at token by token.

use std::cmp::Ordering;

use crate::logits::scores::{Weight, count_at_least, max_without_nan, sum_of_weights};

/// Parts of a row whose largest scores and sums are kept.
const MAX_BLOCKS: usize = 256;
/// Length of the shortest.
const MIN_BLOCK: usize = 256;

/// Scores that are sorted rather than counted again and again.
const FEW: usize = 1024;
/// Scores that are compared at once when some few are looked for.
const GROUP: usize = 64;

/// A place in the order of a row's tokens: the likeliest first, of equals the lowest id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cutoff {
    pub score: f32,
    pub id: usize,
}

impl Cutoff {
    /// Behind all tokens that have a finite score.
    pub const END: Self = Self { score: f32::MIN, id: usize::MAX };

    /// Whether it is behind a token.
    fn is_behind(self, score: f32, id: usize) -> bool {
        score > self.score || (score == self.score && id < self.id)
    }

    /// A block that starts with the id `first` in two, each with the least score that those of its
    /// tokens have which are before the place.
    fn split(self, block: &[f32], first: usize) -> impl Iterator<Item = (&[f32], f32)> {
        let (lower, higher) = block.split_at(self.id.saturating_sub(first).min(block.len()));
        let parts = [(lower, self.score), (higher, self.score.next_up())];
        parts.into_iter().filter(|(part, _)| !part.is_empty())
    }
}

impl Eq for Cutoff {}

impl Ord for Cutoff {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal);
        by_score.then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Cutoff {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The sums of the weights in each block of a row.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    blocks: [f32; MAX_BLOCKS],
    /// All of them together.
    pub total: f64,
}

/// A row of scores, and how a softmax weighs them.
#[derive(Debug)]
pub(super) struct Row<'a> {
    scores: &'a [f32],
    block_len: usize,
    /// The largest score of each block.
    maxima: [f32; MAX_BLOCKS],
    largest: f32,
    weight: Weight,
}

impl<'a> Row<'a> {
    /// For the softmax of `scores / temperature`, a positive one. `None` when NaN is among the scores
    /// or the largest is not finite. Cost: a pass.
    pub fn new(scores: &'a [f32], temperature: f32) -> Option<Self> {
        let block_len = scores.len().div_ceil(MAX_BLOCKS).next_multiple_of(16).max(MIN_BLOCK);
        let mut maxima = [f32::NEG_INFINITY; MAX_BLOCKS];
        for (block, largest) in scores.chunks(block_len).zip(&mut maxima) {
            *largest = max_without_nan(block)?;
        }
        let largest = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = Weight::new(largest, temperature);
        largest.is_finite().then_some(Self { scores, block_len, maxima, largest, weight })
    }

    /// The blocks in which a score is at least `least`: the number of each, its first id, and its
    /// scores.
    fn blocks_with(&self, least: f32) -> impl Iterator<Item = (usize, usize, &'a [f32])> {
        let blocks = self.scores.chunks(self.block_len).enumerate();
        let reaching = blocks.filter(move |&(block, _)| self.maxima[block] >= least);
        reaching.map(|(block, scores)| (block, block * self.block_len, scores))
    }

    /// The sums of the weights of the tokens before `end`. Cost: a pass over the blocks that have
    /// some of them.
    pub fn sums(&self, end: Cutoff) -> Sums {
        let mut sums = Sums { blocks: [0.0; MAX_BLOCKS], total: 0.0 };
        for (block, first, scores) in self.blocks_with(end.score.max(self.weight.least_score())) {
            sums.blocks[block] = self.sum(first, scores, end);
            sums.total += f64::from(sums.blocks[block]);
        }
        sums
    }

    fn sum(&self, first: usize, scores: &[f32], end: Cutoff) -> f32 {
        let parts = end.split(scores, first);
        parts.map(|(part, least)| sum_of_weights(part, self.weight, least)).sum()
    }

    /// The token on which `part` falls when the weights of the tokens before `end`, of which `sums`
    /// are the sums, are laid end to end in the order of ids.
    pub fn token_at(&self, part: f64, end: Cutoff, sums: &Sums) -> Cutoff {
        let (mut left, mut found) = (part, 0);
        for (block, &sum) in sums.blocks.iter().enumerate().filter(|&(_, &sum)| sum > 0.0) {
            found = block;
            if left < f64::from(sum) {
                break;
            }
            left -= f64::from(sum);
        }
        let least = self.weight.least_score();
        let mut token = Cutoff::END;
        let block = self.scores.iter().enumerate().skip(found * self.block_len);
        for (id, &score) in block.take(self.block_len) {
            if score >= least && end.is_behind(score, id) {
                // Rounding may leave a crumb behind the last of them: then the last is meant.
                token = Cutoff { score, id };
                left -= f64::from(self.weight.of(score));
                if left < 0.0 {
                    break;
                }
            }
        }
        token
    }

    /// Whether the weights of the tokens before `place` sum up to `wanted`, where those before a later
    /// one have `sums`. Cost: a pass over as many blocks as decide it.
    pub fn reaches(&self, place: Cutoff, wanted: f64, sums: &Sums) -> bool {
        let (mut reached, mut possible) = (0.0, sums.total);
        for (block, scores) in self.scores.chunks(self.block_len).enumerate() {
            if reached >= wanted || reached + possible < wanted {
                break;
            }
            possible -= f64::from(sums.blocks[block]);
            if self.maxima[block] >= place.score {
                reached += f64::from(self.sum(block * self.block_len, scores, place));
            }
        }
        reached >= wanted
    }

    /// The place behind the tokens that weigh at least `share` of the likeliest, above 0 and at most 1.
    /// Cost: none of the row's.
    pub fn end_of_shares(&self, share: f32) -> Cutoff {
        Cutoff { score: self.weight.score_of(share), id: usize::MAX }
    }

    /// The place behind the `num_tokens` likeliest, at least 1. Cost: a pass over the blocks that may
    /// have one of them, as many as tokens; where those have more than a few that may be among them,
    /// and for more tokens than there are blocks, up to 32 passes.
    pub fn end_of_likeliest(&self, num_tokens: usize) -> Cutoff {
        // Of each of as many blocks one token, its likeliest, reaches the least of their largest scores.
        let mut maxima = self.maxima;
        let floor = match num_tokens {
            1..=MAX_BLOCKS => *maxima.select_nth_unstable_by(num_tokens - 1, larger_first).1,
            _ => f32::MIN,
        };
        if floor <= f32::MIN && self.count(f32::MIN) <= num_tokens {
            return Cutoff::END;
        }
        let floor = floor.max(f32::MIN);
        let num_reaching = self.count(floor);
        if num_reaching > FEW {
            return self.bisected(num_tokens, floor);
        }
        let mut places = Vec::with_capacity(num_reaching);
        for (_, first, scores) in self.blocks_with(floor) {
            for (group, scores) in scores.chunks(GROUP).enumerate() {
                // Most groups have none: that is seen without a branch for each score.
                if count_at_least(scores, floor) > 0 {
                    let ids = first + group * GROUP..;
                    let places_here = ids.zip(scores).map(|(id, &score)| Cutoff { score, id });
                    places.extend(places_here.filter(|place| place.score >= floor));
                }
            }
        }
        let last = *places.select_nth_unstable(num_tokens - 1).1;
        Cutoff { id: last.id + 1, ..last }
    }

    /// [`end_of_likeliest`](Self::end_of_likeliest) where so many scores are at least `floor`.
    fn bisected(&self, num_tokens: usize, floor: f32) -> Cutoff {
        let (mut low, mut high) = (key(floor), key(self.largest));
        while low < high {
            let middle = high - (high - low) / 2;
            if self.count(score_of(middle)) >= num_tokens {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let score = score_of(low);
        let mut num_equal = num_tokens - self.count(score.next_up());
        for (_, first, scores) in self.blocks_with(score) {
            let here = count_at_least(scores, score) - count_at_least(scores, score.next_up());
            if here >= num_equal {
                let mut equal = scores.iter().enumerate().filter(|entry| *entry.1 == score);
                let last = equal.nth(num_equal - 1).map_or(0, |(offset, _)| offset);
                return Cutoff { score, id: first + last + 1 };
            }
            num_equal -= here;
        }
        Cutoff { score, id: usize::MAX }
    }

    /// How many scores are at least `least`.
    fn count(&self, least: f32) -> usize {
        self.blocks_with(least).map(|(_, _, scores)| count_at_least(scores, least)).sum()
    }
}

fn larger_first(one: &f32, other: &f32) -> Ordering {
    other.total_cmp(one)
}

/// A number whose order is that of the scores, as `f32::total_cmp` has it.
fn key(score: f32) -> i64 {
    let bits = score.to_bits() as i32;
    i64::from(bits ^ ((bits >> 31) as u32 >> 1) as i32)
}

/// The score of a [`key`].
fn score_of(key: i64) -> f32 {
    let key = key as i32;
    f32::from_bits((key ^ ((key >> 31) as u32 >> 1) as i32) as u32)
}
