//! `StepInputs` for Python: the session's own numpy buffers, filled in place.

use numpy::npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE};
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::convert::{array, integers, matrix, token_ids};
use super::errors::{OptionError, ShapeError};
use crate::error::Result;
use crate::tree::draft_tree::DraftTree;
use crate::tree::step_inputs::{PathBuffers, StepBuffers, StepInputs};

#[doc = stub_doc!("StepInputs")]
#[pyclass(name = "StepInputs", module = "coordgen_rs._core")]
pub struct PyStepInputs {
    pub(super) core: StepInputs,
    #[doc = stub_doc!("StepInputs.input_ids")]
    #[pyo3(get)]
    input_ids: Py<PyArrayDyn<i64>>,
    #[doc = stub_doc!("StepInputs.position_ids")]
    #[pyo3(get)]
    position_ids: Py<PyArrayDyn<i64>>,
    #[doc = stub_doc!("StepInputs.mask")]
    #[pyo3(get)]
    mask: Option<Py<PyArrayDyn<f32>>>,
    /// Until a drafter takes it.
    pub(super) experts_read: Option<(f32, f32)>,
    /// Parents, lengths, span.
    path: Option<[Py<PyArrayDyn<i32>>; 3]>,
    /// Where the buffers stood when all of them could be written at once; `None` if they could not.
    apart_at: Option<[usize; 6]>,
}

impl PyStepInputs {
    /// Fills the buffers for verifying `tree`.
    pub fn fill_tree(&mut self, py: Python<'_>, tree: &DraftTree, past_len: usize) -> PyResult<()> {
        self.with_buffers(py, |core, buffers| core.fill(tree, past_len, buffers))
    }

    /// Fills the buffers for reading the nodes of `tree` from `first` on.
    pub fn fill_from(
        &mut self,
        py: Python<'_>,
        tree: &DraftTree,
        first: usize,
        past_len: usize,
    ) -> PyResult<()> {
        self.with_buffers(py, |core, buffers| core.fill_from(tree, first, past_len, buffers))
    }

    /// Fails where filling the buffers would: when they share memory, or one is read-only.
    pub fn check_writeable(&mut self, py: Python<'_>) -> PyResult<()> {
        self.with_buffers(py, |_, _| Ok(()))
    }

    /// Lends the buffers to `fill`. Fails when they share memory, or one is read-only.
    ///
    /// Both are looked up in numpy's table of borrows when the buffers are first seen; after that it
    /// is enough that they are where they were: the table would take longer than to draft.
    fn with_buffers(
        &mut self,
        py: Python<'_>,
        fill: impl FnOnce(&mut StepInputs, StepBuffers<'_>) -> Result<()>,
    ) -> PyResult<()> {
        let addresses = self.addresses(py);
        if addresses.is_none() || addresses != self.apart_at {
            self.check_apart(py)?;
            self.apart_at = addresses;
        }
        #[expect(unsafe_code, reason = "borrows that are booked take longer than to draft")]
        // SAFETY: the buffers are apart from each other, and nothing else reads or writes them as
        // long as the interpreter is held, which `fill` never gives up: calls that do read nothing
        // but logits.
        let buffers = unsafe {
            StepBuffers {
                input_ids: self.input_ids.bind(py).as_slice_mut()?,
                position_ids: self.position_ids.bind(py).as_slice_mut()?,
                mask: match &self.mask {
                    Some(mask) => mask.bind(py).as_slice_mut()?,
                    None => &mut [],
                },
                path: match &self.path {
                    Some([parents, lengths, span]) => PathBuffers {
                        parents: parents.bind(py).as_slice_mut()?,
                        lengths: lengths.bind(py).as_slice_mut()?,
                        span: span.bind(py).as_slice_mut()?,
                    },
                    None => PathBuffers::default(),
                },
            }
        };
        Ok(fill(&mut self.core, buffers)?)
    }

    /// Borrows all buffers at once from numpy, which fails where one cannot be written beside the others.
    fn check_apart(&self, py: Python<'_>) -> PyResult<()> {
        let _input_ids = self.input_ids.bind(py).try_readwrite()?;
        let _position_ids = self.position_ids.bind(py).try_readwrite()?;
        let _mask = self.mask.as_ref().map(|mask| mask.bind(py).try_readwrite()).transpose()?;
        let path = self.path.iter().flatten().map(|array| array.bind(py).try_readwrite());
        let _path = path.collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(())
    }

    /// Where the buffers stand, 0 for one that there is not; `None` where one is read-only.
    fn addresses(&self, py: Python<'_>) -> Option<[usize; 6]> {
        let mut all = [0; 6];
        all[0] = writeable_address(self.input_ids.bind(py))?;
        all[1] = writeable_address(self.position_ids.bind(py))?;
        if let Some(mask) = &self.mask {
            all[2] = writeable_address(mask.bind(py))?;
        }
        for (address, array) in all[3..].iter_mut().zip(self.path.iter().flatten()) {
            *address = writeable_address(array.bind(py))?;
        }
        Some(all)
    }
}

/// Where the elements of an array stand; `None` where they may not be written.
fn writeable_address<T: Element>(array: &Bound<'_, PyArrayDyn<T>>) -> Option<usize> {
    #[expect(unsafe_code, reason = "the flags are read where numpy has them")]
    // SAFETY: the array is alive as long as it is bound.
    let flags = unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).flags };
    (flags & NPY_ARRAY_WRITEABLE != 0).then(|| array.data().addr())
}

/// `object` as an array of `len` numbers.
fn vector(object: &Bound<'_, PyAny>, what: &str, len: usize) -> PyResult<Py<PyArrayDyn<i32>>> {
    let array = array::<i32>(object, what)?;
    if array.shape() != [len] {
        let message = format!("{what} must have shape ({len},), not {:?}", array.shape());
        return Err(ShapeError::new_err(message));
    }
    Ok(array.clone().unbind())
}

#[pymethods]
impl PyStepInputs {
    #[new]
    #[pyo3(signature = (input_ids, position_ids, mask=None, *, path=None))]
    fn new(
        input_ids: &Bound<'_, PyAny>,
        position_ids: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        path: Option<[Bound<'_, PyAny>; 3]>,
    ) -> PyResult<Self> {
        let (core, mask, path) = match (mask, path) {
            (Some(mask), None) => {
                let (mask, rows, attended) = matrix::<f32>(mask, "mask")?;
                (StepInputs::new(rows, attended)?, Some(mask.clone()), None)
            }
            (None, Some([parents, lengths, span])) => {
                let rows = array::<i64>(input_ids, "input_ids")?.len();
                let slots = array::<i32>(&parents, "parents")?.len();
                let path = [
                    vector(&parents, "parents", slots)?,
                    vector(&lengths, "lengths", 1)?,
                    vector(&span, "span", 2)?,
                ];
                (StepInputs::new(rows, slots)?.with_path(), None, Some(path))
            }
            _ => return Err(OptionError::new_err("one of mask and path must be given")),
        };
        let rows = core.rows();
        let row_array = |object, what| {
            let array = array::<i64>(object, what)?;
            match array.shape() {
                [.., length] if *length == rows && array.len() == rows => {
                    Ok(array.clone().unbind())
                }
                shape => Err(ShapeError::new_err(format!(
                    "{what} must have shape ({rows},) as the step has {rows} rows, not {shape:?}"
                ))),
            }
        };
        Ok(Self {
            core,
            input_ids: row_array(input_ids, "input_ids")?,
            position_ids: row_array(position_ids, "position_ids")?,
            mask: mask.map(Bound::unbind),
            path,
            experts_read: None,
            apart_at: None,
        })
    }

    #[doc = stub_doc!("StepInputs.experts_read")]
    #[getter]
    fn experts_read(&self) -> Option<(f32, f32)> {
        self.experts_read
    }

    #[setter]
    fn set_experts_read(&mut self, counts: Option<(f32, f32)>) {
        self.experts_read = counts;
    }

    #[doc = stub_doc!("StepInputs.rows")]
    #[getter]
    fn rows(&self) -> usize {
        self.core.rows()
    }

    #[doc = stub_doc!("StepInputs.attended")]
    #[getter]
    fn attended(&self) -> usize {
        self.core.attended()
    }

    #[doc = stub_doc!("StepInputs.num_nodes")]
    #[getter]
    fn num_nodes(&self) -> usize {
        self.core.num_nodes()
    }

    #[doc = stub_doc!("StepInputs.fill")]
    fn fill(
        &mut self,
        token_ids: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        past_len: usize,
    ) -> PyResult<()> {
        let py = token_ids.py();
        let token_ids = self::token_ids(token_ids, "token_ids")?;
        let parents = integers(parents, "parents")?;
        let tree = DraftTree::from_arrays(&token_ids, &parents)?;
        self.fill_tree(py, &tree, past_len)
    }

    #[doc = stub_doc!("StepInputs.fill_chain")]
    fn fill_chain(&mut self, token_ids: &Bound<'_, PyAny>, past_len: usize) -> PyResult<()> {
        let tree = DraftTree::chain(&self::token_ids(token_ids, "token_ids")?)?;
        self.fill_tree(token_ids.py(), &tree, past_len)
    }
}
