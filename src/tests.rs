//! Tests of the layout: imports run one way, so that what a file needs stands below it, and a
//! folder holds its own module.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crate's modules, from the ground up; those of a line do not know each other.
const CRATE: &[&[&str]] = &[
    &["atomic_file", "chat_template", "ids", "kernels", "locks"],
    &["error"],
    &["constraint", "logits"],
    &["sampling"],
    &["tree"],
    &["verify"],
    &["commit"],
    &["draft", "load"],
    &["batch"],
    &["ort"],
    &["c", "py"],
];

/// Those of `draft`.
const DRAFT: &[&[&str]] = &[
    &["setting", "token_variants"],
    &["source"],
    &["sources"],
    &["choose"],
    &["methods"],
    &["host"],
];

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Lines of code below `folder` that name a module behind `prefix` which is not below their own.
fn upward_imports(folder: &Path, prefix: &str, layers: &[&[&str]]) -> Vec<String> {
    let layer = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    let mut found = Vec::new();
    for path in files(folder) {
        let own = path.strip_prefix(folder).unwrap().iter().next().unwrap();
        let own = own.to_str().unwrap().trim_end_matches(".rs");
        if ["lib", "mod", "tests"].contains(&own) {
            continue;
        }
        let own_layer = layer(own).unwrap_or_else(|| panic!("{own} has no layer"));
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for after in line.split(prefix).skip(1) {
                let end = after.find(|letter: char| !letter.is_lowercase() && letter != '_');
                let name = &after[..end.unwrap_or(after.len())];
                if name != own && layer(name).is_some_and(|layer| layer >= own_layer) {
                    found.push(format!("{}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    found
}

#[test]
fn imports_run_one_way() {
    let folder = source_folder();
    let mut found = upward_imports(&folder, "crate::", CRATE);
    found.extend(upward_imports(&folder.join("draft"), "crate::draft::", DRAFT));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Where locks are taken without `locks`: there itself; in the loader's thread and those that read
/// experts or ask for them, which hold nothing that others need, and for condition variables; among threads that end within a
/// call; and where one thread alone has them, as a chat template's rendering.
const TAKE_LOCKS: &[&str] = &[
    "locks.rs",
    "tests.rs",
    "chat_template/limits.rs",
    "load/loader/mod.rs",
    "load/experts/store.rs",
    "draft/sources/lookup_table/source.rs",
];

#[test]
fn a_lock_is_waited_for_without_holding_others_up() {
    let folder = source_folder();
    let takes_itself = |path: &PathBuf| {
        let own = path.strip_prefix(&folder).unwrap().to_str().unwrap().replace('\\', "/");
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_test = own.ends_with("tests.rs") || own.contains("/tests/");
        !is_test
            && !TAKE_LOCKS.contains(&&own[..])
            && (code.contains("oisonError") || code.contains(".lock().unwrap"))
    };
    let found: Vec<_> = files(&folder).into_iter().filter(takes_itself).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_folder_holds_its_own_module() {
    let all = files(&source_folder());
    let doubled: Vec<_> = all.iter().filter(|path| path.with_extension("").is_dir()).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
}

/// The files that each file's `use` lines name, by their modules' paths: siblings and theirs, not those
/// above or below it.
fn imports_of_files() -> BTreeMap<String, Vec<String>> {
    let folder = source_folder();
    let module = |path: &PathBuf| {
        let path = path.strip_prefix(&folder).unwrap().with_extension("");
        let parts = path.iter().map(|part| part.to_str().unwrap());
        parts.filter(|part| *part != "mod").collect::<Vec<_>>().join("::")
    };
    let is_product =
        |path: &PathBuf| !path.iter().any(|part| part == "tests" || part == "tests.rs");
    let files: Vec<_> = files(&folder).into_iter().filter(is_product).collect();
    let known: HashSet<_> = files.iter().map(module).collect();
    let named = |own: &str, path: &str| {
        let mut parts: Vec<_> = match path.strip_prefix("crate::") {
            Some(path) => path.split("::").collect(),
            None => own.split("::").chain(path.split("::")).collect(),
        };
        while let Some(at) = parts.iter().position(|part| *part == "super") {
            parts.drain(at.saturating_sub(1)..=at);
        }
        parts.retain(|part| *part != "self");
        while !parts.is_empty() && !known.contains(&parts.join("::")) {
            parts.pop();
        }
        parts.join("::")
    };
    let within = |one: &str, other: &str| format!("{one}::").starts_with(&format!("{other}::"));
    let of_file = |path: &PathBuf| {
        let (own, text) = (module(path), fs::read_to_string(path).unwrap());
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let uses = product.split('\n').collect::<Vec<_>>().join(" ");
        let uses = uses.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
        let paths = uses.flat_map(|path| expanded("", &path.replace(' ', "")));
        let of_ours = paths.filter(|path| ["crate", "super", "self"].contains(&first_part(path)));
        let named = of_ours.map(|path| named(&own, &path));
        let named = named.filter(|it| !it.is_empty() && !within(it, &own) && !within(&own, it));
        let named = named.collect();
        (own, named)
    };
    files.iter().map(of_file).collect()
}

fn first_part(path: &str) -> &str {
    path.split("::").next().unwrap()
}

/// The paths of a `use` line, whose braces may hold others.
fn expanded(before: &str, path: &str) -> Vec<String> {
    let Some((head, inner)) = path.split_once('{') else { return vec![format!("{before}{path}")] };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.extend(expanded(&format!("{before}{head}"), &inner[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn no_file_needs_one_that_needs_it() {
    let mut left = imports_of_files();
    loop {
        let open: HashSet<_> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, named| named.iter().any(|it| open.contains(it)));
        if left.len() == before {
            break;
        }
    }
    // What is left needs a circle; what only leads to one is left out.
    let mut circle: Vec<_> = left.keys().cloned().collect();
    circle.retain(|file| left.values().any(|named| named.contains(file)));
    assert!(circle.is_empty(), "{}", circle.join("\n"));
}
