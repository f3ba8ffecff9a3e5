//! Values of Python in and out: type, shape and order of arrays, and the types of arguments, are checked
//! here, where data enters.

use std::convert::Infallible;
use std::fmt::Display;

use numpy::{Element, PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use super::errors::{OptionError, ShapeError, TokenOutOfRangeError};
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

/// `object` as a C-contiguous array of shape `(n,)`.
pub fn flat<'a, 'py, T: Element>(
    object: &'a Bound<'py, PyAny>,
    what: &str,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let array = array::<T>(object, what)?;
    if array.ndim() == 1 { Ok(array) } else { Err(not_flat(what, array.shape())) }
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

/// A copy of `(n,)` integers from 0 on and below 2^32: an array of any integer type, or a sequence.
pub fn integers(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u32>> {
    copied(object, what, |number| {
        OptionError::new_err(format!(
            "{what} holds {number}, but must be 0 or more, and below 2^32"
        ))
    })
}

/// The same of token ids.
pub fn token_ids(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<TokenId>> {
    let ids = copied(object, what, |number| {
        TokenOutOfRangeError::new_err(format!("{what} holds the token id {number}"))
    });
    Ok(ids?.into_iter().map(TokenId).collect())
}

/// A copy of integers; the first one that is no `u32` is what `outside` is about.
fn copied(
    object: &Bound<'_, PyAny>,
    what: &str,
    outside: impl Fn(&dyn Display) -> PyErr,
) -> PyResult<Vec<u32>> {
    let array = match object.cast::<PyArrayDyn<u32>>() {
        Ok(array) if array.is_c_contiguous() => array,
        _ => return converted(object, what, outside),
    };
    if array.ndim() != 1 {
        return Err(not_flat(what, array.shape()));
    }
    #[expect(
        unsafe_code,
        reason = "a borrow would be booked in a table behind a lock, in every step"
    )]
    // SAFETY: the elements are copied while the interpreter is held, and no call writes to an array
    // without holding it.
    Ok(unsafe { array.as_slice() }?.to_vec())
}

fn not_flat(what: &str, shape: &[usize]) -> PyErr {
    ShapeError::new_err(format!("{what} must have shape (n,), not {shape:?}"))
}

/// Integers of another type or order, or in a sequence.
fn converted(
    object: &Bound<'_, PyAny>,
    what: &str,
    outside: impl Fn(&dyn Display) -> PyErr,
) -> PyResult<Vec<u32>> {
    if let Some(integers) = of_array(object, what, &outside) {
        return integers;
    }
    let wrong =
        |found: &dyn Display| ShapeError::new_err(format!("{what} must be integers, not {found}"));
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Err(wrong(&object.get_type()));
    }
    let asarray = object.py().import("numpy")?.getattr("asarray")?;
    let array = asarray.call1((object,)).map_err(|_| wrong(&object.get_type()))?;
    if let Some(integers) = of_array(&array, what, &outside) {
        return integers;
    }
    let (dtype, shape) = (array.getattr("dtype")?, array.getattr("shape")?);
    let shape: Vec<usize> = shape.extract()?;
    let kind: char = dtype.getattr("kind")?.extract()?;
    // Integers without a common type become floats, or objects; an empty list has floats, too.
    let is_array = object.hasattr("dtype")?;
    let numbers = match (&shape[..], kind) {
        ([0], _) if !is_array => return Ok(Vec::new()),
        ([_], 'i' | 'u' | 'O') => array,
        ([_], 'f') if !is_array => object.clone(),
        (_, 'i' | 'u') => return Err(not_flat(what, &shape)),
        _ => return Err(wrong(&dtype)),
    };
    let number = |number: PyResult<Bound<'_, PyAny>>| {
        let number = number?;
        match number.extract() {
            Ok(number) => Ok(number),
            Err(_) if number.hasattr("__index__")? => Err(outside(&number)),
            Err(_) => Err(wrong(&number.get_type())),
        }
    };
    numbers.try_iter()?.map(number).collect()
}

/// Integers of an array in the machine's own order of bytes; `None` where it is none. Read here and not by
/// numpy, which lets go of the interpreter without telling its end.
fn of_array(
    object: &Bound<'_, PyAny>,
    what: &str,
    outside: &impl Fn(&dyn Display) -> PyErr,
) -> Option<PyResult<Vec<u32>>> {
    macro_rules! first_of {
        ($($integer:ty)+) => {$(
            if let Ok(array) = object.cast::<PyArrayDyn<$integer>>() {
                return Some(narrowed(array, what, outside));
            }
        )+};
    }
    first_of!(i64 u32 i32 u64 u16 i16 u8 i8);
    None
}

fn narrowed<T: Element + Copy + Display>(
    array: &Bound<'_, PyArrayDyn<T>>,
    what: &str,
    outside: &impl Fn(&dyn Display) -> PyErr,
) -> PyResult<Vec<u32>>
where
    u32: TryFrom<T>,
{
    if array.ndim() != 1 {
        return Err(not_flat(what, array.shape()));
    }
    let array = array.try_readonly()?;
    let numbers = array.as_array();
    numbers.iter().map(|&number| u32::try_from(number).map_err(|_| outside(&number))).collect()
}

/// What a value is made of again, as `__getnewargs_ex__` tells it.
pub type NewArguments<'py> = (Bound<'py, PyTuple>, Bound<'py, PyDict>);

/// What an argument of some type must be, for people.
pub trait Argument {
    const MUST: &'static str;
}

impl Argument for u32 {
    const MUST: &'static str = "0 or more, and below 2^32";
}

impl Argument for usize {
    const MUST: &'static str = "0 or more, and below 2^64";
}

impl Argument for u64 {
    const MUST: &'static str = "0 or more, and below 2^64";
}

impl Argument for f32 {
    const MUST: &'static str = "a number";
}

impl Argument for bool {
    const MUST: &'static str = "True or False";
}

impl Argument for String {
    const MUST: &'static str = "a string";
}

impl<T: Argument> Argument for Option<T> {
    const MUST: &'static str = T::MUST;
}

/// An argument as it was given: of the type that is asked for, or another value, as it is shown.
pub enum Arg<T> {
    Valid(T),
    Invalid(String),
}

impl<T: Argument> Arg<T> {
    /// The argument, whose name is `what`. Fails where it has another type, or a number is out of the
    /// type's range.
    pub fn named(self, what: &'static str) -> Result<T> {
        match self {
            Self::Valid(value) => Ok(value),
            Self::Invalid(got) => Err(Error::BadOption { what, got, must: T::MUST }),
        }
    }
}

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Arg<T> {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> std::result::Result<Self, Infallible> {
        Ok(object.extract().map_or_else(|_| Self::Invalid(shown(&object)), Self::Valid))
    }
}

/// Most characters of a wrong value in a message.
const MOST_SHOWN: usize = 60;

fn shown(object: &Bound<'_, PyAny>) -> String {
    let shown = object.repr().map_or_else(|_| object.get_type().to_string(), |it| it.to_string());
    match shown.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}..", &shown[..end]),
        None => shown,
    }
}

/// A new `(n,) uint32` array.
pub fn to_array(py: Python<'_>, values: impl ExactSizeIterator<Item = u32>) -> Py<PyArray1<u32>> {
    PyArray1::from_slice(py, &values.collect::<Vec<_>>()).unbind()
}

/// A key of 32 bytes.
pub fn key(bytes: &[u8]) -> PyResult<[u8; 32]> {
    let wrong =
        |_| OptionError::new_err(format!("key has {} bytes, but must have 32", bytes.len()));
    bytes.try_into().map_err(wrong)
}

/// `number` as a core integer.
pub fn non_negative<T: TryFrom<i128>>(what: &'static str, number: i128) -> Result<T> {
    let must = "0 or more, and below 2^64";
    T::try_from(number).map_err(|_| Error::BadOption { what, got: number.to_string(), must })
}
