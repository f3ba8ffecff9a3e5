//! `parse_json_text` for Python: a JSON document as Python objects, without what readers disagree on.
//!
//! In: a document. Out: dicts, lists, texts and numbers, or why there are none. jiter reads; what
//! is refused although it is JSON is refused here, while it is read: nothing is gone over twice.

use std::collections::HashMap;

use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};
use pyo3::exceptions::{PySyntaxError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString};

/// Lists and objects inside each other; reading recurses once for each.
const MOST_DEPTH: usize = 100;

/// Keys that are made once however often they occur: so many, of so many bytes at most.
const MOST_SHARED_KEYS: usize = 4096;
const MOST_SHARED_BYTES: usize = 64;

/// jiter's limit, which is Python's too.
const TOO_MANY_DIGITS: JiterErrorType = JiterErrorType::JsonError(JsonErrorType::NumberOutOfRange);

const BYTE_ORDER_MARK: &str = "\u{feff}";
const HALF_A_PAIR: &str = "holds half of a surrogate pair";

/// A document as Python has it.
#[derive(FromPyObject)]
pub enum Document<'py> {
    Text(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl Document<'_> {
    fn as_str(&self) -> PyResult<&str> {
        let text = match self {
            Self::Text(text) => text.to_str().map_err(|_| PyValueError::new_err(HALF_A_PAIR))?,
            Self::Bytes(bytes) => std::str::from_utf8(bytes.as_bytes()).map_err(|error| {
                let offset = error.valid_up_to();
                let byte = bytes.as_bytes()[offset];
                let message = format!("is not UTF-8: byte 0x{byte:02x} at offset {offset}");
                PyValueError::new_err(message)
            })?,
        };
        Ok(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text))
    }
}

#[doc = stub_doc!("parse_json_text")]
#[pyfunction]
pub fn parse_json_text<'py>(
    py: Python<'py>,
    document: Document<'py>,
    long_integers: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let text = document.as_str()?;
    let json = Jiter::new(text.as_bytes());
    let mut reader = Reader { py, text, json, long_integers, depth: 0, keys: HashMap::new() };
    let first = reader.json.peek().map_err(refusal)?;
    let value = reader.value(first)?;
    reader.json.finish().map_err(refusal)?;
    Ok(value)
}

struct Reader<'py, 'text> {
    py: Python<'py>,
    text: &'text str,
    json: Jiter<'text>,
    long_integers: bool,
    depth: usize,
    keys: HashMap<Box<str>, Bound<'py, PyString>>,
}

impl<'py> Reader<'py, '_> {
    fn value(&mut self, first: Peek) -> PyResult<Bound<'py, PyAny>> {
        match first {
            Peek::Null => {
                self.json.known_null().map_err(refusal)?;
                Ok(self.py.None().into_bound(self.py))
            }
            Peek::True | Peek::False => {
                let truth = self.json.known_bool(first).map_err(refusal)?;
                Ok(PyBool::new(self.py, truth).to_owned().into_any())
            }
            Peek::String => {
                let text = self.json.known_str().map_err(refusal)?;
                Ok(PyString::new(self.py, text).into_any())
            }
            Peek::Array => self.inside(Self::list),
            Peek::Object => self.inside(Self::object),
            _ => self.number(first),
        }
    }

    fn inside(
        &mut self,
        read: impl FnOnce(&mut Self) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.depth == MOST_DEPTH {
            let message = format!("has more than {MOST_DEPTH} lists and objects inside each other");
            return Err(PyValueError::new_err(message));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn list(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        let mut next = self.json.known_array().map_err(refusal)?;
        while let Some(first) = next {
            list.append(self.value(first)?)?;
            next = self.json.array_step().map_err(refusal)?;
        }
        Ok(list.into_any())
    }

    fn object(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let object = PyDict::new(self.py);
        let mut next = self.json.known_object().map_err(refusal)?;
        while let Some(name) = next {
            let key = shared(self.py, &mut self.keys, name);
            let first = self.json.peek().map_err(refusal)?;
            let num_before = object.len();
            object.set_item(&key, self.value(first)?)?;
            if object.len() == num_before {
                let shown: String = key.repr()?.to_str()?.chars().take(60).collect();
                let message = format!("has the key {shown} twice in an object");
                return Err(PyValueError::new_err(message));
            }
            next = self.json.next_key().map_err(refusal)?;
        }
        Ok(object.into_any())
    }

    fn number(&mut self, first: Peek) -> PyResult<Bound<'py, PyAny>> {
        let start = self.json.current_index();
        let digits = match self.json.known_number_bytes(first) {
            Err(error) if error.error_type == TOO_MANY_DIGITS => {
                let digits = &self.text[start..error.index];
                return Err(match self.long_integers {
                    true => refused_number("integer", digits, "has more than 4300 digits"),
                    false => refused_number("integer", digits, "needs more than 64 bits"),
                });
            }
            read => std::str::from_utf8(read.map_err(refusal)?).expect("a number is ASCII"),
        };
        if digits.contains(['.', 'e', 'E']) {
            return match digits.parse::<f64>().expect("JSON's numbers are Rust's") {
                number if number.is_finite() => Ok(number.into_pyobject(self.py)?.into_any()),
                _ => Err(refused_number("number", digits, "is too large")),
            };
        }
        if let Ok(number) = digits.parse::<i64>() {
            return Ok(number.into_pyobject(self.py)?.into_any());
        }
        match digits.parse::<u64>() {
            Ok(number) => Ok(number.into_pyobject(self.py)?.into_any()),
            Err(_) if self.long_integers => self.py.get_type::<PyInt>().call1((digits,)),
            Err(_) => Err(refused_number("integer", digits, "needs more than 64 bits")),
        }
    }
}

fn refused_number(what: &str, digits: &str, why: &str) -> PyErr {
    PyValueError::new_err(format!("holds the {what} {digits:.30}, which {why}"))
}

/// The same object for a key that stands in many objects.
fn shared<'py>(
    py: Python<'py>,
    keys: &mut HashMap<Box<str>, Bound<'py, PyString>>,
    name: &str,
) -> Bound<'py, PyString> {
    if let Some(key) = keys.get(name) {
        return key.clone();
    }
    let key = PyString::new(py, name);
    if name.len() <= MOST_SHARED_BYTES && keys.len() < MOST_SHARED_KEYS {
        keys.insert(name.into(), key.clone());
    }
    key
}

fn refusal(error: JiterError) -> PyErr {
    match error.error_type {
        JiterErrorType::JsonError(
            JsonErrorType::LoneLeadingSurrogateInHexEscape
            | JsonErrorType::UnexpectedEndOfHexEscape,
        ) => PyValueError::new_err(HALF_A_PAIR),
        _ => PySyntaxError::new_err(error.to_string()),
    }
}
