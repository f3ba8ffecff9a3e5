//! `move_rows` and `copy_rows` for Python: rows of all layers' caches, moved or copied in one call.

use std::iter;

use numpy::ndarray::{ArrayView4, ArrayViewMut4, Axis};
use numpy::{BorrowError, PyArray4, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::convert::{self, non_negative};
use super::errors::ShapeError;
use super::interpreter::detached;
use crate::commit::cache_rows::{MovedRows, copy_all};
use crate::ids::NodeId;

/// Threads that copy: from two on, memory is the limit.
const NUM_COPIERS: usize = 2;

#[doc = stub_doc!("move_rows")]
#[pyfunction]
pub fn move_rows(
    py: Python<'_>,
    caches: &Bound<'_, PyAny>,
    rows: &Bound<'_, PyAny>,
    past_len: i128,
) -> PyResult<()> {
    let past_len = non_negative("past_len", past_len)?;
    let rows: Vec<NodeId> = convert::integers(rows, "rows")?.into_iter().map(NodeId).collect();
    if rows.iter().zip(0..).all(|(row, at)| row.0 == at) {
        return Ok(());
    }
    let caches: Vec<Bound<'_, PyAny>> = caches.extract()?;
    let caches = caches
        .iter()
        .map(|cache| convert::array::<u8>(cache, "a cache"))
        .collect::<PyResult<Vec<_>>>()?;
    let Some((num_slots, row_bytes)) = common_shape(&caches)? else { return Ok(()) };
    let moved = MovedRows::new(&rows, past_len, num_slots)?;
    let mut borrowed = caches
        .iter()
        .map(|cache| cache.try_readwrite().map_err(cannot_be_written))
        .collect::<PyResult<Vec<_>>>()?;
    let mut bytes =
        borrowed.iter_mut().map(|cache| cache.as_slice_mut()).collect::<Result<Vec<_>, _>>()?;
    detached(py, || bytes.iter_mut().for_each(|cache| moved.apply(cache, row_bytes)));
    Ok(())
}

#[doc = stub_doc!("copy_rows")]
#[pyfunction]
pub fn copy_rows(
    py: Python<'_>,
    caches: &Bound<'_, PyAny>,
    sources: &Bound<'_, PyAny>,
    num_rows: i128,
) -> PyResult<()> {
    let num_rows: usize = non_negative("num_rows", num_rows)?;
    let (caches, sources) = (arrays(caches)?, arrays(sources)?);
    let mut caches = caches
        .iter()
        .map(|cache| cache.try_readwrite().map_err(cannot_be_written))
        .collect::<PyResult<Vec<_>>>()?;
    let sources = sources
        .iter()
        .map(|source| source.try_readonly().map_err(cannot_be_written))
        .collect::<PyResult<Vec<_>>>()?;
    let mut caches: Vec<_> = caches.iter_mut().map(|cache| cache.as_array_mut()).collect();
    let sources: Vec<_> = sources.iter().map(|source| source.as_array()).collect();
    let pairs = first_rows(&mut caches, &sources, num_rows).ok_or_else(|| {
        let message =
            format!("sources must have {num_rows} rows of their caches' heads, in a piece");
        ShapeError::new_err(message)
    })?;
    detached(py, || copy_all(pairs, NUM_COPIERS));
    Ok(())
}

fn arrays<'py>(objects: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyArray4<u8>>>> {
    let must = "caches must be uint8 arrays of shape (1, kv_heads, slots, row_bytes)";
    objects.extract().map_err(|_| ShapeError::new_err(must))
}

/// The first rows of each head of each cache, and those that they are copied from; `None` where
/// shapes do not agree, or a row, or a cache's head, is not one piece of memory.
fn first_rows<'a>(
    caches: &'a mut [ArrayViewMut4<'_, u8>],
    sources: &'a [ArrayView4<'_, u8>],
    num_rows: usize,
) -> Option<Vec<(&'a mut [u8], &'a [u8])>> {
    let mut pairs = Vec::new();
    if caches.len() != sources.len() {
        return None;
    }
    for (cache, source) in iter::zip(caches, sources) {
        let (&[to_all, to_heads, to_slots, to_bytes], &[all, heads, slots, bytes]) =
            (cache.shape(), source.shape())
        else {
            return None;
        };
        if (to_all, to_heads, to_bytes) != (all, heads, bytes) || num_rows > slots.min(to_slots) {
            return None;
        }
        cache.slice_axis_inplace(Axis(2), (..num_rows).into());
        let each = cache.axis_iter_mut(Axis(1)).zip(source.axis_iter(Axis(1)));
        for (to, from) in each {
            let from = from.slice_axis_move(Axis(1), (..num_rows).into());
            let to = to.into_slice()?;
            if let Some(from) = from.to_slice() {
                pairs.push((to, from));
                continue;
            }
            for (row, to) in to.chunks_exact_mut(bytes.max(1)).enumerate() {
                pairs.push((to, from.index_axis_move(Axis(1), row).to_slice()?));
            }
        }
    }
    Some(pairs)
}

fn cannot_be_written(error: BorrowError) -> PyErr {
    ShapeError::new_err(format!("a cache cannot be written: {error}"))
}

/// Slots and bytes of a head's row, `None` where there is no cache.
fn common_shape(caches: &[&Bound<'_, PyArrayDyn<u8>>]) -> PyResult<Option<(usize, usize)>> {
    let Some(first) = caches.first().map(|cache| cache.shape()) else { return Ok(None) };
    let &[1, _, num_slots, row_bytes @ (1..)] = first else {
        let must = "(1, kv_heads, slots, row_bytes)";
        return Err(ShapeError::new_err(format!("a cache must have shape {must}, not {first:?}")));
    };
    match caches.iter().find(|cache| cache.shape() != first) {
        Some(other) => {
            let message = format!("caches have shapes {first:?} and {:?}", other.shape());
            Err(ShapeError::new_err(message))
        }
        None => Ok(Some((num_slots, row_bytes))),
    }
}
