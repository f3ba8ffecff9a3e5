//! Drafting for Python: the drafter, the registry of methods, and the sources that have a life
//! outside a drafter.

mod drafter;
mod history;
mod host;
mod lookup_table;
mod methods;
mod model;
mod phrases;
mod sources;
mod step_choice;

use pyo3::prelude::*;

pub use self::history::PySharedHistory;
pub use self::lookup_table::PyLookupTable;
pub use self::model::PyModelDraft;
pub use self::step_choice::CostOption;

/// Adds the classes and functions of drafting.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    sources::register(module)?;
    methods::register(module)?;
    module.add_class::<history::PySharedHistory>()?;
    module.add_class::<lookup_table::PyLookupTable>()?;
    module.add_class::<lookup_table::PyDynamicTree>()?;
    model::register(module)?;
    module.add_class::<phrases::PyPhraseTable>()?;
    module.add_class::<drafter::PyDrafter>()?;
    module.add_class::<host::PyHostDrafter>()?;
    module.add_class::<drafter::PyAccepted>()
}
