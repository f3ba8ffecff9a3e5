//! `LookupTable` and `DynamicTree` for Python.

use std::path::PathBuf;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use crate::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use crate::draft::sources::lookup_table::file::Owner;
use crate::draft::sources::lookup_table::{LookupTable, SharedTable};
use crate::error::Error;
use crate::ids::TokenId;
use crate::py::convert::{matrix, to_array, token_ids};
use crate::py::errors::{OptionError, ShapeError};
use crate::top_k::top_k;

#[doc = stub_doc!("LookupTable")]
#[pyclass(name = "LookupTable", module = "coordgen_rs._core", frozen)]
pub struct PyLookupTable {
    pub(crate) core: SharedTable,
}

fn owner(vocab_size: u32, key: &[u8]) -> PyResult<Owner> {
    let wrong = |_| OptionError::new_err(format!("key has {} bytes, but must have 32", key.len()));
    Ok(Owner { vocab_size, key: key.try_into().map_err(wrong)? })
}

#[pymethods]
impl PyLookupTable {
    #[new]
    #[pyo3(signature = (k=8, keep=0.5))]
    fn new(k: usize, keep: f32) -> PyResult<Self> {
        Ok(Self { core: SharedTable::new(LookupTable::new(k, keep)?) })
    }

    #[doc = stub_doc!("LookupTable.open")]
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, vocab_size: u32, key: &[u8]) -> PyResult<Self> {
        let owner = owner(vocab_size, key)?;
        let table = py.detach(|| LookupTable::open(&path, &owner))?;
        Ok(Self { core: SharedTable::new(table) })
    }

    #[doc = stub_doc!("LookupTable.save")]
    fn save(&self, py: Python<'_>, path: PathBuf, vocab_size: u32, key: &[u8]) -> PyResult<()> {
        let owner = owner(vocab_size, key)?;
        // A copy: drafters wait for the lock, and a disk takes its time.
        Ok(py.detach(|| {
            let table = self.core.lock().clone();
            table.save(&path, &owner)
        })?)
    }

    #[doc = stub_doc!("LookupTable.learn")]
    fn learn(&self, contexts: &Bound<'_, PyAny>, logits: &Bound<'_, PyAny>) -> PyResult<()> {
        let contexts = token_ids(contexts, "contexts")?;
        let (logits, rows, vocab_size) = matrix::<f32>(logits, "logits")?;
        if contexts.len() != rows {
            let message = format!("{} contexts for {rows} rows of logits", contexts.len());
            return Err(ShapeError::new_err(message));
        }
        if let Some(&token) = contexts.iter().find(|token| token.0 as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size }.into());
        }
        let array = logits.try_readonly()?;
        let scores = array.as_slice()?;
        let likely: Vec<_> =
            logits.py().detach(|| scores.chunks_exact(vocab_size).map_while(top_k).collect());
        if likely.len() < contexts.len() {
            return Err(Error::NonFiniteLogits { row: likely.len() }.into());
        }
        let mut table = self.core.lock();
        table.belong_to(vocab_size)?;
        for (&context, best) in contexts.iter().zip(&likely) {
            table.learn(context, best);
        }
        Ok(())
    }

    #[doc = stub_doc!("LookupTable.row")]
    fn row(&self, py: Python<'_>, context: u32) -> (Py<PyArray1<u32>>, Py<PyArray1<f32>>) {
        let row: Vec<_> = self.core.lock().row(TokenId(context)).collect();
        let probabilities = row.iter().map(|entry| entry.1).collect();
        let token_ids = to_array(py, row.iter().map(|entry| entry.0.0));
        (token_ids, PyArray1::from_vec(py, probabilities).unbind())
    }

    #[doc = stub_doc!("LookupTable.k")]
    #[getter]
    fn k(&self) -> usize {
        self.core.lock().k()
    }

    #[doc = stub_doc!("LookupTable.num_rows")]
    #[getter]
    fn num_rows(&self) -> usize {
        self.core.lock().num_rows()
    }

    #[doc = stub_doc!("LookupTable.memory_bytes")]
    fn memory_bytes(&self) -> usize {
        self.core.lock().memory_bytes()
    }
}

#[doc = stub_doc!("DynamicTree")]
#[pyclass(name = "DynamicTree", module = "coordgen_rs._core", frozen, from_py_object)]
#[derive(Clone, Copy)]
pub struct PyDynamicTree {
    pub(super) core: DynamicTreeOptions,
}

#[pymethods]
impl PyDynamicTree {
    #[new]
    #[pyo3(signature = (
        budget=None, *, depth_decay=0.8, width_decay=0.7, threshold=5e-3, update_interval=1
    ))]
    fn new(
        budget: Option<usize>,
        depth_decay: f32,
        width_decay: f32,
        threshold: f32,
        update_interval: usize,
    ) -> PyResult<Self> {
        let options =
            DynamicTreeOptions { budget, depth_decay, width_decay, threshold, update_interval };
        Ok(Self { core: options.checked()? })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.core)
    }
}
