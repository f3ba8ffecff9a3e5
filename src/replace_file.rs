//! Replacing a file at once: it is the old one or the whole new one, also after a crash.
//!
//! In: a path, and what writes a file. Out: the file at that path.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a new file beside `path`, syncs it, and puts it in the place of what was there.
///
/// No two writers share the unfinished file, neither of one process nor of two. Where writing
/// fails, what was at `path` is still there, and nothing else is left behind.
pub(crate) fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("unfinished-{}-{number}", std::process::id()));
    let written = write_file(&unfinished, write).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // It may never have been there, and nothing can be done if it cannot be removed.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
    write(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
}
