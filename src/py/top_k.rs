//! `top_k` for Python: the reduction of a prompt's rows by itself, outside a drafter.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

use super::convert::matrix;
use crate::top_k::{TOP_K, top_k_rows};

/// Two `(rows, 8)` arrays: token ids and probabilities.
type TopKArrays = (Py<PyArray2<u32>>, Py<PyArray2<f32>>);

#[doc = stub_doc!("top_k")]
#[pyfunction]
fn top_k(py: Python<'_>, logits: &Bound<'_, PyAny>) -> PyResult<TopKArrays> {
    let (logits, rows, columns) = matrix::<f32>(logits, "logits")?;
    let (mut token_ids, mut probabilities) = (Vec::new(), Vec::new());
    let logits = logits.try_readonly()?;
    let scores = logits.as_slice()?;
    py.detach(|| top_k_rows(scores, columns, 0, &mut token_ids, &mut probabilities))?;
    let token_ids = PyArray1::from_iter(py, token_ids.iter().map(|token| token.0));
    let probabilities = PyArray1::from_vec(py, probabilities);
    let shape = [rows, TOP_K];
    Ok((token_ids.reshape(shape)?.unbind(), probabilities.reshape(shape)?.unbind()))
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(top_k, module)?)
}
