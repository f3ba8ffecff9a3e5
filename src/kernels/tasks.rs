//! What the tasks of a kernel share: memory that several write, each its own part; memory for what one
//! holds while it computes; and how they are run.
//!
//! Who writes where is for the users of a pointer to say.
#![allow(unsafe_code)]

use super::lanes::WIDTH;

/// Does work for each number below a count, perhaps on several threads, and returns when all is done.
pub type InParallel<'a, E> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync)) -> Result<(), E>;

/// A pointer that threads share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<T>(pub *mut T);

// SAFETY: each task writes its own part, by its users' contracts.
unsafe impl<T> Send for Shared<T> {}
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer.
    pub fn get(self) -> *mut T {
        self.0
    }
}

/// Memory that a thread's tasks use one after another: as large as the largest so far.
#[derive(Default)]
pub struct Workspace(Vec<f32>);

impl Workspace {
    /// So many numbers, of any value, the first at the start of a cache line.
    pub(in crate::kernels) fn of(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len + WIDTH {
            self.0.resize(len + WIDTH, 0.0);
        }
        let start = self.0.as_ptr().align_offset(size_of::<[f32; WIDTH]>()).min(WIDTH);
        &mut self.0[start..start + len]
    }
}
