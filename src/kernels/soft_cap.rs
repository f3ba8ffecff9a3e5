//! Numbers that are kept below a cap: `cap * tanh(x / cap)`.
//!
//! In: numbers. Out: as many, each computed from its own alone, the same bits on every processor.
//!
//! Unsafe: instructions that a processor may lack, as in all of `lanes`.
#![allow(unsafe_code)]

use crate::kernels::exp::tanh;
use crate::kernels::lanes::{Lanes, WIDTH, load_some, on_processor, store_some};

on_processor! {
    floats,
    /// Writes the numbers of `x`, capped, to `to`, which has as many.
    ///
    /// # Safety
    ///
    /// This machine has the processor.
    cap = cap_on(x: &[f32], cap: f32, to: &mut [f32])
}

/// Whether numbers can be kept below it: it is positive, and its reciprocal a number.
pub fn is_cap(cap: f32) -> bool {
    cap.is_normal() && cap > 0.0
}

#[inline(always)]
unsafe fn cap_on<L: Lanes>(x: &[f32], cap: f32, to: &mut [f32]) {
    // SAFETY: by contract.
    unsafe {
        for first in (0..to.len()).step_by(WIDTH) {
            let share = L::multiply(load_some::<L>(x, first), L::splat(1.0 / cap));
            store_some::<L>(to, first, L::multiply(tanh::<L>(share), L::splat(cap)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Processor;

    #[test]
    fn numbers_are_capped_alike_wherever_they_stand() {
        let x: Vec<f32> = (-400..400).map(|number| number as f32 * 0.37).collect();
        let mut expected = vec![0.0; x.len()];
        for (to, x) in expected.iter_mut().zip(&x) {
            let mut one = [0.0];
            // SAFETY: any machine has the first.
            unsafe { cap(Processor::all()[0], &[*x], 30.0, &mut one) };
            *to = one[0];
            let exact = 30.0 * (f64::from(*x) / 30.0).tanh();
            assert!((f64::from(*to) - exact).abs() < 2e-5, "{to} for {exact}");
        }
        for processor in Processor::all() {
            for start in 0..20 {
                let mut given = vec![0.0; x.len() - start];
                // SAFETY: this machine has them all.
                unsafe { cap(processor, &x[start..], 30.0, &mut given) };
                assert_eq!(given, expected[start..], "{}", processor.name());
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_that() {
        let mut given = [0.0; 3];
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        // SAFETY: any machine has the first.
        unsafe { cap(Processor::all()[0], &x, 5.0, &mut given) };
        assert!(given[0].is_nan());
        assert_eq!(given[1..], [5.0, -5.0]);
    }
}
