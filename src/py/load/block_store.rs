//! A block store that is a Python object. In: its `load` and `release`. Out: the core's trait, and
//! the core's errors as exceptions that are caused by what the object raised.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::error::Error;
use crate::ids::{BlockId, Graph};
use crate::load::BlockStore;
use crate::locks;

/// Python's `load(block, graph)` and `release(block, graph)`, attached only while they are called.
pub struct PyStore {
    object: Py<PyAny>,
    raised: Mutex<Raised>,
}

/// What Python raised while the core was at work.
#[derive(Default)]
struct Raised {
    /// By the last load of a graph.
    by_load: HashMap<(BlockId, Graph), Py<PyBaseException>>,
    /// By a signal's handler, while something waited.
    by_signal: Option<Py<PyBaseException>>,
}

impl PyStore {
    /// A store whose loads and releases are those of `object`.
    pub fn new(object: Py<PyAny>) -> Self {
        Self { object, raised: Mutex::default() }
    }

    /// `error` as an exception: caused by what the store raised, or what a signal's handler raised.
    pub fn exception(&self, py: Python<'_>, error: Error) -> PyErr {
        let cause = match error {
            Error::WaitInterrupted => match self.raised().by_signal.take() {
                Some(raised) => return PyErr::from_value(raised.into_bound(py).into_any()),
                None => None,
            },
            Error::LoadFailed { block, graph, .. } => {
                self.raised().by_load.get(&(block, graph)).map(|raised| raised.clone_ref(py))
            }
            _ => None,
        };
        let cause = cause.map(|raised| PyErr::from_value(raised.into_bound(py).into_any()));
        let exception = PyErr::from(error);
        exception.set_cause(py, cause);
        exception
    }

    /// For the garbage collector: a store may hold what holds it, and so may what it raised, by its
    /// traceback.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)?;
        // Where another thread is about to change them, they are seen next time.
        let Ok(raised) = self.raised.try_lock() else { return Ok(()) };
        raised.by_load.values().chain(&raised.by_signal).try_for_each(|raised| visit.call(raised))
    }

    fn raised(&self) -> MutexGuard<'_, Raised> {
        locks::lock(&self.raised)
    }
}

impl BlockStore for PyStore {
    fn load(&self, block: BlockId, graph: Graph) -> Result<(), String> {
        let called = Python::try_attach(|py| {
            let loaded = self.object.call_method1(py, "load", (block.0, graph.name()));
            let raised = loaded.err();
            let reason = raised.as_ref().map(PyErr::to_string);
            let raised = raised.map(|raised| raised.into_value(py));
            let mut all = self.raised();
            let before = match raised {
                Some(raised) => all.by_load.insert((block, graph), raised),
                None => all.by_load.remove(&(block, graph)),
            };
            drop(all); // before an exception's own end, which may run any Python
            drop(before);
            reason.map_or(Ok(()), Err)
        });
        called.unwrap_or_else(|| Err("the interpreter is shutting down".to_owned()))
    }

    fn release(&self, block: BlockId, graph: Graph) {
        Python::try_attach(|py| {
            let arguments = (block.0, graph.name());
            if let Err(raised) = self.object.call_method1(py, "release", arguments) {
                raised.write_unraisable(py, Some(self.object.bind(py)));
            }
        });
    }

    /// Lets signal handlers have their turn; one that raises ends the wait.
    fn keep_waiting(&self) -> bool {
        Python::try_attach(|py| match py.check_signals() {
            Ok(()) => true,
            Err(raised) => {
                let before = self.raised().by_signal.replace(raised.into_value(py));
                drop(before);
                false
            }
        })
        .unwrap_or(false)
    }
}
