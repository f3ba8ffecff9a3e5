//! The gated delta rule, as in Qwen3.5: Yang et al., Gated Delta Networks, 2024, equation 10.
//!
//! In: rows of queries, keys and values, what decays, strengths and gates are computed from. Out: a
//! row's part of a step. A head's state decays by `e^(a * softplus(decay + bias))`; of a value what the
//! state holds under the key is taken off, and the sigmoid of `beta` of the rest is added. Queries and
//! keys have length one. What a head reads is normed and gated.

use super::heads::{Factors, Heads, Prepared, Rule};
use super::rows::{Rows, norm_then_gate};
use crate::kernels::exp::{exponential, sigmoid, softplus};
use crate::kernels::lanes::{Lanes, WIDTH, dot};

/// What is added to the sum of squares of a query or key.
const EPSILON: f32 = 1e-6;

/// A layer's weights, and the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// Heads of queries and keys, and of values, which are those of the state.
    pub heads: Heads,
    /// `(M, 2 * key_heads * keys + heads * values)`: queries, keys and values.
    pub rows: Rows<'a>,
    /// What else a row is projected to.
    pub projected: Rows<'a>,
    /// Where in a row of `projected` gates `(heads, values)` begin, betas `(heads,)` and decays `(heads,)`.
    pub columns: [usize; 3],
    /// `(heads,)`, below zero: what decays are multiplied with.
    pub a: &'a [f32],
    /// `(heads,)`, of decays.
    pub bias: &'a [f32],
    /// `(values,)`, the weight of the norm.
    pub norm: &'a [f32],
    /// Of the norm.
    pub epsilon: f32,
}

impl GatedDelta<'_> {
    /// Numbers of a row of queries, keys and values.
    pub fn row_numbers(&self) -> usize {
        let Heads { key_heads, heads, keys, values } = self.heads;
        2 * key_heads * keys + heads * values
    }
}

impl Rule for GatedDelta<'_> {
    const IS_DELTA: bool = true;

    fn heads(&self) -> Heads {
        self.heads
    }

    fn fits(&self, rows: usize) -> bool {
        let Heads { heads, values, .. } = self.heads;
        let [gate, beta, decay] = self.columns;
        self.heads.is_right()
            && self.rows.width == self.row_numbers()
            && self.rows.have(rows, 0, self.rows.width)
            && self.projected.have(rows, gate, heads * values)
            && self.projected.have(rows, beta, heads)
            && self.projected.have(rows, decay, heads)
            && [self.a.len(), self.bias.len(), self.norm.len()] == [heads, heads, values]
    }

    #[inline(always)]
    unsafe fn prepare<L: Lanes>(&self, row: usize, head: usize, to: Prepared<'_>) -> Factors {
        let Heads { key_heads, heads, keys, values } = self.heads;
        let key_head = self.heads.key_of(head);
        let of = |first: usize, len: usize| self.rows.part(row, first, len);
        let query = of(key_head * keys, keys);
        let key = of((key_heads + key_head) * keys, keys);
        to.value.copy_from_slice(of(2 * key_heads * keys + head * values, values));
        let [_, beta, decay] = self.columns.map(|column| self.projected.part(row, column, heads));
        // SAFETY: by contract.
        unsafe {
            scaled::<L>(key, 1.0, to.key);
            scaled::<L>(query, 1.0 / (keys as f32).sqrt(), to.query);
            let step = softplus::<L>(L::splat(decay[head] + self.bias[head]));
            Factors {
                decay: one::<L>(exponential::<L>(L::multiply(step, L::splat(self.a[head])))),
                strength: one::<L>(sigmoid::<L>(L::splat(beta[head]))),
                key_query: dot::<L>(to.key, to.query),
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, row: usize, head: usize, read: &mut [f32]) {
        let gate = self.columns[0] + head * read.len();
        let gate = self.projected.part(row, gate, read.len());
        // SAFETY: by contract.
        unsafe { norm_then_gate::<L>(read, self.norm, gate, self.epsilon) };
    }
}

/// The first lane.
#[inline(always)]
pub(super) unsafe fn one<L: Lanes>(x: L::Floats) -> f32 {
    let mut lanes = [0.0; WIDTH];
    unsafe { L::store(lanes.as_mut_ptr(), x) };
    lanes[0]
}

/// Writes `x`, made as long as `scale`.
#[inline(always)]
unsafe fn scaled<L: Lanes>(x: &[f32], scale: f32, to: &mut [f32]) {
    let factor = scale / (unsafe { dot::<L>(x, x) } + EPSILON).sqrt();
    for (to, x) in to.iter_mut().zip(x) {
        *to = x * factor;
    }
}
