//! The Python binding: convert, call, convert.

mod block_cost;
mod block_store;
mod convert;
mod drafter;
mod errors;
mod history;
mod lookup_table;
mod methods;
mod model_draft;
mod plan;
mod sampling;
mod shared_logits;
mod sources;
mod step_inputs;
mod switcher;
mod timetable;
mod top_k;

use pyo3::prelude::*;

/// The extension module `coordgen_rs._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    sources::register(module)?;
    methods::register(module)?;
    top_k::register(module)?;
    plan::register(module)?;
    module.add_class::<sampling::PySampling>()?;
    module.add_class::<history::PySharedHistory>()?;
    module.add_class::<timetable::PyRun>()?;
    module.add_class::<timetable::PyAction>()?;
    module.add_class::<block_cost::PyBlockCost>()?;
    module.add_class::<switcher::PySwitcher>()?;
    module.add_class::<switcher::PySwitchReport>()?;
    module.add_class::<lookup_table::PyLookupTable>()?;
    module.add_class::<model_draft::PyModelDraft>()?;
    module.add_class::<lookup_table::PyDynamicTree>()?;
    module.add_class::<step_inputs::PyStepInputs>()?;
    module.add_class::<drafter::PyDrafter>()?;
    module.add_class::<drafter::PyAccepted>()?;
    Ok(())
}
