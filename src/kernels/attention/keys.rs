//! A tile of keys, transposed, so that sixteen of them are scored at once.
//!
//! In: the slots of a tile's positions. Out: for each number of a head, those of the tile's keys side
//! by side. Keys that are there from the path before are not read again.

use std::ops::Range;

use super::nodes::TILE;
use crate::kernels::lanes::{Lanes, WIDTH};

/// No slot.
const NONE: u32 = u32::MAX;

/// The keys of one head of one sequence, `(slots, head_dim)`.
#[derive(Clone, Copy)]
pub struct Head {
    pub at: *const f32,
    pub slots: usize,
    pub head_dim: usize,
}

/// The tile.
pub struct Keys<'a> {
    /// `(head_dim, TILE)`.
    numbers: &'a mut [f32],
    /// The slot of each position's key.
    held: [u32; TILE],
}

impl<'a> Keys<'a> {
    /// An empty one, in `numbers (head_dim, TILE)`.
    pub fn new(numbers: &'a mut [f32]) -> Self {
        Self { numbers, held: [NONE; TILE] }
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
    /// As [`Lanes`]; the head has such slots.
    #[inline(always)]
    pub unsafe fn hold<L: Lanes>(
        &mut self,
        head: Head,
        slots: &[u32; TILE],
        places: Range<usize>,
        next: *const f32,
    ) {
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
                    let (from, to) =
                        (head.at.add(first * head.head_dim), self.numbers.as_mut_ptr());
                    let next = next.wrapping_add(place * head.head_dim);
                    read_block::<L>(from, to.add(place), head.head_dim, next);
                }
                continue;
            }
            for place in places {
                if self.held[place] != slots[place] {
                    self.held[place] = slots[place];
                    for number in 0..head.head_dim {
                        // SAFETY: by contract.
                        self.numbers[number * TILE + place] =
                            unsafe { *head.at.add(slots[place] as usize * head.head_dim + number) };
                    }
                }
            }
        }
    }
}

/// Transposes sixteen keys of `dim` numbers, which follow each other, to columns of a tile.
#[inline(always)]
unsafe fn read_block<L: Lanes>(from: *const f32, to: *mut f32, dim: usize, next: *const f32) {
    unsafe {
        // Distances between rows that a compiler knows are part of its instructions.
        match dim {
            64 => read_block_of::<L>(from, to, 64, next),
            128 => read_block_of::<L>(from, to, 128, next),
            _ => read_block_of::<L>(from, to, dim, next),
        }
    }
}

#[inline(always)]
unsafe fn read_block_of<L: Lanes>(from: *const f32, to: *mut f32, dim: usize, next: *const f32) {
    let fours = dim / 4 * 4;
    // SAFETY: by contract; a column of four numbers is within its row.
    unsafe {
        for number in (0..fours).step_by(4) {
            let columns = L::columns(from.add(number), dim);
            for (index, column) in columns.into_iter().enumerate() {
                L::prefetch_far(next.wrapping_add((number + index) * WIDTH).cast());
                L::store(to.add((number + index) * TILE), column);
            }
        }
        for number in fours..dim {
            for index in 0..WIDTH {
                *to.add(number * TILE + index) = *from.add(index * dim + number);
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
