//! `render_chat_template` and `chat_template_variables` for Python.
//!
//! In: JSON's types, as Python has them. Out: text. The interpreter's lock is let go while a template
//! runs, but for the time of day, which Python tells.

use minijinja::Value;
use pyo3::exceptions::{PySyntaxError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::chat_template::{self, MOST_DEPTH, TemplateError};

#[doc = stub_doc!("render_chat_template")]
#[pyfunction]
pub fn render_chat_template(
    py: Python<'_>,
    source: &str,
    known: &Bound<'_, PyDict>,
    strftime_now: Py<PyAny>,
) -> PyResult<String> {
    let known = as_value(known.as_any(), 0)?;
    let now = move |form: &str| {
        Python::attach(|py| strftime_now.call1(py, (form,))?.extract::<String>(py))
            .map_err(|error| error.to_string())
    };
    py.detach(|| chat_template::render(source, known, Box::new(now))).map_err(in_python)
}

#[doc = stub_doc!("chat_template_variables")]
#[pyfunction]
pub fn chat_template_variables(source: &str) -> PyResult<Vec<String>> {
    Ok(chat_template::variables(source).map_err(in_python)?.into_iter().collect())
}

fn as_value(given: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MOST_DEPTH {
        return Err(PyValueError::new_err(
            "cannot be applied: lists stand too deep inside each other",
        ));
    }
    Ok(if given.is_none() {
        Value::from(())
    } else if let Ok(text) = given.cast::<PyString>() {
        Value::from(text.to_str()?)
    } else if let Ok(flag) = given.cast::<PyBool>() {
        Value::from(flag.is_true())
    } else if let Ok(number) = given.cast::<PyInt>() {
        match number.extract::<i128>() {
            Ok(number) => Value::from(number),
            Err(_) => {
                return Err(PyValueError::new_err("cannot be applied: a number is too large"));
            }
        }
    } else if let Ok(number) = given.cast::<PyFloat>() {
        Value::from(number.value())
    } else if let Ok(items) = given.cast::<PyList>() {
        let items: PyResult<Vec<Value>> =
            items.iter().map(|item| as_value(&item, depth + 1)).collect();
        Value::from(items?)
    } else if let Ok(entries) = given.cast::<PyDict>() {
        let pairs: PyResult<Vec<(Value, Value)>> = entries
            .iter()
            .map(|(key, item)| Ok((as_value(&key, depth + 1)?, as_value(&item, depth + 1)?)))
            .collect();
        Value::from_pairs(pairs?)
    } else {
        return Err(PyTypeError::new_err("templates read JSON's types alone"));
    })
}

fn in_python(error: TemplateError) -> PyErr {
    let said = error.to_string();
    match error {
        TemplateError::Malformed { .. } => PySyntaxError::new_err(said),
        TemplateError::Refused { .. } => PyValueError::new_err(said),
    }
}
