//! The attributes of a node, when its kernel is made.

use std::ffi::CStr;
use std::ptr;

use ort_sys::{OrtApi, OrtKernelInfo, OrtStatusPtr};

use super::call::{Outcome, check, status};

/// A node that is being created.
#[derive(Clone, Copy)]
pub struct Attributes {
    pub api: &'static OrtApi,
    info: *const OrtKernelInfo,
}

impl Attributes {
    /// # Safety
    ///
    /// `info` is of the node that is being created, and outlives this.
    pub unsafe fn new(api: &'static OrtApi, info: *const OrtKernelInfo) -> Self {
        Self { api, info }
    }

    /// A status that says what is wrong with the node.
    pub fn wrong(self, what: &str) -> OrtStatusPtr {
        status(self.api, what)
    }

    pub fn float(self, name: &CStr) -> Outcome<f32> {
        let mut value = 0.0;
        // SAFETY: `info` is valid by contract of `new`, here and below.
        check(unsafe {
            (self.api.KernelInfoGetAttribute_float)(self.info, name.as_ptr(), &mut value)
        })?;
        Ok(value)
    }

    /// A number that is not negative.
    pub fn count(self, name: &CStr) -> Outcome<usize> {
        let mut value = 0;
        check(unsafe {
            (self.api.KernelInfoGetAttribute_int64)(self.info, name.as_ptr(), &mut value)
        })?;
        usize::try_from(value).map_err(|_| self.wrong("a count is negative"))
    }

    pub fn counts(self, name: &CStr) -> Outcome<Vec<usize>> {
        let mut len = 0;
        let read = self.api.KernelInfoGetAttributeArray_int64;
        let mut values = unsafe {
            check(read(self.info, name.as_ptr(), ptr::null_mut(), &mut len))?;
            vec![0; len]
        };
        check(unsafe { read(self.info, name.as_ptr(), values.as_mut_ptr(), &mut len) })?;
        let counts = values.into_iter().map(usize::try_from);
        counts.collect::<Result<_, _>>().map_err(|_| self.wrong("a count is negative"))
    }

    pub fn text(self, name: &CStr) -> Outcome<String> {
        let mut len = 0;
        let read = self.api.KernelInfoGetAttribute_string;
        let mut bytes: Vec<u8> = unsafe {
            check(read(self.info, name.as_ptr(), ptr::null_mut(), &mut len))?;
            vec![0; len]
        };
        check(unsafe { read(self.info, name.as_ptr(), bytes.as_mut_ptr().cast(), &mut len) })?;
        bytes.truncate(len.saturating_sub(1)); // the last is a zero
        String::from_utf8(bytes).map_err(|_| self.wrong("a text is no UTF-8"))
    }
}
