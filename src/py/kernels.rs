//! What Python asks of the kernels; ONNX Runtime calls them itself, through `crate::ort`.

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::convert;
use super::errors::{OptionError, ShapeError};
use crate::kernels::Processor;
use crate::kernels::product::{WeightType, to_panels};

#[doc = stub_doc!("kernel_processor")]
#[pyfunction]
fn kernel_processor() -> &'static str {
    Processor::best().name()
}

#[doc = stub_doc!("weight_panels")]
#[pyfunction]
fn weight_panels<'py>(
    weight_type: &str,
    rows: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let Some(kind) = WeightType::named(weight_type) else {
        let known = WeightType::ALL.map(WeightType::name).join(", ");
        let message = format!("weight_type is {weight_type:?}, expected one of {known}");
        return Err(OptionError::new_err(message));
    };
    let rows = convert::array::<u8>(rows, "rows")?;
    let &[outputs, blocks, block_bytes] = rows.shape() else {
        let message = format!("rows must have shape (n, blocks, bytes), not {:?}", rows.shape());
        return Err(ShapeError::new_err(message));
    };
    if outputs == 0 || blocks == 0 || block_bytes != kind.block_bytes() {
        let must = format!("(n, blocks, {}), none of them 0", kind.block_bytes());
        let message = format!("rows of {weight_type} have shape {must}, not {:?}", rows.shape());
        return Err(ShapeError::new_err(message));
    }
    let py = rows.py();
    let rows = rows.to_vec()?;
    let panels = py.detach(|| {
        let mut panels = vec![0; kind.num_panels(outputs) * kind.panel_bytes(blocks)];
        to_panels(kind, blocks, &rows, &mut panels);
        panels
    });
    Ok(PyArray1::from_vec(py, panels))
}

/// Adds the functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(kernel_processor, module)?)?;
    module.add_function(wrap_pyfunction!(weight_panels, module)?)
}
