//! Rows of activations, rounded to 8 bits with a scale for each block of 32, or as they are.
//!
//! In: rows, as `source.rs` makes them. Out: tiles of some rows, in the order in which a product reads them: block
//! after block, in each the integers of all rows, then their scales and sums; floats column by column.
#![allow(unsafe_code)]

use std::ops::Range;

use super::BLOCK;
use super::source::{
    ClampedSwiglu, Gate, GatedRow, Gelu, NormedRow, PlainRow, Row, Sigmoid, Silu, Source,
};
use crate::kernels::lanes::{LARGEST, Lanes, Processor, WIDTH};

/// Bytes of a row's block: 32 integers, the scale, minus eight times the integers' sum, the scaled
/// sum, and minus four times the sums of both halves.
const ROW_BYTES: usize = BLOCK + 16;

/// How rows are cut into tiles: as equal as may be.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    rows: usize,
    columns: usize,
    blocks: usize,
    is_float: bool,
    /// Most rows of a tile.
    most: usize,
}

impl Tiling {
    /// Of `rows` rows of `columns` numbers, rounded or floats, for a processor.
    pub fn new(rows: usize, columns: usize, is_float: bool, processor: Processor) -> Self {
        let most = if is_float { processor.float_rows() } else { processor.rows() };
        Self { rows, columns, blocks: columns.div_ceil(BLOCK), is_float, most }
    }

    /// Tiles of all rows.
    pub fn num_tiles(self) -> usize {
        self.rows.div_ceil(self.most)
    }

    /// Rows of all tiles.
    pub fn num_rows(self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn columns(self) -> usize {
        self.columns
    }

    /// The rows of a tile.
    pub fn rows(self, tile: usize) -> Range<usize> {
        let tiles = self.num_tiles();
        tile * self.rows / tiles..(tile + 1) * self.rows / tiles
    }

    /// The tile of a row.
    fn tile_of(self, row: usize) -> usize {
        let tiles = self.num_tiles();
        // `rows` rounds down, so a tile begins at the first row of which this is true.
        ((row + 1) * tiles - 1) / self.rows
    }

    /// Bytes of all tiles.
    pub fn num_bytes(self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Bytes of a row.
    fn row_bytes(self) -> usize {
        self.blocks * if self.is_float { BLOCK * size_of::<f32>() } else { ROW_BYTES }
    }

    /// Where a tile begins.
    fn start(self, tile: usize) -> usize {
        self.rows(tile).start * self.row_bytes()
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

    /// Minus four times the sum of a half's integers.
    #[inline(always)]
    pub unsafe fn half_shift<const R: usize>(self, row: usize, half: usize) -> i32 {
        let shift = unsafe {
            self.at.add((BLOCK + 12) * R).cast::<i16>().add(2 * row + half).read_unaligned()
        };
        i32::from(shift)
    }

    /// A number of a row of floats.
    #[inline(always)]
    pub unsafe fn number<const R: usize>(self, row: usize, column: usize) -> f32 {
        unsafe { self.at.cast::<f32>().add(column * R + row).read_unaligned() }
    }

    /// The next block.
    #[inline(always)]
    pub unsafe fn next<const R: usize>(self) -> Self {
        Self { at: unsafe { self.at.add(ROW_BYTES * R) } }
    }
}

/// As [`round_rows`](super::round_rows).
///
/// # Safety
///
/// As of it, and [`Lanes`].
#[inline(always)]
pub unsafe fn pack<L: Lanes>(
    source: Source<'_>,
    picked: Option<&[u32]>,
    columns: usize,
    tiling: Tiling,
    rows: Range<usize>,
    packed: *mut u8,
) {
    for row in rows {
        let number = picked.map_or(row, |picked| picked[row] as usize);
        let of = |size: usize| number * size..(number + 1) * size;
        // SAFETY: by contract.
        unsafe {
            match source {
                Source::Plain(x) => {
                    let x = PlainRow(&x[of(columns)]);
                    pack_row::<L, _>(x, tiling, row, packed);
                }
                Source::Normed { x, weight, epsilon } => {
                    let x = NormedRow::new::<L>(&x[of(columns)], weight, epsilon);
                    pack_row::<L, _>(x, tiling, row, packed);
                }
                Source::Gated(x, gate) => {
                    let both = &x[of(2 * columns)];
                    match gate {
                        Gate::Silu => {
                            pack_row::<L, _>(GatedRow::<'_, Silu>::new(both), tiling, row, packed);
                        }
                        Gate::Gelu => {
                            pack_row::<L, _>(GatedRow::<'_, Gelu>::new(both), tiling, row, packed);
                        }
                        Gate::Sigmoid => {
                            let x = GatedRow::<'_, Sigmoid>::new(both);
                            pack_row::<L, _>(x, tiling, row, packed);
                        }
                        Gate::ClampedSwiglu => {
                            let x = GatedRow::<'_, ClampedSwiglu>::new(both);
                            pack_row::<L, _>(x, tiling, row, packed);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn pack_row<L: Lanes, R: Row>(x: R, tiling: Tiling, row: usize, packed: *mut u8) {
    let rows = tiling.rows(tiling.tile_of(row));
    let (place, num_rows) = (row - rows.start, rows.len());
    if tiling.is_float {
        // SAFETY: by contract of `pack`: the tile is there.
        unsafe {
            let at = packed.add(rows.start * tiling.row_bytes()).cast::<f32>();
            for first in (0..tiling.blocks * BLOCK).step_by(WIDTH) {
                let mut all = [0.0; WIDTH];
                L::store(all.as_mut_ptr(), x.numbers::<L>(first));
                for (column, number) in all.into_iter().enumerate() {
                    at.add((first + column) * num_rows + place).write_unaligned(number);
                }
            }
        }
        return;
    }
    for block in 0..tiling.blocks {
        let first = block * BLOCK;
        // SAFETY: by contract of `pack`: the block of the tile is there.
        unsafe {
            let at = packed.add((rows.start * tiling.blocks + block * num_rows) * ROW_BYTES);
            let numbers = [x.numbers::<L>(first), x.numbers::<L>(first + WIDTH)];
            let (largest, sums) = L::round(numbers, at.add(place * BLOCK).cast());
            let (scale, sum) = (largest / LARGEST, sums[0] + sums[1]);
            let at = at.add(BLOCK * num_rows);
            at.cast::<f32>().add(place).write_unaligned(scale);
            let at = at.add(4 * num_rows);
            at.cast::<i32>().add(place).write_unaligned(-8 * sum);
            let at = at.add(4 * num_rows);
            at.cast::<f32>().add(place).write_unaligned(sum as f32 * scale);
            let at = at.add(4 * num_rows);
            let halves = sums.map(|sum| -4 * sum as i16);
            at.cast::<[i16; 2]>().add(place).write_unaligned(halves);
        }
    }
}
