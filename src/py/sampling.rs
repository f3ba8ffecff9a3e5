//! `Sampling` for Python.

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::{array, non_negative};
use crate::error::Error;
use crate::ids::TokenId;
use crate::sampling::Sampling;

/// How the target's tokens are drawn from its logits.
#[pyclass(name = "Sampling", module = "coordgen_rs._core", frozen, eq, from_py_object)]
#[derive(Clone, Copy, PartialEq)]
pub struct PySampling(pub Sampling);

#[pymethods]
impl PySampling {
    #[new]
    #[pyo3(signature = (temperature=1.0, *, top_k=0, top_p=1.0, seed=0))]
    fn new(temperature: f32, top_k: i128, top_p: f32, seed: i128) -> PyResult<Self> {
        let top_k = non_negative("top_k", top_k)?;
        Ok(Self(Sampling::new(temperature, top_k, top_p, non_negative("seed", seed)?)?))
    }

    fn draw(&self, logits: &Bound<'_, PyAny>, index: u64) -> PyResult<u32> {
        let logits = array::<f32>(logits, "logits")?.try_readonly()?;
        let drawn = self.0.draw(logits.as_slice()?, index);
        let TokenId(token) = drawn.ok_or(Error::NonFiniteLogits { row: 0 })?;
        Ok(token)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
