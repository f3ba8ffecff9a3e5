//! A file that another program cuts short while it is mapped, by ONNX Runtime or as a file of experts:
//! the system then ends the process ("Bus error"). For the command line it ends with a message and
//! exit code 2 instead; of experts, the message names the file.
//!
//! Unsafe: a signal handler is foreign code to the compiler, and there is no other way to be told.
#![allow(unsafe_code)]

use pyo3::prelude::*;

#[cfg(unix)]
use crate::load::experts::mapping::file_at;

#[cfg(unix)]
const BEFORE: &[u8] = b"coordgen: error: ";
#[cfg(unix)]
const OF_A_FILE: &[u8] = b" was cut short while it was in use, or its disk failed\n";
#[cfg(unix)]
const OF_ANY: &[u8] = b"a file in use was cut short, or its disk failed: \
find it with coordgen check BUNDLE\n";

#[doc = stub_doc!("name_bus_errors")]
#[pyfunction]
pub fn name_bus_errors() {
    #[cfg(unix)]
    {
        let handler =
            on_bus_error as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the handler calls only what may be called in one, and never returns; all fields
        // that the system reads are set.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    }
}

#[cfg(unix)]
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let say = |what: &[u8]| {
        // SAFETY: `write` may be called in a signal handler; the bytes are there.
        unsafe { libc::write(2, what.as_ptr().cast(), what.len()) };
    };
    // SAFETY: the system gives what it knows of the signal.
    let address = unsafe { (*info).si_addr() } as usize;
    say(BEFORE);
    match file_at(address) {
        Some(name) => {
            say(name.to_bytes());
            say(OF_A_FILE);
        }
        None => say(OF_ANY),
    }
    // SAFETY: `_exit` may be called in a signal handler.
    unsafe { libc::_exit(2) };
}
