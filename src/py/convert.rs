//! numpy arrays in and out: dtype, shape and order are checked here, where data enters.

use numpy::{Element, PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::errors::ShapeError;
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// `object` as a C-contiguous array of `T`, of any shape.
pub fn array<'a, 'py, T: Element>(
    object: &'a Bound<'py, PyAny>,
    what: &str,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let wrong = |found: String| {
        let dtype = T::get_dtype(object.py());
        ShapeError::new_err(format!("{what} must be a C-contiguous {dtype} array, not {found}"))
    };
    let array = object.cast::<PyArrayDyn<T>>().map_err(|_| match object.getattr("dtype") {
        Ok(dtype) => wrong(format!("{dtype}")),
        Err(_) => wrong(format!("{}", object.get_type())),
    })?;
    if !array.is_c_contiguous() {
        return Err(wrong("strided".into()));
    }
    Ok(array)
}

/// `object` as an array of shape `(1, .., 1, rows, columns)` with columns; returns `(rows, columns)`
/// too.
pub fn matrix<'a, 'py, T: Element>(
    object: &'a Bound<'py, PyAny>,
    what: &str,
) -> PyResult<(&'a Bound<'py, PyArrayDyn<T>>, usize, usize)> {
    let array = array::<T>(object, what)?;
    match array.shape() {
        [leading @ .., rows, columns]
            if *columns > 0 && leading.iter().all(|&length| length == 1) =>
        {
            Ok((array, *rows, *columns))
        }
        shape => {
            let must = "(.., rows, columns), with at least one column";
            let message = format!("{what} must have shape {must}, not {shape:?}");
            Err(ShapeError::new_err(message))
        }
    }
}

/// A copy of a `(n,) uint32` array.
pub fn integers(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u32>> {
    let array = array::<u32>(object, what)?;
    if array.ndim() != 1 {
        let message = format!("{what} must have shape (n,), not {:?}", array.shape());
        return Err(ShapeError::new_err(message));
    }
    #[expect(
        unsafe_code,
        reason = "a borrow would be booked in a table behind a lock, in every step"
    )]
    // SAFETY: the elements are copied while the interpreter is held, and no call writes to an array
    // without holding it.
    Ok(unsafe { array.as_slice() }?.to_vec())
}

/// A copy of a `(n,) uint32` array of token ids.
pub fn token_ids(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<TokenId>> {
    Ok(integers(object, what)?.into_iter().map(TokenId).collect())
}

/// A new `(n,) uint32` array.
pub fn to_array(py: Python<'_>, values: impl ExactSizeIterator<Item = u32>) -> Py<PyArray1<u32>> {
    PyArray1::from_slice(py, &values.collect::<Vec<_>>()).unbind()
}

/// `number` as a core integer.
pub fn non_negative<T: TryFrom<i128>>(what: &'static str, number: i128) -> Result<T> {
    let must = "0 or more, and below 2^64";
    T::try_from(number).map_err(|_| Error::BadOption { what, got: number.to_string(), must })
}
