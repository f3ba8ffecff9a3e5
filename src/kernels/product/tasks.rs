//! How a product is cut into tasks: so that each takes some microseconds.

use super::activations::Tiling;
use super::floats::SIDE_BY_SIDE;
use super::weight_type::WeightType;
use crate::kernels::lanes::WIDTH;

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
