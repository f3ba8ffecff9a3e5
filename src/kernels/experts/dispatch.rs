//! Pairs of a row and an expert, sorted by expert, and the rows of all groups, gathered and rounded, or as
//! floats, as their matrices want them.
//!
//! In: the experts of each row, by rank; a source. Out: a group of places for each expert that any row takes, the
//! row of each place, and the place of each pair; for each group the tiles of its rows. A counting sort, so
//! that the rows of a group ascend.

use std::ops::Range;

use crate::kernels::product::{Source, Tiling, WeightType, round_rows};
use crate::kernels::tasks::InParallel;
use crate::kernels::{Processor, Shared};

/// The places of the pairs of one expert.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub expert: usize,
    start: usize,
    end: usize,
}

impl Group {
    pub fn slots(&self) -> Range<usize> {
        self.start..self.end
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// All pairs of a step, in memory that is used again.
#[derive(Default)]
pub struct Dispatch {
    /// The experts of each row, `(rows, chosen)`, by rank.
    pub chosen: Vec<i32>,
    /// Their shares.
    pub shares: Vec<f32>,
    /// Of the experts that any row takes, ascending.
    pub groups: Vec<Group>,
    /// The row of each place.
    pub rows: Vec<u32>,
    /// The place of each pair, `(rows, chosen)`.
    pub slots: Vec<u32>,
    /// Of each expert: the next place of its group.
    next: Vec<usize>,
}

impl Dispatch {
    /// Makes room for the experts of so many rows.
    pub fn resize(&mut self, rows: usize, chosen: usize) {
        let pairs = rows * chosen;
        self.chosen.resize(pairs, 0);
        self.shares.resize(pairs, 0.0);
        self.rows.resize(pairs, 0);
        self.slots.resize(pairs, 0);
    }

    /// Pairs of all rows.
    pub fn num_pairs(&self) -> usize {
        self.chosen.len()
    }

    /// Sorts the pairs of rows that have chosen so many of so many experts.
    pub fn sort(&mut self, chosen: usize, experts: usize) {
        self.next.clear();
        self.next.resize(experts, 0);
        for expert in &self.chosen {
            self.next[*expert as usize] += 1;
        }
        self.groups.clear();
        let mut start = 0;
        for (expert, next) in self.next.iter_mut().enumerate() {
            let end = start + *next;
            if start < end {
                self.groups.push(Group { expert, start, end });
            }
            (*next, start) = (start, end);
        }
        for (pair, expert) in self.chosen.iter().enumerate() {
            let next = &mut self.next[*expert as usize];
            self.rows[*next] = (pair / chosen) as u32;
            self.slots[pair] = *next as u32;
            *next += 1;
        }
    }

    /// The groups that some places are of, and which of the group's own places they are.
    pub fn groups_of(&self, slots: Range<usize>) -> impl Iterator<Item = (Group, Range<usize>)> {
        let first = self.groups.partition_point(|group| group.end <= slots.start);
        let groups = self.groups[first..].iter().copied();
        let groups = groups.take_while(move |group| group.start < slots.end);
        groups.map(move |group| {
            let Group { start, end, .. } = group;
            (group, slots.start.max(start) - start..slots.end.min(end) - start)
        })
    }
}

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
        (tiling(group.len()), self.start + tiling(group.slots().start).num_bytes())
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
    dispatch: &'a Dispatch,
    numbers: usize,
    source_of: impl Fn(Group) -> Gathered<'a> + Sync,
    packed: Shared<u8>,
    in_parallel: InParallel<'_, E>,
) -> Result<(), E> {
    let (pairs, per_task) = (dispatch.num_pairs(), (NUMBERS_PER_TASK / numbers).max(1));
    in_parallel(pairs.div_ceil(per_task), &|task| {
        let slots = task * per_task..pairs.min((task + 1) * per_task);
        for (group, rows) in dispatch.groups_of(slots) {
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
