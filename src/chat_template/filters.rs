//! What templates may call: minijinja's own, and what Hugging Face and Python's Jinja have besides.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::BYTES_FOR_FUEL;
use super::methods::stripped;
use super::to_json::to_json;

/// Add them to an environment.
pub fn add(environment: &mut Environment<'_>) {
    environment.remove_global("debug");
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |value: &Value, marks: Option<String>| {
        stripped(&value.to_string(), marks.as_deref(), true, true).to_owned()
    });
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
}

fn raise_exception(said: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, said.to_string()))
}

/// The items of a list, or the characters of a text: those from one to before another, by a step.
pub fn slice(state: &State, given: &[Value]) -> Result<Value, Error> {
    let (value, start, stop, step): (&Value, Option<i64>, Option<i64>, Option<i64>) =
        from_args(given)?;
    if value.is_undefined() || value.is_none() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            format!("{} cannot be sliced", value.kind()),
        ));
    }
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        state.consume_fuel((text.len() / BYTES_FOR_FUEL) as u64)?;
        let characters: Vec<char> = text.chars().collect();
        let picked = picked(characters.len(), start, stop, step);
        return Ok(picked.map(|index| characters[index]).collect::<String>().into());
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    state.consume_fuel(items.len() as u64)?;
    let picked: Vec<Value> =
        picked(items.len(), start, stop, step).map(|index| items[index].clone()).collect();
    Ok(if value.is_tuple() { Tuple::from(picked).into() } else { picked.into() })
}

/// The indices of a slice of Python's.
fn picked(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let within = |index: i64| {
        if index < 0 { (index.saturating_add(length)).max(least) } else { index.min(most) }
    };
    let (first, last) = if step > 0 { (least, most) } else { (most, least) };
    let (mut at, stop) = (start.map_or(first, within), stop.map_or(last, within));
    std::iter::from_fn(move || {
        let is_before = if step > 0 { at < stop } else { at > stop };
        let index = is_before.then(|| usize::try_from(at).ok()).flatten()?;
        at = at.saturating_add(step);
        Some(index)
    })
}
