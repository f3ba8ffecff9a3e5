//! What Python asks of the kernels; ONNX Runtime calls them itself, through `crate::ort`.

use pyo3::prelude::*;

/// Whether ONNX Runtime's products of uint8 and int8 may overflow on this processor.
#[pyfunction]
fn byte_products_saturate() -> bool {
    crate::kernels::byte_products_saturate()
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(byte_products_saturate, module)?)
}
