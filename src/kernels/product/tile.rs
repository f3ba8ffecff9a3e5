//! The innermost loops: some rows times a panel of sixteen outputs.
//!
//! In: a tile of rounded rows, a panel. Out: sixteen sums for each row. An output's sum runs over its
//! blocks in their order, with a multiply and an add fused; in a block it is of integers, and exact.
//! So its bits are the same in every tile, on every thread and processor.

use super::activations::Tile;
use super::panels::WeightType;
use crate::kernels::lanes::{Lanes, WIDTH};

/// What distinguishes the types of weights in the loop.
pub trait Form {
    const TYPE: WeightType;
    /// What a weight's integer is less than its value, in eighths of the rows' shift.
    const SHIFTS: i32;

    /// The weights of two groups of a block: sixteen outputs, eight inputs.
    unsafe fn load<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes);
}

pub struct Q4_0;
pub struct Q4_1;
pub struct Q8_0;

impl Form for Q4_0 {
    const TYPE: WeightType = WeightType::Q4_0;
    const SHIFTS: i32 = 1;

    #[inline(always)]
    unsafe fn load<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { L::load_nibbles(values.add(4 * WIDTH * pair)) }
    }
}

impl Form for Q4_1 {
    const TYPE: WeightType = WeightType::Q4_1;
    const SHIFTS: i32 = 0;

    #[inline(always)]
    unsafe fn load<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { L::load_nibbles(values.add(4 * WIDTH * pair)) }
    }
}

impl Form for Q8_0 {
    const TYPE: WeightType = WeightType::Q8_0;
    const SHIFTS: i32 = 16;

    #[inline(always)]
    unsafe fn load<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe {
            let at = values.add(8 * WIDTH * pair);
            (L::load_bytes(at), L::load_bytes(at.add(4 * WIDTH)))
        }
    }
}

/// The products of `R` rows with a panel of `blocks` blocks.
///
/// # Safety
///
/// As [`Lanes`]; the panel and the tile have that many blocks, the tile `R` rows.
#[inline(always)]
pub unsafe fn products<L: Lanes, W: Form, const R: usize>(
    panel: *const u8,
    blocks: usize,
    mut tile: Tile,
) -> [L::Floats; R] {
    const PAIRS: usize = 4;
    unsafe {
        let value_bytes = WIDTH * W::TYPE.value_bytes();
        let block_bytes = WIDTH * W::TYPE.block_bytes();
        let (mut values, halves) = (panel, panel.add(value_bytes * blocks).cast::<u16>());
        let mut sums = [L::splat(0.0); R];
        for block in 0..blocks {
            let mut integers = [L::splat_integer(0); R];
            for (row, sum) in integers.iter_mut().enumerate() {
                *sum = L::splat_integer(W::SHIFTS * tile.shift::<R>(row));
            }
            for pair in 0..PAIRS {
                let (first, second) = W::load::<L>(values, pair);
                for (row, sum) in integers.iter_mut().enumerate() {
                    let x = tile.integers::<R>(row).add(8 * pair);
                    *sum = L::dot(*sum, first, x);
                    *sum = L::dot(*sum, second, x.add(4));
                }
            }
            let ahead = panel.wrapping_add(PREFETCHED + block * block_bytes);
            for line in (0..block_bytes).step_by(LINE) {
                L::prefetch(ahead.wrapping_add(line));
            }
            let scales = L::load_halves(halves.add(WIDTH * block));
            for (row, (sum, integers)) in sums.iter_mut().zip(integers).enumerate() {
                let scale = L::multiply(scales, L::splat(tile.scale::<R>(row)));
                *sum = L::fused(L::to_floats(integers), scale, *sum);
            }
            if W::TYPE.num_halves() == 2 {
                let minima = L::load_halves(halves.add(WIDTH * (blocks + block)));
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = L::fused(minima, L::splat(tile.sum::<R>(row)), *sum);
                }
            }
            values = values.add(value_bytes);
            tile = tile.next::<R>();
        }
        sums
    }
}

/// Bytes of a cache's line.
const LINE: usize = 64;
/// How far ahead weights are asked for, in bytes.
const PREFETCHED: usize = 8192;
