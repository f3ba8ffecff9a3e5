//! Rows times weights that are floats: nothing is rounded but the sums.
//!
//! In: a tile of rows as they are, a panel. Out: sixteen sums for each row. A sum runs over the columns
//! in their order, with a multiply and an add fused.

use super::activations::Tile;
use super::tile::{Form, PREFETCHED};
use super::weight_type::WeightType;
use crate::kernels::lanes::{Lanes, WIDTH};

/// Forms of floats, and how a column of sixteen outputs is read.
macro_rules! forms {
    ($($name:ident: $load:ident;)*) => {$(
        pub struct $name;

        impl Form for $name {
            const TYPE: WeightType = WeightType::$name;

            #[inline(always)]
            unsafe fn products<L: Lanes, const R: usize>(
                panel: *const u8,
                columns: usize,
                tile: Tile,
            ) -> [L::Floats; R] {
                let bytes = WIDTH * Self::TYPE.block_bytes();
                unsafe {
                    let mut sums = [L::splat(0.0); R];
                    for (index, sums) in sums.chunks_mut(L::ROWS).enumerate() {
                        for column in 0..columns {
                            let at = panel.add(column * bytes);
                            L::prefetch(at.wrapping_add(PREFETCHED));
                            let weights = L::$load(at.cast());
                            for (row, sum) in sums.iter_mut().enumerate() {
                                let row = index * L::ROWS + row;
                                let x = L::splat(tile.number::<R>(row, column));
                                *sum = L::fused(weights, x, *sum);
                            }
                        }
                    }
                    sums
                }
            }

            #[inline(always)]
            unsafe fn read_row<L: Lanes>(panel: *const u8, lane: usize, to: &mut [f32]) {
                let bytes = WIDTH * Self::TYPE.block_bytes();
                for (column, to) in to.iter_mut().enumerate() {
                    let mut all = [0.0; WIDTH];
                    unsafe {
                        L::store(all.as_mut_ptr(), L::$load(panel.add(column * bytes).cast()));
                    }
                    *to = all[lane];
                }
            }
        }
    )*};
}

forms! {
    F16: load_halves;
    BF16: load_upper_halves;
    F32: load;
}
