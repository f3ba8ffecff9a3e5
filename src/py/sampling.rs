//! `Sampling` for Python.

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::{array, non_negative, token_ids};
use crate::error::Error;
use crate::ids::TokenId;
use crate::sampling::{Sampling, SeenTokens};

/// How the target's tokens are drawn from its logits.
#[pyclass(name = "Sampling", module = "coordgen_rs._core", frozen, eq, from_py_object)]
#[derive(Clone, Copy, PartialEq)]
pub struct PySampling(pub Sampling);

#[pymethods]
impl PySampling {
    #[new]
    #[pyo3(signature = (
        temperature=1.0, *, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0
    ))]
    fn new(
        temperature: f32,
        top_k: i128,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        seed: i128,
    ) -> PyResult<Self> {
        let (top_k, seed) = (non_negative("top_k", top_k)?, non_negative("seed", seed)?);
        let sampling = Sampling::new(temperature, top_k, top_p, seed)?.with_min_p(min_p)?;
        Ok(Self(sampling.with_repetition_penalty(repetition_penalty)?))
    }

    #[getter]
    fn penalises(&self) -> bool {
        self.0.penalises()
    }

    #[pyo3(signature = (logits, index, text=None))]
    fn draw(
        &self,
        logits: &Bound<'_, PyAny>,
        index: u64,
        text: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        let logits = array::<f32>(logits, "logits")?.try_readonly()?;
        let scores = logits.as_slice()?;
        let drawn = match text {
            Some(text) if self.0.penalises() => {
                let mut seen = seen_tokens(text, scores.len())?;
                self.0.choose(&mut scores.to_vec(), index, &mut seen)
            }
            _ => self.0.draw(scores, index),
        };
        let TokenId(token) = drawn.ok_or(Error::NonFiniteLogits { row: 0 })?;
        Ok(token)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The distinct tokens of a `(tokens,) uint32` array, all below `vocab_size`.
fn seen_tokens(text: &Bound<'_, PyAny>, vocab_size: usize) -> PyResult<SeenTokens> {
    let mut seen = SeenTokens::default();
    for token in token_ids(text, "text")? {
        if token.0 as usize >= vocab_size {
            return Err(Error::TokenOutOfRange { token, vocab_size }.into());
        }
        seen.insert(token);
    }
    Ok(seen)
}
