//! Loading for Python: plans, and the switcher that carries them out.

mod block_cost;
mod block_store;
#[cfg(unix)]
mod expert_store;
mod plan;
mod switcher;
mod timetable;

use pyo3::prelude::*;

pub use self::switcher::PySwitcher;

/// Adds the classes and functions of loading.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    plan::register(module)?;
    #[cfg(unix)]
    expert_store::register(module)?;
    module.add_class::<timetable::PyRun>()?;
    module.add_class::<timetable::PyAction>()?;
    module.add_class::<block_cost::PyBlockCost>()?;
    module.add_class::<switcher::PySwitcher>()?;
    module.add_class::<switcher::PySwitchReport>()
}
