//! What is read of logits outside a drafter: logprobs, those of an answer's tokens too, and the reduction of a
//! prompt's rows.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

use super::convert::{array, matrix};
use crate::error::Error;
use crate::ids::TokenId;
use crate::logits::logprobs::{RowLogprobs, TokenLogprob, check_num_alternatives};
use crate::logits::top_k::{TOP_K, top_k_rows};

/// A logprob, and the alternatives with theirs.
pub type LogprobTuple = (f64, Vec<(u32, f64)>);

/// What is told of a token, as Python has it.
pub fn logprob_tuple(token: &TokenLogprob) -> LogprobTuple {
    let alternatives = token.alternatives.iter().map(|&(TokenId(token), logprob)| (token, logprob));
    (token.logprob, alternatives.collect())
}

#[doc = stub_doc!("token_logprob")]
#[pyfunction(name = "token_logprob")]
pub fn py_token_logprob(
    logits: &Bound<'_, PyAny>,
    token_id: u32,
    num_alternatives: usize,
) -> PyResult<LogprobTuple> {
    let logits = array::<f32>(logits, "logits")?.try_readonly()?;
    let row = logits.as_slice()?;
    check_num_alternatives(num_alternatives)?;
    let (token, vocab_size) = (TokenId(token_id), row.len());
    let score = *row.get(token_id as usize).ok_or(Error::TokenOutOfRange { token, vocab_size })?;
    let of_row =
        RowLogprobs::new(row, num_alternatives).ok_or(Error::NonFiniteLogits { row: 0 })?;
    Ok(logprob_tuple(&of_row.of(score)))
}

/// Two `(rows, 8)` arrays: token ids and probabilities.
type TopKArrays = (Py<PyArray2<u32>>, Py<PyArray2<f32>>);

#[doc = stub_doc!("top_k")]
#[pyfunction]
pub fn top_k(py: Python<'_>, logits: &Bound<'_, PyAny>) -> PyResult<TopKArrays> {
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
