//! A step's logits in numpy's memory, read by a thread that does not hold the interpreter's lock.
//!
//! Unsafe by measured need: that the thread asks for the lock first would let it wait up to
//! the interpreter's switch interval, 5 ms, for a pass that takes less.
#![allow(unsafe_code)]

use numpy::{PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;

use crate::logits::SharedLogits;

/// A C-contiguous array that is kept alive, and not written to before the next tree is asked for:
/// the session's contract has its logits valid until its next call, which comes after that.
pub struct NumpyLogits {
    start: *const f32,
    len: usize,
    _array: Py<PyArrayDyn<f32>>,
}

// SAFETY: what `start` points to is read only, and owned by an array that may be dropped anywhere.
unsafe impl Send for NumpyLogits {}
// SAFETY: as above.
unsafe impl Sync for NumpyLogits {}

impl NumpyLogits {
    /// Lends the memory of `array`. Fails when it is written to at the moment, or not contiguous.
    pub fn new(array: &Bound<'_, PyArrayDyn<f32>>) -> PyResult<Self> {
        let values = array.try_readonly()?;
        let values = values.as_slice()?;
        Ok(Self { start: values.as_ptr(), len: values.len(), _array: array.clone().unbind() })
    }
}

impl SharedLogits for NumpyLogits {
    fn values(&self) -> &[f32] {
        // SAFETY: `start` and `len` are those of a slice over the array's memory, which lives as
        // long as `self` does; numpy does not move it, and nobody writes to it in the meantime.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}
