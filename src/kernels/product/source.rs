//! What a product's rows are: numbers as they stand, normed, or gates times what they gate.
//!
//! In: rows of float32 as an operator gets them. Out: sixteen numbers of a row at a time, zeros behind
//! its end. They are made where they are rounded, so no row is written in between.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::kernels::exp::{sigmoid, silu, tanh};
use crate::kernels::lanes::{Lanes, dot, load_some};

/// Rows of a product.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// `(rows, columns)`.
    Plain(&'a [f32]),
    /// `x (rows, columns)`, whose RMS norms times `weight (columns,)` are meant.
    Normed {
        /// The rows.
        x: &'a [f32],
        /// Of each column.
        weight: &'a [f32],
        /// What is added to the mean of squares.
        epsilon: f32,
    },
    /// `(rows, 2 * columns)`: gates, and behind them what they gate.
    Gated(&'a [f32], Gate),
}

/// What gates `x` make of `y`, which they gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + e^-x) * y`.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) * y`.
    Gelu,
    /// `1 / (1 + e^-x) * y`.
    Sigmoid,
    /// gpt-oss's: `x / (1 + e^-1.702x) * (y + 1)`, of `x` up to 7 and `y` from -7 to 7.
    ClampedSwiglu,
}

impl Gate {
    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "silu" => Some(Self::Silu),
            "gelu_tanh" => Some(Self::Gelu),
            "sigmoid" => Some(Self::Sigmoid),
            "clamped_swiglu" => Some(Self::ClampedSwiglu),
            _ => None,
        }
    }
}

/// One row.
pub trait Row {
    /// Sixteen numbers from column `first` on.
    ///
    /// # Safety
    ///
    /// As [`Lanes`].
    unsafe fn numbers<L: Lanes>(&self, first: usize) -> L::Floats;
}

/// A row as it stands.
pub struct PlainRow<'a>(pub &'a [f32]);

impl Row for PlainRow<'_> {
    #[inline(always)]
    unsafe fn numbers<L: Lanes>(&self, first: usize) -> L::Floats {
        unsafe { load_some::<L>(self.0, first) }
    }
}

/// A row that is normed.
pub struct NormedRow<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    factor: f32,
}

impl<'a> NormedRow<'a> {
    /// Squares are added in sixteen lanes by column, these by halves.
    ///
    /// # Safety
    ///
    /// As [`Lanes`].
    #[inline(always)]
    pub unsafe fn new<L: Lanes>(x: &'a [f32], weight: &'a [f32], epsilon: f32) -> Self {
        unsafe {
            let mean = dot::<L>(x, x) / x.len() as f32;
            Self { x, weight, factor: 1.0 / (mean + epsilon).sqrt() }
        }
    }
}

impl Row for NormedRow<'_> {
    #[inline(always)]
    unsafe fn numbers<L: Lanes>(&self, first: usize) -> L::Floats {
        unsafe {
            let x = L::multiply(load_some::<L>(self.x, first), L::splat(self.factor));
            L::multiply(x, load_some::<L>(self.weight, first))
        }
    }
}

/// A gate that is known when it is compiled.
pub trait Gating {
    /// What sixteen gates make of what they gate.
    ///
    /// # Safety
    ///
    /// As [`Lanes`].
    unsafe fn of<L: Lanes>(gates: L::Floats, gated: L::Floats) -> L::Floats;
}

/// [`Gate::Silu`].
pub struct Silu;
/// [`Gate::Gelu`].
pub struct Gelu;
/// [`Gate::Sigmoid`].
pub struct Sigmoid;
/// [`Gate::ClampedSwiglu`].
pub struct ClampedSwiglu;

impl Gating for Silu {
    #[inline(always)]
    unsafe fn of<L: Lanes>(gates: L::Floats, gated: L::Floats) -> L::Floats {
        unsafe { L::multiply(silu::<L>(gates), gated) }
    }
}

impl Gating for Gelu {
    #[inline(always)]
    unsafe fn of<L: Lanes>(gates: L::Floats, gated: L::Floats) -> L::Floats {
        unsafe { L::multiply(gelu::<L>(gates), gated) }
    }
}

impl Gating for Sigmoid {
    #[inline(always)]
    unsafe fn of<L: Lanes>(gates: L::Floats, gated: L::Floats) -> L::Floats {
        unsafe { L::multiply(sigmoid::<L>(gates), gated) }
    }
}

impl Gating for ClampedSwiglu {
    #[inline(always)]
    unsafe fn of<L: Lanes>(gates: L::Floats, gated: L::Floats) -> L::Floats {
        const LIMIT: f32 = 7.0;
        const ALPHA: f32 = 1.702;
        // Further below, less than 2^-119 is left, and infinity times 0 would be no number.
        const LEAST: f32 = -51.0;
        unsafe {
            let gates = L::larger(L::splat(LEAST), smaller::<L>(LIMIT, gates));
            let gated = L::larger(L::splat(-LIMIT), smaller::<L>(LIMIT, gated));
            let share = sigmoid::<L>(L::multiply(gates, L::splat(ALPHA)));
            L::multiply(L::multiply(gates, share), L::add(gated, L::splat(1.0)))
        }
    }
}

/// The smaller of each and a limit; NaN where one is.
#[inline(always)]
unsafe fn smaller<L: Lanes>(limit: f32, x: L::Floats) -> L::Floats {
    unsafe {
        let opposite = L::subtract(L::splat(0.0), x);
        L::subtract(L::splat(0.0), L::larger(L::splat(-limit), opposite))
    }
}

/// A row of gates and what they gate.
pub struct GatedRow<'a, G> {
    gates: &'a [f32],
    gated: &'a [f32],
    gate: PhantomData<G>,
}

impl<'a, G> GatedRow<'a, G> {
    #[inline(always)]
    pub fn new(both: &'a [f32]) -> Self {
        let (gates, gated) = both.split_at(both.len() / 2);
        Self { gates, gated, gate: PhantomData }
    }
}

impl<G: Gating> Row for GatedRow<'_, G> {
    #[inline(always)]
    unsafe fn numbers<L: Lanes>(&self, first: usize) -> L::Floats {
        unsafe { G::of::<L>(load_some::<L>(self.gates, first), load_some::<L>(self.gated, first)) }
    }
}

#[inline(always)]
unsafe fn gelu<L: Lanes>(x: L::Floats) -> L::Floats {
    const SQRT_2_BY_PI: f32 = 0.797_884_6;
    unsafe {
        let cube = L::multiply(L::multiply(x, x), x);
        let inner = L::fused(L::splat(0.044_715), cube, x);
        let tanh = tanh::<L>(L::multiply(L::splat(SQRT_2_BY_PI), inner));
        L::multiply(L::multiply(L::splat(0.5), x), L::add(L::splat(1.0), tanh))
    }
}
