//! The interpreter's lock, and those of the crate: no thread waits for one of them with the other in
//! hand; and what takes long goes on without the interpreter, but not beyond its end.

use std::ffi::CStr;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

use crate::locks;

/// From now on, whoever has to wait for a lock of the crate lets go of the interpreter meanwhile.
///
/// Where a lock is free, as it nearly always is, this costs nothing: letting go takes a microsecond,
/// and may take a thread switch.
pub fn release_the_interpreter_while_waiting_for_locks() {
    locks::set_wait_hook(|wait| {
        let waited = Python::try_attach(|py| detached_to_wait(py, &mut *wait)).is_some();
        if !waited {
            wait(); // the interpreter is shutting down
        }
    });
}

/// Calls of [`detached`] that have not come back.
static NUM_DETACHED: AtomicUsize = AtomicUsize::new(0);
/// Whether the interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Calls `call` without the interpreter, so that other threads run meanwhile.
///
/// A thread that takes the interpreter back once that has ended takes the process down, as threads do
/// that nobody joins. So its end waits for the call; and once it has begun, the call keeps the
/// interpreter, so it must not wait for another thread.
pub fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    if IS_ENDING.load(Ordering::SeqCst) { call() } else { detached_to_wait(py, call) }
}

/// The same for a call that may wait for another thread: it never keeps the interpreter.
pub fn detached_to_wait<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    struct CallCount;
    impl Drop for CallCount {
        fn drop(&mut self) {
            NUM_DETACHED.fetch_sub(1, Ordering::SeqCst);
        }
    }
    NUM_DETACHED.fetch_add(1, Ordering::SeqCst);
    let _until_it_is_taken_back = CallCount;
    py.detach(call)
}

/// Calls `call`, without the interpreter where that takes long: letting go and taking back are not free.
pub fn detached_if<T: Send>(py: Python<'_>, is_long: bool, call: impl FnOnce() -> T + Send) -> T {
    if is_long { detached(py, call) } else { call() }
}

/// From now on the end of the interpreter waits for what goes on without it. A fork does not have the
/// threads that it would wait for.
pub fn wait_at_exit(py: Python<'_>) -> PyResult<()> {
    let own = process::id();
    let wait =
        move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| -> PyResult<()> {
            IS_ENDING.store(true, Ordering::SeqCst);
            while NUM_DETACHED.load(Ordering::SeqCst) > 0 && process::id() == own {
                arguments.py().check_signals()?; // of somebody who does not want to wait
                arguments.py().detach(|| sleep(Duration::from_millis(1)));
            }
            Ok(())
        };
    let name: Option<&CStr> = Some(c"wait_for_calls");
    let wait = PyCFunction::new_closure(py, name, None, wait)?;
    py.import("atexit")?.call_method1("register", (wait,))?;
    Ok(())
}
