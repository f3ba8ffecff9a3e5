//! `Switcher` for Python: a store that is a Python object, and waiting that gives way to other
//! threads and to signals.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::block_cost::{PyBlockCost, profile};
use super::block_store::PyStore;
use super::plan::{PyPlan, graph};
use crate::error::Result;
use crate::ids::{BlockId, Graph};
use crate::load::BlockStore;
use crate::load::loader::{SimulatedClock, Worker};
use crate::load::plan::Strategy;
use crate::load::switcher::{SwitchReport, Switcher};
use crate::locks;
use crate::py::convert::non_negative;
use crate::py::interpreter::detached_to_wait;

#[doc = stub_doc!("SwitchReport")]
#[pyclass(name = "SwitchReport", module = "coordgen_rs._core", frozen, get_all)]
pub struct PySwitchReport {
    strategy: &'static str,
    planned: Option<Py<PyPlan>>,
    exposed_us: u64,
    load_us: u64,
    overlap_us: u64,
    peak_bytes: u64,
    num_under_other_graph: usize,
    failures: Vec<Py<PyAny>>,
}

impl PySwitchReport {
    fn of(py: Python<'_>, report: SwitchReport, store: &PyStore) -> PyResult<Self> {
        let strategy = report.strategy();
        let loads = report.loads;
        let exception = |error| store.exception(py, error).into_value(py).into_any();
        Ok(Self {
            strategy,
            planned: report.planned.map(|core| Py::new(py, PyPlan { core })).transpose()?,
            exposed_us: loads.exposed_us,
            load_us: loads.busy_us,
            overlap_us: loads.overlap_us,
            peak_bytes: loads.peak_bytes,
            num_under_other_graph: loads.num_under_other_graph,
            failures: loads.failures.into_iter().map(exception).collect(),
        })
    }
}

#[pymethods]
impl PySwitchReport {
    #[doc = stub_doc!("SwitchReport.to_json")]
    fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let planned = self.planned.as_ref().map(|plan| plan.get().figures(py)).transpose()?;
        let failures = self.failures.iter().map(|failure| failure.bind(py).str());
        let json = PyDict::new(py);
        json.set_item("strategy", self.strategy)?;
        json.set_item("planned", planned)?;
        json.set_item("exposed_us", self.exposed_us)?;
        json.set_item("load_us", self.load_us)?;
        json.set_item("overlap_us", self.overlap_us)?;
        json.set_item("peak_bytes", self.peak_bytes)?;
        json.set_item("num_under_other_graph", self.num_under_other_graph)?;
        json.set_item("failures", failures.collect::<PyResult<Vec<_>>>()?)?;
        Ok(json)
    }

    /// A failure may hold, by its traceback, what holds the report.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.failures.iter().try_for_each(|failure| visit.call(failure))
    }
}

#[doc = stub_doc!("SimulatedClock")]
#[pyclass(name = "SimulatedClock", module = "coordgen_rs._core", frozen)]
#[derive(Default)]
pub struct PySimulatedClock {
    core: Arc<SimulatedClock>,
}

#[pymethods]
impl PySimulatedClock {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[doc = stub_doc!("SimulatedClock.now_us")]
    #[getter]
    fn now_us(&self) -> u64 {
        self.core.now_us()
    }

    #[doc = stub_doc!("SimulatedClock.seconds")]
    fn seconds(&self) -> f64 {
        self.core.now_us() as f64 / 1e6
    }

    #[doc = stub_doc!("SimulatedClock.advance")]
    fn advance(&self, us: i128) -> PyResult<()> {
        self.core.advance(non_negative("us", us)?);
        Ok(())
    }
}

#[doc = stub_doc!("Switcher")]
#[pyclass(name = "Switcher", module = "coordgen_rs._core", frozen)]
pub struct PySwitcher {
    core: Arc<Switcher>,
    store: Arc<PyStore>,
}

impl PySwitcher {
    /// The switcher, unless this is a fork of its process.
    pub(crate) fn core(&self) -> Result<&Switcher> {
        self.core.check_process()?;
        Ok(&self.core)
    }

    /// Calls what may wait without the interpreter; meanwhile signals get their turn.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Switcher) -> Result<T> + Send,
    ) -> PyResult<T> {
        detached_to_wait(py, || call(&self.core)).map_err(|error| self.store.exception(py, error))
    }

    /// The name of the graph that a block was entered under. A signal that came meanwhile has its
    /// turn here: once this returns, its handler would raise before the caller can leave the block.
    fn entered(&self, py: Python<'_>, graph: Graph) -> PyResult<&'static str> {
        py.check_signals().inspect_err(|_| self.core.abandon())?;
        Ok(graph.name())
    }
}

fn settled(strategy: &str, memory_budget: Option<i128>) -> Result<(Strategy, Option<u64>)> {
    let bytes = memory_budget.map(|bytes| non_negative("memory_budget", bytes)).transpose()?;
    Ok((Strategy::named(strategy)?, bytes))
}

#[pymethods]
impl PySwitcher {
    #[new]
    #[pyo3(signature = (
        store, costs, prefill_rows, decode_rows, *, is_shared = false, strategy = "auto",
        memory_budget = None, clock = None
    ))]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        costs: Vec<PyBlockCost>,
        prefill_rows: i128,
        decode_rows: i128,
        is_shared: bool,
        strategy: &str,
        memory_budget: Option<i128>,
        clock: Option<Py<PySimulatedClock>>,
    ) -> PyResult<Self> {
        let (strategy, memory_budget) = settled(strategy, memory_budget)?;
        let profile = profile(costs, prefill_rows, decode_rows)?;
        let store = Arc::new(PyStore::new(store));
        let of_core = Arc::clone(&store) as Arc<dyn BlockStore>;
        let core = Arc::new(match clock {
            None => Switcher::new(of_core, profile, is_shared)?,
            Some(clock) => {
                let costs = profile.blocks().to_vec();
                let load_us =
                    move |block: BlockId, graph| costs[block.index()].under(graph).load_us;
                let clock = Arc::clone(&clock.get().core);
                Switcher::simulated(of_core, profile, is_shared, clock, Box::new(load_us))
            }
        });
        core.settle(strategy, memory_budget);
        close_at_exit(py, &core)?;
        Ok(Self { core, store })
    }

    #[doc = stub_doc!("Switcher.settle")]
    #[pyo3(signature = (strategy = "auto", memory_budget = None))]
    fn settle(&self, strategy: &str, memory_budget: Option<i128>) -> PyResult<()> {
        let (strategy, memory_budget) = settled(strategy, memory_budget)?;
        self.core()?.settle(strategy, memory_budget);
        Ok(())
    }

    #[doc = stub_doc!("Switcher.costs")]
    #[getter]
    fn costs(&self) -> Result<Vec<PyBlockCost>> {
        Ok(self.core()?.costs().into_iter().map(PyBlockCost::from).collect())
    }

    #[doc = stub_doc!("Switcher.memory_budget")]
    #[getter]
    fn memory_budget(&self) -> Result<Option<u64>> {
        Ok(self.core()?.memory_budget())
    }

    #[doc = stub_doc!("Switcher.keeps_both")]
    #[getter]
    fn keeps_both(&self) -> Result<bool> {
        Ok(self.core()?.keeps_both())
    }

    #[doc = stub_doc!("Switcher.is_streaming")]
    #[getter]
    fn is_streaming(&self) -> Result<bool> {
        Ok(self.core()?.is_streaming())
    }

    #[doc = stub_doc!("Switcher.resident")]
    fn resident(&self) -> Result<Vec<(bool, bool)>> {
        Ok(self.core()?.resident().into_iter().map(<(bool, bool)>::from).collect())
    }

    #[doc = stub_doc!("Switcher.ensure")]
    #[pyo3(signature = (*graphs))]
    fn ensure(&self, py: Python<'_>, graphs: Vec<String>) -> PyResult<()> {
        let graphs: Vec<_> = graphs.iter().map(|name| graph(name)).collect::<PyResult<_>>()?;
        self.wait(py, |core| core.ensure(&graphs))
    }

    #[doc = stub_doc!("Switcher.only")]
    fn only(&self, py: Python<'_>, graph: &str) -> PyResult<()> {
        let graph = self::graph(graph)?;
        self.wait(py, |core| core.only(graph))
    }

    #[doc = stub_doc!("Switcher.step_graph")]
    fn step_graph(&self, py: Python<'_>, block: u32) -> PyResult<&'static str> {
        // What need not be waited for is not worth letting go of the interpreter.
        let graph = match self.core.held_graph(BlockId(block)) {
            Some(graph) => graph,
            None => self.wait(py, |core| core.step_graph(BlockId(block)))?,
        };
        Ok(graph.name())
    }

    #[doc = stub_doc!("Switcher.begin")]
    fn begin(&self, py: Python<'_>, num_tokens: i128) -> PyResult<()> {
        let num_tokens = non_negative("the number of prompt tokens", num_tokens)?;
        self.wait(py, |core| core.begin(num_tokens))
    }

    #[doc = stub_doc!("Switcher.stand_by")]
    fn stand_by(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, Switcher::stand_by)
    }

    #[doc = stub_doc!("Switcher.begin_pass")]
    fn begin_pass(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, Switcher::begin_pass)
    }

    #[doc = stub_doc!("Switcher.enter")]
    fn enter(&self, py: Python<'_>, block: u32) -> PyResult<&'static str> {
        match self.try_enter(py, block)? {
            Some(graph) => Ok(graph),
            None => {
                let graph = self.wait(py, |core| core.enter(BlockId(block)))?;
                self.entered(py, graph)
            }
        }
    }

    #[doc = stub_doc!("Switcher.wait_us")]
    fn wait_us(&self, block: u32) -> PyResult<u64> {
        Ok(self.core.wait_us(BlockId(block))?)
    }

    #[doc = stub_doc!("Switcher.try_enter")]
    fn try_enter(&self, py: Python<'_>, block: u32) -> PyResult<Option<&'static str>> {
        let entered = self.core.try_enter(BlockId(block));
        let graph = entered.map_err(|error| self.store.exception(py, error))?;
        graph.map(|graph| self.entered(py, graph)).transpose()
    }

    #[doc = stub_doc!("Switcher.leave")]
    fn leave(&self) -> PyResult<()> {
        Ok(self.core.leave()?)
    }

    #[doc = stub_doc!("Switcher.cancel")]
    fn cancel(&self) {
        self.core.cancel();
    }

    #[doc = stub_doc!("Switcher.finish")]
    fn finish(&self, py: Python<'_>) -> PyResult<PySwitchReport> {
        let report = self.wait(py, Switcher::finish)?;
        PySwitchReport::of(py, report, &self.store)
    }

    #[doc = stub_doc!("Switcher.close")]
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.core.close());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.store.traverse(&visit)
    }
}

impl Drop for PySwitcher {
    fn drop(&mut self) {
        // The thread may want the interpreter for the action under way.
        Python::attach(|py| py.detach(|| self.core.close()));
    }
}

/// A switcher, and its thread, which goes on for a while where the store dropped the switcher.
type Open = (Weak<Switcher>, Arc<Worker>);

/// Closes `switcher`, if it is still there, and waits for its thread, before the interpreter goes away
/// under that.
fn close_at_exit(py: Python<'_>, switcher: &Arc<Switcher>) -> PyResult<()> {
    static OPEN: Mutex<Option<Vec<Open>>> = Mutex::new(None);
    let mut all = locks::lock(&OPEN);
    let is_first = all.is_none();
    let open = all.get_or_insert_default();
    open.retain(|(_, worker)| !worker.has_ended());
    open.push((Arc::downgrade(switcher), Arc::clone(switcher.worker())));
    drop(all);
    if is_first {
        let name: Option<&CStr> = Some(c"close_switchers");
        let close = |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            let open = locks::lock(&OPEN).take();
            let close = |(switcher, worker): Open| {
                if let Some(switcher) = switcher.upgrade() {
                    switcher.close();
                }
                worker.join();
            };
            arguments.py().detach(|| open.unwrap_or_default().into_iter().for_each(close));
        };
        let close = PyCFunction::new_closure(py, name, None, close)?;
        py.import("atexit")?.call_method1("register", (close,))?;
    }
    Ok(())
}
