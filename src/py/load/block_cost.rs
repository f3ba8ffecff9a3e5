//! `BlockCost` for Python: what one block costs, with every figure by its name.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::Result;
use crate::load::profile::{BlockCost, GraphCost, Profile};
use crate::py::convert::{NewArguments, non_negative};

#[doc = stub_doc!("BlockCost")]
#[pyclass(name = "BlockCost", module = "coordgen_rs._core", frozen, eq, from_py_object, get_all)]
#[derive(Clone, Copy, PartialEq)]
pub struct PyBlockCost {
    prefill_load_us: u64,
    prefill_compute_us: u64,
    prefill_bytes: u64,
    decode_load_us: u64,
    decode_compute_us: u64,
    decode_bytes: u64,
}

impl From<BlockCost> for PyBlockCost {
    fn from(BlockCost { prefill, decode }: BlockCost) -> Self {
        Self {
            prefill_load_us: prefill.load_us,
            prefill_compute_us: prefill.compute_us,
            prefill_bytes: prefill.num_bytes,
            decode_load_us: decode.load_us,
            decode_compute_us: decode.compute_us,
            decode_bytes: decode.num_bytes,
        }
    }
}

impl From<PyBlockCost> for BlockCost {
    fn from(cost: PyBlockCost) -> Self {
        let graph = |load_us, compute_us, num_bytes| GraphCost { load_us, compute_us, num_bytes };
        Self {
            prefill: graph(cost.prefill_load_us, cost.prefill_compute_us, cost.prefill_bytes),
            decode: graph(cost.decode_load_us, cost.decode_compute_us, cost.decode_bytes),
        }
    }
}

impl PyBlockCost {
    /// Its figures by their names.
    fn figures(&self) -> [(&'static str, u64); 6] {
        [
            ("prefill_load_us", self.prefill_load_us),
            ("prefill_compute_us", self.prefill_compute_us),
            ("prefill_bytes", self.prefill_bytes),
            ("decode_load_us", self.decode_load_us),
            ("decode_compute_us", self.decode_compute_us),
            ("decode_bytes", self.decode_bytes),
        ]
    }
}

/// A profile from the costs of its blocks.
pub fn profile(blocks: Vec<PyBlockCost>, prefill_rows: i128, decode_rows: i128) -> Result<Profile> {
    Profile::new(
        blocks.into_iter().map(BlockCost::from).collect(),
        non_negative("prefill_rows", prefill_rows)?,
        non_negative("decode_rows", decode_rows)?,
    )
}

#[pymethods]
impl PyBlockCost {
    #[new]
    #[pyo3(signature = (
        *, prefill_load_us, prefill_compute_us, prefill_bytes, decode_load_us, decode_compute_us,
        decode_bytes
    ))]
    fn new(
        prefill_load_us: i128,
        prefill_compute_us: i128,
        prefill_bytes: i128,
        decode_load_us: i128,
        decode_compute_us: i128,
        decode_bytes: i128,
    ) -> PyResult<Self> {
        Ok(Self {
            prefill_load_us: non_negative("prefill_load_us", prefill_load_us)?,
            prefill_compute_us: non_negative("prefill_compute_us", prefill_compute_us)?,
            prefill_bytes: non_negative("prefill_bytes", prefill_bytes)?,
            decode_load_us: non_negative("decode_load_us", decode_load_us)?,
            decode_compute_us: non_negative("decode_compute_us", decode_compute_us)?,
            decode_bytes: non_negative("decode_bytes", decode_bytes)?,
        })
    }

    #[doc = stub_doc!("BlockCost.guessed")]
    #[staticmethod]
    #[pyo3(signature = (num_bytes, prefill_rows, decode_rows, *, expert_bytes = 0))]
    fn guessed(
        num_bytes: i128,
        prefill_rows: i128,
        decode_rows: i128,
        expert_bytes: i128,
    ) -> PyResult<Self> {
        let guessed = BlockCost::guessed(
            non_negative("num_bytes", num_bytes)?,
            non_negative("expert_bytes", expert_bytes)?,
            non_negative("prefill_rows", prefill_rows)?,
            non_negative("decode_rows", decode_rows)?,
        );
        Ok(guessed.into())
    }

    #[doc = stub_doc!("BlockCost.with_load_delay")]
    fn with_load_delay(&self, delay_us: i128) -> PyResult<Self> {
        Ok(BlockCost::from(*self).with_load_delay(non_negative("delay_us", delay_us)?).into())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<NewArguments<'py>> {
        let named = PyDict::new(py);
        for (name, figure) in self.figures() {
            named.set_item(name, figure)?;
        }
        Ok((PyTuple::empty(py), named))
    }

    fn __repr__(&self) -> String {
        let figures = self.figures().map(|(name, figure)| format!("{name}={figure}"));
        format!("BlockCost({})", figures.join(", "))
    }
}
