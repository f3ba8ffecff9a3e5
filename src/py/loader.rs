//! `Loader` for Python: a store that is a Python object, timetables as tuples, and waiting that
//! gives way to other threads and to signals.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::block_store::PyStore;
use super::errors::ShapeError;
use super::timetable::{ActionTuple, RunTuple, actions, graph, runs, timetable};
use crate::error::Result;
use crate::ids::BlockId;
use crate::load::block_store::BlockStore;
use crate::load::loader::{LoadReport, Loader};
use crate::load::profile::Graph;
use crate::load::timetable::{ActionKind, Timetable};

/// What was done since the last report, and what it cost.
#[pyclass(name = "LoadReport", module = "coordgen_rs._core", frozen, get_all)]
pub struct PyLoadReport {
    runs: Vec<RunTuple>,
    actions: Vec<ActionTuple>,
    exposed_us: u64,
    busy_us: u64,
    overlap_us: u64,
    peak_bytes: u64,
    num_under_other_graph: usize,
    failures: Vec<Py<PyAny>>,
    is_cancelled: bool,
}

/// Loads and releases graphs on a thread of its own while compute runs blocks.
#[pyclass(name = "Loader", module = "coordgen_rs._core", frozen)]
pub struct PyLoader {
    core: Arc<Loader>,
    store: Arc<PyStore>,
    num_blocks: usize,
}

impl PyLoader {
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Loader) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&self.core)).map_err(|error| self.store.exception(py, error))
    }

    fn finished(&self, py: Python<'_>) -> PyResult<LoadReport> {
        self.wait(py, Loader::finish)
    }

    /// Does the same to each of some graphs, at once.
    fn immediately(
        &self,
        py: Python<'_>,
        kind: ActionKind,
        graphs: &[(BlockId, Graph)],
    ) -> PyResult<()> {
        self.core.begin(Timetable::immediate(self.num_blocks, kind, graphs))?;
        match self.finished(py)?.failures.pop() {
            Some(failure) => Err(self.store.exception(py, failure)),
            None => Ok(()),
        }
    }

    fn report(&self, py: Python<'_>, report: LoadReport) -> PyLoadReport {
        let exception = |error| self.store.exception(py, error).into_value(py).into_any();
        PyLoadReport {
            runs: runs(&report.actual),
            actions: actions(&report.actual),
            exposed_us: report.exposed_us,
            busy_us: report.busy_us,
            overlap_us: report.overlap_us,
            peak_bytes: report.peak_bytes,
            num_under_other_graph: report.num_under_other_graph,
            failures: report.failures.into_iter().map(exception).collect(),
            is_cancelled: report.is_cancelled,
        }
    }
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (store, num_blocks, num_bytes=None))]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        num_blocks: usize,
        num_bytes: Option<Vec<(u64, u64)>>,
    ) -> PyResult<Self> {
        let num_bytes = num_bytes.unwrap_or_else(|| vec![(0, 0); num_blocks]);
        if num_bytes.len() != num_blocks {
            let message = format!("num_bytes is of {} blocks, not {num_blocks}", num_bytes.len());
            return Err(ShapeError::new_err(message));
        }
        let store = Arc::new(PyStore::new(store));
        let num_bytes = num_bytes.into_iter().map(<[u64; 2]>::from).collect();
        let core = Loader::new(Arc::clone(&store) as Arc<dyn BlockStore>, num_bytes)?;
        let core = Arc::new(core);
        close_at_exit(py, &core)?;
        Ok(Self { core, store, num_blocks })
    }

    fn begin(
        &self,
        runs: Vec<RunTuple<String>>,
        actions: Vec<ActionTuple<String>>,
    ) -> PyResult<()> {
        Ok(self.core.begin(timetable(self.num_blocks, runs, actions)?)?)
    }

    fn enter(&self, py: Python<'_>, block: u32) -> PyResult<&'static str> {
        Ok(self.wait(py, |core| core.enter(BlockId(block)))?.name())
    }

    fn try_enter(&self, py: Python<'_>, block: u32) -> PyResult<Option<&'static str>> {
        let entered = self.core.try_enter(BlockId(block));
        let graph = entered.map_err(|error| self.store.exception(py, error))?;
        Ok(graph.map(Graph::name))
    }

    fn leave(&self) -> PyResult<()> {
        Ok(self.core.leave()?)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<PyLoadReport> {
        let report = self.finished(py)?;
        Ok(self.report(py, report))
    }

    fn cancel(&self) {
        self.core.cancel();
    }

    fn ensure(&self, py: Python<'_>, block: u32, graph: &str) -> PyResult<()> {
        self.immediately(py, ActionKind::Load, &[(BlockId(block), self::graph(graph)?)])
    }

    fn release(&self, py: Python<'_>, block: u32, graph: &str) -> PyResult<()> {
        self.immediately(py, ActionKind::Release, &[(BlockId(block), self::graph(graph)?)])
    }

    fn release_all(&self, py: Python<'_>) -> PyResult<()> {
        let blocks = (0..self.num_blocks as u32).map(BlockId);
        let every = blocks.flat_map(|block| Graph::BOTH.map(|graph| (block, graph)));
        self.immediately(py, ActionKind::Release, &every.collect::<Vec<_>>())
    }

    fn resident(&self) -> Vec<(bool, bool)> {
        self.core.resident().into_iter().map(<(bool, bool)>::from).collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.core.close());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.store.traverse(&visit)
    }
}

impl Drop for PyLoader {
    fn drop(&mut self) {
        // The thread may want the interpreter for the action under way.
        Python::attach(|py| py.detach(|| self.core.close()));
    }
}

/// Closes `loader`, if it is still there, before the interpreter goes away under its thread.
fn close_at_exit(py: Python<'_>, loader: &Arc<Loader>) -> PyResult<()> {
    static OPEN: Mutex<Option<Vec<Weak<Loader>>>> = Mutex::new(None);
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = all.is_none();
    let open = all.get_or_insert_default();
    open.retain(|loader| loader.strong_count() > 0);
    open.push(Arc::downgrade(loader));
    drop(all);
    if is_first {
        let name: Option<&CStr> = Some(c"close_loaders");
        let close = |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).take();
            let open = open.unwrap_or_default();
            let close = || open.iter().filter_map(Weak::upgrade).for_each(|loader| loader.close());
            arguments.py().detach(close);
        };
        let close = PyCFunction::new_closure(py, name, None, close)?;
        py.import("atexit")?.call_method1("register", (close,))?;
    }
    Ok(())
}
