//! Slices, sixteen numbers at a time, also where they end in between.
//!
//! In: slices. Out: lanes, of which those behind the end are zero, and sums in one order.

use super::{Lanes, WIDTH};
use crate::kernels::exp::sum_of_lanes;

/// The numbers from `first` on, and zeros behind the last.
///
/// # Safety
///
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn load_some<L: Lanes>(from: &[f32], first: usize) -> L::Floats {
    let from = &from[first.min(from.len())..];
    unsafe {
        if from.len() >= WIDTH {
            return L::load(from.as_ptr());
        }
        let mut all = [0.0; WIDTH];
        all[..from.len()].copy_from_slice(from);
        L::load(all.as_ptr())
    }
}

/// Writes lanes from `first` on, as many as there is room for.
///
/// # Safety
///
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn store_some<L: Lanes>(to: &mut [f32], first: usize, x: L::Floats) {
    let to = &mut to[first..];
    unsafe {
        if to.len() >= WIDTH {
            return L::store(to.as_mut_ptr(), x);
        }
        let mut all = [0.0; WIDTH];
        L::store(all.as_mut_ptr(), x);
        to.copy_from_slice(&all[..to.len()]);
    }
}

/// The sum of products of two slices of one length: number `i` goes to lane `i` modulo [`WIDTH`], fused;
/// lanes are added by halves.
///
/// # Safety
///
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn dot<L: Lanes>(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0; WIDTH];
    unsafe {
        let mut sums = L::splat(0.0);
        for first in (0..x.len()).step_by(WIDTH) {
            sums = L::fused(load_some::<L>(x, first), load_some::<L>(y, first), sums);
        }
        L::store(lanes.as_mut_ptr(), sums);
    }
    sum_of_lanes(lanes)
}
