//! The Python binding: convert, call, convert. Its folders are those of the crate.
//!
//! Docstrings are those of the stub, `_core.pyi`: `build.rs` makes `stub_doc!` of it.

#![allow(clippy::too_many_arguments)] // keywords in Python

include!(concat!(env!("OUT_DIR"), "/stub_docs.rs"));

mod atomic_file;
mod batch;
mod cache_rows;
mod chat_template;
mod constraint;
mod convert;
mod draft;
mod errors;
mod interpreter;
mod json;
mod kernels;
mod load;
mod logits;
mod sampling;
mod step_inputs;

use pyo3::prelude::*;

use self::draft::{PyLookupTable, PyModelDraft, PySharedHistory};
use self::errors::OptionError;
use self::load::PySwitcher;

// Arrays are read and written on the strength of the interpreter's lock, so an interpreter that can
// do without one takes it when this is imported.
#[doc = stub_doc!("_core")]
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::release_the_interpreter_while_waiting_for_locks();
    interpreter::wait_at_exit(module.py())?;
    errors::register(module)?;
    for function in [
        wrap_pyfunction!(load::bus_error::name_bus_errors, module)?,
        wrap_pyfunction!(cache_rows::move_rows, module)?,
        wrap_pyfunction!(cache_rows::copy_rows, module)?,
        wrap_pyfunction!(chat_template::render_chat_template, module)?,
        wrap_pyfunction!(chat_template::chat_template_variables, module)?,
        wrap_pyfunction!(constraint::py_keep_allowed, module)?,
        wrap_pyfunction!(json::parse_json_text, module)?,
        wrap_pyfunction!(kernels::kernel_processor, module)?,
        wrap_pyfunction!(kernels::weight_panels, module)?,
        wrap_pyfunction!(kernels::weight_rows, module)?,
        wrap_pyfunction!(kernels::weight_types, module)?,
        wrap_pyfunction!(logits::py_token_logprob, module)?,
        wrap_pyfunction!(logits::top_k, module)?,
        wrap_pyfunction!(atomic_file::create_unfinished_file, module)?,
        wrap_pyfunction!(atomic_file::create_unfinished_directory, module)?,
        wrap_pyfunction!(atomic_file::remove_abandoned, module)?,
    ] {
        module.add_function(function)?;
    }
    module.setattr("_while_held", wrap_pyfunction!(while_held, module)?)?; // no name that is given out
    module.add_class::<atomic_file::PyLock>()?;
    draft::register(module)?;
    load::register(module)?;
    module.add_class::<batch::PyBatcher>()?;
    module.add_class::<sampling::PySampling>()?;
    module.add_class::<sampling::PySeenTokens>()?;
    module.add_class::<step_inputs::PyStepInputs>()
}

/// For tests, of what others see while a lock of the crate is held: calls `call` while this thread holds
/// the locks of `object`, which it must not use meanwhile.
#[pyfunction(name = "_while_held")]
fn while_held(object: &Bound<'_, PyAny>, call: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let call = || call.call0().map(Bound::unbind);
    if let Ok(table) = object.cast::<PyLookupTable>() {
        let _held = table.get().core.lock();
        call()
    } else if let Ok(draft) = object.cast::<PyModelDraft>() {
        let _held = draft.get().core.lock();
        call()
    } else if let Ok(history) = object.cast::<PySharedHistory>() {
        history.get().core().while_held(call)
    } else if let Ok(switcher) = object.cast::<PySwitcher>() {
        switcher.get().core()?.while_held(call)
    } else {
        Err(OptionError::new_err("it has no lock"))
    }
}
