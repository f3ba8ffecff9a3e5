//! How large values are: as texts, and how deep they stand inside each other.
//!
//! A list may hold another one twice, which holds another twice: as a text it would never end, and
//! neither would comparing it. So each list, tuple and dict is measured when it is made, from what
//! it holds, and is refused where it is too large.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Lists and dicts inside each other.
pub const MOST_DEPTH: usize = 128;

/// Bytes of a text, also of a list's, about.
pub const MOST_SIZE: usize = 8 << 20;

/// What an item counts as, beside its own text.
const ITEM_SIZE: usize = 16;

/// What is known of a value.
#[derive(Clone, Copy, Default)]
pub struct ValueSize {
    /// Bytes of its text, about.
    pub size: usize,
    depth: usize,
}

/// The lists, tuples and dicts of a rendering, by where they are; they live as long as this.
#[derive(Default)]
pub struct ValueSizes(HashMap<usize, (Value, ValueSize)>);

impl ValueSizes {
    /// A value measured, as it is or, where its items come one by one, as a list of them.
    pub fn held(&mut self, value: Value) -> Result<Value, Error> {
        let is_list = matches!(value.kind(), ValueKind::Iterable | ValueKind::Seq);
        let held = if is_list && address(&value).is_none() {
            value.try_iter()?.checked().collect::<Result<Vec<Value>, _>>()?.into()
        } else {
            value
        };
        if address(&held).is_some() {
            self.of(&held)?;
        }
        Ok(held)
    }

    /// How large a value is.
    pub fn of(&mut self, value: &Value) -> Result<ValueSize, Error> {
        let inside = match value.kind() {
            ValueKind::String => {
                return Ok(ValueSize { size: value.as_str().map_or(0, str::len), depth: 0 });
            }
            ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => address(value),
            ValueKind::Plain => None,
            _ => return Ok(ValueSize { size: ITEM_SIZE, depth: 0 }),
        };
        let Some(address) = inside else {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a list or text of it can hold only JSON's types",
            ));
        };
        if let Some((_, measure)) = self.0.get(&address) {
            return Ok(*measure);
        }
        let mut measure = ValueSize { size: ITEM_SIZE, depth: 1 };
        for key in value.try_iter()?.checked() {
            let key = key?;
            let item =
                if value.kind() == ValueKind::Map { Some(value.get_item(&key)?) } else { None };
            for part in std::iter::once(&key).chain(&item) {
                let part = self.of(part)?;
                measure.size += ITEM_SIZE + part.size;
                measure.depth = measure.depth.max(1 + part.depth);
            }
        }
        if measure.size > MOST_SIZE || measure.depth > MOST_DEPTH {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a list or dict of it is too large",
            ));
        }
        self.0.insert(address, (value.clone(), measure));
        Ok(measure)
    }
}

/// Where a list, tuple or dict is; none of what comes one by one.
fn address(value: &Value) -> Option<usize> {
    fn of<T>(found: Arc<T>) -> usize {
        Arc::as_ptr(&found).addr()
    }
    value
        .downcast_object::<Vec<Value>>()
        .map(of)
        .or_else(|| value.downcast_object::<Tuple>().map(of))
        .or_else(|| value.downcast_object::<IndexMap<Value, Value>>().map(of))
}
