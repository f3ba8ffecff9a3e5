//! What templates may call: minijinja's own, and what Hugging Face and Python's Jinja have besides.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::methods::stripped;
use super::to_json::to_json;

/// A slice; no template can write this name.
pub const SLICE: &str = "[:]";

/// The operator `%`; no template can write this name.
pub const PERCENT: &str = "%";

/// Add them to an environment.
pub fn add(environment: &mut Environment<'_>) {
    environment.remove_global("debug");
    environment.add_function("raise_exception", raise_exception);
    environment.add_function(SLICE, slice);
    environment.add_function(PERCENT, percent);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |value: &Value, marks: Option<String>| {
        stripped(&value.to_string(), marks.as_deref(), true, true).to_owned()
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
            || value.is_undefined()
    });
}

fn raise_exception(said: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, said.to_string()))
}

/// The items of a list, or the characters of a text, from one to before another.
fn slice(
    state: &State,
    value: &Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
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
        state.consume_fuel(text.len() as u64 / 64)?;
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

/// A remainder, or a text in the format of another.
fn percent(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let Some(form) = left.as_str() else {
        return state
            .env()
            .compile_expression("a % b")?
            .eval(minijinja::context! { a => left, b => right });
    };
    state.consume_fuel(form.len() as u64 / 64)?;
    let values: Vec<Value> = if right.is_tuple() {
        right.try_iter()?.checked().collect::<Result<_, _>>()?
    } else {
        vec![right.clone()]
    };
    format(FormatStyle::Printf, form, &values).map(Value::from)
}
