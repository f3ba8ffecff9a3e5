//! Products of rows with weights in blocks, whose bits depend on the row alone.
//!
//! In: rows of float32, weights in panels. Out: rows of outputs. Rows are rounded to 8 bits in blocks
//! of 32 (`activations.rs`), as llama.cpp does, but with float32 scales; not for weights that are floats.
#![allow(unsafe_code)]

mod activations;
mod floats;
mod gguf_block;
mod panels;
mod scales;
mod source;
mod tile;
mod values;
mod weight_type;

use std::ops::Range;

pub use self::activations::Tiling;
use self::activations::{Tile, pack};
use self::floats::{FloatFormat, multiply_on as multiply_floats_on, read_on as read_floats_on};
pub use self::panels::{panels_per_task, to_panels};
pub use self::source::{Gate, Source};
use self::tile::WeightFormat;
pub use self::weight_type::WeightType;
use crate::kernels::lanes::{Lanes, Processor, WIDTH, on_processor};

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
pub struct Epilogue<'a> {
    /// One for each output, first.
    pub bias: Option<&'a [f32]>,
    /// As many as there are products, with the stride of their destination, last. The destination may
    /// be the same memory, and else lies beside it.
    pub residual: Option<&'a [f32]>,
}

impl Epilogue<'_> {
    /// From an output on, whose product in a row is `at` in the destination.
    #[inline(always)]
    fn from(self, output: usize, at: usize) -> Self {
        Self {
            bias: self.bias.map(|bias| &bias[output..]),
            residual: self.residual.map(|residual| &residual[at..]),
        }
    }
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
    floats,
    /// Rounds some rows to `packed`, where those of all tiles have their place, or copies them. Row `i`
    /// is the source's row `picked[i]`, or its row `i` where none are picked.
    ///
    /// # Safety
    ///
    /// `packed` has `num_bytes` of the tiling, and nobody else reads or writes these rows.
    round_rows = pack(
        source: Source<'_>,
        picked: Option<&[u32]>,
        columns: usize,
        tiling: Tiling,
        rows: Range<usize>,
        packed: *mut u8,
    )
}

/// Calls a function with the form of a type of weights, one for blocks or one for floats.
macro_rules! by_form {
    ($kind:expr, $blocks:ident or $floats:ident, ($($argument:expr),* $(,)?)) => {
        by_form!(
            $kind, ($($argument),*),
            $blocks, tile: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4;
            $floats, floats: F16 BF16 F32
        )
    };
    ($kind:expr, $arguments:tt, $($function:ident, $module:ident: $($name:ident)*);*) => {
        match $kind {
            $($(WeightType::$name => by_form!(@ $function::<$module::$name>, $arguments),)*)*
        }
    };
    (@ $function:path, ($($argument:expr),*)) => { $function($($argument),*) };
}

/// Multiplies all rows that were rounded to `packed` with some panels.
///
/// # Safety
///
/// All tiles are packed, as the type of weights wants them, and the destination has a row for each, which nobody else reads or writes
/// in the panels' columns.
pub unsafe fn multiply(
    processor: Processor,
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'_>,
    panels: Range<usize>,
    epilogue: Epilogue<'_>,
    to: Destination,
) {
    unsafe {
        by_form!(
            weights.kind,
            multiply_blocks or multiply_floats,
            (processor, packed, tiling, weights, panels, epilogue, to)
        )
    }
}

on_processor! {
    dots,
    /// As [`multiply`].
    ///
    /// # Safety
    ///
    /// As of it.
    multiply_blocks<W: WeightFormat> = multiply_on(
        packed: *const u8,
        tiling: Tiling,
        weights: Weights<'_>,
        panels: Range<usize>,
        epilogue: Epilogue<'_>,
        destination: Destination,
    )
}

on_processor! {
    floats,
    /// As [`multiply`].
    ///
    /// # Safety
    ///
    /// As of it.
    multiply_floats<W: FloatFormat> = multiply_floats_on(
        packed: *const u8,
        tiling: Tiling,
        weights: Weights<'_>,
        panels: Range<usize>,
        epilogue: Epilogue<'_>,
        destination: Destination,
    )
}

#[inline(always)]
unsafe fn multiply_on<L: Lanes, W: WeightFormat>(
    packed: *const u8,
    tiling: Tiling,
    weights: Weights<'_>,
    panels: Range<usize>,
    epilogue: Epilogue<'_>,
    destination: Destination,
) {
    let (columns, bytes) = (tiling.columns(), weights.kind.panel_bytes(tiling.columns()));
    for index in panels {
        let panel = &weights.panels[index * bytes..(index + 1) * bytes];
        let first = index * WIDTH;
        let outputs = (weights.outputs - first).min(WIDTH);
        for tile in 0..tiling.num_tiles() {
            let rows = tiling.rows(tile);
            let start = rows.start * destination.stride + first;
            let epilogue = epilogue.from(first, start);
            unsafe {
                let at = Destination { to: destination.to.add(start), ..destination };
                let tile = Tile::new(packed, tiling, tile);
                let panel = panel.as_ptr();
                match rows.len() {
                    1 => write::<L, W, 1>(panel, columns, tile, outputs, epilogue, at),
                    2 if L::ROWS >= 2 => {
                        write::<L, W, 2>(panel, columns, tile, outputs, epilogue, at)
                    }
                    3 if L::ROWS >= 3 => {
                        write::<L, W, 3>(panel, columns, tile, outputs, epilogue, at)
                    }
                    4 if L::ROWS >= 4 => {
                        write::<L, W, 4>(panel, columns, tile, outputs, epilogue, at)
                    }
                    5 if L::ROWS >= 5 => {
                        write::<L, W, 5>(panel, columns, tile, outputs, epilogue, at)
                    }
                    6 if L::ROWS >= 6 => {
                        write::<L, W, 6>(panel, columns, tile, outputs, epilogue, at)
                    }
                    7 if L::ROWS >= 7 => {
                        write::<L, W, 7>(panel, columns, tile, outputs, epilogue, at)
                    }
                    8 if L::ROWS >= 8 => {
                        write::<L, W, 8>(panel, columns, tile, outputs, epilogue, at)
                    }
                    9 if L::ROWS >= 9 => {
                        write::<L, W, 9>(panel, columns, tile, outputs, epilogue, at)
                    }
                    10 if L::ROWS >= 10 => {
                        write::<L, W, 10>(panel, columns, tile, outputs, epilogue, at)
                    }
                    11 if L::ROWS >= 11 => {
                        write::<L, W, 11>(panel, columns, tile, outputs, epilogue, at)
                    }
                    12 if L::ROWS >= 12 => {
                        write::<L, W, 12>(panel, columns, tile, outputs, epilogue, at)
                    }
                    _ => unreachable!("a tile has as many rows"),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn write<L: Lanes, W: WeightFormat, const R: usize>(
    panel: *const u8,
    columns: usize,
    tile: Tile,
    outputs: usize,
    epilogue: Epilogue<'_>,
    destination: Destination,
) {
    unsafe {
        let sums = W::products::<L, R>(panel, columns, tile);
        for (row, sum) in sums.into_iter().enumerate() {
            let at = row * destination.stride;
            let sum = finish::<L>(sum, epilogue.from(0, at), outputs);
            store::<L>(destination.to.add(at), sum, outputs);
        }
    }
}

/// The sums of the first `count` outputs with what is added to them.
#[inline(always)]
unsafe fn finish<L: Lanes>(mut sum: L::Floats, epilogue: Epilogue<'_>, count: usize) -> L::Floats {
    unsafe {
        if let Some(bias) = epilogue.bias {
            sum = L::add(sum, some::<L>(bias[..count].as_ptr(), count));
        }
        if let Some(residual) = epilogue.residual {
            sum = L::add(sum, some::<L>(residual[..count].as_ptr(), count));
        }
        sum
    }
}

/// The first `count` numbers, and zeros.
#[inline(always)]
unsafe fn some<L: Lanes>(from: *const f32, count: usize) -> L::Floats {
    unsafe {
        if count == WIDTH {
            return L::load(from);
        }
        let mut all = [0.0; WIDTH];
        all.as_mut_ptr().copy_from_nonoverlapping(from, count);
        L::load(all.as_ptr())
    }
}

/// Writes the first `count` numbers.
#[inline(always)]
unsafe fn store<L: Lanes>(to: *mut f32, x: L::Floats, count: usize) {
    unsafe {
        if count == WIDTH {
            return L::store(to, x);
        }
        let mut all = [0.0; WIDTH];
        L::store(all.as_mut_ptr(), x);
        to.copy_from_nonoverlapping(all.as_ptr(), count);
    }
}

/// Reads rows of a matrix of `columns`, by their numbers, to `to (numbers, columns)`.
///
/// # Panics
///
/// If a number is none of a row, or sizes do not fit each other.
pub fn read_rows(
    processor: Processor,
    weights: Weights<'_>,
    columns: usize,
    numbers: &[usize],
    to: &mut [f32],
) {
    let Weights { kind, outputs, panels } = weights;
    assert_eq!(panels.len(), kind.num_bytes(outputs, columns), "panels are of another matrix");
    assert_eq!(to.len(), numbers.len() * columns, "the rows have another size");
    let bytes = kind.panel_bytes(columns);
    for (number, to) in numbers.iter().zip(to.chunks_exact_mut(columns.max(1))) {
        assert!(*number < outputs, "there is no row {number} of {outputs}");
        let panel = panels[number / WIDTH * bytes..][..bytes].as_ptr();
        // SAFETY: the panel holds that many columns.
        unsafe {
            by_form!(kind, read_blocks or read_floats, (processor, panel, number % WIDTH, to))
        }
    }
}

on_processor! {
    floats,
    /// Reads the row of one lane of a panel.
    ///
    /// # Safety
    ///
    /// The panel has as many columns as `to`.
    read_blocks<W: WeightFormat> = read_on(panel: *const u8, lane: usize, to: &mut [f32])
}

on_processor! {
    floats,
    /// As [`read_blocks`].
    ///
    /// # Safety
    ///
    /// As of it.
    read_floats<W: FloatFormat> = read_floats_on(panel: *const u8, lane: usize, to: &mut [f32])
}

#[inline(always)]
unsafe fn read_on<L: Lanes, W: WeightFormat>(panel: *const u8, lane: usize, to: &mut [f32]) {
    unsafe { W::read_row::<L>(panel, lane, to) }
}

#[cfg(test)]
pub(in crate::kernels) mod tests;
