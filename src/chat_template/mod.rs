//! Chat templates: from messages to the text that an instruct model was trained on.
//!
//! In: a template in Jinja, which strangers wrote, and what it may read. Out: the text that
//! `transformers` makes of them, or why there is none. minijinja runs it, with the names, filters
//! and methods of Python that templates use (`filters.rs`, `methods.rs`, `to_json.rs`).
//!
//! A rendering ends, and takes a bounded amount of memory: minijinja's fuel pays for each
//! instruction and for every byte and item that is made (`limits.rs`), and no value is too large,
//! or too deep (`value_sizes.rs`).

mod filters;
mod limits;
mod methods;
mod to_json;
mod value_sizes;

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use self::limits::Limits;
pub use self::value_sizes::MOST_DEPTH;
use self::value_sizes::MOST_SIZE;

/// What a rendering may do: instructions, and 64 bytes of what it makes for each of them.
pub const FUEL: u64 = 2_000_000;

/// Bytes that a unit of fuel pays for, as minijinja counts what is made.
const BYTES_FOR_FUEL: usize = 64;

/// The time as a text, in a format of `strftime`; or why there is none.
pub type Now = dyn Fn(&str) -> Result<String, String> + Send + Sync;

/// Why a template gives no text.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// It is no Jinja.
    #[error("is malformed in line {line}: {said}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        said: String,
    },
    /// It refuses what it was given, does what is not offered, or too much.
    #[error("cannot be applied: {said}")]
    Refused {
        /// Its own words, or minijinja's.
        said: String,
    },
}

/// The names that what a template renders can depend on.
///
/// # Errors
///
/// [`TemplateError::Malformed`].
pub fn variables(source: &str) -> Result<BTreeSet<String>, TemplateError> {
    let source = without_marks(source);
    let _ = compiled(&source)?;
    let environment = environment();
    let template = environment.template_from_str(&source).map_err(malformed)?;
    let own: BTreeSet<&str> =
        environment.globals().map(|(name, _)| name).chain(["strftime_now"]).collect();
    let read = template.undeclared_variables(false);
    Ok(read.into_iter().filter(|name| !own.contains(name.as_str())).collect())
}

/// The text that a template makes of what it reads.
///
/// # Errors
///
/// [`TemplateError`].
pub fn render(source: &str, known: Value, now: Box<Now>) -> Result<String, TemplateError> {
    let source = without_marks(source);
    let compiled = compiled(&source)?;
    let mut environment = environment();
    environment.add_function("strftime_now", move |form: &str| {
        now(form).map_err(|said| Error::new(ErrorKind::InvalidOperation, said))
    });
    let limits = Limits::default();
    limits.add_to(&mut environment);
    limits.know(&known).map_err(refused)?;
    let mut text = String::new();
    let mut out = make_string_output(&mut text);
    let (instructions, blocks) = (&compiled.instructions, &compiled.blocks);
    eval(&environment, instructions, known, blocks, &mut out, AutoEscape::None).map_err(refused)?;
    if text.len() > MOST_SIZE {
        return Err(refused(ErrorKind::OutOfFuel.into()));
    }
    Ok(text)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    environment.set_debug(true); // so that what is undefined is told by name
    filters::add(&mut environment);
    environment
}

/// As Hugging Face runs templates.
fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("delimiters are the usual ones")
}

fn compiled(source: &str) -> Result<CompiledTemplate<'_>, TemplateError> {
    let default_auto_escape = Arc::new(|_: &str| AutoEscape::None);
    let config = TemplateConfig { syntax_config: syntax(), default_auto_escape };
    let mut compiled =
        CompiledTemplate::new("chat template", source, &config).map_err(malformed)?;
    limits::replace(&mut compiled.instructions)
        .map_err(|(line, said)| TemplateError::Malformed { line, said })?;
    Ok(compiled)
}

/// `{% generation %}` marks what the model says, for training; it renders as what it holds.
fn without_marks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        plain.push_str(before);
        let length = tag.find("%}").unwrap_or(tag.len());
        let (inside, behind) = tag.split_at(length);
        match inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => plain.push_str(&inside.replace("generation", "with")),
            "endgeneration" => plain.push_str(&inside.replace("endgeneration", "endwith")),
            _ => plain.push_str(inside),
        }
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

fn malformed(error: Error) -> TemplateError {
    TemplateError::Malformed { line: error.line().unwrap_or(1), said: said(&error) }
}

fn refused(error: Error) -> TemplateError {
    let said = match error.kind() {
        ErrorKind::OutOfFuel => "it does not end, or makes too long a text".into(),
        _ => said(&error),
    };
    TemplateError::Refused { said }
}

fn said(error: &Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation | ErrorKind::SyntaxError, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    }
}
