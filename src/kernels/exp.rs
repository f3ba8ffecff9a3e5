//! Powers of two and what rests on them, sixteen at a time, and sums over lanes in one order.
//!
//! In: lanes. Out: lanes, or a number. NaN gives NaN.
//!
//! Unsafe: as [`Lanes`].
#![allow(unsafe_code)]

use std::f32::consts::LOG2_E;

use crate::kernels::lanes::{Lanes, WIDTH};

/// 1.5 * 2^23, as a float32 this large has no fraction, so adding it rounds, ties to even; and 127,
/// by which exponents are stored.
pub const ROUNDER: f32 = 12_583_039.0;

/// The exponent that is stored as 0.
const LEAST: f32 = -127.0;

/// No power is asked for beyond it.
const LARGEST: f32 = 126.0;

/// Two to the power of `x`, which is at most 126, within 2 units in the last place from -126 on;
/// less than 2^-125 below, and 0 from -127 on down.
///
/// The exponent is split from a rest of at most a half, whose power is a polynomial: of those of
/// its degree that are 1 at 0 the one with the least error in units of the last place.
#[inline(always)]
pub unsafe fn power<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let clamped = L::larger(L::splat(LEAST), x);
        let shifted = L::add(clamped, L::splat(ROUNDER));
        let rest = L::subtract(clamped, L::subtract(shifted, L::splat(ROUNDER)));
        let power = L::splat(1.322_570_7e-3);
        let power = L::fused(power, rest, L::splat(9.671_763e-3));
        let power = L::fused(power, rest, L::splat(5.550_891_5e-2));
        let power = L::fused(power, rest, L::splat(2.402_223_6e-1));
        let power = L::fused(power, rest, L::splat(6.931_468e-1));
        let power = L::fused(power, rest, L::splat(1.0));
        L::multiply(power, L::exponents(shifted))
    }
}

/// The hyperbolic tangent, `1 - 2 / (1 + e^2x)`, within 2^-22.
#[inline(always)]
pub unsafe fn tanh<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let factor = L::splat(-2.0 * LOG2_E);
        let opposite = L::larger(L::splat(-LARGEST), L::multiply(x, factor));
        let power = power::<L>(L::subtract(L::splat(0.0), opposite));
        let share = L::divide(L::splat(-2.0), L::add(L::splat(1.0), power));
        L::add(share, L::splat(1.0))
    }
}

/// `e` to the power of `x`, as that of two; of more than 87 as of 87.
#[inline(always)]
pub unsafe fn exponential<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let opposite = L::larger(L::splat(-LARGEST), L::multiply(x, L::splat(-LOG2_E)));
        power::<L>(L::subtract(L::splat(0.0), opposite))
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub unsafe fn sigmoid<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let opposite = exponential::<L>(L::subtract(L::splat(0.0), x));
        L::divide(L::splat(1.0), L::add(L::splat(1.0), opposite))
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub unsafe fn silu<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        // Powers of two are known up to that of 126; of what is further below, less than 2^-119 is left.
        let x = L::larger(L::splat(-87.0), x);
        let opposite = L::multiply(x, L::splat(-LOG2_E));
        L::divide(x, L::add(L::splat(1.0), power::<L>(opposite)))
    }
}

/// `ln(1 + e^x)`, within a millionth of it from -80 on.
///
/// It is the larger of `x` and 0, and `ln(1 + u)` with `u = e^-|x|`: twice the area hyperbolic tangent
/// of `u / (2 + u)`, which is at most a third, so that eight terms of its series are enough.
#[inline(always)]
pub unsafe fn softplus<L: Lanes>(x: L::Floats) -> L::Floats {
    unsafe {
        let opposite = L::subtract(L::splat(0.0), x);
        let size = L::larger(x, opposite);
        let power = exponential::<L>(L::subtract(L::splat(0.0), size));
        let share = L::divide(power, L::add(L::splat(2.0), power));
        let square = L::multiply(share, share);
        let mut series = L::splat(1.0 / 15.0);
        for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
            series = L::fused(series, square, L::splat(1.0 / odd));
        }
        let double = L::add(share, share);
        L::fused(series, double, L::larger(L::splat(0.0), x))
    }
}

/// The sum of all lanes: halves are added until one is left.
#[inline(always)]
pub fn sum_of_lanes(mut lanes: [f32; WIDTH]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}
