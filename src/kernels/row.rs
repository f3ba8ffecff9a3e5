//! The arithmetic of one row, in loops that compilers turn into vectors of any width.
//!
//! In: slices of equal length. Out: numbers, or rounded rows and their scale. Which vectors are used is not
//! known here: `mod.rs` compiles these lines for each.

use super::LANES;

const LARGEST: f32 = 127.0;

/// Steps in which the rest of a number counts for one step of its row: half a step is 127 of them.
const REST_STEPS: f32 = 254.0;

/// 1.5 * 2^23: a float32 this large has no fraction, so adding it rounds, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// As in the parent.
#[inline(always)]
pub fn round(x: &[f32], rows: &mut [u8]) -> f32 {
    let largest = largest_magnitude(x);
    let factor = LARGEST / largest;
    for (row, &value) in rows.iter_mut().zip(x) {
        // The lowest byte of the sum is the rounded number, around 128.
        *row = (value * factor + (ROUNDER + 128.0)).to_bits() as u8;
    }
    largest / LARGEST
}

/// As in the parent.
#[inline(always)]
pub fn round_fine(x: &[f32], rows: &mut [u8], rests: &mut [u8]) -> f32 {
    let largest = largest_magnitude(x);
    let factor = LARGEST / largest;
    for ((row, rest), &value) in rows.iter_mut().zip(rests).zip(x) {
        let number = value * factor;
        let shifted = number + (ROUNDER + 128.0);
        *row = shifted.to_bits() as u8;
        let left = (number - (shifted - (ROUNDER + 128.0))) * REST_STEPS;
        *rest = (left + (ROUNDER + 128.0)).to_bits() as u8;
    }
    largest / LARGEST
}

/// As in the parent.
#[inline(always)]
pub fn norm(stream: &[f32], weight: &[f32], epsilon: f32, normed: &mut [f32]) {
    let mean = sum_of_squares(stream) / stream.len() as f32;
    let factor = 1.0 / (mean + epsilon).sqrt();
    for ((out, &value), &weight) in normed.iter_mut().zip(stream).zip(weight) {
        *out = value * factor * weight;
    }
}

/// As in the parent.
#[inline(always)]
pub fn join(product: &[f32], of_rests: &[f32], scale: f32, joined: &mut [f32]) {
    for ((out, &product), &rest) in joined.iter_mut().zip(product).zip(of_rests) {
        *out = (product + rest * (1.0 / REST_STEPS)) * scale;
    }
}

/// As in the parent.
#[inline(always)]
pub fn add(before: &[f32], stream: &mut [f32]) {
    for (out, &value) in stream.iter_mut().zip(before) {
        *out += value;
    }
}

/// As in the parent.
#[inline(always)]
pub fn gate(both: &[f32], both_scale: f32, gated: &mut [f32]) {
    let (gates, ups) = both.split_at(gated.len());
    for ((out, &gate), &up) in gated.iter_mut().zip(gates).zip(ups) {
        let gate = gate * both_scale;
        *out = gate / (1.0 + exp(-gate)) * (up * both_scale);
    }
}

/// The largest magnitude; NaN where there is one, whose bits are above those of any number.
#[inline(always)]
fn largest_magnitude(x: &[f32]) -> f32 {
    let mut lanes = [0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = (*lane).max(value.to_bits() & 0x7fff_ffff);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = (*lane).max(value.to_bits() & 0x7fff_ffff);
    }
    let mut largest = 0;
    for lane in lanes {
        largest = largest.max(lane);
    }
    f32::from_bits(largest)
}

/// The sum of squares: number `i` goes to lane `i` modulo [`LANES`].
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// e to the power of `x`, within 2 units in the last place for -87 to 88, and clamped beyond.
///
/// The exponent is split from a rest of at most half a binary digit, whose power is a polynomial
/// (Cephes' `expf`, Stephen L. Moshier).
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x > 88.0 { 88.0 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let digits = shifted - ROUNDER;
    let rest = x - digits * 0.693_359_4 + digits * 2.121_944_4e-4;
    let mut power = 1.987_569_1e-4;
    power = power * rest + 1.398_199_9e-3;
    power = power * rest + 8.333_452e-3;
    power = power * rest + 4.166_579_6e-2;
    power = power * rest + 1.666_666_5e-1;
    power = power * rest + 0.5;
    let power = power * rest * rest + rest + 1.0;
    let exponent = (shifted.to_bits() << 23).wrapping_add(0x3f80_0000);
    power * f32::from_bits(exponent)
}
