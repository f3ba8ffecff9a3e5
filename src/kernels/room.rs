//! Memory for what a task holds while it computes.
//!
//! In: a number of numbers. Out: room for them, of any value, on a cache line.

use super::lanes::WIDTH;

/// Memory that a thread's tasks use one after another: as large as the largest so far.
#[derive(Default)]
pub struct Room(Vec<f32>);

impl Room {
    /// So many numbers, of any value, the first at the start of a cache line.
    pub(in crate::kernels) fn of(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len + WIDTH {
            self.0.resize(len + WIDTH, 0.0);
        }
        let start = self.0.as_ptr().align_offset(size_of::<[f32; WIDTH]>()).min(WIDTH);
        &mut self.0[start..start + len]
    }
}
