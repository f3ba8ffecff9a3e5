//! Which kernels are compiled, and the docstrings of the extension module.
//!
//! Kernels: `x86_64_kernels` or `aarch64_kernels` is set, by what the crate is compiled for, or
//! neither with `COORDGEN_KERNELS=portable`: two thirds of the code of an optimised build are
//! kernels, most of them for one processor each, and programs that multiply nothing need none.
//!
//! Docstrings are those of the stub: what a type checker and the documentation read there, `help`
//! shows too, and the text stands once. In: `_core.pyi`, laid out as ruff does it. Out:
//! `stub_docs.rs` with the macro `stub_doc!`, which gives the docstring of a name such as
//! "Drafter.propose"; an unknown name does not compile.

use std::path::Path;
use std::{env, fs};

const STUB: &str = "python/coordgen_rs/_core.pyi";
const INDENT: &str = "    ";

fn main() {
    choose_kernels();
    println!("cargo::rerun-if-changed={STUB}");
    if env::var_os("CARGO_FEATURE_PYTHON").is_none() {
        return;
    }
    let stub = fs::read_to_string(STUB).unwrap_or_else(|error| panic!("{STUB}: {error}"));
    let arms: String = docstrings(&stub)
        .iter()
        .map(|(name, doc)| format!("({name:?}) => {{ {doc:?} }};\n"))
        .collect();
    let out = env::var_os("OUT_DIR").expect("cargo sets it for build scripts");
    let written = fs::write(
        Path::new(&out).join("stub_docs.rs"),
        format!("macro_rules! stub_doc {{\n{arms}}}\n"),
    );
    written.expect("cargo's folder can be written");
}

fn choose_kernels() {
    println!("cargo::rerun-if-env-changed=COORDGEN_KERNELS");
    let are_all_portable = match env::var("COORDGEN_KERNELS").as_deref() {
        Err(_) => false,
        Ok("portable") => true,
        Ok(other) => panic!("COORDGEN_KERNELS is portable, or not set, not {other}"),
    };
    let compiled_for = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it for build scripts");
    for architecture in ["x86_64", "aarch64"] {
        println!("cargo::rustc-check-cfg=cfg({architecture}_kernels)");
        if architecture == compiled_for && !are_all_portable {
            println!("cargo::rustc-cfg={architecture}_kernels");
        }
    }
}

/// The names of the module, classes, their methods and functions that have a docstring, and that.
fn docstrings(stub: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut class = "";
    let mut described = Some(("_core".to_owned(), String::new()));
    let mut lines = stub.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if let Some(rest) = code.strip_prefix("class ") {
            class = identifier(rest);
            described = Some((class.into(), INDENT.into()));
        } else if let Some(rest) = code.strip_prefix("def ") {
            let name = identifier(rest);
            let name = if indent.is_empty() { name.into() } else { format!("{class}.{name}") };
            described = Some((name, format!("{indent}{INDENT}")));
        } else if let Some(first) = code.strip_prefix("\"\"\"")
            && let Some((name, indent)) = described.take_if(|(_, inner)| inner == indent)
        {
            found.push((name, docstring(first, &indent, &mut lines)));
        }
    }
    found
}

fn identifier(code: &str) -> &str {
    let end = code.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    &code[..end.unwrap_or(code.len())]
}

/// The text up to the closing quotes, without the indentation.
fn docstring<'a>(
    first: &'a str,
    indent: &str,
    lines: &mut impl Iterator<Item = &'a str>,
) -> String {
    let mut text = String::new();
    let mut line = first;
    while !line.ends_with("\"\"\"") {
        text.push_str(line);
        text.push('\n');
        line = lines.next().expect("docstrings are closed");
        line = line.strip_prefix(indent).unwrap_or(line);
    }
    text.push_str(line.trim_end_matches("\"\"\""));
    text.trim_end().into()
}
