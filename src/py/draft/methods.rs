//! The registry of sources and methods for Python.

use pyo3::prelude::*;

use super::lookup_table::PyDynamicTree;
use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::methods::{METHODS, Method, PLAIN, SOURCES, Situation, Source};
use crate::error::Error;

/// "best-first", "chain", "static", or a `DynamicTree`.
#[derive(FromPyObject, IntoPyObject)]
pub enum TreeOption {
    Dynamic(PyDynamicTree),
    Name(String),
}

impl Default for TreeOption {
    fn default() -> Self {
        Self::of(TreeShape::BestFirst)
    }
}

impl TreeOption {
    /// What is given for `shape`.
    fn of(shape: TreeShape) -> Self {
        match shape {
            TreeShape::BestFirst => Self::Name("best-first".into()),
            TreeShape::Chain => Self::Name("chain".into()),
            TreeShape::Static => Self::Name("static".into()),
            TreeShape::Dynamic(core) => Self::Dynamic(PyDynamicTree { core }),
        }
    }

    /// The shape that is meant. Fails when it is unknown.
    pub fn shape(self) -> Result<TreeShape, Error> {
        let name = match self {
            Self::Dynamic(tree) => return Ok(TreeShape::Dynamic(tree.core)),
            Self::Name(name) => name,
        };
        match &name[..] {
            "best-first" => Ok(TreeShape::BestFirst),
            "chain" => Ok(TreeShape::Chain),
            "static" => Ok(TreeShape::Static),
            _ => Err(Error::BadOption {
                what: "tree",
                got: format!("{name:?}"),
                must: "best-first, chain, static or a DynamicTree",
            }),
        }
    }
}

/// Something that proposes, as it stands in the registry.
#[pyclass(name = "DraftSource", module = "coordgen_rs._core", frozen)]
pub struct PyDraftSource {
    core: &'static Source,
}

#[pymethods]
impl PyDraftSource {
    #[getter]
    fn name(&self) -> &'static str {
        self.core.name
    }

    #[getter]
    fn about(&self) -> &'static str {
        self.core.about
    }

    #[getter]
    fn needs(&self) -> &'static str {
        self.core.needs.name()
    }

    #[getter]
    fn can_be_asked_for(&self) -> bool {
        self.core.can_be_asked_for()
    }

    fn __repr__(&self) -> String {
        format!("DraftSource({:?})", self.core.name)
    }
}

/// A choice of sources, and what is done with what they say.
#[pyclass(name = "DraftMethod", module = "coordgen_rs._core", frozen)]
pub struct PyDraftMethod {
    core: &'static Method,
}

#[pymethods]
impl PyDraftMethod {
    #[getter]
    fn name(&self) -> &'static str {
        self.core.name
    }

    #[getter]
    fn about(&self) -> &'static str {
        self.core.about
    }

    #[getter]
    fn needs_draft_model(&self) -> bool {
        self.core.needs_draft_model()
    }

    #[getter]
    fn tree(&self) -> TreeOption {
        TreeOption::of(self.core.tree)
    }

    #[getter]
    fn growth(&self) -> &'static str {
        self.core.model.growth.name()
    }

    #[getter]
    fn stop(&self) -> &'static str {
        self.core.model.stop.name()
    }

    #[getter]
    fn weighs_model(&self) -> bool {
        self.core.weighs_model
    }

    #[getter]
    fn in_gaps(&self) -> bool {
        self.core.in_gaps
    }

    #[pyo3(signature = (
        *, free_rows=false, draft_model=false, earlier_requests=false, recorded=false
    ))]
    fn sources(
        &self,
        free_rows: bool,
        draft_model: bool,
        earlier_requests: bool,
        recorded: bool,
    ) -> PyResult<Vec<&'static str>> {
        let situation = Situation { free_rows, draft_model, earlier_requests, recorded };
        Ok(self.core.sources(situation)?)
    }

    fn __repr__(&self) -> String {
        format!("DraftMethod({:?})", self.core.name)
    }
}

#[pyfunction]
fn draft_sources() -> Vec<PyDraftSource> {
    SOURCES.iter().map(|core| PyDraftSource { core }).collect()
}

#[pyfunction]
fn draft_methods() -> Vec<PyDraftMethod> {
    METHODS.iter().map(|core| PyDraftMethod { core }).collect()
}

#[pyfunction]
fn draft_method(name: &str) -> PyResult<PyDraftMethod> {
    Ok(PyDraftMethod { core: Method::named(name)? })
}

/// Adds the registry to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PLAIN", PLAIN)?;
    module.add_class::<PyDraftSource>()?;
    module.add_class::<PyDraftMethod>()?;
    module.add_function(wrap_pyfunction!(draft_sources, module)?)?;
    module.add_function(wrap_pyfunction!(draft_methods, module)?)?;
    module.add_function(wrap_pyfunction!(draft_method, module)?)
}
