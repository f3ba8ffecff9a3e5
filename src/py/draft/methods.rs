//! The registry of sources and methods for Python.

use std::hash::{Hash, Hasher};

use pyo3::prelude::*;

use super::lookup_table::PyDynamicTree;
use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::choose::tree_shape::appended_tree::AppendedOptions;
use crate::draft::methods::{METHODS, Method, MethodContext, SOURCES, Source};
use crate::error::Error;
use crate::py::convert::Arg;

/// "best-first", "chain", "static", "drafted", or a `DynamicTree`.
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
            TreeShape::Drafted => Self::Name("drafted".into()),
            TreeShape::Dynamic(core) => Self::Dynamic(PyDynamicTree { core }),
            TreeShape::Appended(options) => Self::Name(options.to_string()),
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
            "drafted" => Ok(TreeShape::Drafted),
            _ if name.split(':').next() == Some(AppendedOptions::NAME) => {
                Ok(TreeShape::Appended(name.parse()?))
            }
            _ => Err(Error::BadOption {
                what: "tree",
                got: format!("{name:?}"),
                must: "best-first, chain, static, drafted, appended or a DynamicTree",
            }),
        }
    }
}

/// What stands in the registry is the same where its name is, and the options behind it.
macro_rules! equal_by_name {
    ($($class:ty: $($name:ident).+),*) => {$(
        impl PartialEq for $class {
            fn eq(&self, other: &Self) -> bool {
                self.$($name).+ == other.$($name).+
            }
        }

        impl Hash for $class {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.$($name).+.hash(state);
            }
        }
    )*};
}

equal_by_name!(PyDraftSource: core.name, PyDraftMethod: spelling);

#[doc = stub_doc!("DraftSource")]
#[pyclass(name = "DraftSource", module = "coordgen_rs._core", frozen, eq, hash)]
pub struct PyDraftSource {
    core: &'static Source,
}

#[pymethods]
impl PyDraftSource {
    #[new]
    fn new(name: Arg<String>) -> PyResult<Self> {
        Ok(Self { core: Source::named(&name.named("name")?)? })
    }

    fn __getnewargs__(&self) -> (&'static str,) {
        (self.core.name,)
    }

    #[doc = stub_doc!("DraftSource.name")]
    #[getter]
    fn name(&self) -> &'static str {
        self.core.name
    }

    #[doc = stub_doc!("DraftSource.about")]
    #[getter]
    fn about(&self) -> &'static str {
        self.core.about
    }

    #[doc = stub_doc!("DraftSource.needs")]
    #[getter]
    fn needs(&self) -> &'static str {
        self.core.needs.name()
    }

    #[doc = stub_doc!("DraftSource.can_be_asked_for")]
    #[getter]
    fn can_be_asked_for(&self) -> bool {
        self.core.can_be_asked_for()
    }

    fn __repr__(&self) -> String {
        format!("DraftSource({:?})", self.core.name)
    }
}

#[doc = stub_doc!("DraftMethod")]
#[pyclass(name = "DraftMethod", module = "coordgen_rs._core", frozen, eq, hash)]
pub struct PyDraftMethod {
    spelling: String,
    pub(crate) core: Method,
}

impl PyDraftMethod {
    fn spelled(spelling: String) -> Result<Self, Error> {
        Ok(Self { core: Method::named(&spelling)?, spelling })
    }
}

#[pymethods]
impl PyDraftMethod {
    #[new]
    fn new(name: Arg<String>) -> PyResult<Self> {
        Ok(Self::spelled(name.named("name")?)?)
    }

    fn __getnewargs__(&self) -> (&str,) {
        (&self.spelling,)
    }

    #[doc = stub_doc!("DraftMethod.name")]
    #[getter]
    fn name(&self) -> &str {
        &self.spelling
    }

    #[doc = stub_doc!("DraftMethod.published")]
    #[getter]
    fn published(&self) -> Option<&'static str> {
        self.core.published
    }

    #[doc = stub_doc!("DraftMethod.about")]
    #[getter]
    fn about(&self) -> &'static str {
        self.core.about
    }

    #[doc = stub_doc!("DraftMethod.needs_draft_model")]
    #[getter]
    fn needs_draft_model(&self) -> bool {
        self.core.needs_draft_model()
    }

    #[doc = stub_doc!("DraftMethod.tree")]
    #[getter]
    fn tree(&self) -> TreeOption {
        TreeOption::of(self.core.tree)
    }

    #[doc = stub_doc!("DraftMethod.growth")]
    #[getter]
    fn growth(&self) -> &'static str {
        self.core.model.growth.name()
    }

    #[doc = stub_doc!("DraftMethod.stop")]
    #[getter]
    fn stop(&self) -> &'static str {
        self.core.model.stop.name()
    }

    #[doc = stub_doc!("DraftMethod.weighs_model")]
    #[getter]
    fn weighs_model(&self) -> bool {
        self.core.weighs_model
    }

    #[doc = stub_doc!("DraftMethod.takes_mtp")]
    #[getter]
    fn takes_mtp(&self) -> bool {
        self.core.takes_mtp
    }

    #[doc = stub_doc!("DraftMethod.most_drafted")]
    #[getter]
    fn most_drafted(&self) -> Option<usize> {
        self.core.most_drafted
    }

    #[doc = stub_doc!("DraftMethod.in_gaps")]
    #[getter]
    fn in_gaps(&self) -> bool {
        self.core.in_gaps
    }

    #[doc = stub_doc!("DraftMethod.sources")]
    #[pyo3(signature = (
        *, free_rows=false, draft_model=false, common_phrases=false, earlier_requests=false,
        recorded=false
    ))]
    fn sources(
        &self,
        free_rows: bool,
        draft_model: bool,
        common_phrases: bool,
        earlier_requests: bool,
        recorded: bool,
    ) -> PyResult<Vec<String>> {
        let context =
            MethodContext { free_rows, draft_model, common_phrases, earlier_requests, recorded };
        Ok(self.core.sources(context)?)
    }

    fn __repr__(&self) -> String {
        format!("DraftMethod({:?})", self.spelling)
    }
}

#[doc = stub_doc!("draft_sources")]
#[pyfunction]
pub fn draft_sources() -> Vec<PyDraftSource> {
    SOURCES.iter().map(|core| PyDraftSource { core }).collect()
}

#[doc = stub_doc!("draft_methods")]
#[pyfunction]
pub fn draft_methods() -> Vec<PyDraftMethod> {
    let all = METHODS.iter();
    all.map(|&core| PyDraftMethod { spelling: core.name.into(), core }).collect()
}

#[doc = stub_doc!("draft_method")]
#[pyfunction]
pub fn draft_method(name: &str) -> PyResult<PyDraftMethod> {
    Ok(PyDraftMethod::spelled(name.into())?)
}
