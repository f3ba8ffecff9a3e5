//! What Python asks of the kernels; ONNX Runtime calls them itself, through `crate::ort`.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::convert;
use super::errors::{OptionError, ShapeError};
use crate::kernels::Processor;
use crate::kernels::product::{WeightType, Weights, read_rows, to_panels};

#[doc = stub_doc!("kernel_processor")]
#[pyfunction]
pub fn kernel_processor() -> &'static str {
    Processor::best().name()
}

#[doc = stub_doc!("weight_panels")]
#[pyfunction]
pub fn weight_panels<'py>(
    weight_type: &str,
    rows: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let kind = named(weight_type)?;
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
    let rows = rows.try_readonly()?;
    let rows = rows.as_slice()?;
    let num_bytes = kind.num_bytes(outputs, blocks * kind.block_weights());
    let mut panels = Vec::new();
    if panels.try_reserve_exact(num_bytes).is_err() {
        let message = format!("there are no {num_bytes} bytes for panels");
        return Err(PyMemoryError::new_err(message));
    }
    py.detach(|| {
        panels.resize(num_bytes, 0);
        to_panels(kind, blocks, rows, &mut panels);
    });
    Ok(PyArray1::from_vec(py, panels))
}

#[doc = stub_doc!("weight_rows")]
#[pyfunction]
pub fn weight_rows<'py>(
    py: Python<'py>,
    weight_type: &str,
    panels: &Bound<'py, PyAny>,
    outputs: usize,
    columns: usize,
    numbers: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let kind = named(weight_type)?;
    let panels = convert::array::<u8>(panels, "panels")?;
    let numbers = convert::integers(numbers, "numbers")?;
    // So many that no size overflows.
    const MOST: usize = 1 << 28;
    let is_matrix = (1..MOST).contains(&outputs) && (1..MOST).contains(&columns);
    if !is_matrix || !kind.fits(columns) || panels.len() != kind.num_bytes(outputs, columns) {
        let message = format!(
            "{} bytes are no panels of {weight_type} of {outputs} rows of {columns}",
            panels.len()
        );
        return Err(ShapeError::new_err(message));
    }
    if let Some(number) = numbers.iter().find(|number| **number as usize >= outputs) {
        let message = format!("numbers holds {number}, expected 0 to {}", outputs - 1);
        return Err(OptionError::new_err(message));
    }
    let numbers: Vec<usize> = numbers.into_iter().map(|number| number as usize).collect();
    let (len, mut rows) = (numbers.len().saturating_mul(columns), Vec::new());
    if rows.try_reserve_exact(len).is_err() {
        return Err(PyMemoryError::new_err(format!("there is no room for {len} numbers")));
    }
    rows.resize(len, 0.0_f32);
    #[expect(unsafe_code, reason = "a matrix of a whole vocabulary is not copied for some rows")]
    // SAFETY: the elements are read while the interpreter is held, and no call writes to an array
    // without holding it.
    let panels = unsafe { panels.as_slice() }?;
    let weights = Weights { kind, outputs, panels };
    read_rows(Processor::best(), weights, columns, &numbers, &mut rows);
    PyArray1::from_vec(py, rows).reshape([numbers.len(), columns])
}

#[doc = stub_doc!("weight_types")]
#[pyfunction]
pub fn weight_types(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let types = PyDict::new(py);
    for kind in WeightType::ALL {
        types.set_item(kind.name(), (kind.block_weights(), kind.block_bytes()))?;
    }
    Ok(types)
}

/// The type of a name.
fn named(weight_type: &str) -> PyResult<WeightType> {
    WeightType::named(weight_type).ok_or_else(|| {
        let known = WeightType::ALL.map(WeightType::name).join(", ");
        let message = format!("weight_type is {weight_type:?}, expected one of {known}");
        OptionError::new_err(message)
    })
}
