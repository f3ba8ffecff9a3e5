//! `BlockCost` for Python: what one block costs, with every figure by its name.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::Result;
use crate::load::profile::{BlockCost, GraphCost, Profile};
use crate::py::convert::{NewArguments, non_negative};

#[doc = stub_doc!("BlockCost")]
#[pyclass(name = "BlockCost", module = "coordgen_rs._core", frozen, eq, from_py_object)]
#[derive(Clone, Copy, PartialEq)]
pub struct PyBlockCost {
    core: BlockCost,
}

impl From<BlockCost> for PyBlockCost {
    fn from(core: BlockCost) -> Self {
        Self { core }
    }
}

/// A profile from the costs of its blocks.
pub fn profile(blocks: Vec<PyBlockCost>, prefill_rows: i128, decode_rows: i128) -> Result<Profile> {
    Profile::new(
        blocks.into_iter().map(|block| block.core).collect(),
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
        let prefill = GraphCost {
            load_us: non_negative("prefill_load_us", prefill_load_us)?,
            compute_us: non_negative("prefill_compute_us", prefill_compute_us)?,
            num_bytes: non_negative("prefill_bytes", prefill_bytes)?,
        };
        let decode = GraphCost {
            load_us: non_negative("decode_load_us", decode_load_us)?,
            compute_us: non_negative("decode_compute_us", decode_compute_us)?,
            num_bytes: non_negative("decode_bytes", decode_bytes)?,
        };
        Ok(Self { core: BlockCost { prefill, decode } })
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
        Ok(Self {
            core: BlockCost::guessed(
                non_negative("num_bytes", num_bytes)?,
                non_negative("expert_bytes", expert_bytes)?,
                non_negative("prefill_rows", prefill_rows)?,
                non_negative("decode_rows", decode_rows)?,
            ),
        })
    }

    #[doc = stub_doc!("BlockCost.with_load_delay")]
    fn with_load_delay(&self, delay_us: i128) -> PyResult<Self> {
        Ok(Self { core: self.core.with_load_delay(non_negative("delay_us", delay_us)?) })
    }

    #[getter]
    fn prefill_load_us(&self) -> u64 {
        self.core.prefill.load_us
    }

    #[getter]
    fn prefill_compute_us(&self) -> u64 {
        self.core.prefill.compute_us
    }

    #[getter]
    fn prefill_bytes(&self) -> u64 {
        self.core.prefill.num_bytes
    }

    #[getter]
    fn decode_load_us(&self) -> u64 {
        self.core.decode.load_us
    }

    #[getter]
    fn decode_compute_us(&self) -> u64 {
        self.core.decode.compute_us
    }

    #[getter]
    fn decode_bytes(&self) -> u64 {
        self.core.decode.num_bytes
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<NewArguments<'py>> {
        let named = PyDict::new(py);
        for (name, figure) in [
            ("prefill_load_us", self.prefill_load_us()),
            ("prefill_compute_us", self.prefill_compute_us()),
            ("prefill_bytes", self.prefill_bytes()),
            ("decode_load_us", self.decode_load_us()),
            ("decode_compute_us", self.decode_compute_us()),
            ("decode_bytes", self.decode_bytes()),
        ] {
            named.set_item(name, figure)?;
        }
        Ok((PyTuple::empty(py), named))
    }

    fn __repr__(&self) -> String {
        let graph = |name: &str, cost: &GraphCost| {
            format!(
                "{name}_load_us={}, {name}_compute_us={}, {name}_bytes={}",
                cost.load_us, cost.compute_us, cost.num_bytes
            )
        };
        let (prefill, decode) = (&self.core.prefill, &self.core.decode);
        format!("BlockCost({}, {})", graph("prefill", prefill), graph("decode", decode))
    }
}
