//! `move_rows` for Python: accepted rows of all layers' caches, moved in one call.

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::convert::{self, non_negative};
use super::errors::ShapeError;
use crate::cache_rows::MovedRows;
use crate::ids::NodeId;

#[doc = stub_doc!("move_rows")]
#[pyfunction]
fn move_rows(
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
    let cannot_be_written =
        |error| ShapeError::new_err(format!("a cache cannot be written: {error}"));
    let mut borrowed = caches
        .iter()
        .map(|cache| cache.try_readwrite().map_err(cannot_be_written))
        .collect::<PyResult<Vec<_>>>()?;
    let mut bytes =
        borrowed.iter_mut().map(|cache| cache.as_slice_mut()).collect::<Result<Vec<_>, _>>()?;
    py.detach(|| bytes.iter_mut().for_each(|cache| moved.apply(cache, row_bytes)));
    Ok(())
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

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(move_rows, module)?)
}
