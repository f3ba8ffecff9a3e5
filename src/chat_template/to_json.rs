//! `tojson` as Hugging Face has it: Python's `json.dumps`, without escapes for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::BYTES_FOR_FUEL;
use super::value_sizes::MOST_SIZE;

const MOST_INDENT: usize = 100;

/// The filter: a value as JSON.
pub fn to_json(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let ascii = named.get::<Option<bool>>("ensure_ascii")?.or(ensure_ascii).unwrap_or(false);
    let indent = match named.get::<Option<Value>>("indent")? {
        None => None,
        Some(given) if given.is_none() => None,
        Some(given) => Some(match given.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                usize::try_from(i64::try_from(given)?.max(0))
                    .unwrap_or(usize::MAX)
                    .min(MOST_INDENT + 1),
            ),
        }),
    };
    if indent.as_ref().is_some_and(|indent| indent.len() > MOST_INDENT) {
        return Err(failed("an indent is too wide"));
    }
    let (item, key) = match named.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(failed("separators are two texts")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    if item.len() + key.len() > MOST_INDENT {
        return Err(failed("a separator is too long"));
    }
    let sorts = named.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    named.assert_all_used()?;
    let most = state
        .fuel_levels()
        .map_or(u64::MAX, |(_, left)| left.saturating_mul(BYTES_FOR_FUEL as u64));
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(MOST_SIZE);
    let mut writer = JsonWriter { text: String::new(), ascii, indent, item, key, sorts, most };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct JsonWriter {
    text: String,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorts: bool,
    most: usize,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.text.len() > self.most {
            return Err(ErrorKind::OutOfFuel.into());
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.all(['[', ']'], &items, depth, |this, item| this.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sorts {
                    keys.sort();
                }
                self.all(['{', '}'], &keys, depth, |this, key| {
                    match key.as_str() {
                        Some(text) => this.string(text),
                        None => {
                            this.text.push('"');
                            this.value(key, depth + 1)?;
                            this.text.push('"');
                        }
                    }
                    this.text.push_str(&this.key.clone());
                    this.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            other => {
                return Err(failed(format!("Object of type {other} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn all(
        &mut self,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        write: impl Fn(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push_str(&self.item);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            (0..depth).for_each(|_| self.text.push_str(indent));
        }
    }

    fn number(&mut self, value: &Value) {
        let text = number(value);
        self.text.push_str(match text.as_str() {
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            other => other,
        });
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                other if other < ' ' || (self.ascii && other > '~') => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
    }
}

/// A number as Python writes it.
pub fn number(value: &Value) -> String {
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    let exponent = format!("{number:e}");
    match exponent.split_once('e') {
        Some((digits, exponent)) if !value.is_integer() => match exponent.parse::<i32>() {
            Ok(power) if !(-4..16).contains(&power) => {
                let sign = if power < 0 { '-' } else { '+' };
                format!("{digits}e{sign}{:02}", power.abs())
            }
            _ => value.to_string(),
        },
        _ => value.to_string(),
    }
}

fn failed(said: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, said.into())
}
