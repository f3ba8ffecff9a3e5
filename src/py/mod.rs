//! The Python binding: convert, call, convert. Its folders are those of the crate.
//!
//! Docstrings are those of the stub, `_core.pyi`: `build.rs` makes `stub_doc!` of it.

include!(concat!(env!("OUT_DIR"), "/stub_docs.rs"));

mod batch;
mod bus_error;
mod cache_rows;
mod chat_template;
mod constraint;
mod convert;
mod draft;
mod errors;
mod holding;
mod interpreter;
mod json;
mod kernels;
mod load;
mod logprobs;
mod sampling;
mod step_inputs;
mod top_k;
mod unfinished;

use pyo3::prelude::*;

// Arrays are read and written on the strength of the interpreter's lock, so an interpreter that can
// do without one takes it when this is imported.
#[doc = stub_doc!("_core")]
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::let_go_where_a_lock_is_not_free();
    interpreter::wait_at_exit(module.py())?;
    errors::register(module)?;
    bus_error::register(module)?;
    cache_rows::register(module)?;
    chat_template::register(module)?;
    constraint::register(module)?;
    holding::register(module)?;
    json::register(module)?;
    kernels::register(module)?;
    logprobs::register(module)?;
    top_k::register(module)?;
    unfinished::register(module)?;
    draft::register(module)?;
    load::register(module)?;
    module.add_class::<batch::PyBatcher>()?;
    module.add_class::<sampling::PySampling>()?;
    module.add_class::<sampling::PySeenTokens>()?;
    module.add_class::<step_inputs::PyStepInputs>()
}
