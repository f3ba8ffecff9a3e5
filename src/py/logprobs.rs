//! Logprobs for Python: those of an answer's tokens, and of a token chosen outside a drafter.

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::array;
use crate::error::Error;
use crate::ids::TokenId;
use crate::logprobs::{RowLogprobs, TokenLogprob, check_num_alternatives};

/// A logprob, and the alternatives with theirs.
pub type Told = (f64, Vec<(u32, f64)>);

/// What is told of a token, as Python has it.
pub fn told(token: &TokenLogprob) -> Told {
    let alternatives = token.alternatives.iter().map(|&(TokenId(token), logprob)| (token, logprob));
    (token.logprob, alternatives.collect())
}

#[doc = stub_doc!("token_logprob")]
#[pyfunction(name = "token_logprob")]
fn py_token_logprob(
    logits: &Bound<'_, PyAny>,
    token_id: u32,
    num_alternatives: usize,
) -> PyResult<Told> {
    let logits = array::<f32>(logits, "logits")?.try_readonly()?;
    let row = logits.as_slice()?;
    check_num_alternatives(num_alternatives)?;
    let (token, vocab_size) = (TokenId(token_id), row.len());
    let score = *row.get(token_id as usize).ok_or(Error::TokenOutOfRange { token, vocab_size })?;
    let of_row =
        RowLogprobs::new(row, num_alternatives).ok_or(Error::NonFiniteLogits { row: 0 })?;
    Ok(told(&of_row.of(score)))
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(py_token_logprob, module)?)
}
