//! Rows of a product, of which a layer reads some columns, and their RMS norms with a gate, before it or
//! behind.
//!
//! In: a matrix; numbers, a weight and a gate of each. Out: some columns of a row; the numbers, normed and
//! gated. Squares are added in sixteen lanes.

use crate::kernels::exp::silu;
use crate::kernels::lanes::{Lanes, WIDTH, dot, load_some, store_some};

/// Rows of float32, `(M, width)`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// All of them.
    pub numbers: &'a [f32],
    /// Numbers of a row.
    pub width: usize,
}

impl<'a> Rows<'a> {
    /// Whether there are so many rows, and each has so many columns from `first` on.
    pub(super) fn have(&self, rows: usize, first: usize, columns: usize) -> bool {
        let end = first.checked_add(columns);
        end.is_some_and(|end| end <= self.width)
            && rows.checked_mul(self.width) == Some(self.numbers.len())
    }

    /// So many columns of a row, from `first` on.
    #[inline(always)]
    pub(super) fn part(&self, row: usize, first: usize, columns: usize) -> &'a [f32] {
        &self.numbers[row * self.width + first..][..columns]
    }
}

/// `norm(x) * weight * silu(gate)`.
///
/// # Safety
///
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn norm_then_gate<L: Lanes>(x: &mut [f32], weight: &[f32], gate: &[f32], epsilon: f32) {
    unsafe {
        let factor = L::splat(factor::<L>(x, epsilon));
        for first in (0..x.len()).step_by(WIDTH) {
            let normed = L::multiply(load_some::<L>(x, first), factor);
            let weighted = L::multiply(normed, load_some::<L>(weight, first));
            let gate = silu::<L>(load_some::<L>(gate, first));
            store_some::<L>(x, first, L::multiply(weighted, gate));
        }
    }
}

/// `norm(x * silu(gate)) * weight`.
///
/// # Safety
///
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn gate_then_norm<L: Lanes>(x: &mut [f32], weight: &[f32], gate: &[f32], epsilon: f32) {
    unsafe {
        for first in (0..x.len()).step_by(WIDTH) {
            let gate = silu::<L>(load_some::<L>(gate, first));
            store_some::<L>(x, first, L::multiply(load_some::<L>(x, first), gate));
        }
        let factor = L::splat(factor::<L>(x, epsilon));
        for first in (0..x.len()).step_by(WIDTH) {
            let normed = L::multiply(load_some::<L>(x, first), factor);
            store_some::<L>(x, first, L::multiply(normed, load_some::<L>(weight, first)));
        }
    }
}

#[inline(always)]
unsafe fn factor<L: Lanes>(x: &[f32], epsilon: f32) -> f32 {
    let mean = unsafe { dot::<L>(x, x) } / x.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}
