//! `Sampling` for Python, and the tokens that a repetition penalty is on.

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::{array, non_negative, token_ids};
use super::errors::ShapeError;
use crate::error::Error;
use crate::ids::TokenId;
use crate::sampling::{Sampling, SeenTokens, check_vocab_size};

#[doc = stub_doc!("Sampling")]
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

    #[doc = stub_doc!("Sampling.penalises")]
    #[getter]
    fn penalises(&self) -> bool {
        self.0.penalises()
    }

    #[doc = stub_doc!("Sampling.draw")]
    #[pyo3(signature = (logits, index, seen=None))]
    fn draw(
        &self,
        logits: &Bound<'_, PyAny>,
        index: u64,
        seen: Option<PyRefMut<'_, PySeenTokens>>,
    ) -> PyResult<u32> {
        let logits = array::<f32>(logits, "logits")?.try_readonly()?;
        let scores = logits.as_slice()?;
        let drawn = match seen {
            Some(mut seen) if self.0.penalises() => {
                seen.check(scores.len())?;
                self.0.choose(&mut scores.to_vec(), index, &mut seen.core)
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

#[doc = stub_doc!("SeenTokens")]
#[pyclass(name = "SeenTokens", module = "coordgen_rs._core")]
pub struct PySeenTokens {
    core: SeenTokens,
    vocab_size: usize,
}

#[pymethods]
impl PySeenTokens {
    #[new]
    fn new(vocab_size: i128) -> PyResult<Self> {
        let vocab_size = non_negative("vocab_size", vocab_size)?;
        check_vocab_size(vocab_size)?;
        Ok(Self { core: SeenTokens::default(), vocab_size })
    }

    #[doc = stub_doc!("SeenTokens.extend")]
    fn extend(&mut self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tokens, vocab_size) = (token_ids(tokens, "tokens")?, self.vocab_size);
        if let Some(&token) = tokens.iter().find(|token| token.0 as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size }.into());
        }
        self.core.extend(&tokens);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.core.len()
    }
}

impl PySeenTokens {
    /// Fails when a row of so many scores is of another vocabulary.
    fn check(&self, num_scores: usize) -> PyResult<()> {
        if num_scores == self.vocab_size {
            return Ok(());
        }
        let message = format!(
            "logits have {num_scores} scores, the seen tokens' vocabulary {}",
            self.vocab_size
        );
        Err(ShapeError::new_err(message))
    }
}
