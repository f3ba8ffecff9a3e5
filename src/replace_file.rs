//! Replacing a file at once: it is the old one or the whole new one, also after a crash.
//!
//! In: a path, and what writes a file. Out: the file at that path. What is being written is a file
//! beside it, as in `unfinished.rs`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::unfinished::{Readers, create_file, remove_abandoned};

/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a new file beside `path`, syncs it, and puts it in the place of what was there.
///
/// No two writers share the unfinished file, neither of one process nor of two. Where writing
/// fails, what was at `path` is still there, and nothing else is left behind. What killed processes
/// left for the same `path` is removed.
pub(crate) fn replace_file(
    path: &Path,
    readers: Readers,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    remove_abandoned(path);
    let (unfinished, file) = create_file(path, readers)?;
    let written = write_file(file, write).and_then(|_locked| fs::rename(&unfinished, path));
    if written.is_err() {
        // It may never have been there, and nothing can be done if it cannot be removed.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Writes and syncs; gives the file back, which is locked for as long as it is open.
fn write_file(
    file: File,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<File> {
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    write(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    file.into_inner().map_err(|error| error.into_error())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::PathBuf;

    use super::*;

    /// A new folder, and the file in it that is to be replaced.
    fn place(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("coordgen-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder.join("table")
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path.parent().unwrap()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let path = place("abandoned");
        let others = [".table.0123456789ab.partial", ".table2.0123456789ab.unfinished"];
        for name in others.into_iter().chain([".table.0123456789ab.unfinished"]) {
            fs::write(path.with_file_name(name), "left").unwrap();
        }
        replace_file(&path, Readers::AsUsual, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(names(&path), [others[0], others[1], "table"]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_another_writes_meanwhile_stays() {
        let path = place("meanwhile");
        replace_file(&path, Readers::AsUsual, |first| {
            replace_file(&path, Readers::AsUsual, |second| second.write_all(b"second"))?;
            assert_eq!(names(&path).len(), 2);
            first.write_all(b"first")
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(&path), ["table"]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_failure_leaves_the_file_as_it_was() {
        let path = place("failure");
        fs::write(&path, "before").unwrap();
        let failed = replace_file(&path, Readers::AsUsual, |file| {
            file.write_all(b"half")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(names(&path), ["table"]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_private_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let path = place("private");
        replace_file(&path, Readers::Owner, |file| file.write_all(b"")).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
