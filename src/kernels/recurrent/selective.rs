//! Mamba-2's selective state update, as in Granite 4: Dao and Gu, Transformers are SSMs, 2024,
//! section 7.
//!
//! In: rows of inputs and what they are written and read with (in the paper x, B and C), time steps
//! and gates. Out: a row's part of a step, and the gated norm of what a row's heads have read. A head's
//! state decays by `e^(a * step)`, an input times its step is added under B, and the state is read with
//! C. A head's matrix has the state's numbers as rows and the head's as columns.

use std::ops::Range;

use super::delta::one;
use super::heads::{Factors, Heads, Prepared, Rule};
use super::rows::{Rows, gate_then_norm};
use crate::kernels::exp::{exponential, softplus};
use crate::kernels::lanes::{Lanes, dot, on_processor};

/// A layer's weights, and the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveUpdate<'a> {
    /// Of the state: its numbers are the keys, a head's the values; groups, each with its own B, C and
    /// norm, are the heads of keys.
    pub heads: Heads,
    /// `(M, heads * values + 2 * groups * keys)`: inputs, B and C.
    pub rows: Rows<'a>,
    /// What else a row is projected to.
    pub projected: Rows<'a>,
    /// Where in a row of `projected` gates `(heads, values)` begin, and steps `(heads,)`.
    pub columns: [usize; 2],
    /// `(heads,)`, below zero: what steps are multiplied with.
    pub a: &'a [f32],
    /// `(heads,)`, of steps.
    pub bias: &'a [f32],
    /// `(heads,)`, of inputs, which are added to what is read.
    pub skip: &'a [f32],
    /// The least and the most that a step may be.
    pub limits: [f32; 2],
    /// `(heads * values,)`, the weight of the norm.
    pub norm: &'a [f32],
    /// Of the norm.
    pub epsilon: f32,
}

impl SelectiveUpdate<'_> {
    /// Numbers of a row of inputs, B and C.
    pub fn row_numbers(&self) -> usize {
        self.width() + 2 * self.heads.key_heads * self.heads.keys
    }

    /// Numbers of a row that is given.
    fn width(&self) -> usize {
        self.heads.heads * self.heads.values
    }

    /// A head's inputs.
    #[inline(always)]
    fn input(&self, row: usize, head: usize) -> &[f32] {
        self.rows.part(row, head * self.heads.values, self.heads.values)
    }
}

impl Rule for SelectiveUpdate<'_> {
    const IS_DELTA: bool = false;

    fn heads(&self) -> Heads {
        self.heads
    }

    fn fits(&self, rows: usize) -> bool {
        let [gate, step] = self.columns;
        let heads = self.heads.heads;
        self.heads.is_right()
            && self.rows.width == self.row_numbers()
            && self.rows.have(rows, 0, self.rows.width)
            && self.projected.have(rows, gate, self.width())
            && self.projected.have(rows, step, heads)
            && [self.a.len(), self.bias.len(), self.skip.len()] == [heads; 3]
            && self.norm.len() == self.width()
    }

    #[inline(always)]
    unsafe fn prepare<L: Lanes>(&self, row: usize, head: usize, to: Prepared<'_>) -> Factors {
        let Heads { key_heads, heads, keys, .. } = self.heads;
        let group = self.heads.key_of(head);
        let of = |group: usize| self.rows.part(row, self.width() + group * keys, keys);
        to.key.copy_from_slice(of(group));
        to.query.copy_from_slice(of(key_heads + group));
        let step = self.projected.part(row, self.columns[1], heads)[head] + self.bias[head];
        let [least, most] = self.limits;
        // SAFETY: by contract.
        unsafe {
            let step = match one::<L>(softplus::<L>(L::splat(step))) {
                step if step < least => least,
                step if step > most => most,
                step => step,
            };
            for (value, x) in to.value.iter_mut().zip(self.input(row, head)) {
                *value = x * step;
            }
            Factors {
                decay: one::<L>(exponential::<L>(L::splat(step * self.a[head]))),
                strength: 1.0,
                key_query: dot::<L>(to.key, to.query),
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, row: usize, head: usize, read: &mut [f32]) {
        for (read, x) in read.iter_mut().zip(self.input(row, head)) {
            *read = x.mul_add(self.skip[head], *read);
        }
    }
}

on_processor! {
    floats,
    /// Gates and norms what all heads of some rows have read, `(M, heads * values)`.
    ///
    /// # Safety
    ///
    /// The sizes are right, as a step's; all tasks of the rows are done, and nobody else reads or writes
    /// them.
    norm_rows = norm_rows_on(
        layer: &SelectiveUpdate<'_>,
        rows: Range<usize>,
        given: *mut f32,
    )
}

#[inline(always)]
unsafe fn norm_rows_on<L: Lanes>(layer: &SelectiveUpdate<'_>, rows: Range<usize>, given: *mut f32) {
    let width = layer.width();
    let group = width / layer.heads.key_heads;
    for row in rows {
        // SAFETY: by contract.
        let given = unsafe { std::slice::from_raw_parts_mut(given.add(row * width), width) };
        let gates = layer.projected.part(row, layer.columns[0], width).chunks(group);
        for ((x, weight), gate) in given.chunks_mut(group).zip(layer.norm.chunks(group)).zip(gates)
        {
            // SAFETY: by contract.
            unsafe { gate_then_norm::<L>(x, weight, gate, layer.epsilon) };
        }
    }
}
