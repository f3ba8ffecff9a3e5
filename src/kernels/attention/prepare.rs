//! What becomes of a head's query or key before it is used: its norm and its rotation.
//!
//! In: one head of one row. Out: the same, normed and rotated. Loops of single numbers, each of which
//! rounds in one place alone, so that a compiler may turn them into any vectors.

use crate::kernels::exp::sum_of_lanes;
use crate::kernels::lanes::WIDTH;

/// The cosines and sines of a row, of half as many angles as there are numbers to rotate.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    /// Whether pairs stand side by side, and not half of what is rotated apart.
    pub interleaved: bool,
}

/// Writes `x` to `to`, normed with a weight where there is one and rotated.
#[inline(always)]
pub fn prepare(
    x: &[f32],
    norm: Option<&[f32]>,
    epsilon: f32,
    rotation: Rotation<'_>,
    to: &mut [f32],
) {
    match norm {
        Some(weight) => normed(x, weight, epsilon, to),
        None => to.copy_from_slice(x),
    }
    if rotation.interleaved { rotate_pairs(rotation, to) } else { rotate_halves(rotation, to) }
}

/// The RMS norm. Number `i` goes to lane `i` modulo [`WIDTH`] of the sum of squares.
#[inline(always)]
pub fn normed(x: &[f32], weight: &[f32], epsilon: f32, to: &mut [f32]) {
    let mut lanes = [0.0; WIDTH];
    let (chunks, rest) = x.as_chunks::<WIDTH>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = value.mul_add(*value, *lane);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = value.mul_add(*value, *lane);
    }
    let mean = sum_of_lanes(lanes) / x.len() as f32;
    let factor = 1.0 / (mean + epsilon).sqrt();
    for ((to, value), weight) in to.iter_mut().zip(x).zip(weight) {
        *to = value * factor * weight;
    }
}

#[inline(always)]
fn rotate_halves(Rotation { cos, sin, .. }: Rotation<'_>, x: &mut [f32]) {
    let (first, rest) = x.split_at_mut(cos.len());
    for (((first, second), &cos), &sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*first, *second) = rotated(*first, *second, cos, sin);
    }
}

#[inline(always)]
fn rotate_pairs(Rotation { cos, sin, .. }: Rotation<'_>, x: &mut [f32]) {
    let (pairs, _) = x.as_chunks_mut::<2>();
    for ((pair, &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
        (pair[0], pair[1]) = rotated(pair[0], pair[1], cos, sin);
    }
}

#[inline(always)]
fn rotated(x: f32, y: f32, cos: f32, sin: f32) -> (f32, f32) {
    (x.mul_add(cos, -(y * sin)), y.mul_add(cos, x * sin))
}
