//! Tests of the layout: imports run one way, so that what a file needs stands below it, and a
//! folder holds its own module.

use std::fs;
use std::path::{Path, PathBuf};

/// The crate's modules, from the ground up; those of a line do not know each other.
const CRATE: &[&[&str]] = &[
    &["chat_template", "ids", "kernels", "random", "scores", "unfinished", "waiting"],
    &["replace_file"],
    &["error"],
    &["cache_rows", "constraint", "logprobs", "top_k"],
    &["logits"],
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
const DRAFT: &[&[&str]] =
    &[&["spellings"], &["source"], &["sources"], &["choose"], &["methods"], &["host"]];

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

/// Where locks are taken without `waiting`: there itself; in the loader's thread and those that read
/// experts or ask for them, which hold nothing that others need, and for condition variables; among threads that end within a
/// call; and where one thread alone has them, as a chat template's rendering.
const TAKE_LOCKS: &[&str] = &[
    "waiting.rs",
    "tests.rs",
    "chat_template/bounded.rs",
    "load/loader/mod.rs",
    "load/experts/store.rs",
    "draft/sources/lookup_table/reader.rs",
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
