//! `Streaming` for Python.

use pyo3::prelude::*;

use super::convert::non_negative;
use super::timetable::{ActionTuple, BlockFigures, RunTuple, actions, profile, runs};
use crate::load::stream::Streaming;

/// Which blocks of a target that does not fit are streamed, and how far ahead.
#[pyclass(name = "Streaming", module = "coordgen_rs._core", frozen)]
pub struct PyStreaming {
    core: Streaming,
}

#[pymethods]
impl PyStreaming {
    #[new]
    fn new(blocks: Vec<BlockFigures>, memory_budget: i128) -> PyResult<Self> {
        let profile = profile(blocks, 1, 1)?;
        let budget = non_negative("memory_budget", memory_budget)?;
        Ok(Self { core: Streaming::within(budget, &profile)? })
    }

    #[getter]
    fn streamed(&self) -> Vec<u32> {
        self.core.streamed().iter().map(|block| block.0).collect()
    }

    #[getter]
    fn at_start(&self) -> Vec<u32> {
        self.core.at_start().iter().map(|block| block.0).collect()
    }

    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.core.peak_bytes()
    }

    #[getter]
    fn runs(&self) -> Vec<RunTuple> {
        runs(self.core.pass())
    }

    #[getter]
    fn actions(&self) -> Vec<ActionTuple> {
        actions(self.core.pass())
    }
}
