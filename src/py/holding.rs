//! For tests: what others see while a lock of the crate is held.

use pyo3::prelude::*;

use super::draft::{PyLookupTable, PyModelDraft, PySharedHistory};
use super::errors::OptionError;
use super::load::PySwitcher;

/// Calls `call` while this thread holds the locks of `object`, which it must not use meanwhile.
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

/// Adds the function to the module, but not to the names that it gives out.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.setattr("_while_held", wrap_pyfunction!(while_held, module)?)
}
