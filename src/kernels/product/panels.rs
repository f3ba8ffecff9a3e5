//! Weights in blocks, in the order in which a product reads them.
//!
//! In: a matrix's rows as a file has them. Out: the same integers and scales in panels of sixteen
//! outputs: the values of all blocks; then each float16 of all blocks, the scales before the minima;
//! then other bytes, block after block. A last panel is filled up with zeros. And how many panels a task
//! multiplies with, so that it takes some microseconds.
//!
//! Values stand by 32 weights, in planes of some of their bits. In a plane the four inputs of a group
//! stand together, output after output, so that a vector of 64 bytes holds sixteen outputs. Where its
//! bytes have room for more groups, the first is in their lowest bits. Weights that are floats have
//! no blocks: a column of sixteen outputs follows the other.

use super::BLOCK;
use super::activations::Tiling;
use super::floats::SIDE_BY_SIDE;
use super::gguf_block::unpack;
use super::weight_type::WeightType;
use crate::kernels::lanes::WIDTH;

/// Bytes of a vector: four inputs of sixteen outputs.
const VECTOR: usize = 4 * WIDTH;

/// Rearranges rows of `blocks` blocks each, as a file has them, into panels.
///
/// `rows` are whole rows, `panels` is [`WeightType::num_bytes`] long.
pub fn to_panels(kind: WeightType, blocks: usize, rows: &[u8], panels: &mut [u8]) {
    let layout = kind.layout();
    let row_bytes = blocks * kind.block_bytes();
    let value_bytes = layout.weights / BLOCK * layout.value_bytes();
    panels.fill(0);
    if kind.is_float() {
        return floats_to_panels(kind.block_bytes(), row_bytes, rows, panels);
    }
    for (output, row) in rows.chunks_exact(row_bytes).enumerate() {
        let panel = &mut panels[output / WIDTH * WIDTH * row_bytes..][..WIDTH * row_bytes];
        let lane = output % WIDTH;
        let (values, numbers) = panel.split_at_mut(WIDTH * blocks * value_bytes);
        let (halves, bytes) = numbers.split_at_mut(2 * WIDTH * blocks * layout.halves);
        for (block, stored) in row.chunks_exact(kind.block_bytes()).enumerate() {
            let unpack = unpack(kind, stored);
            for (which, half) in unpack.halves[..layout.halves].iter().enumerate() {
                let at = 2 * ((which * blocks + block) * WIDTH + lane);
                halves[at..at + 2].copy_from_slice(half);
            }
            for (which, byte) in unpack.bytes[..layout.bytes].iter().enumerate() {
                bytes[(block * layout.bytes + which) * WIDTH + lane] = *byte;
            }
            let values = &mut values[WIDTH * block * value_bytes..][..WIDTH * value_bytes];
            let parts = values.chunks_exact_mut(WIDTH * layout.value_bytes());
            for (part, weights) in parts.zip(unpack.values.chunks_exact(BLOCK)) {
                put_values(layout.planes, lane, weights, part);
            }
        }
    }
}

/// Puts floats of some bytes side by side, output after output, column by column.
fn floats_to_panels(size: usize, row_bytes: usize, rows: &[u8], panels: &mut [u8]) {
    for (output, row) in rows.chunks_exact(row_bytes).enumerate() {
        let panel = &mut panels[output / WIDTH * WIDTH * row_bytes..][..WIDTH * row_bytes];
        for (float, column) in row.chunks_exact(size).zip(panel.chunks_exact_mut(WIDTH * size)) {
            column[output % WIDTH * size..][..size].copy_from_slice(float);
        }
    }
}

/// Puts the bits of an output's 32 values into their planes.
fn put_values(planes: &[usize], lane: usize, values: &[u8], mut to: &mut [u8]) {
    let mut lowest = 0;
    for &bits in planes {
        let (plane, rest) = to.split_at_mut(bits * VECTOR);
        for (column, value) in values.iter().enumerate() {
            let (bit, at) = (column / 4 * bits, 4 * lane + column % 4);
            let part = (value >> lowest) & (0xff >> (8 - bits));
            plane[bit / 8 * VECTOR + at] |= part << (bit % 8);
        }
        lowest += bits;
        to = rest;
    }
}

/// What a task should take, in bytes of weights read or in products divided by [`PRODUCTS_A_BYTE`].
const WORK_PER_TASK: usize = 1 << 16;
/// Products that a core computes while it reads a byte.
const PRODUCTS_A_BYTE: usize = 8;

/// Panels that a task should multiply a tiling's rows with.
pub fn panels_per_task(kind: WeightType, tiling: Tiling) -> usize {
    let products = tiling.num_rows() * tiling.columns() * WIDTH;
    let work = kind.panel_bytes(tiling.columns()).max(products / PRODUCTS_A_BYTE);
    let panels = (WORK_PER_TASK / work).max(1);
    if kind.is_float() { panels.next_multiple_of(SIDE_BY_SIDE) } else { panels }
}
