//! Memory that several tasks write, each its own part.
//!
//! In: a pointer. Out: the same, in any thread. Who writes where is for its users to say.
#![allow(unsafe_code)]

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
