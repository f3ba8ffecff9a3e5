//! A value that several drafters, or a drafter and its caller, share. Out: exclusive use of it, one
//! owner at a time.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::waiting;

/// A value that is shared and locked for each use.
///
/// It only feeds drafts, which are verified: the state that a panic left behind is as good as any.
#[derive(Debug, Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T: Send> Shared<T> {
    /// Shares `value`.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    /// Whether others share it, at this moment.
    pub fn has_others(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The value, locked until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        waiting::lock(&self.0)
    }
}

impl<T> Clone for Shared<T> {
    /// The same value.
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
