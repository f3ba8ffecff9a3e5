//! Rows times weights that are floats: nothing is rounded but the sums.
//!
//! In: tiles of rows as they are, panels. Out: sixteen sums for each row and panel. A sum runs over the
//! columns in their order, with a multiply and an add fused. Of many rows a part of the columns is
//! multiplied at a time, so that the part of a panel stays in the first cache; sums wait in the
//! destination, which changes no bit. Where that is the residual's memory, all are multiplied at once.

use std::ops::Range;

use super::activations::{Tile, Tiling};
use super::weight_type::WeightType;
use super::{Destination, Epilogue, Weights, finish, some, store};
use crate::kernels::lanes::{Lanes, WIDTH};

/// Panels that may be read side by side.
pub const SIDE_BY_SIDE: usize = 2;
/// Of so few rows two panels' sums fit into any processor's registers. Two streams of weights also
/// come sooner from memory than one: a row takes 15 to 25 % less time.
const FEW_ROWS: usize = 2;
/// Most columns that tiles are multiplied with at a time, of F32 32 KiB. With 256 prompts take 2 to 5 %
/// longer, as sums are stored and loaded more often.
const MOST_COLUMNS: usize = 512;
/// How far ahead weights are asked for where few rows are multiplied with them, in bytes.
const PREFETCHED: usize = 8192;
/// How far ahead weights are asked for where many rows are multiplied with them, in bytes. As far as
/// for few rows, or into the second cache, prompts take up to 15 % longer.
const PREFETCHED_NEAR: usize = 2048;

/// How weights that are floats are read.
pub trait FloatFormat {
    /// Their type.
    const TYPE: WeightType;

    /// The weights of sixteen outputs for a column.
    ///
    /// # Safety
    ///
    /// As [`Lanes`].
    unsafe fn load<L: Lanes>(from: *const u8) -> L::Floats;
}

/// Forms of floats, and how a column of sixteen outputs is read.
macro_rules! formats {
    ($($name:ident: $load:ident;)*) => {$(
        pub struct $name;

        impl FloatFormat for $name {
            const TYPE: WeightType = WeightType::$name;

            #[inline(always)]
            unsafe fn load<L: Lanes>(from: *const u8) -> L::Floats {
                unsafe { L::$load(from.cast()) }
            }
        }
    )*};
}

formats! {
    F16: load_halves;
    BF16: load_upper_halves;
    F32: load;
}

/// As [`multiply`](super::multiply).
///
/// # Safety
///
/// As of it, and [`Lanes`].
#[inline(always)]
pub unsafe fn multiply_on<L: Lanes, W: FloatFormat>(
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'_>,
    panels: Range<usize>,
    epilogue: Epilogue<'_>,
    to: Destination,
) {
    let product = Product { packed, tiling, weights, epilogue, to };
    let are_two = L::VECTORS > 1 || tiling.num_rows() <= FEW_ROWS;
    let mut panel = panels.start;
    while panel < panels.end {
        // SAFETY: by contract.
        unsafe {
            if are_two && panel + SIDE_BY_SIDE <= panels.end {
                product.multiply::<L, W, SIDE_BY_SIDE>(panel);
                panel += SIDE_BY_SIDE;
            } else {
                product.multiply::<L, W, 1>(panel);
                panel += 1;
            }
        }
    }
}

/// All of a product but what is multiplied next.
#[derive(Clone, Copy)]
struct Product<'a> {
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'a>,
    epilogue: Epilogue<'a>,
    to: Destination,
}

impl Product<'_> {
    /// All rows times `P` panels.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, W: FloatFormat, const P: usize>(self, panel: usize) {
        let (columns, tiles) = (self.tiling.columns(), self.tiling.num_tiles());
        // Known to the compiler, so that no tile is compiled that is never multiplied.
        let most = if P == 1 || L::VECTORS > 1 { L::FLOAT_ROWS } else { FEW_ROWS };
        // The sums of one tile can stay where they are; what is still to be read must.
        let is_residual = |residual: &[f32]| residual.as_ptr() == self.to.to.cast_const();
        let stays = tiles == 1 || self.epilogue.residual.is_some_and(is_residual);
        let parts = if stays { 1 } else { columns.div_ceil(MOST_COLUMNS) };
        for part in 0..parts {
            let columns = part * columns / parts..(part + 1) * columns / parts;
            for tile in 0..tiles {
                let columns = columns.clone();
                // SAFETY: by contract; a tile has as many rows.
                unsafe {
                    match self.tiling.rows(tile).len() {
                        1 => self.multiply_tile::<L, W, P, 1>(panel, tile, columns),
                        2 if most >= 2 => self.multiply_tile::<L, W, P, 2>(panel, tile, columns),
                        3 if most >= 3 => self.multiply_tile::<L, W, P, 3>(panel, tile, columns),
                        4 if most >= 4 => self.multiply_tile::<L, W, P, 4>(panel, tile, columns),
                        5 if most >= 5 => self.multiply_tile::<L, W, P, 5>(panel, tile, columns),
                        6 if most >= 6 => self.multiply_tile::<L, W, P, 6>(panel, tile, columns),
                        _ => unreachable!("a tile has as many rows"),
                    }
                }
            }
        }
    }

    /// `R` rows times some columns of `P` panels.
    #[inline(always)]
    unsafe fn multiply_tile<L: Lanes, W: FloatFormat, const P: usize, const R: usize>(
        self,
        panel: usize,
        tile: usize,
        columns: Range<usize>,
    ) {
        let Destination { to, stride } = self.to;
        let (is_first, is_last) = (columns.start == 0, columns.end == self.tiling.columns());
        let start = self.tiling.rows(tile).start * stride;
        // SAFETY: by contract, and where sums wait nobody else reads or writes.
        unsafe {
            let mut sums = [[L::splat(0.0); P]; R];
            if !is_first {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (index, sum) in sums.iter_mut().enumerate() {
                        let (first, count) = self.outputs(panel + index);
                        *sum = some::<L>(to.add(start + row * stride + first), count);
                    }
                }
            }
            let bytes = self.weights.kind.panel_bytes(self.tiling.columns());
            let weights = self.weights.panels.as_ptr().add(panel * bytes);
            let tile = Tile::new(self.packed, self.tiling, tile);
            let sums = add_products::<L, W, P, R>(weights, bytes, tile, columns, sums);
            for (row, sums) in sums.into_iter().enumerate() {
                for (index, sum) in sums.into_iter().enumerate() {
                    let (first, count) = self.outputs(panel + index);
                    let at = start + row * stride + first;
                    let sum = if is_last {
                        finish::<L>(sum, self.epilogue.from(first, at), count)
                    } else {
                        sum
                    };
                    store::<L>(to.add(at), sum, count);
                }
            }
        }
    }

    /// A panel's first output, and how many it has.
    #[inline(always)]
    fn outputs(self, panel: usize) -> (usize, usize) {
        let first = panel * WIDTH;
        (first, (self.weights.outputs - first).min(WIDTH))
    }
}

/// Adds the products of some columns in their order; panels are `bytes` long.
///
/// Indices, as over them the compiler unrolls the loops before it decides what is in registers. With
/// iterators sums stay in memory, and 32 rows take 18 times as long.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn add_products<L: Lanes, W: FloatFormat, const P: usize, const R: usize>(
    panels: *const u8,
    bytes: usize,
    tile: Tile,
    columns: Range<usize>,
    mut sums: [[L::Floats; P]; R],
) -> [[L::Floats; P]; R] {
    let column_bytes = WIDTH * W::TYPE.block_bytes();
    for column in columns {
        // SAFETY: by contract of `multiply_on`.
        unsafe {
            let mut weights = [L::splat(0.0); P];
            for panel in 0..P {
                let at = panels.add(panel * bytes + column * column_bytes);
                // A few rows wait for memory, many for the second cache, where a panel soon is.
                if R <= FEW_ROWS {
                    L::prefetch_far(at.wrapping_add(PREFETCHED));
                } else {
                    L::prefetch(at.wrapping_add(PREFETCHED_NEAR));
                }
                weights[panel] = W::load::<L>(at);
            }
            for row in 0..R {
                let x = L::splat(tile.number::<R>(row, column));
                for panel in 0..P {
                    sums[row][panel] = L::fused(weights[panel], x, sums[row][panel]);
                }
            }
        }
    }
    sums
}

/// Reads the weights of one output of a panel, as many as `to` holds: all columns.
///
/// # Safety
///
/// As [`Lanes`]; the panel has that many columns.
#[inline(always)]
pub unsafe fn read_on<L: Lanes, W: FloatFormat>(panel: *const u8, lane: usize, to: &mut [f32]) {
    let bytes = WIDTH * W::TYPE.block_bytes();
    for (column, to) in to.iter_mut().enumerate() {
        let mut all = [0.0; WIDTH];
        unsafe { L::store(all.as_mut_ptr(), W::load::<L>(panel.add(column * bytes))) }
        *to = all[lane];
    }
}
