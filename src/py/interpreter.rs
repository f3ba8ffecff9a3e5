//! The interpreter's lock, and those of the crate: no thread waits for one of them with the other in
//! hand.

use pyo3::prelude::*;

use crate::waiting;

/// From now on, whoever has to wait for a lock of the crate lets go of the interpreter meanwhile.
///
/// Where a lock is free, as it nearly always is, this costs nothing: letting go takes a microsecond,
/// and may take a thread switch.
pub fn let_go_where_a_lock_is_not_free() {
    waiting::let_go_with(|wait| {
        let waited = Python::try_attach(|py| py.detach(&mut *wait)).is_some();
        if !waited {
            wait(); // the interpreter is shutting down
        }
    });
}
