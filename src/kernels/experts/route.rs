//! Which experts a row takes, and with which shares, by its scores alone.
//!
//! In: a router's scores of all experts. Out: the experts that are chosen, the best first, and the share of
//! each. Of equal ones the first is better. What is no number is better than any number, so that it comes to
//! the output instead of being overlooked.

use std::ops::Range;

use crate::kernels::exp::{exponential, sigmoid, sum_of_lanes};
use crate::kernels::lanes::{Lanes, WIDTH, load_some, on_processor, store_some};

/// What scores are before they are shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Chosen as they are; shares are of the softmax of all.
    Softmax,
    /// Chosen by their sigmoids, which are the shares.
    Sigmoid,
}

impl Scoring {
    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "softmax" => Some(Self::Softmax),
            "sigmoid" => Some(Self::Sigmoid),
            _ => None,
        }
    }
}

/// How rows choose among experts.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// What scores are.
    pub scoring: Scoring,
    /// What is added to the sum of a row's shares before they are divided by it, if they are.
    pub normed: Option<f32>,
    /// What shares are multiplied by in the end.
    pub share_scale: f32,
}

/// A router with the scores of some rows.
#[derive(Clone, Copy)]
pub struct Scores<'a> {
    pub router: Router,
    /// `(rows, experts)`.
    pub scores: &'a [f32],
    /// `(experts,)`: what is added to scores while experts are chosen, and to no share.
    pub bias: Option<&'a [f32]>,
}

on_processor! {
    floats,
    /// Chooses for some rows: their experts to `chosen (rows, chosen)` and `shares`.
    ///
    /// # Safety
    ///
    /// Both have room for all rows, and nobody else reads or writes these.
    route_rows = route_on(scores: Scores<'_>, rows: Range<usize>, chosen: *mut i32, shares: *mut f32)
}

#[inline(always)]
unsafe fn route_on<L: Lanes>(
    all: Scores<'_>,
    rows: Range<usize>,
    chosen: *mut i32,
    shares: *mut f32,
) {
    let Router { experts, chosen: count, .. } = all.router;
    for row in rows {
        let scores = &all.scores[row * experts..(row + 1) * experts];
        // SAFETY: by contract.
        unsafe {
            let chosen = std::slice::from_raw_parts_mut(chosen.add(row * count), count);
            let shares = std::slice::from_raw_parts_mut(shares.add(row * count), count);
            choose::<L>(all, scores, chosen, shares);
            if all.router.scoring == Scoring::Softmax {
                softmax::<L>(scores, shares);
            }
            finish(all.router, shares);
        }
    }
}

/// Chooses the best experts of a row, by insertion: to `values` go their scores, or the sigmoids of them.
#[inline(always)]
unsafe fn choose<L: Lanes>(
    all: Scores<'_>,
    scores: &[f32],
    chosen: &mut [i32],
    values: &mut [f32],
) {
    let bias_of = |expert: usize| all.bias.map_or(0.0, |bias| bias[expert]);
    let mut found = 0;
    for first in (0..scores.len()).step_by(WIDTH) {
        let mut some = [0.0; WIDTH];
        unsafe {
            let scores = load_some::<L>(scores, first);
            let scores = match all.router.scoring {
                Scoring::Softmax => scores,
                Scoring::Sigmoid => sigmoid::<L>(scores),
            };
            L::store(some.as_mut_ptr(), scores);
        }
        for (expert, value) in (first..scores.len()).zip(some) {
            let key = value + bias_of(expert);
            let mut at = found;
            while at > 0 && is_better(key, values[at - 1] + bias_of(chosen[at - 1] as usize)) {
                at -= 1;
            }
            if at < chosen.len() {
                found = chosen.len().min(found + 1);
                chosen.copy_within(at..found - 1, at + 1);
                values.copy_within(at..found - 1, at + 1);
                (chosen[at], values[at]) = (expert as i32, value);
            }
        }
    }
}

/// Whether a score is better than one that came before it.
#[inline(always)]
fn is_better(key: f32, than: f32) -> bool {
    key > than || key.is_nan() && !than.is_nan()
}

/// Makes of some of a row's scores their parts of the softmax of all: powers are summed in sixteen lanes by
/// expert, these by halves.
#[inline(always)]
unsafe fn softmax<L: Lanes>(scores: &[f32], some: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    unsafe {
        let largest = L::splat(largest);
        let mut sums = L::splat(0.0);
        for scores in scores.chunks(WIDTH) {
            let mut all = [f32::NEG_INFINITY; WIDTH];
            all[..scores.len()].copy_from_slice(scores);
            let powers = exponential::<L>(L::subtract(L::load(all.as_ptr()), largest));
            sums = L::add(sums, powers);
        }
        let mut lanes = [0.0; WIDTH];
        L::store(lanes.as_mut_ptr(), sums);
        let sum = L::splat(sum_of_lanes(lanes));
        for first in (0..some.len()).step_by(WIDTH) {
            let powers = exponential::<L>(L::subtract(load_some::<L>(some, first), largest));
            store_some::<L>(some, first, L::divide(powers, sum));
        }
    }
}

/// Norms and scales a row's shares; they are summed in the order of rank.
#[inline(always)]
fn finish(router: Router, shares: &mut [f32]) {
    if let Some(epsilon) = router.normed {
        let sum = shares.iter().fold(0.0, |sum, share| sum + share) + epsilon;
        shares.iter_mut().for_each(|share| *share /= sum);
    }
    shares.iter_mut().for_each(|share| *share *= router.share_scale);
}
