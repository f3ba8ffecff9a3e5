//! Arrays and texts of the caller's. In: addresses and lengths. Out: what the core takes, borrowed for a call,
//! and places to write to.

use std::ffi::c_char;
use std::ops::Deref;

use super::failure::{Failure, Status};
use crate::error::Error;
use crate::ids::TokenId;

/// Most tokens of a request, prompt and answer together, of a prediction and of a document.
pub const MAX_TOKENS: usize = 1 << 24;

fn bad_pointer(what: &str, is: &str) -> Failure {
    Failure::new(Status::BadPointer, format!("{what} is {is}"))
}

fn too_long(what: &str, len: usize, most: usize) -> Failure {
    Failure::new(Status::BadLength, format!("{what} has {len} elements, but may have {most}"))
}

fn check<T>(what: &str, address: *const T) -> Result<(), Failure> {
    match address {
        null if null.is_null() => Err(bad_pointer(what, "NULL")),
        odd if !odd.is_aligned() => Err(bad_pointer(what, "not aligned")),
        _ => Ok(()),
    }
}

/// An array of at most `most` elements, which may be NULL where it is empty.
///
/// # Safety
/// `len` elements can be read from `address` on, for `'a`.
pub(super) unsafe fn array<'a, T>(
    what: &str,
    address: *const T,
    len: usize,
    most: usize,
) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if len > most {
        return Err(too_long(what, len, most));
    }
    check(what, address)?;
    // SAFETY: neither null nor odd, short enough for any address, and readable as promised.
    Ok(unsafe { std::slice::from_raw_parts(address, len) })
}

/// Token ids of the caller's, none of them negative.
///
/// # Safety
/// As for [`array`].
pub(super) unsafe fn tokens<'a>(
    what: &str,
    address: *const i32,
    len: usize,
) -> Result<&'a [TokenId], Failure> {
    // SAFETY: as promised here; both types have the size and alignment of the integer.
    let tokens = unsafe { array(what, address.cast::<TokenId>(), len, MAX_TOKENS) }?;
    match tokens.iter().find(|token| token.0.cast_signed() < 0) {
        None => Ok(tokens),
        Some(token) => {
            let message = format!("{what} holds the token id {}", token.0.cast_signed());
            Err(Failure::new(Status::BadToken, message))
        }
    }
}

/// The bytes of a text, of which at most `most` are looked at; `None` for NULL.
///
/// # Safety
/// `address` is NULL, or bytes can be read from it on up to a zero, for `'a`.
pub(super) unsafe fn text<'a>(
    what: &str,
    address: *const c_char,
    most: usize,
) -> Result<Option<&'a [u8]>, Failure> {
    if address.is_null() {
        return Ok(None);
    }
    let bytes = address.cast::<u8>();
    // SAFETY: all bytes before the zero can be read.
    let len = (0..most).find(|&index| unsafe { *bytes.add(index) } == 0);
    let len = len.ok_or_else(|| too_long(what, most + 1, most))?;
    // SAFETY: they have just been read.
    Ok(Some(unsafe { std::slice::from_raw_parts(bytes, len) }))
}

/// A record of the caller's.
///
/// # Safety
/// `address` is NULL, or a `T` can be read there.
pub(super) unsafe fn record<T: Copy>(what: &str, address: *const T) -> Result<T, Failure> {
    check(what, address)?;
    // SAFETY: neither null nor odd, and readable as promised.
    Ok(unsafe { *address })
}

/// Where results of a call go.
#[derive(Debug)]
pub(super) struct Output<T>(*mut T);

impl<T: Copy> Output<T> {
    /// A place for as many elements as the caller says. Fails for NULL, and an odd address.
    pub fn new(what: &str, address: *mut T) -> Result<Self, Failure> {
        check(what, address)?;
        Ok(Self(address))
    }

    /// Writes `values` from the address on.
    ///
    /// # Safety
    /// So many elements can be written there.
    pub unsafe fn write(&self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: within what can be written.
            unsafe { self.0.add(index).write(value) };
        }
    }
}

/// Fails where a request would have more tokens than it may.
pub(super) fn check_len(len: usize, more: usize) -> Result<(), Failure> {
    match len.saturating_add(more) {
        len if len > MAX_TOKENS => Err(too_long("the request", len, MAX_TOKENS)),
        _ => Ok(()),
    }
}

/// A text that must be UTF-8.
pub(super) fn utf8<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes).map_err(|_| {
        let got = String::from_utf8_lossy(bytes).deref().to_owned();
        Error::BadOption { what, got, must: "valid UTF-8" }.into()
    })
}
