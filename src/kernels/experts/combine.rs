//! What a row's experts give, summed by their shares, with what stands beside them.
//!
//! In: the products of all places, the places and shares of a row's experts. Out: rows. A sum runs in the order
//! of rank, with a multiply and an add fused; then what stands beside the experts is added, then all is scaled
//! and added to the residual.

use std::ops::Range;

use crate::kernels::exp::sigmoid;
use crate::kernels::lanes::{Lanes, WIDTH, load_some, on_processor, store_some};

/// What rows are summed from.
#[derive(Clone, Copy)]
pub struct Combine<'a> {
    /// Numbers of a row.
    pub columns: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// `(slots, columns)`.
    pub products: &'a [f32],
    /// `(rows, chosen)`.
    pub slots: &'a [u32],
    /// `(rows, chosen)`.
    pub shares: &'a [f32],
    /// `(rows, columns)`.
    pub beside: Option<&'a [f32]>,
    /// `(rows,)`, of whose sigmoids `beside` is multiplied with.
    pub beside_gate: Option<&'a [f32]>,
    /// `(rows, columns)`.
    pub residual: Option<&'a [f32]>,
    /// What all but the residual is multiplied by.
    pub scale: f32,
}

on_processor! {
    floats,
    /// Sums some rows, to `to (rows, columns)`.
    ///
    /// # Safety
    ///
    /// There is room for all rows, and nobody else reads or writes these.
    combine_rows = combine_on(combine: Combine<'_>, rows: Range<usize>, to: *mut f32)
}

#[inline(always)]
unsafe fn combine_on<L: Lanes>(combine: Combine<'_>, rows: Range<usize>, to: *mut f32) {
    let Combine { columns, chosen, .. } = combine;
    for row in rows {
        let numbers = row * columns..(row + 1) * columns;
        let beside = combine.beside.map(|beside| &beside[numbers.clone()]);
        let residual = combine.residual.map(|residual| &residual[numbers.clone()]);
        // SAFETY: by contract.
        unsafe {
            let gate = combine.beside_gate.map(|gates| sigmoid::<L>(L::splat(gates[row])));
            let pairs = row * chosen..(row + 1) * chosen;
            let (slots, shares) = (&combine.slots[pairs.clone()], &combine.shares[pairs]);
            let to = std::slice::from_raw_parts_mut(to.add(numbers.start), columns);
            for first in (0..columns).step_by(WIDTH) {
                let product = |slot: u32| {
                    let product = &combine.products[slot as usize * columns..][..columns];
                    load_some::<L>(product, first)
                };
                let mut sum = L::multiply(product(slots[0]), L::splat(shares[0]));
                for (slot, share) in slots[1..].iter().zip(&shares[1..]) {
                    sum = L::fused(product(*slot), L::splat(*share), sum);
                }
                if let Some(beside) = beside {
                    let beside = load_some::<L>(beside, first);
                    sum = match gate {
                        Some(gate) => L::fused(beside, gate, sum),
                        None => L::add(beside, sum),
                    };
                }
                let scale = L::splat(combine.scale);
                sum = match residual {
                    Some(residual) => L::fused(sum, scale, load_some::<L>(residual, first)),
                    None => L::multiply(sum, scale),
                };
                store_some::<L>(to, first, sum);
            }
        }
    }
}
