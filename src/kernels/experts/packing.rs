//! The rows of all groups, gathered and rounded, or as floats, as their matrices want them.
//!
//! In: a source, the row of each place. Out: for each group the tiles of its rows.

use super::order::{Group, Order};
use crate::kernels::product::{Source, Tiling, WeightType, round_rows};
use crate::kernels::tasks::InParallel;
use crate::kernels::{Processor, Shared};

/// Numbers that a task should round: few rows are rounded sooner than another thread is told of them.
const NUMBERS_PER_TASK: usize = 1 << 14;

/// How rows are packed for matrices of one kind, in the memory for both kinds.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    processor: Processor,
    columns: usize,
    is_float: bool,
    /// Where the first group's tiles begin.
    start: usize,
}

impl Packing {
    /// The tiles of a group's rows, and where they begin.
    pub fn tiles(self, group: Group) -> (Tiling, usize) {
        let tiling = |rows| Tiling::new(rows, self.columns, self.is_float, self.processor);
        (tiling(group.len()), self.start + tiling(group.places().start).num_bytes())
    }
}

/// The packings of so many rows that matrices of these types want, and the bytes of both.
pub fn packings(
    processor: Processor,
    columns: usize,
    rows: usize,
    types: &[WeightType],
) -> ([Option<Packing>; 2], usize) {
    let mut bytes = 0;
    let packings = [false, true].map(|is_float| {
        let is_wanted = types.iter().any(|kind| kind.is_float() == is_float);
        is_wanted.then(|| {
            let start = bytes;
            bytes += Tiling::new(rows, columns, is_float, processor).num_bytes();
            Packing { processor, columns, is_float, start }
        })
    });
    (packings, bytes)
}

/// The packing that a type of weights wants.
pub fn packing_of(packings: [Option<Packing>; 2], kind: WeightType) -> Packing {
    packings[usize::from(kind.is_float())].expect("there is one for each type")
}

/// A source, and which of its rows are a group's, if not the first ones.
pub type Gathered<'a> = (Source<'a>, Option<&'a [u32]>);

/// Packs all places' rows. `numbers` is how many numbers of the source make a row.
///
/// # Safety
///
/// `packed` has the bytes of the packings, and nobody else reads or writes it.
pub unsafe fn pack<'a, E>(
    packings: [Option<Packing>; 2],
    order: &'a Order,
    numbers: usize,
    source_of: impl Fn(Group) -> Gathered<'a> + Sync,
    packed: Shared<u8>,
    in_parallel: InParallel<'_, E>,
) -> Result<(), E> {
    let (pairs, per_task) = (order.num_pairs(), (NUMBERS_PER_TASK / numbers).max(1));
    in_parallel(pairs.div_ceil(per_task), &|task| {
        let places = task * per_task..pairs.min((task + 1) * per_task);
        for (group, rows) in order.groups_of(places) {
            let (source, picked) = source_of(group);
            for packing in packings.into_iter().flatten() {
                let (tiling, start) = packing.tiles(group);
                let (processor, columns) = (packing.processor, packing.columns);
                // SAFETY: by contract; the places are this task's alone.
                unsafe {
                    let packed = packed.get().add(start);
                    round_rows(processor, source, picked, columns, tiling, rows.clone(), packed);
                }
            }
        }
    })
}
