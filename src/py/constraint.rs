//! A grammar that Python follows, for the core; and masks on rows, outside a drafter.

use std::sync::{Arc, Mutex, Weak};

use numpy::PyArrayMethods;
use pyo3::prelude::*;

use super::convert::{array, matrix};
use crate::constraint::{Allowed, Constraint, keep_allowed};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::locks;

/// What a grammar has raised, until the call that met it returns.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// A core error as Python is to see it: the grammar's own exception where that was the cause.
    pub fn error(&self, error: Error) -> PyErr {
        match locks::lock(&self.0).take() {
            Some(raised) if matches!(error, Error::ConstraintFailed { .. }) => raised,
            _ => error.into(),
        }
    }
}

/// The object of a [`PyConstraint`], as long as that is there: for the garbage collector.
pub type Grammar = Weak<Py<PyAny>>;

/// An object with the methods of `Constraint`, and the mask that its `after` fills.
pub struct PyConstraint {
    object: Arc<Py<PyAny>>,
    words: Vec<u32>,
    raised: Raised,
}

impl PyConstraint {
    /// The grammar `object`; what it raises is kept in `raised`.
    pub fn new(object: Py<PyAny>, raised: Raised) -> Self {
        Self { object: Arc::new(object), words: Vec::new(), raised }
    }

    /// Its object.
    pub fn grammar(&self) -> Grammar {
        Arc::downgrade(&self.object)
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&Bound<'_, PyAny>, &mut Vec<u32>) -> PyResult<T>,
    ) -> Result<T> {
        let called = Python::attach(|py| call(self.object.bind(py), &mut self.words));
        called.map_err(|raised| {
            let reason = raised.to_string();
            let before = locks::lock(&self.raised.0).replace(raised);
            drop(before); // not within the lock: its end may run any Python
            Error::ConstraintFailed { reason }
        })
    }
}

impl Constraint for PyConstraint {
    fn forced(&mut self, path: &[TokenId]) -> Result<Vec<TokenId>> {
        let forced = self
            .call(|object, _| object.call_method1("forced", (ids(path),))?.extract::<Vec<u32>>())?;
        Ok(forced.into_iter().map(TokenId).collect())
    }

    fn possible(&mut self, tokens: &[TokenId], parents: &[u32]) -> Result<Vec<bool>> {
        self.call(|object, _| {
            object.call_method1("possible", (ids(tokens), parents.to_vec()))?.extract()
        })
    }

    fn after(&mut self, path: &[TokenId]) -> Result<Allowed<'_>> {
        let is_complete = self.call(|object, words| {
            let is_complete = object.call_method1("after", (ids(path),))?.extract()?;
            let mask = object.getattr("words")?;
            words.clear();
            words.extend_from_slice(array::<u32>(&mask, "the mask")?.try_readonly()?.as_slice()?);
            Ok(is_complete)
        })?;
        Ok(Allowed { words: &self.words, is_complete })
    }

    fn extend(&mut self, tokens: &[TokenId]) -> Result<bool> {
        self.call(|object, _| object.call_method1("extend", (ids(tokens),))?.extract())
    }
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

#[doc = stub_doc!("keep_allowed")]
#[pyfunction(name = "keep_allowed")]
pub fn py_keep_allowed(logits: &Bound<'_, PyAny>, words: &Bound<'_, PyAny>) -> PyResult<()> {
    let words = array::<u32>(words, "the mask")?.try_readonly()?;
    let (logits, ..) = matrix::<f32>(logits, "logits")?;
    Ok(keep_allowed(logits.try_readwrite()?.as_slice_mut()?, words.as_slice()?)?)
}
