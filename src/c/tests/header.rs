//! `include/coordgen.h` is what cbindgen makes of these files.

use std::path::Path;
use std::{env, fs};

const FILES: [&str; 5] = ["arguments", "failure", "options", "drafter", "history"];

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let sources = FILES.map(|name| root.join("src/c").join(name).with_extension("rs"));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.iter().fold(builder, |builder, source| builder.with_src(source));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let path = root.join("include/coordgen.h");
    if env::var_os("COORDGEN_WRITE_HEADER").is_some() {
        fs::write(&path, &header).unwrap();
    }
    let is_current = fs::read(&path).is_ok_and(|written| written == header);
    assert!(is_current, "include/coordgen.h is old: make format");
}
