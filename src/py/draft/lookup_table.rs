//! `LookupTable` and `DynamicTree` for Python.

use std::path::PathBuf;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use crate::draft::sources::lookup_table::file::Owner;
use crate::draft::sources::lookup_table::{LookupTable, SharedTable};
use crate::error::Error;
use crate::ids::TokenId;
use crate::logits::top_k::top_k;
use crate::py::convert::{self, Arg, NewArguments, matrix, to_array, token_ids};
use crate::py::errors::ShapeError;
use crate::py::interpreter::detached;

#[doc = stub_doc!("LookupTable")]
#[pyclass(name = "LookupTable", module = "coordgen_rs._core", frozen)]
pub struct PyLookupTable {
    pub(crate) core: SharedTable,
}

/// Token ids and probabilities.
type RowArrays = (Py<PyArray1<u32>>, Py<PyArray1<f32>>);

fn owner(vocab_size: u32, key: &[u8]) -> PyResult<Owner> {
    Ok(Owner { vocab_size, key: convert::key(key)? })
}

#[pymethods]
impl PyLookupTable {
    #[new]
    #[pyo3(
        signature = (k=Arg::Valid(8), keep=Arg::Valid(0.5)), text_signature = "(k=8, keep=0.5)"
    )]
    fn new(k: Arg<usize>, keep: Arg<f32>) -> PyResult<Self> {
        let table = LookupTable::new(k.named("k")?, keep.named("keep")?)?;
        Ok(Self { core: SharedTable::new(table) })
    }

    #[doc = stub_doc!("LookupTable.open")]
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, vocab_size: u32, key: &[u8]) -> PyResult<Self> {
        let owner = owner(vocab_size, key)?;
        let table = detached(py, || LookupTable::open(&path, &owner))?;
        Ok(Self { core: SharedTable::new(table) })
    }

    #[doc = stub_doc!("LookupTable.save")]
    fn save(&self, py: Python<'_>, path: PathBuf, vocab_size: u32, key: &[u8]) -> PyResult<()> {
        let owner = owner(vocab_size, key)?;
        // A copy: drafters wait for the lock, and a disk takes its time.
        Ok(detached(py, || {
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
            detached(logits.py(), || scores.chunks_exact(vocab_size).map_while(top_k).collect());
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
    fn row(&self, py: Python<'_>, context: Arg<u32>) -> PyResult<RowArrays> {
        let context = TokenId(context.named("context")?);
        let row: Vec<_> = self.core.lock().row(context).collect();
        let probabilities = row.iter().map(|entry| entry.1).collect();
        let token_ids = to_array(py, row.iter().map(|entry| entry.0.0));
        Ok((token_ids, PyArray1::from_vec(py, probabilities).unbind()))
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

    #[doc = stub_doc!("LookupTable.memory_of_tables")]
    fn memory_of_tables(&self) -> (usize, usize) {
        self.core.lock().memory_of_tables()
    }
}

#[doc = stub_doc!("DynamicTree")]
#[pyclass(name = "DynamicTree", module = "coordgen_rs._core", frozen, eq, from_py_object)]
#[derive(Clone, Copy, PartialEq)]
pub struct PyDynamicTree {
    pub(super) core: DynamicTreeOptions,
}

#[pymethods]
impl PyDynamicTree {
    #[new]
    #[pyo3(
        signature = (
            budget=Arg::Valid(None), *, counts_paths=Arg::Valid(false),
            depth_decay=Arg::Valid(0.8), width_decay=Arg::Valid(0.7),
            threshold=Arg::Valid(5e-3), update_interval=Arg::Valid(1)
        ),
        text_signature = "(budget=None, *, counts_paths=False, depth_decay=0.8, width_decay=0.7, \
            threshold=0.005, update_interval=1)"
    )]
    fn new(
        budget: Arg<Option<usize>>,
        counts_paths: Arg<bool>,
        depth_decay: Arg<f32>,
        width_decay: Arg<f32>,
        threshold: Arg<f32>,
        update_interval: Arg<usize>,
    ) -> PyResult<Self> {
        let options = DynamicTreeOptions {
            budget: budget.named("budget")?,
            counts_paths: counts_paths.named("counts_paths")?,
            depth_decay: depth_decay.named("depth_decay")?,
            width_decay: width_decay.named("width_decay")?,
            threshold: threshold.named("threshold")?,
            update_interval: update_interval.named("update_interval")?,
        };
        Ok(Self { core: options.checked()? })
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<NewArguments<'py>> {
        let (core, named) = (&self.core, PyDict::new(py));
        named.set_item("counts_paths", core.counts_paths)?;
        named.set_item("depth_decay", core.depth_decay)?;
        named.set_item("width_decay", core.width_decay)?;
        named.set_item("threshold", core.threshold)?;
        named.set_item("update_interval", core.update_interval)?;
        Ok((PyTuple::new(py, [core.budget])?, named))
    }

    fn __repr__(&self) -> String {
        let DynamicTreeOptions {
            budget,
            counts_paths,
            depth_decay,
            width_decay,
            threshold,
            update_interval,
        } = self.core;
        let budget = budget.map_or("None".into(), |budget| budget.to_string());
        let counts_paths = if counts_paths { "True" } else { "False" };
        format!(
            "DynamicTree({budget}, counts_paths={counts_paths}, depth_decay={depth_decay}, width_decay={width_decay}, \
             threshold={threshold}, update_interval={update_interval})"
        )
    }
}
