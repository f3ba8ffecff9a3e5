//! Products of rows with weights in blocks, whose bits depend on the row alone.
//!
//! In: rows of float32, weights in panels. Out: rows of outputs. Rows are rounded to 8 bits in blocks
//! of 32 (`activations.rs`), as llama.cpp does, but with float32 scales.
#![allow(unsafe_code)]

mod activations;
mod panels;
mod source;
mod tile;

use std::ops::Range;

pub use self::activations::Tiling;
use self::activations::{Tile, pack};
pub use self::panels::{WeightType, to_panels};
pub use self::source::{Gate, Source};
use self::tile::{Form, Q4_0, Q4_1, Q8_0, products};
use crate::kernels::lanes::{Lanes, WIDTH, on_processor};

/// Numbers of a row, or weights of an output, that share a scale.
pub const BLOCK: usize = 32;

/// A matrix `(outputs, columns)` in panels.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    /// How they are stored.
    pub kind: WeightType,
    /// Rows of the matrix.
    pub outputs: usize,
    /// [`WeightType::num_bytes`] of them.
    pub panels: &'a [u8],
}

/// What is added to products, from their first output on.
#[derive(Clone, Copy, Default)]
pub struct Added<'a> {
    /// One for each output, first.
    pub bias: Option<&'a [f32]>,
    /// As many as there are products, with the stride of their destination, last.
    pub residual: Option<&'a [f32]>,
}

/// Where products go: to columns of rows.
#[derive(Clone, Copy)]
pub struct Destination {
    /// The first row's first output.
    pub to: *mut f32,
    /// From a row to the next.
    pub stride: usize,
}

on_processor! {
    /// Rounds some rows to `packed`, where those of all tiles have their place.
    ///
    /// # Safety
    ///
    /// `packed` has `num_bytes` of the tiling, and nobody else reads or writes these rows.
    round_rows = pack(
        source: Source<'_>,
        columns: usize,
        tiling: Tiling,
        rows: Range<usize>,
        packed: *mut u8,
    )
}

on_processor! {
    /// Multiplies all rows that were rounded to `packed` with some panels.
    ///
    /// # Safety
    ///
    /// All tiles are packed, and the destination has a row for each, which nobody else reads or
    /// writes in the panels' columns.
    multiply = multiply_on(
        packed: *const u8,
        tiling: Tiling,
        weights: Weights<'_>,
        panels: Range<usize>,
        added: Added<'_>,
        destination: Destination,
    )
}

#[inline(always)]
unsafe fn multiply_on<L: Lanes>(
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'_>,
    panels: Range<usize>,
    added: Added<'_>,
    destination: Destination,
) {
    unsafe {
        match weights.kind {
            WeightType::Q4_0 => {
                by_form::<L, Q4_0>(packed, tiling, weights, panels, added, destination)
            }
            WeightType::Q4_1 => {
                by_form::<L, Q4_1>(packed, tiling, weights, panels, added, destination)
            }
            WeightType::Q8_0 => {
                by_form::<L, Q8_0>(packed, tiling, weights, panels, added, destination)
            }
        }
    }
}

#[inline(always)]
unsafe fn by_form<L: Lanes, W: Form>(
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'_>,
    panels: Range<usize>,
    added: Added<'_>,
    destination: Destination,
) {
    let (blocks, bytes) = (tiling.blocks(), weights.kind.panel_bytes(tiling.blocks()));
    for index in panels {
        let panel = &weights.panels[index * bytes..(index + 1) * bytes];
        let first = index * WIDTH;
        let outputs = (weights.outputs - first).min(WIDTH);
        for tile in 0..tiling.num_tiles() {
            let rows = tiling.rows(tile);
            let start = rows.start * destination.stride + first;
            let added = Added {
                bias: added.bias.map(|bias| &bias[first..]),
                residual: added.residual.map(|residual| &residual[start..]),
            };
            unsafe {
                let at = Destination { to: destination.to.add(start), ..destination };
                let tile = Tile::new(packed, tiling, tile);
                let panel = panel.as_ptr();
                match rows.len() {
                    1 => write::<L, W, 1>(panel, blocks, tile, outputs, added, at),
                    2 => write::<L, W, 2>(panel, blocks, tile, outputs, added, at),
                    3 => write::<L, W, 3>(panel, blocks, tile, outputs, added, at),
                    4 => write::<L, W, 4>(panel, blocks, tile, outputs, added, at),
                    5 => write::<L, W, 5>(panel, blocks, tile, outputs, added, at),
                    6 => write::<L, W, 6>(panel, blocks, tile, outputs, added, at),
                    7 => write::<L, W, 7>(panel, blocks, tile, outputs, added, at),
                    8 => write::<L, W, 8>(panel, blocks, tile, outputs, added, at),
                    9 => write::<L, W, 9>(panel, blocks, tile, outputs, added, at),
                    10 => write::<L, W, 10>(panel, blocks, tile, outputs, added, at),
                    11 => write::<L, W, 11>(panel, blocks, tile, outputs, added, at),
                    12 => write::<L, W, 12>(panel, blocks, tile, outputs, added, at),
                    _ => unreachable!("a tile has as many rows"),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn write<L: Lanes, W: Form, const R: usize>(
    panel: *const u8,
    blocks: usize,
    tile: Tile,
    outputs: usize,
    added: Added<'_>,
    destination: Destination,
) {
    unsafe {
        let sums = products::<L, W, R>(panel, blocks, tile);
        for (row, mut sum) in sums.into_iter().enumerate() {
            let at = row * destination.stride;
            if let Some(bias) = added.bias {
                sum = L::add(sum, some::<L>(bias, outputs));
            }
            if let Some(residual) = added.residual {
                sum = L::add(sum, some::<L>(&residual[at..], outputs));
            }
            let to = destination.to.add(at);
            if outputs == WIDTH {
                L::store(to, sum);
            } else {
                let mut all = [0.0; WIDTH];
                L::store(all.as_mut_ptr(), sum);
                to.copy_from_nonoverlapping(all.as_ptr(), outputs);
            }
        }
    }
}

/// The first `count` numbers, and zeros.
#[inline(always)]
unsafe fn some<L: Lanes>(from: &[f32], count: usize) -> L::Floats {
    let mut all = [0.0; WIDTH];
    let from = &from[..count];
    unsafe {
        if count == WIDTH {
            return L::load(from.as_ptr());
        }
        all[..count].copy_from_slice(from);
        L::load(all.as_ptr())
    }
}

#[cfg(test)]
mod tests;
