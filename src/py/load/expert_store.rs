//! `ExpertStore` for Python: its memory as arrays, and what it has done.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Error, Result};
use crate::load::experts::shape::{LayerShape, Shape, Shares};
use crate::load::experts::store::{Budget, ExpertStore, Region, StoreReport};
use crate::py::convert::non_negative;

#[doc = stub_doc!("ExpertStore")]
#[pyclass(name = "ExpertStore", module = "coordgen_rs._core", frozen)]
pub struct PyExpertStore {
    core: Arc<ExpertStore>,
    num_layers: usize,
}

#[pymethods]
impl PyExpertStore {
    #[new]
    #[pyo3(signature = (files, regions, *, budget = None, num_threads = 4, keep_cached = true))]
    fn new(
        py: Python<'_>,
        files: Vec<PathBuf>,
        regions: Vec<(usize, u64, usize, u64)>,
        budget: Option<i128>,
        num_threads: i128,
        keep_cached: bool,
    ) -> PyResult<Self> {
        let region =
            |(file, offset, num_experts, stride)| Region { file, offset, num_experts, stride };
        let regions: Vec<_> = regions.into_iter().map(region).collect();
        let num_threads = non_negative("num_threads", num_threads)?;
        let is_forgotten = !keep_cached;
        let budget = budget.map(|bytes| non_negative("budget", bytes)).transpose()?;
        let budget = budget.map(|num_bytes| Budget { num_bytes, num_threads, is_forgotten });
        let num_layers = regions.len();
        let core = py.detach(|| ExpertStore::open(&files, regions, budget))?;
        Ok(Self { core, num_layers })
    }

    #[doc = stub_doc!("ExpertStore.array")]
    fn array<'py>(slf: Bound<'py, Self>, layer: usize) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let this = slf.get();
        this.check_layer(layer)?;
        let view = ArrayView1::from(this.core.memory(layer));
        #[expect(unsafe_code, reason = "memory that this object keeps is lent to an array")]
        // SAFETY: the array holds the object, which holds the mapping at this place; it is made
        // read-only before anybody has it.
        let array = unsafe { PyArray1::borrow_from_array(&view, slf.clone().into_any()) };
        array.call_method1("setflags", (false,))?;
        debug_assert_eq!(array.len(), view.len());
        Ok(array)
    }

    #[doc = stub_doc!("ExpertStore.bring")]
    fn bring(
        &self,
        py: Python<'_>,
        layer: usize,
        chosen: Vec<i32>,
        per_row: usize,
    ) -> PyResult<()> {
        self.check_layer(layer)?;
        let num_experts = self.core.num_experts(layer);
        let is_known = |&expert: &i32| usize::try_from(expert).is_ok_and(|it| it < num_experts);
        if per_row == 0 || !chosen.len().is_multiple_of(per_row) || !chosen.iter().all(is_known) {
            let (what, must) =
                ("what rows have chosen", "numbers of experts, as many for each row");
            return Err(Error::BadOption { what, got: format!("{chosen:?}"), must }.into());
        }
        Ok(py.detach(|| self.core.hold(layer, &chosen, per_row).map(drop))?)
    }

    #[doc = stub_doc!("ExpertStore.num_read")]
    #[getter]
    fn num_read(&self) -> (u64, u64) {
        self.core.num_read()
    }

    #[doc = stub_doc!("ExpertStore.take_failure")]
    fn take_failure(&self) -> Option<String> {
        self.core.take_failure().map(|failure| failure.to_string())
    }

    #[doc = stub_doc!("ExpertStore.report")]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let StoreReport { counts, waited_us, held_bytes } = self.core.report();
        let report = PyDict::new(py);
        report.set_item("asked", counts.asked)?;
        report.set_item("misses", counts.misses)?;
        report.set_item("read_bytes", counts.read_bytes)?;
        report.set_item("waited_us", waited_us)?;
        report.set_item("ahead", counts.ahead)?;
        report.set_item("ahead_used", counts.ahead_used)?;
        report.set_item("ahead_wasted", counts.ahead_wasted)?;
        report.set_item("wasted_bytes", counts.wasted_bytes)?;
        report.set_item("held_bytes", held_bytes)?;
        Ok(report)
    }
}

impl PyExpertStore {
    fn check_layer(&self, layer: usize) -> Result<()> {
        if layer < self.num_layers {
            return Ok(());
        }
        let (what, must) = ("the layer", "one of the store's");
        Err(Error::BadOption { what, got: layer.to_string(), must })
    }
}

#[doc = stub_doc!("memory_shares")]
#[pyfunction]
pub fn memory_shares(
    memory_budget: i128,
    graph_bytes: Vec<u64>,
    layers: Vec<(usize, u64)>,
) -> PyResult<(u64, u64)> {
    let layer = |(num_experts, num_bytes)| LayerShape { num_experts, num_bytes };
    let shape = Shape::new(layers.into_iter().map(layer).collect())?;
    let budget = non_negative("memory_budget", memory_budget)?;
    let Shares { graphs, experts } = Shares::of(budget, &graph_bytes, &shape)?;
    Ok((graphs, experts))
}
