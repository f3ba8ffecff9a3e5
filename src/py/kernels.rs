//! What Python asks of the kernels; ONNX Runtime calls them itself, through `crate::ort`.

use pyo3::prelude::*;

#[doc = stub_doc!("byte_products_saturate")]
#[pyfunction]
fn byte_products_saturate() -> bool {
    crate::kernels::byte_products_saturate()
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(byte_products_saturate, module)?)
}
