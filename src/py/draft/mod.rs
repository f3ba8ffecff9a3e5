//! Drafting for Python: the drafter, the registry of methods, and the sources that have a life
//! outside a drafter.

mod drafter;
mod history;
mod host;
mod lookup_table;
mod methods;
mod model;
mod sources;
mod step_choice;

use pyo3::prelude::*;

pub use self::history::PySharedHistory;
pub use self::lookup_table::PyLookupTable;
pub use self::model::PyModelDraft;
pub use self::step_choice::CostOption;
use crate::draft::methods::PLAIN;

/// Adds the classes and functions of drafting.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for function in [
        wrap_pyfunction!(methods::draft_sources, module)?,
        wrap_pyfunction!(methods::draft_methods, module)?,
        wrap_pyfunction!(methods::draft_method, module)?,
        wrap_pyfunction!(model::least_that_pays, module)?,
    ] {
        module.add_function(function)?;
    }
    module.add("PLAIN", PLAIN)?;
    module.add_class::<sources::PySuffixAutomaton>()?;
    module.add_class::<sources::PyPromptLookup>()?;
    module.add_class::<methods::PyDraftSource>()?;
    module.add_class::<methods::PyDraftMethod>()?;
    module.add_class::<history::PySharedHistory>()?;
    module.add_class::<lookup_table::PyLookupTable>()?;
    module.add_class::<lookup_table::PyDynamicTree>()?;
    module.add_class::<model::PyModelDraft>()?;
    module.add_class::<sources::PyPhraseTable>()?;
    module.add_class::<drafter::PyDrafter>()?;
    module.add_class::<host::PyHostDrafter>()?;
    module.add_class::<drafter::PyAccepted>()
}
