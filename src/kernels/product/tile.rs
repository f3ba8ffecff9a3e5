//! The innermost loops: some rows times a panel of sixteen outputs.
//!
//! In: a tile of rounded rows, a panel. Out: sixteen sums for each row. An output's sum runs over its
//! blocks in their order, with a multiply and an add fused; what shares a scale is a sum of integers,
//! and exact. So its bits are the same in every tile, on every thread and processor.

use std::ops::Range;

use super::BLOCK;
use super::activations::Tile;
use super::scales::{
    F16Scale, F16ScaleAndMinimum, Iq4XsScales, Mxfp4Scales, Numbers, Q2KScales, Q3KScales,
    Q4KScales, Q6KScales, Scale, Scales,
};
use super::values::{
    Bits2, Bits3, Bits4, Bits5, Bits6, Bits8, Codebook, Fp4Table, Iq4NlTable, Values,
};
use super::weight_type::WeightType;
use crate::kernels::lanes::{Lanes, WIDTH};

/// How panels of a type of weights are read.
pub trait WeightFormat {
    const TYPE: WeightType;

    /// The products of `R` rows with a panel.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the panel and the tile have that many columns, the tile `R` rows of the type's.
    unsafe fn products<L: Lanes, const R: usize>(
        panel: *const u8,
        columns: usize,
        tile: Tile,
    ) -> [L::Floats; R];

    /// Reads the weights of one output of a panel, as many as `to` holds: all columns.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the panel has that many columns.
    unsafe fn read_row<L: Lanes>(panel: *const u8, lane: usize, to: &mut [f32]);
}

/// What distinguishes the types of weights in blocks.
pub trait BlockFormat: WeightFormat {
    type Values: Values;
    type Scales: Scales;
}

/// A form for each type, by its name.
macro_rules! formats {
    ($($name:ident: $values:ty, $scales:ty;)*) => {$(
        #[allow(non_camel_case_types)]
        pub struct $name;

        impl BlockFormat for $name {
            type Values = $values;
            type Scales = $scales;
        }

        impl WeightFormat for $name {
            const TYPE: WeightType = WeightType::$name;

            #[inline(always)]
            unsafe fn products<L: Lanes, const R: usize>(
                panel: *const u8,
                columns: usize,
                tile: Tile,
            ) -> [L::Floats; R] {
                unsafe { products::<L, Self, R>(panel, columns.div_ceil(BLOCK), tile) }
            }

            #[inline(always)]
            unsafe fn read_row<L: Lanes>(panel: *const u8, lane: usize, to: &mut [f32]) {
                unsafe { read_row::<L, Self>(panel, lane, to) }
            }
        }
    )*};
}

formats! {
    Q4_0: Bits4<8>, F16Scale;
    Q4_1: Bits4<0>, F16ScaleAndMinimum;
    Q5_0: Bits5<16>, F16Scale;
    Q5_1: Bits5<0>, F16ScaleAndMinimum;
    Q8_0: Bits8, F16Scale;
    Q2_K: Bits2, Q2KScales;
    Q3_K: Bits3, Q3KScales;
    Q4_K: Bits4<0>, Q4KScales;
    Q5_K: Bits5<0>, Q4KScales;
    Q6_K: Bits6, Q6KScales;
    IQ4_NL: Codebook<Iq4NlTable>, F16Scale;
    IQ4_XS: Codebook<Iq4NlTable>, Iq4XsScales;
    MXFP4: Codebook<Fp4Table>, Mxfp4Scales;
}

/// Two groups of inputs stand together, in a block.
const PAIRS: usize = BLOCK / 8;

/// The products of `R` rows with a panel of `blocks` times 32 weights.
///
/// # Safety
///
/// As [`Lanes`]; the panel and the tile have that many blocks, the tile `R` rows.
#[inline(always)]
unsafe fn products<L: Lanes, W: BlockFormat, const R: usize>(
    panel: *const u8,
    blocks: usize,
    mut tile: Tile,
) -> [L::Floats; R] {
    let (layout, parts) = (W::TYPE.layout(), W::Scales::PARTS);
    unsafe {
        let value_bytes = WIDTH * layout.value_bytes();
        let mut values = panel;
        let numbers = numbers::<W>(panel, blocks);
        let mut sums = [L::splat(0.0); R];
        for block in 0..blocks {
            prefetch_ahead::<L, W>(panel, blocks, block);
            let scales = W::Scales::read::<L>(layout, numbers, block);
            for (part, scale) in scales[..parts].iter().enumerate() {
                let mut integers = [L::splat_integer(0); R];
                for (row, sum) in integers.iter_mut().enumerate() {
                    let zero = zero::<L, W>();
                    let shift = if parts == 1 {
                        zero / 8 * tile.shift::<R>(row)
                    } else {
                        zero / 4 * tile.half_shift::<R>(row, part)
                    };
                    *sum = L::splat_integer(shift);
                }
                let pairs = part * PAIRS / parts..(part + 1) * PAIRS / parts;
                integers = dots::<L, W, R>(integers, values, tile, pairs);
                for (row, (sum, integers)) in sums.iter_mut().zip(integers).enumerate() {
                    let step = tile.scale::<R>(row);
                    let factor = L::multiply(scale.factor, L::splat(step));
                    *sum = L::fused(L::to_floats(integers), factor, *sum);
                    if W::Scales::HAS_MINIMA {
                        let x = if parts == 1 {
                            tile.sum::<R>(row)
                        } else {
                            tile.half_shift::<R>(row, part) as f32 * -0.25 * step
                        };
                        *sum = L::fused(scale.minimum, L::splat(x), *sum);
                    }
                }
            }
            values = values.add(value_bytes);
            tile = tile.next::<R>();
        }
        sums
    }
}

/// Asks the memory for what is read some blocks later: values, which run on into the next panel's,
/// and the scales of a panel further, which are needed from its first block on.
#[inline(always)]
unsafe fn prefetch_ahead<L: Lanes, W: BlockFormat>(panel: *const u8, blocks: usize, block: usize) {
    let layout = W::TYPE.layout();
    let value_bytes = WIDTH * layout.value_bytes();
    let number_bytes = WIDTH * layout.block_bytes() * BLOCK / layout.weights - value_bytes;
    let (values, numbers) = (blocks * value_bytes, blocks * number_bytes);
    let mut at = values.min(PREFETCHED) + block * value_bytes;
    if at >= values {
        at += numbers;
    }
    let next = values + numbers + values + block * number_bytes;
    for (at, bytes) in [(at, value_bytes), (next, number_bytes)] {
        for line in (0..bytes).step_by(LINE) {
            unsafe { L::prefetch_far(panel.wrapping_add(at + line)) };
        }
    }
}

/// Adds the products of some pairs of groups to sums.
///
/// # Safety
///
/// As of [`products`].
#[inline(always)]
unsafe fn dots<L: Lanes, W: BlockFormat, const R: usize>(
    mut sums: [L::Integers; R],
    values: *const u8,
    tile: Tile,
    pairs: Range<usize>,
) -> [L::Integers; R] {
    unsafe {
        if !is_small::<W>() {
            for pair in pairs {
                let (first, second) = W::Values::pair::<L>(values, pair);
                for (half, weights) in [first, second].into_iter().enumerate() {
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let x = tile.integers::<R>(row).add(8 * pair);
                        *sum = L::dot_large(*sum, weights, x, half);
                    }
                }
            }
            return sums;
        }
        let together = (L::most_dots(W::Values::MOST) / 2).clamp(1, PAIRS);
        for start in pairs.clone().step_by(together) {
            let mut products = [L::open(sums[0]); R];
            for (products, sum) in products.iter_mut().zip(sums) {
                *products = L::open(sum);
            }
            for pair in start..pairs.end.min(start + together) {
                let (first, second) = W::Values::pair::<L>(values, pair);
                for (half, weights) in [first, second].into_iter().enumerate() {
                    for (row, products) in products.iter_mut().enumerate() {
                        let x = tile.integers::<R>(row).add(8 * pair);
                        *products = L::dot(*products, weights, x, half);
                    }
                }
            }
            for (sum, products) in sums.iter_mut().zip(products) {
                *sum = L::close(*sum, products);
            }
        }
        sums
    }
}

/// Whether values are so small that sums of products of two groups fit into 16 bits.
#[inline(always)]
fn is_small<W: BlockFormat>() -> bool {
    W::Values::MOST <= 64
}

/// What the values in products are more than the weights' integers.
#[inline(always)]
fn zero<L: Lanes, W: BlockFormat>() -> i32 {
    W::Values::ZERO - if is_small::<W>() { 0 } else { L::LESS }
}

/// As [`WeightFormat::read_row`].
///
/// # Safety
///
/// As of it.
#[inline(always)]
unsafe fn read_row<L: Lanes, W: BlockFormat>(panel: *const u8, lane: usize, to: &mut [f32]) {
    let blocks = to.len().div_ceil(BLOCK);
    let (layout, parts) = (W::TYPE.layout(), W::Scales::PARTS);
    unsafe {
        let numbers = numbers::<W>(panel, blocks);
        for (block, to) in to.chunks_mut(BLOCK).enumerate() {
            let values = panel.add(WIDTH * layout.value_bytes() * block);
            let scales = W::Scales::read::<L>(layout, numbers, block);
            let mut all = [[0.0; WIDTH]; BLOCK];
            for (pair, all) in all.chunks_exact_mut(8).enumerate() {
                let (first, second) = W::Values::pair::<L>(values, pair);
                let scale = scales[pair * parts / PAIRS];
                for (input, one) in ONES.iter().enumerate() {
                    let weights = column::<L, W>(first, one, scale);
                    L::store(all[input].as_mut_ptr(), weights);
                    let weights = column::<L, W>(second, one, scale);
                    L::store(all[input + 4].as_mut_ptr(), weights);
                }
            }
            for (to, column) in to.iter_mut().zip(all) {
                *to = column[lane];
            }
        }
    }
}

/// Rows of numbers with which products are the weights of one input of a group.
const ONES: [[i8; 8]; 4] = [
    [1, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0, 0, 0],
    [0, 0, 1, 0, 0, 0, 0, 0],
    [0, 0, 0, 1, 0, 0, 0, 0],
];

/// The weights of sixteen outputs for the input of a group at which `one` is 1.
#[inline(always)]
unsafe fn column<L: Lanes, W: BlockFormat>(
    values: L::Bytes,
    one: &[i8; 8],
    scale: Scale<L>,
) -> L::Floats {
    unsafe {
        let start = L::splat_integer(-zero::<L, W>());
        let integers = if is_small::<W>() {
            L::close(start, L::dot(L::open(start), values, one.as_ptr(), 0))
        } else {
            L::dot_large(start, values, one.as_ptr(), 0)
        };
        let weights = L::multiply(L::to_floats(integers), scale.factor);
        if W::Scales::HAS_MINIMA { L::add(weights, scale.minimum) } else { weights }
    }
}

/// Where a panel of `blocks` times 32 weights says something of scales.
///
/// # Safety
///
/// The panel is that long.
#[inline(always)]
unsafe fn numbers<W: BlockFormat>(panel: *const u8, blocks: usize) -> Numbers {
    let layout = W::TYPE.layout();
    let at = unsafe { panel.add(WIDTH * layout.value_bytes() * blocks) };
    Numbers { at, blocks: blocks * BLOCK / layout.weights }
}

/// Bytes of a cache's line.
pub const LINE: usize = 64;
/// How far ahead values are asked for, in bytes.
const PREFETCHED: usize = 16384;
