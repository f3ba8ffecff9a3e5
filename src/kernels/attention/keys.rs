//! A tile of keys, transposed, so that sixteen of them are scored at once.
//!
//! In: the slots of a tile's positions. Out: for each number of a head, those of the tile's keys side
//! by side, in float32. Keys that are there from the path before are not read again.

use std::ops::Range;

use super::cache_type::CacheFormat;
use crate::kernels::lanes::{Lanes, WIDTH};
use crate::kernels::nodes::TILE;

/// Bytes that are read at once from memory.
const CACHE_LINE: usize = 64;

/// No slot.
pub const NONE: u32 = u32::MAX;

/// The keys or values of one head of one sequence, `slots` rows of a form.
#[derive(Clone, Copy)]
pub struct Head {
    pub at: *const u8,
    pub slots: usize,
    pub head_dim: usize,
}

/// The tile.
pub struct Keys<'a> {
    /// `(head_dim, TILE)`.
    numbers: &'a mut [f32],
    /// `(WIDTH, head_dim)`, where rows are not in float32.
    spare: &'a mut [f32],
    /// The slot of each position's key.
    held: [u32; TILE],
}

impl<'a> Keys<'a> {
    /// An empty one, in `numbers (head_dim, TILE)`, and `spare (WIDTH, head_dim)` where rows are not
    /// in float32.
    pub fn new(numbers: &'a mut [f32], spare: &'a mut [f32]) -> Self {
        Self { numbers, spare, held: [NONE; TILE] }
    }

    /// Forgets all keys.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.held = [NONE; TILE];
    }

    /// The numbers of the keys from a place in the tile on.
    #[inline(always)]
    pub fn from(&self, place: usize) -> *const f32 {
        self.numbers[place..].as_ptr()
    }

    /// Has the keys of these slots at their places in the tile; what stands at others is of no key.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the head has such slots, of this form, and so has what is spare.
    #[inline(always)]
    pub unsafe fn hold<L: Lanes, F: CacheFormat>(
        &mut self,
        head: Head,
        slots: &[u32; TILE],
        places: Range<usize>,
        next: *const u8,
    ) {
        let (dim, row_bytes) = (head.head_dim, F::row_bytes(head.head_dim));
        for block in places.start / WIDTH..places.end.div_ceil(WIDTH) {
            let places = places.start.max(block * WIDTH)..places.end.min((block + 1) * WIDTH);
            if self.held[places.clone()] == slots[places.clone()] {
                continue;
            }
            if let Some(first) = first_of_block(head, slots, places.clone()) {
                let place = block * WIDTH;
                for (index, held) in self.held[place..place + WIDTH].iter_mut().enumerate() {
                    *held = (first + index) as u32;
                }
                // SAFETY: all sixteen slots exist; the tile has sixteen numbers from there on.
                unsafe {
                    let from = head.at.add(first * row_bytes);
                    let to = self.numbers.as_mut_ptr().add(place);
                    let next = next.wrapping_add(place * row_bytes);
                    if F::IS_FLOAT32 {
                        read_block::<L, true>(from.cast(), to, dim, next);
                    } else {
                        let spare = self.spare.as_mut_ptr();
                        for row in 0..WIDTH {
                            prefetch_row::<L, F>(next.wrapping_add(row * row_bytes), dim);
                            F::read::<L>(from.add(row * row_bytes), spare.add(row * dim), dim);
                        }
                        read_block::<L, false>(spare, to, dim, next);
                    }
                }
                continue;
            }
            for place in places {
                if self.held[place] != slots[place] {
                    self.held[place] = slots[place];
                    // SAFETY: by contract.
                    unsafe {
                        let row = head.at.add(slots[place] as usize * row_bytes);
                        let row = F::numbers::<L>(row, self.spare.as_mut_ptr(), dim);
                        for number in 0..dim {
                            self.numbers[number * TILE + place] = row.add(number).read_unaligned();
                        }
                    }
                }
            }
        }
    }
}

/// Asks for a row of a cache.
#[inline(always)]
unsafe fn prefetch_row<L: Lanes, F: CacheFormat>(row: *const u8, dim: usize) {
    for at in (0..F::row_bytes(dim)).step_by(CACHE_LINE) {
        // SAFETY: as `Lanes`.
        unsafe { L::prefetch_far(row.wrapping_add(at)) };
    }
}

/// Transposes sixteen keys of `dim` numbers, which follow each other, to columns of a tile; and asks
/// for as many from `next` on, where it `ASKS`.
#[inline(always)]
unsafe fn read_block<L: Lanes, const ASKS: bool>(
    from: *const f32,
    to: *mut f32,
    dim: usize,
    next: *const u8,
) {
    unsafe {
        // Distances between rows that a compiler knows are part of its instructions.
        match dim {
            64 => read_block_of::<L, ASKS>(from, to, 64, next),
            128 => read_block_of::<L, ASKS>(from, to, 128, next),
            _ => read_block_of::<L, ASKS>(from, to, dim, next),
        }
    }
}

#[inline(always)]
unsafe fn read_block_of<L: Lanes, const ASKS: bool>(
    from: *const f32,
    to: *mut f32,
    dim: usize,
    next: *const u8,
) {
    let fours = dim / 4 * 4;
    // SAFETY: by contract; a column of four numbers is within its row.
    unsafe {
        for number in (0..fours).step_by(4) {
            let columns = L::columns(from.add(number), dim);
            for (index, column) in columns.into_iter().enumerate() {
                if ASKS {
                    L::prefetch_far(next.wrapping_add((number + index) * CACHE_LINE));
                }
                L::store(to.add((number + index) * TILE), column);
            }
        }
        for number in fours..dim {
            for index in 0..WIDTH {
                *to.add(number * TILE + index) = from.add(index * dim + number).read_unaligned();
            }
        }
    }
}

/// The slot of a block's first place, where those of `places` follow each other and so may all
/// sixteen.
#[inline(always)]
fn first_of_block(head: Head, slots: &[u32; TILE], places: Range<usize>) -> Option<usize> {
    let start = slots[places.start] as usize;
    let follow = slots[places.clone()].iter().enumerate();
    if !follow.into_iter().all(|(index, slot)| *slot as usize == start + index) {
        return None;
    }
    let first = start.checked_sub(places.start % WIDTH)?;
    (first + WIDTH <= head.slots).then_some(first)
}
