//! What makes or goes through values, in place of minijinja's own: bounded by their size.
//!
//! In: a template's instructions, and an environment. Out: instructions that call what is added to
//! the environment under names that no template can write. minijinja's fuel pays for instructions,
//! and for what is made by itself; what stands in it many times, or deep, it does not see.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Object, ObjectRepr, Tuple};
use minijinja::{Environment, Error, ErrorKind, State, Value, context, escape_formatter};

use super::BYTES_FOR_FUEL;
use super::filters::slice;
use super::methods;
use super::to_json::number;
use super::value_sizes::{MOST_SIZE, ValueSizes};

type ValueResult = Result<Value, Error>;

/// Names under which filters and tests are called, beside their own.
macro_rules! named {
    ($mark:literal: $($name:literal)*) => { &[$(($name, concat!($mark, $name))),*] };
}

const FILTERS: &[(&str, &str)] = named!("|": "abs" "attr" "batch" "bool" "capitalize" "chain" "count" "d" "default"
    "dictsort" "e" "escape" "first" "float" "format" "groupby" "indent" "int" "items" "join" "last" "length" "lines"
    "list" "lower" "map" "max" "min" "pprint" "reject" "rejectattr" "replace" "reverse" "round" "safe" "select"
    "selectattr" "slice" "sort" "split" "string" "sum" "title" "tojson" "trim" "unique" "upper" "zip");

/// Filters that look at items, or hand them on, and do not go through what they hold.
const SHALLOW: &[&str] = &[
    "attr", "batch", "chain", "count", "d", "default", "first", "items", "last", "length", "list",
    "reverse", "slice", "zip",
];

const TESTS: &[(&str, &str)] = named!("is ": "==" "eq" "equalto" "!=" "ne" ">" "gt" "greaterthan" ">=" "ge" "<" "lt"
    "lessthan" "<=" "le" "in" "sameas");

/// Operators that minijinja computes, within an expression of its own.
const COMPUTED: &[(&str, &str)] =
    &[("a + b", "+"), ("a * b", "*"), ("a in b", "in "), ("a % b", "%")];

type Comparison = fn(&Value, &Value) -> bool;

const COMPARED: &[(&str, Comparison)] = &[
    ("==", |a, b| a == b),
    ("!=", |a, b| a != b),
    ("<", |a, b| a < b),
    ("<=", |a, b| a <= b),
    (">", |a, b| a > b),
    (">=", |a, b| a >= b),
];

type Builtin = fn(&Limits, &mut State, &[Value]) -> ValueResult;

const FUNCTIONS: &[(&str, Builtin)] = &[
    ("[]", |_, _, given| Ok(given.to_vec().into())),
    ("(,)", |_, _, given| Ok(Tuple::from(given.to_vec()).into())),
    ("{}", |limits, state, given| {
        limits.pay(state, given.iter().step_by(2))?;
        let pairs = given.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        Ok(Value::from_object(pairs.collect::<IndexMap<_, _>>()))
    }),
    ("[:]", |_, state, given| slice(state, given)),
    ("[.]", |limits, state, given| {
        limits.pay(state, &given[1..])?;
        given[0].get_item(&given[1])
    }),
    ("~", |limits, state, given| {
        limits.pay(state, given)?;
        Ok(format!("{}{}", given[0], given[1]).into())
    }),
    ("range", range),
    ("dict", dict),
    ("namespace", |limits, state, given| {
        let names = dict(limits, state, given)?;
        limits.know(&names)?;
        let names =
            names.downcast_object_ref::<IndexMap<Value, Value>>().cloned().unwrap_or_default();
        Ok(Value::from_object(Namespace(Mutex::new(names))))
    }),
];

/// What a rendering has made, as its functions share it.
#[derive(Clone, Default)]
pub struct Limits(Arc<Mutex<ValueSizes>>);

impl Limits {
    fn measured(&self) -> MutexGuard<'_, ValueSizes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measure what a template is given.
    pub fn know(&self, given: &Value) -> Result<(), Error> {
        self.measured().of(given).map(drop)
    }

    /// A value that was made, within bounds.
    pub fn held(&self, state: &State, value: Value) -> ValueResult {
        let (before, mut measured) = (value.len().unwrap_or(0), self.measured());
        if value.as_object().is_some() {
            state.consume_fuel(2 + before as u64 / 4)?;
        }
        measured.held(value)
    }

    /// Pay for going through values.
    pub fn pay<'a>(
        &self,
        state: &State,
        values: impl IntoIterator<Item = &'a Value>,
    ) -> Result<(), Error> {
        let mut size = 0;
        for value in values {
            size += self.size(value)?;
        }
        state.consume_fuel((size / BYTES_FOR_FUEL) as u64)
    }

    /// About the bytes of a value's text, or of all that is given by name.
    fn size(&self, value: &Value) -> Result<usize, Error> {
        if !value.is_kwargs() {
            return Ok(self.measured().of(value)?.size);
        }
        value.try_iter()?.map(|name| self.size(&value.get_item(&name)?)).sum()
    }

    /// Pay for a text that is made by a format, whose fields begin with a mark.
    fn pay_format(
        &self,
        state: &State,
        form: &str,
        mark: char,
        values: &[Value],
    ) -> Result<(), Error> {
        let widths = methods::widths(form).filter(|_| mark != '%' || !form.contains('*'));
        let widths = widths.ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, "a field of a format is too wide")
        })?;
        let mut longest = 0;
        for value in values {
            longest = longest.max(self.size(value)?);
        }
        let size = form.len() + widths + form.matches(mark).count().saturating_mul(longest);
        if size > MOST_SIZE {
            return Err(ErrorKind::OutOfFuel.into());
        }
        state.consume_fuel((size / BYTES_FOR_FUEL) as u64)
    }

    /// Add all of it to an environment.
    pub fn add_to(&self, environment: &mut Environment<'_>) {
        for &(name, function) in FUNCTIONS {
            self.add(environment, name, function);
        }
        for &(expression, name) in COMPUTED {
            self.add(environment, name, move |limits, state, given| {
                limits.computed(state, name, expression, given)
            });
        }
        for &(name, compared) in COMPARED {
            self.add(environment, name, move |limits, state, given| {
                limits.pay(state, given)?;
                Ok(compared(&given[0], &given[1]).into())
            });
        }
        for &(name, called) in FILTERS {
            self.add(environment, called, move |limits, state, given| {
                limits.filtered(state, name, given)
            });
        }
        for &(name, called) in TESTS {
            self.add(environment, called, move |limits, state, given| {
                limits.pay(state, given)?;
                state.perform_test(name, given).map(Value::from)
            });
        }
        let limits = self.clone();
        environment.set_formatter(move |out, state, value| {
            if value.as_object().is_some() {
                limits.pay(state, [value])?;
            }
            if value.is_number() {
                return out.write_str(&number(value)).map_err(Error::from);
            }
            escape_formatter(out, state, value)
        });
        let limits = self.clone();
        environment.set_unknown_method_callback(move |state, value, method, given| {
            let names = match given {
                [one] => one.downcast_object_ref::<Namespace>(),
                _ => None,
            };
            if let Some(names) = names {
                limits.know(value)?;
                names.set(method, value.clone());
                return Ok(Value::UNDEFINED);
            }
            if !["get", "items", "keys", "values"].contains(&method) {
                limits.pay(state, std::iter::once(value).chain(given))?;
            }
            if let ("format", Some(form)) = (method, value.as_str()) {
                limits.pay_format(state, form, '{', given)?;
            }
            let made = methods::call(state, value, method, given)?;
            limits.held(state, made)
        });
    }

    fn add(
        &self,
        environment: &mut Environment<'_>,
        name: &'static str,
        function: impl Fn(&Self, &mut State, &[Value]) -> ValueResult + Send + Sync + 'static,
    ) {
        let limits = self.clone();
        let function = move |state: &mut State, given: &[Value]| {
            let made = function(&limits, state, given)?;
            limits.held(state, made)
        };
        environment.add_global(name, Value::from_object(Function(Box::new(function))));
    }

    fn filtered(&self, state: &mut State, name: &str, given: &[Value]) -> ValueResult {
        let is_shallow = SHALLOW.contains(&name);
        self.pay(state, given.iter().filter(|one| !is_shallow || one.as_str().is_some()))?;
        if given.len() > 2 {
            // Each item is compared with what stands behind the name of a test.
            let items = given[0].len().unwrap_or(1);
            (0..items).try_for_each(|_| self.pay(state, &given[2..]))?;
        }
        if let ("format", Some(form)) = (name, given.first().and_then(Value::as_str)) {
            self.pay_format(state, form, '%', &given[1..])?;
        }
        let made = state.apply_filter(name, given)?;
        if name != "groupby" {
            return Ok(made);
        }
        let pair = |group: Value| -> ValueResult {
            let parts = group.try_iter()?.map(|part| self.measured().held(part));
            Ok(Tuple::from(parts.collect::<Result<Vec<_>, _>>()?).into())
        };
        made.try_iter()?.map(pair).collect::<Result<Vec<Value>, Error>>().map(Value::from)
    }

    fn computed(
        &self,
        state: &mut State,
        name: &str,
        expression: &str,
        given: &[Value],
    ) -> ValueResult {
        let [a, b] = given else { return Err(ErrorKind::MissingArgument.into()) };
        if name == "%" && a.as_str().is_some() {
            let mut all = vec![a.clone()];
            if b.is_tuple() {
                all.extend(b.try_iter()?)
            } else {
                all.push(b.clone())
            }
            return self.filtered(state, "format", &all);
        }
        self.pay(state, given)?;
        if let ("+", Some(a), Some(b)) = (name, a.as_str(), b.as_str()) {
            return Ok(format!("{a}{b}").into());
        }
        if name == "*" {
            let (times, part) = if a.is_number() { (a, b) } else { (b, a) };
            if !part.is_number() {
                let times = usize::try_from(i64::try_from(times.clone())?).unwrap_or(0);
                let size = self.measured().of(part)?.size.saturating_mul(times);
                state.consume_fuel((size / BYTES_FOR_FUEL) as u64)?;
            }
        }
        state.env().compile_expression(expression)?.eval(context! { a, b })
    }
}

fn range(_: &Limits, _: &mut State, given: &[Value]) -> ValueResult {
    let numbers: Result<Vec<isize>, Error> =
        given.iter().map(|one| isize::try_from(one.clone())).collect();
    match numbers?[..] {
        [stop] => minijinja::functions::range(stop, None, None),
        [start, stop] => minijinja::functions::range(start, Some(stop), None),
        [start, stop, step] => minijinja::functions::range(start, Some(stop), Some(step)),
        _ => Err(ErrorKind::MissingArgument.into()),
    }
}

/// A dict of another, or of pairs, and of names.
fn dict(limits: &Limits, state: &mut State, given: &[Value]) -> ValueResult {
    let mut made = IndexMap::new();
    for one in given {
        let is_map = one.is_kwargs() || one.kind() == minijinja::value::ValueKind::Map;
        for key in one.try_iter()?.checked() {
            let key = key?;
            let (key, item) = if is_map {
                (key.clone(), one.get_item(&key)?)
            } else {
                (key.get_item(&Value::from(0))?, key.get_item(&Value::from(1))?)
            };
            limits.pay(state, [&key])?;
            made.insert(key, item);
        }
    }
    Ok(Value::from_object(made))
}

type Callback = dyn Fn(&mut State, &[Value]) -> ValueResult + Send + Sync;

/// A function that takes what it is given as it is, named or not.
struct Function(Box<Callback>);

impl std::fmt::Debug for Function {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("<function>")
    }
}

impl Object for Function {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, given: &[Value]) -> ValueResult {
        self.0(state, given)
    }
}

/// What `namespace` makes: names that a template may set, also from within a loop.
#[derive(Debug)]
struct Namespace(Mutex<IndexMap<Value, Value>>);

impl Namespace {
    fn set(&self, name: &str, value: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), value);
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Replace instructions by calls of what [`Limits`] adds.
///
/// # Errors
///
/// Why there is no such call.
pub fn replace(instructions: &mut Instructions<'_>) -> Result<(), (usize, String)> {
    for index in 0.. {
        let Some(instruction) = instructions.get_mut(index) else { break };
        let name = |known: &[(&str, &'static str)], name: &str| {
            let name: String = name.split_whitespace().collect();
            known.iter().find(|(own, _)| *own == name).map(|(_, called)| *called)
        };
        let (called, count) = match *instruction {
            Instruction::BuildList(count) => ("[]", count),
            Instruction::BuildTuple(count) => ("(,)", count),
            Instruction::BuildMap(count) => ("{}", Some(count * 2)),
            Instruction::GetItem => ("[.]", Some(2)),
            Instruction::Slice => ("[:]", Some(4)),
            Instruction::StringConcat => ("~", Some(2)),
            Instruction::Add => ("+", Some(2)),
            Instruction::Mul => ("*", Some(2)),
            Instruction::Rem => ("%", Some(2)),
            Instruction::Eq => ("==", Some(2)),
            Instruction::Ne => ("!=", Some(2)),
            Instruction::Lt => ("<", Some(2)),
            Instruction::Lte => ("<=", Some(2)),
            Instruction::Gt => (">", Some(2)),
            Instruction::Gte => (">=", Some(2)),
            Instruction::In => ("in ", Some(2)),
            Instruction::ApplyFilter(filter, count, _) => match name(FILTERS, filter) {
                Some(called) => (called, count.map(usize::from)),
                None => continue, // refused by name where it is called
            },
            Instruction::PerformTest(test, count, _) => match name(TESTS, test) {
                Some(called) => (called, count.map(usize::from)),
                None => continue,
            },
            Instruction::LoadConst(ref mut value) => {
                *value = ValueSizes::default()
                    .held(value.clone())
                    .map_err(|error| (1, error.to_string()))?;
                continue;
            }
            Instruction::SetAttr(attribute) => {
                *instruction = Instruction::CallMethod(attribute, Some(2));
                continue;
            }
            Instruction::CompareAndPreserve(_) => {
                let said = "comparisons in a chain are not supported".into();
                return Err((instructions.get_line(index).unwrap_or(1), said));
            }
            _ => continue,
        };
        let count = count.map(u16::try_from).transpose();
        let count = count.map_err(|_| (1, "a list or dict of it is written too long".into()))?;
        *instruction = Instruction::CallFunction(called, count);
    }
    Ok(())
}
