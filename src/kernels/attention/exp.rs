//! Powers of e and what rests on them, sixteen at a time, and sums over lanes in one order.
//!
//! In: lanes. Out: lanes, or a number. NaN gives NaN.

use crate::kernels::lanes::{Lanes, WIDTH};

/// 1.5 * 2^23: a float32 this large has no fraction, so adding it rounds, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// Below it, powers are 0.
const LEAST: f32 = -87.0;

/// From it on, they are that of it.
const LARGEST: f32 = 88.0;

/// e to the power of `x`, which is at most 88, within 2 units in the last place; 0 below -87.
///
/// The exponent is split from a rest of at most half a binary digit, whose power is a polynomial
/// (Cephes' `expf`, Stephen L. Moshier).
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let least = L::splat(LEAST);
        let clamped = L::larger(least, x);
        let log = L::splat(std::f32::consts::LOG2_E);
        let shifted = L::fused(clamped, log, L::splat(ROUNDER));
        let digits = L::subtract(shifted, L::splat(ROUNDER));
        let rest = L::fused(digits, L::splat(-0.693_359_4), clamped);
        let rest = L::fused(digits, L::splat(2.121_944_4e-4), rest);
        let power = L::splat(1.987_569_1e-4);
        let power = L::fused(power, rest, L::splat(1.398_199_9e-3));
        let power = L::fused(power, rest, L::splat(8.333_452e-3));
        let power = L::fused(power, rest, L::splat(4.166_579_6e-2));
        let power = L::fused(power, rest, L::splat(1.666_666_5e-1));
        let power = L::fused(power, rest, L::splat(0.5));
        let power = L::fused(power, L::multiply(rest, rest), rest);
        let power = L::add(power, L::splat(1.0));
        L::unless_below(L::multiply(power, L::power_of_two(shifted)), x, least)
    }
}

/// The hyperbolic tangent, `1 - 2 / (1 + e^2x)`, within 2^-23.
#[inline(always)]
pub unsafe fn tanh<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let opposite = L::larger(L::splat(-LARGEST), L::multiply(x, L::splat(-2.0)));
        let power = exp::<L>(L::subtract(L::splat(0.0), opposite));
        let share = L::divide(L::splat(-2.0), L::add(L::splat(1.0), power));
        L::add(share, L::splat(1.0))
    }
}

/// The sum of all lanes: halves are added until one is left.
#[inline(always)]
pub unsafe fn sum<L: Lanes>(x: L::Floats) -> f32 {
    let mut lanes = [0.0; WIDTH];
    unsafe { L::store(lanes.as_mut_ptr(), x) };
    sum_of_lanes(lanes)
}

/// As [`sum`].
#[inline(always)]
pub fn sum_of_lanes(mut lanes: [f32; WIDTH]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

/// The largest lane that is a number, or minus infinity.
#[inline(always)]
pub unsafe fn largest<L: Lanes>(x: L::Floats) -> f32 {
    let mut lanes = [0.0; WIDTH];
    unsafe { L::store(lanes.as_mut_ptr(), L::larger(x, L::splat(f32::NEG_INFINITY))) };
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let (one, other) = (lanes[lane], lanes[lane + half]);
            lanes[lane] = if one > other { one } else { other };
        }
    }
    lanes[0]
}
