//! The scales and minima of weights, sixteen outputs at a time.

use super::weight_type::Layout;
use crate::kernels::exp::ROUNDER;
use crate::kernels::lanes::{Lanes, WIDTH};

/// How often a block of 256 weights holds 32.
const IN_BLOCK: usize = 8;

/// The scale of each output, for 32 weights or sixteen of them, and its minimum.
#[derive(Clone, Copy)]
pub struct Scale<L: Lanes> {
    pub factor: L::Floats,
    /// What is added; read where the type has minima.
    pub minimum: L::Floats,
}

/// What a panel says of scales.
#[derive(Clone, Copy)]
pub struct Numbers {
    /// Its first float16.
    pub at: *const u8,
    /// Blocks of the panel, of the size that the type has.
    pub blocks: usize,
}

impl Numbers {
    /// A byte of each output in a block.
    #[inline(always)]
    unsafe fn byte<L: Lanes>(self, layout: Layout, which: usize, block: usize) -> L::Integers {
        let halves = 2 * layout.halves * self.blocks;
        unsafe { L::widened(self.at.add((halves + block * layout.bytes + which) * WIDTH)) }
    }

    /// Two numbers of 6 bits for each 32 weights: the low bits of both are in one byte, the high bits
    /// of both and of the next two in another.
    #[inline(always)]
    unsafe fn six_bit_pair<L: Lanes>(self, layout: Layout, index: usize) -> [L::Integers; 2] {
        let (block, index) = (index / IN_BLOCK, index % IN_BLOCK);
        unsafe {
            let low = self.byte::<L>(layout, index, block);
            let high = self.byte::<L>(layout, IN_BLOCK + index / 2, block);
            let bit = index as u32 % 2 * 4;
            let first = L::add_integers(L::field(low, 0, 0x0f, 0), L::field(high, bit, 0x03, 4));
            let high = L::field(high, bit + 2, 0x03, 4);
            [first, L::add_integers(L::field(low, 4, 0x0f, 0), high)]
        }
    }

    /// A float16 of each output in a block.
    #[inline(always)]
    unsafe fn half<L: Lanes>(self, which: usize, block: usize) -> L::Floats {
        unsafe { L::load_halves(self.at.cast::<u16>().add((which * self.blocks + block) * WIDTH)) }
    }
}

/// How the scales of a block are read.
pub trait Scales {
    /// How many scales 32 weights have.
    const PARTS: usize = 1;
    /// Whether there are minima.
    const HAS_MINIMA: bool = false;

    /// The scales of 32 weights, of number `index` in a row.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the panel holds them, in that layout.
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2];
}

/// A float16.
pub struct F16Scale;
/// A float16, and another one for the minimum.
pub struct F16ScaleAndMinimum;

/// An exponent of two, 128 too large.
pub struct Mxfp4Scales;
/// For each 32 weights 6 bits, 32 too large, times a float16.
pub struct Iq4XsScales;
/// For each 32 weights 6 bits, and 6 for the minimum, each times a float16.
pub struct Q4KScales;
/// For each sixteen weights 6 bits, 32 too large, times a float16.
pub struct Q3KScales;
/// For each sixteen weights 8 bits, 128 too large, times a float16.
pub struct Q6KScales;
/// For each sixteen weights 4 bits, and 4 for the minimum, each times a float16.
pub struct Q2KScales;

impl Scales for F16Scale {
    #[inline(always)]
    unsafe fn read<L: Lanes>(_: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        unsafe { one_scale(numbers.half::<L>(0, index)) }
    }
}

impl Scales for F16ScaleAndMinimum {
    const HAS_MINIMA: bool = true;

    #[inline(always)]
    unsafe fn read<L: Lanes>(_: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        unsafe {
            let factor = numbers.half::<L>(0, index);
            [Scale { factor, minimum: numbers.half::<L>(1, index) }; 2]
        }
    }
}

impl Scales for Mxfp4Scales {
    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        unsafe {
            let exponent = numbers.byte::<L>(layout, 0, index);
            // Less 128 it may be below that of a float: its power is that of two halves.
            let half = L::field(exponent, 1, 0x7f, 0);
            let other = L::add_integers(half, L::field(exponent, 0, 1, 0));
            one_scale(L::multiply(power::<L>(half), power::<L>(other)))
        }
    }
}

impl Scales for Iq4XsScales {
    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        let (block, index) = (index / IN_BLOCK, index % IN_BLOCK);
        unsafe {
            let low = numbers.byte::<L>(layout, index / 2, block);
            let low = L::field(low, index as u32 % 2 * 4, 0x0f, 0);
            let high = numbers.byte::<L>(layout, 4 + index / 4, block);
            let high = L::field(high, index as u32 % 4 * 2, 0x03, 4);
            let six = less::<L>(L::add_integers(low, high), 32);
            one_scale(L::multiply(numbers.half::<L>(0, block), six))
        }
    }
}

impl Scales for Q4KScales {
    const HAS_MINIMA: bool = true;

    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        unsafe {
            let [scale, minimum] = numbers.six_bit_pair::<L>(layout, index);
            let factor = numbers.half::<L>(0, index / IN_BLOCK);
            let factor = L::multiply(factor, L::to_floats(scale));
            let least = numbers.half::<L>(1, index / IN_BLOCK);
            [Scale { factor, minimum: L::multiply(least, L::to_floats(minimum)) }; 2]
        }
    }
}

impl Scales for Q3KScales {
    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        unsafe {
            let scale = numbers.half::<L>(0, index / IN_BLOCK);
            let [first, second] = numbers.six_bit_pair::<L>(layout, index);
            let first = L::multiply(scale, less::<L>(first, 32));
            let second = L::multiply(scale, less::<L>(second, 32));
            scale_pair(first, second)
        }
    }
}

impl Scales for Q6KScales {
    const PARTS: usize = 2;

    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        let (block, index) = (index / IN_BLOCK, index % IN_BLOCK);
        unsafe {
            let scale = numbers.half::<L>(0, block);
            let first = less::<L>(numbers.byte::<L>(layout, 2 * index, block), 128);
            let second = less::<L>(numbers.byte::<L>(layout, 2 * index + 1, block), 128);
            scale_pair(L::multiply(scale, first), L::multiply(scale, second))
        }
    }
}

impl Scales for Q2KScales {
    const PARTS: usize = 2;
    const HAS_MINIMA: bool = true;

    #[inline(always)]
    unsafe fn read<L: Lanes>(layout: Layout, numbers: Numbers, index: usize) -> [Scale<L>; 2] {
        let (block, index) = (index / IN_BLOCK, index % IN_BLOCK);
        unsafe {
            let (scale, least) = (numbers.half::<L>(0, block), numbers.half::<L>(1, block));
            let first = numbers.byte::<L>(layout, 2 * index, block);
            let second = numbers.byte::<L>(layout, 2 * index + 1, block);
            [nibbles(first, scale, least), nibbles(second, scale, least)]
        }
    }
}

/// A scale in the low bits, a minimum in the high ones.
#[inline(always)]
unsafe fn nibbles<L: Lanes>(both: L::Integers, scale: L::Floats, least: L::Floats) -> Scale<L> {
    unsafe {
        let (low, high) = (L::field(both, 0, 0x0f, 0), L::field(both, 4, 0x0f, 0));
        Scale {
            factor: L::multiply(scale, L::to_floats(low)),
            minimum: L::multiply(least, L::to_floats(high)),
        }
    }
}

/// Two to the power of integers less 64.
#[inline(always)]
unsafe fn power<L: Lanes>(x: L::Integers) -> L::Floats {
    unsafe { L::exponents(L::add(L::to_floats(x), L::splat(ROUNDER - 64.0))) }
}

/// Scales of sixteen weights each, without minima.
#[inline(always)]
unsafe fn scale_pair<L: Lanes>(first: L::Floats, second: L::Floats) -> [Scale<L>; 2] {
    let minimum = unsafe { L::splat(0.0) };
    [Scale { factor: first, minimum }, Scale { factor: second, minimum }]
}

/// Integers that are stored `more` too large, as floats.
#[inline(always)]
unsafe fn less<L: Lanes>(x: L::Integers, more: i32) -> L::Floats {
    unsafe { L::to_floats(L::add_integers(x, L::splat_integer(-more))) }
}

/// Scales of all 32 weights, without minima.
#[inline(always)]
unsafe fn one_scale<L: Lanes>(factor: L::Floats) -> [Scale<L>; 2] {
    [Scale { factor, minimum: unsafe { L::splat(0.0) } }; 2]
}
