//! A file that another program cuts short while ONNX Runtime has it mapped: the system then ends
//! the process ("Bus error"). For the command line it ends with a message and exit code 2 instead.
//!
//! Unsafe: a signal handler is foreign code to the compiler, and there is no other way to be told.
#![allow(unsafe_code)]

use pyo3::prelude::*;

#[cfg(unix)]
const MESSAGE: &[u8] = b"coordgen: error: a file in use was cut short, or its disk failed: \
find it with coordgen check BUNDLE\n";

#[doc = stub_doc!("name_bus_errors")]
#[pyfunction]
fn name_bus_errors() {
    #[cfg(unix)]
    {
        let handler = on_bus_error as extern "C" fn(libc::c_int);
        // SAFETY: the handler calls only what may be called in one, and never returns.
        unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
    }
}

#[cfg(unix)]
extern "C" fn on_bus_error(_: libc::c_int) {
    // SAFETY: `write` and `_exit` may be called in a signal handler; the message is static.
    unsafe {
        libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(2);
    }
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(name_bus_errors, module)?)
}
