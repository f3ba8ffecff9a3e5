//! Methods of Python's values that minijinja's own compatibility lacks, or has otherwise. Who calls
//! them has paid for what they go through.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Longest text of marks that a text is stripped of.
const MOST_MARKS: usize = 100;

/// Widest field of a format.
const MOST_WIDTH: usize = 9999;

/// Call a method.
pub fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    given: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(made) = of_text(state, text, method, given)? {
            return Ok(made);
        }
    } else if value.kind() == ValueKind::Seq && method == "index" {
        let (item,): (&Value,) = from_args(given)?;
        let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        state.consume_fuel(items.len() as u64)?;
        let at = items.iter().position(|one| one == item);
        return at.map(Value::from).ok_or_else(|| failed("value is not in list"));
    } else if value.kind() == ValueKind::Map && method == "copy" {
        let () = from_args(given)?;
        return Ok(value.clone());
    }
    unknown_method_callback(state, value, method, given)
}

/// The text without marks at its ends: those of `marks`, or white space as Python has it.
pub fn stripped<'a>(text: &'a str, marks: Option<&str>, left: bool, right: bool) -> &'a str {
    let is_one = |c: char| match marks {
        None => is_space(c),
        Some(marks) => marks.contains(c),
    };
    let text = if left { text.trim_start_matches(is_one) } else { text };
    if right { text.trim_end_matches(is_one) } else { text }
}

fn of_text(
    state: &State,
    text: &str,
    method: &str,
    given: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (marks,): (Option<&str>,) = from_args(given)?;
            if marks.is_some_and(|marks| marks.len() > MOST_MARKS) {
                return Err(failed("it strips too many characters"));
            }
            stripped(text, marks, method != "rstrip", method != "lstrip").into()
        }
        "split" | "rsplit" => {
            let (separator, most, named): (Option<&Value>, Option<i64>, Kwargs) = from_args(given)?;
            let named_separator = named.get::<Option<Value>>("sep")?;
            let most = named.get::<Option<i64>>("maxsplit")?.or(most).unwrap_or(-1);
            named.assert_all_used()?;
            let separator = separator.or(named_separator.as_ref()).filter(|one| !one.is_none());
            let most = usize::try_from(most).map_or(usize::MAX, |most| most + 1);
            let parts = match separator
                .map(|one| one.as_str().ok_or_else(|| failed("must be str")))
                .transpose()?
            {
                Some("") => return Err(failed("empty separator")),
                Some(separator) => {
                    state.consume_fuel(text.matches(separator).count() as u64)?;
                    split(text, separator, most, method == "rsplit")
                }
                None => words(text, most, method == "rsplit"),
            };
            state.consume_fuel(parts.len() as u64)?;
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keeps, named): (Option<bool>, Kwargs) = from_args(given)?;
            let keeps = named.get::<Option<bool>>("keepends")?.or(keeps).unwrap_or(false);
            named.assert_all_used()?;
            let lines = lines(text, keeps);
            state.consume_fuel(lines.len() as u64)?;
            lines.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(given)?;
            if separator.is_empty() {
                return Err(failed("empty separator"));
            }
            let is_first = method == "partition";
            let found =
                if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match (found, is_first) {
                (Some((before, behind)), _) => [before, separator, behind],
                (None, true) => [text, "", ""],
                (None, false) => ["", "", text],
            };
            Tuple::from(parts.map(Value::from)).into()
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(given)?;
            let rest = if method == "removeprefix" {
                text.strip_prefix(part)
            } else {
                text.strip_suffix(part)
            };
            rest.unwrap_or(text).into()
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(given)?;
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| failed("substring not found"))?;
            text[..at].chars().count().into()
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (i64, Option<char>) = from_args(given)?;
            let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
            state.consume_fuel(missing as u64 / 16)?;
            padded(text, missing, method, fill).into()
        }
        "swapcase" => {
            let () = from_args(given)?;
            let swap = |c: char| {
                if c.is_uppercase() {
                    c.to_lowercase().to_string()
                } else {
                    c.to_uppercase().to_string()
                }
            };
            text.chars().map(swap).collect::<String>().into()
        }
        _ => return Ok(None),
    }))
}

/// All numbers in a format together; none where one is too large, or stands in a field of a field.
pub fn widths(form: &str) -> Option<usize> {
    let (mut sum, mut depth) = (0, 0);
    for digits in form.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        sum += digits.parse::<usize>().ok().filter(|width| *width <= MOST_WIDTH)?;
    }
    for brace in form.replace("{{", "").replace("}}", "").matches(['{', '}']) {
        depth += if brace == "{" { 1 } else { -1 };
        if depth > 1 {
            return None;
        }
    }
    Some(sum)
}

fn padded(text: &str, missing: usize, method: &str, fill: Option<char>) -> String {
    let (sign, text) = match (method, text.strip_prefix(['+', '-'])) {
        ("zfill", Some(digits)) => (&text[..1], digits),
        _ => ("", text),
    };
    let fill = if method == "zfill" { '0' } else { fill.unwrap_or(' ') };
    let before = match method {
        "ljust" => 0,
        // As CPython does it: what is left over stands before the text where both are odd.
        "center" => missing / 2 + (missing & (missing + text.chars().count()) & 1),
        _ => missing,
    };
    let fills = |number: usize| std::iter::repeat_n(fill, number);
    sign.chars().chain(fills(before)).chain(text.chars()).chain(fills(missing - before)).collect()
}

/// At most so many parts.
fn split<'a>(text: &'a str, separator: &str, most: usize, from_the_right: bool) -> Vec<&'a str> {
    if !from_the_right {
        return text.splitn(most, separator).collect();
    }
    let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
    parts.reverse();
    parts
}

/// What stands between white space, at most so many; the last takes the rest.
fn words(text: &str, most: usize, from_the_right: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = stripped(text, None, !from_the_right, from_the_right);
    while !rest.is_empty() {
        let cut = if from_the_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| found.len() + 1 < most) else {
            found.push(rest);
            break;
        };
        let space = rest[at..].chars().next().map_or(0, char::len_utf8);
        let (before, behind) = (&rest[..at], &rest[at + space..]);
        let (word, others) = if from_the_right { (behind, before) } else { (before, behind) };
        found.push(word);
        rest = stripped(others, None, !from_the_right, from_the_right);
    }
    if from_the_right {
        found.reverse();
    }
    found
}

fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends_line) {
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        found.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// White space as Python has it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn failed(said: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, said)
}
