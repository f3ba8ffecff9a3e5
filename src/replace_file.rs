//! Replacing a file at once: it is the old one or the whole new one, also after a crash.
//!
//! In: a path, and what writes a file. Out: the file at that path. What is being written is a file
//! beside it, `.NAME.<12 hex digits>.unfinished`, locked by who writes it: the lock ends with the
//! process, however that ends, so that neither a clock nor a process id decides what a killed one
//! left. `files/unfinished.py` does the same for Python.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Hexadecimal digits in the name of an unfinished file.
const NUM_DIGITS: usize = 12;

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Whom the process's own mask lets.
    AsUsual,
    /// Its owner alone, where the system knows owners.
    Owner,
}

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
    let (unfinished, file) = create_unfinished(path, readers)?;
    remove_abandoned(path, &file);
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

/// A new locked file beside `path`.
fn create_unfinished(path: &Path, readers: Readers) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let digits = format!("{:08x}{number:04x}", std::process::id());
        let mut name = prefix(path)?;
        name.push(digits + SUFFIX);
        let unfinished = path.with_file_name(name);
        let file = match create(&unfinished, readers) {
            // A process of this id was killed before, or runs in another container.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        // A file system may have no locks; then nothing here is ever taken for abandoned.
        let is_taken = matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        if !is_taken && unfinished.exists() {
            return Ok((unfinished, file));
        }
    }
}

const SUFFIX: &str = ".unfinished";

/// What the names of a path's unfinished files begin with.
fn prefix(path: &Path) -> io::Result<OsString> {
    let error = || io::Error::new(ErrorKind::InvalidInput, "the path has no file name");
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().ok_or_else(error)?);
    prefix.push(".");
    Ok(prefix)
}

#[cfg(unix)]
fn create(path: &Path, readers: Readers) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mode = if readers == Readers::Owner { 0o600 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

#[cfg(not(unix))]
fn create(path: &Path, _: Readers) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Removes the files beside `path` that were to become it and that nobody writes any more.
///
/// `own` is a file of this user: others' files stay. What cannot be removed stays too.
fn remove_abandoned(path: &Path, own: &File) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let Ok(prefix) = prefix(path) else { return };
    for entry in entries {
        if is_unfinished(&entry.file_name(), &prefix) {
            // The lock is held until the file is gone.
            if let Some(_locked) = abandoned(&entry.path(), own) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_unfinished(name: &OsStr, prefix: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
    let digits = rest.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == NUM_DIGITS && digits.iter().all(is_digit))
}

/// The file at `path`, locked, if it is of the owner of `own` and nobody else holds it.
fn abandoned(path: &Path, own: &File) -> Option<File> {
    let metadata = path.symlink_metadata().ok().filter(|found| found.is_file())?;
    if !have_one_owner(&metadata, &own.metadata().ok()?) {
        return None;
    }
    let file = File::open(path).ok()?;
    file.try_lock().ok()?;
    Some(file)
}

#[cfg(unix)]
fn have_one_owner(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    one.uid() == other.uid()
}

#[cfg(not(unix))]
fn have_one_owner(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests {
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
