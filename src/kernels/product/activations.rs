//! Rows of activations, rounded to 8 bits with a scale for each block of 32.
//!
//! In: rows of float32. Out: tiles of some rows, in the order in which a product reads them: block
//! after block, in each the integers of all rows, then their scales and sums.
#![allow(unsafe_code)]

use std::ops::Range;

use super::BLOCK;

/// Most rows of a tile: as many sums of sixteen outputs as a processor's registers hold.
pub const MOST_ROWS: usize = 12;

const LARGEST: f32 = 127.0;
/// 1.5 * 2^23: a float32 this large has no fraction, so adding it rounds, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// Bytes of a row's block: 32 integers, the scale, minus eight times the integers' sum, and the
/// scaled sum.
const ROW_BYTES: usize = BLOCK + 12;

/// How rows are cut into tiles: as equal as may be.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    rows: usize,
    blocks: usize,
}

impl Tiling {
    /// Of `rows` rows of `columns` numbers.
    pub fn new(rows: usize, columns: usize) -> Self {
        Self { rows, blocks: columns.div_ceil(BLOCK) }
    }

    /// Tiles of all rows.
    pub fn num_tiles(self) -> usize {
        self.rows.div_ceil(MOST_ROWS)
    }

    /// Rows of all tiles.
    pub fn num_rows(self) -> usize {
        self.rows
    }

    /// Blocks of a row.
    pub fn blocks(self) -> usize {
        self.blocks
    }

    /// The rows of a tile.
    pub fn rows(self, tile: usize) -> Range<usize> {
        let tiles = self.num_tiles();
        tile * self.rows / tiles..(tile + 1) * self.rows / tiles
    }

    /// Bytes of all tiles.
    pub fn num_bytes(self) -> usize {
        self.rows * self.blocks * ROW_BYTES
    }

    /// Where a tile begins.
    fn start(self, tile: usize) -> usize {
        self.rows(tile).start * self.blocks * ROW_BYTES
    }
}

/// A tile's integers, scales and sums, to be read block by block.
#[derive(Clone, Copy)]
pub struct Tile {
    at: *const u8,
}

impl Tile {
    /// # Safety
    ///
    /// `packed` holds what [`pack`] wrote for all tiles.
    pub unsafe fn new(packed: *const u8, tiling: Tiling, tile: usize) -> Self {
        // SAFETY: by contract.
        Self { at: unsafe { packed.add(tiling.start(tile)) } }
    }

    /// The integers of a row, of `R`, in the block that is at hand.
    #[inline(always)]
    pub unsafe fn integers<const R: usize>(self, row: usize) -> *const i8 {
        unsafe { self.at.add(row * BLOCK).cast() }
    }

    /// The scale.
    #[inline(always)]
    pub unsafe fn scale<const R: usize>(self, row: usize) -> f32 {
        unsafe { self.at.add(BLOCK * R).cast::<f32>().add(row).read_unaligned() }
    }

    /// Minus eight times the integers' sum.
    #[inline(always)]
    pub unsafe fn shift<const R: usize>(self, row: usize) -> i32 {
        unsafe { self.at.add((BLOCK + 4) * R).cast::<i32>().add(row).read_unaligned() }
    }

    /// The integers' sum times the scale.
    #[inline(always)]
    pub unsafe fn sum<const R: usize>(self, row: usize) -> f32 {
        unsafe { self.at.add((BLOCK + 8) * R).cast::<f32>().add(row).read_unaligned() }
    }

    /// The next block.
    #[inline(always)]
    pub unsafe fn next<const R: usize>(self) -> Self {
        Self { at: unsafe { self.at.add(ROW_BYTES * R) } }
    }
}

/// Rounds the rows of a tile, from `x (rows, columns)` to `packed`, where all tiles have their place.
///
/// # Safety
///
/// `packed` has `num_bytes` of the tiling, and nobody else reads or writes this tile.
#[inline(always)]
pub unsafe fn pack(x: &[f32], columns: usize, tiling: Tiling, tile: usize, packed: *mut u8) {
    let rows = tiling.rows(tile);
    let num_rows = rows.len();
    // SAFETY: by contract, here and below.
    let start = unsafe { packed.add(tiling.start(tile)) };
    for (row, x) in x[rows.start * columns..rows.end * columns].chunks_exact(columns).enumerate() {
        for (block, x) in x.chunks(BLOCK).enumerate() {
            let mut padded = [0.0; BLOCK];
            padded[..x.len()].copy_from_slice(x);
            let (integers, scale, sum) = rounded(&padded);
            unsafe {
                let at = start.add(block * ROW_BYTES * num_rows);
                at.add(row * BLOCK).cast::<[i8; BLOCK]>().write_unaligned(integers);
                let at = at.add(BLOCK * num_rows);
                at.cast::<f32>().add(row).write_unaligned(scale);
                let at = at.add(4 * num_rows);
                at.cast::<i32>().add(row).write_unaligned(-8 * sum);
                let at = at.add(4 * num_rows);
                at.cast::<f32>().add(row).write_unaligned(sum as f32 * scale);
            }
        }
    }
}

/// A block's integers, its scale and the integers' sum. NaN and infinity reach the scale.
#[inline(always)]
fn rounded(x: &[f32; BLOCK]) -> ([i8; BLOCK], f32, i32) {
    // The bits of NaN are above those of any number.
    let mut largest = [0; 16];
    for (at, value) in x.iter().enumerate() {
        let magnitude = value.to_bits() & 0x7fff_ffff;
        largest[at % 16] = magnitude.max(largest[at % 16]);
    }
    let largest = f32::from_bits(largest.into_iter().fold(0, u32::max));
    let factor = LARGEST / largest;
    let (mut integers, mut sum) = ([0; BLOCK], 0);
    for (integer, value) in integers.iter_mut().zip(x) {
        // The lowest byte of the sum is the rounded number.
        *integer = (value * factor + ROUNDER).to_bits() as i8;
        sum += i32::from(*integer);
    }
    (integers, largest / LARGEST, sum)
}
