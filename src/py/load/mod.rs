//! Loading for Python: plans, and the switcher that carries them out.

mod block_cost;
mod block_store;
pub mod bus_error;
#[cfg(unix)]
mod expert_store;
mod plan;
mod switcher;

use pyo3::prelude::*;

pub use self::switcher::PySwitcher;

/// Adds the classes and functions of loading.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for function in [
        wrap_pyfunction!(plan::strategies, module)?,
        wrap_pyfunction!(plan::starts, module)?,
        wrap_pyfunction!(plan::prompt_rows, module)?,
        wrap_pyfunction!(plan::plan, module)?,
        #[cfg(unix)]
        wrap_pyfunction!(expert_store::memory_shares, module)?,
    ] {
        module.add_function(function)?;
    }
    #[cfg(unix)]
    module.add_class::<expert_store::PyExpertStore>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_class::<plan::PyRun>()?;
    module.add_class::<plan::PyAction>()?;
    module.add_class::<block_cost::PyBlockCost>()?;
    module.add_class::<switcher::PySimulatedClock>()?;
    module.add_class::<switcher::PySwitcher>()?;
    module.add_class::<switcher::PySwitchReport>()
}
