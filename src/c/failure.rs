//! What a call says that failed: a code, and a message for people. In: results of the core, and panics.
//! Out: a [`Status`], and the message of the thread's last failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// What became of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It did what it says.
    Ok = 0,
    /// An address is NULL where something is needed, or is not aligned.
    BadPointer = 1,
    /// The handle is of no drafter, or of no history: never given out, closed, or of the other kind.
    BadHandle = 2,
    /// An array is too long, too short, or empty where it must not be.
    BadLength = 3,
    /// A token id is negative, or beyond the vocabulary.
    BadToken = 4,
    /// An option has a value outside its range.
    BadOption = 5,
    /// There is no request: call `coordgen_drafter_begin` first.
    NoRequest = 6,
    /// A file cannot be read or written, or is no history.
    File = 7,
    /// The history's file is open elsewhere, in this process or in another one.
    InUse = 8,
    /// There are too many handles.
    Full = 9,
    /// A defect of this library; the handle that it was met with can only be closed.
    Broken = 10,
    /// The handle is of the process that this one is a fork of, to which it belongs: make one here.
    Forked = 11,
}

const NAMES: [&CStr; 12] = [
    c"ok",
    c"bad pointer",
    c"bad handle",
    c"bad length",
    c"bad token",
    c"bad option",
    c"no request",
    c"file",
    c"in use",
    c"full",
    c"broken",
    c"forked",
];

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::TokenOutOfRange { .. } => Status::BadToken,
            Error::EmptyPrompt | Error::WrongLength { .. } => Status::BadLength,
            Error::NoRequest => Status::NoRequest,
            Error::UnusableIndex { .. }
            | Error::IndexNotWritten { .. }
            | Error::UnusableHistory { .. }
            | Error::HistoryNotWritten { .. } => Status::File,
            Error::HistoryInUse => Status::InUse,
            Error::BadOption { .. }
            | Error::BadSetting { .. }
            | Error::OtherVocabulary { .. }
            | Error::UnknownMethod { .. }
            | Error::MethodNeeds { .. } => Status::BadOption,
            _ => Status::Broken,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call; a failure is remembered for the thread, and a panic is one.
pub(super) fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(Status::Broken, format!("a defect: {}", said(&*panic))),
    };
    let bytes: Vec<u8> =
        failure.message.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(CString::new(bytes).unwrap_or_default()));
    failure.status
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it says nothing")
}

/// Why the last call of this thread that failed did so, in UTF-8; empty where none has. It stays until the
/// next call of the thread that fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A name for a status, "bad token" say; "unknown" for any other number. It stays for ever.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_status_name(status: i32) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|index| NAMES.get(index));
    name.unwrap_or(&c"unknown").as_ptr()
}

/// The library's version, "0.2.0" say. It stays for ever.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
