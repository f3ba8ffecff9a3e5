//! The Python binding: convert, call, convert.

mod convert;
mod drafter;
mod errors;
mod sources;
mod step_inputs;

use pyo3::prelude::*;

/// The extension module `coordgen_rs._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    sources::register(module)?;
    module.add_class::<step_inputs::PyStepInputs>()?;
    module.add_class::<drafter::PyDrafter>()?;
    module.add_class::<drafter::PyAccepted>()?;
    Ok(())
}
