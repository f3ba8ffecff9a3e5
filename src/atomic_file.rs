//! Names of what is being written, the removal of what a killed process left under such a name, and
//! replacing a file at once: it is the old one or the whole new one, also after a crash.
//!
//! In: the path that is to exist at the end, and what writes a file. Out: a file or folder beside it
//! under a hidden name, `.NAME.<12 hex digits>.unfinished`, which takes the path's place only when it is
//! complete. Who writes it holds a lock on it, which ends with the process, however that ends: neither a
//! clock nor a process id decides what is left over.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Hexadecimal digits in the name of what is unfinished.
const NUM_DIGITS: usize = 12;

const SUFFIX: &str = ".unfinished";

/// What asking the system for a lock gives; tests ask systems that have none.
type TryLock = Result<(), TryLockError>;

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permissions {
    /// Whom the process's own mask lets.
    Default,
    /// Its owner alone, where the system knows owners.
    OwnerOnly,
}

/// Whom a lock keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Everybody else.
    Exclusive,
    /// Whoever wants it alone; many may hold it so.
    #[cfg(any(feature = "python", test))]
    Shared,
}

/// What became of asking for a lock on a file or folder.
#[derive(Debug)]
pub(crate) enum FileLock {
    /// It is held for as long as the file is open, and the file still has its name.
    Held(File),
    /// The file system, or the system, has no locks; then nothing is ever taken for left over.
    Unsupported,
    /// Another holds it.
    HeldByOther,
    /// The file was removed, or replaced, before the lock was held.
    Gone,
}

/// What a killed process left: where it was, and the bytes of its files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub path: PathBuf,
    pub num_bytes: u64,
}

/// A new locked file beside `path`.
pub(crate) fn create_file(path: &Path, permissions: Permissions) -> io::Result<(PathBuf, File)> {
    create_file_with(path, permissions, File::try_lock)
}

fn create_file_with(
    path: &Path,
    permissions: Permissions,
    try_lock: impl Fn(&File) -> TryLock,
) -> io::Result<(PathBuf, File)> {
    loop {
        let unfinished = new_name(path)?;
        let file = match open_new(&unfinished, permissions) {
            // Another has this name, by chance.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        let is_taken = matches!(try_lock(&file), Err(TryLockError::WouldBlock));
        if !is_taken && unfinished.exists() {
            return Ok((unfinished, file));
        }
    }
}

/// A new empty folder beside `path`, and the lock on it.
#[cfg(feature = "python")]
pub(crate) fn create_folder(path: &Path) -> io::Result<(PathBuf, FileLock)> {
    create_folder_with(path, File::try_lock)
}

#[cfg(any(feature = "python", test))]
fn create_folder_with(
    path: &Path,
    try_lock: impl Fn(&File) -> TryLock,
) -> io::Result<(PathBuf, FileLock)> {
    loop {
        let unfinished = new_name(path)?;
        match fs::create_dir(&unfinished) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created?,
        }
        match lock_with(&unfinished, LockMode::Exclusive, &try_lock) {
            Ok(FileLock::HeldByOther | FileLock::Gone) => {} // somebody who cleans up was quicker
            Ok(lock) => return Ok((unfinished, lock)),
            Err(error) => {
                let _ = fs::remove_dir(&unfinished); // the first error is the one to be told
                return Err(error);
            }
        }
    }
}

/// Asks for the lock on an existing file or folder, without waiting.
pub(crate) fn lock(path: &Path, mode: LockMode) -> io::Result<FileLock> {
    match mode {
        LockMode::Exclusive => lock_with(path, mode, File::try_lock),
        #[cfg(any(feature = "python", test))]
        LockMode::Shared => lock_with(path, mode, File::try_lock_shared),
    }
}

fn lock_with(
    path: &Path,
    mode: LockMode,
    try_lock: impl FnOnce(&File) -> TryLock,
) -> io::Result<FileLock> {
    if cfg!(windows) && path.is_dir() {
        return Ok(FileLock::Unsupported); // it cannot be opened there
    }
    // Network file systems give a lock for oneself alone only to who may write.
    let opened = match mode {
        LockMode::Exclusive => open(path, true).or_else(|_| open(path, false)),
        #[cfg(any(feature = "python", test))]
        LockMode::Shared => open(path, false),
    };
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileLock::Gone),
        opened => opened?,
    };
    Ok(match try_lock(&file) {
        Err(TryLockError::WouldBlock) => FileLock::HeldByOther,
        Err(TryLockError::Error(_)) => FileLock::Unsupported,
        Ok(()) if has_name(&file, path) => FileLock::Held(file),
        Ok(()) => FileLock::Gone,
    })
}

/// Removes what was to become `path` and nobody writes any more; what others own stays.
///
/// What cannot be removed stays too. Where there are no locks, nothing is removed.
pub(crate) fn remove_abandoned(path: &Path) -> Vec<Leftover> {
    remove_abandoned_with(path, File::try_lock)
}

fn remove_abandoned_with(path: &Path, try_lock: impl Fn(&File) -> TryLock) -> Vec<Leftover> {
    let Ok(prefix) = prefix(path) else { return Vec::new() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name()).filter(|name| is_unfinished(name, &prefix));
    let mut names: Vec<OsString> = names.collect();
    names.sort();
    let mut removed = Vec::new();
    for found in names.into_iter().map(|name| path.with_file_name(name)) {
        let is_own = found.symlink_metadata().is_ok_and(|found| is_plain(&found) && is_own(&found));
        if !is_own {
            continue;
        }
        // The lock is held until the file is gone.
        if let Ok(FileLock::Held(_file)) = lock_with(&found, LockMode::Exclusive, &try_lock) {
            removed.extend(remove(found));
        }
    }
    removed
}

fn remove(path: PathBuf) -> Option<Leftover> {
    let num_bytes = num_bytes(&path).ok()?;
    let is_folder = path.is_dir();
    if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.ok()?;
    Some(Leftover { path, num_bytes })
}

fn num_bytes(path: &Path) -> io::Result<u64> {
    let metadata = path.symlink_metadata()?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    fs::read_dir(path)?.map(|entry| num_bytes(&entry?.path())).sum()
}

/// A name that no other gets, also in a container with the same process ids: who has renamed what
/// it wrote may still remove what is left under its old name.
fn new_name(path: &Path) -> io::Result<PathBuf> {
    // Each state is a random one, but a fork has those of its parent.
    let bits = RandomState::new().hash_one(std::process::id());
    let digits = format!("{:012x}", bits >> 16);
    let mut name = prefix(path)?;
    name.push(digits + SUFFIX);
    Ok(path.with_file_name(name))
}

/// What the names of a path's unfinished files begin with.
fn prefix(path: &Path) -> io::Result<OsString> {
    let error = || io::Error::new(ErrorKind::InvalidInput, "the path has no file name");
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().ok_or_else(error)?);
    prefix.push(".");
    Ok(prefix)
}

fn is_unfinished(name: &OsStr, prefix: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
    let digits = rest.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == NUM_DIGITS && digits.iter().all(is_digit))
}

fn is_plain(found: &Metadata) -> bool {
    found.is_file() || found.is_dir()
}

#[cfg(unix)]
mod system {
    use super::*;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    pub fn open_new(path: &Path, permissions: Permissions) -> io::Result<File> {
        let mode = if permissions == Permissions::OwnerOnly { 0o600 } else { 0o666 };
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
    }

    /// Follows no link and waits for no pipe.
    pub fn open(path: &Path, for_writing: bool) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().read(true).write(for_writing).custom_flags(flags).open(path)
    }

    pub fn has_name(file: &File, path: &Path) -> bool {
        let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else {
            return false;
        };
        (open.dev(), open.ino()) == (named.dev(), named.ino())
    }

    pub fn is_own(found: &Metadata) -> bool {
        #[expect(unsafe_code, reason = "the standard library does not tell the user")]
        // SAFETY: it takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        found.uid() == user
    }
}

#[cfg(not(unix))]
mod system {
    use super::*;

    pub fn open_new(path: &Path, _: Permissions) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    pub fn open(path: &Path, for_writing: bool) -> io::Result<File> {
        OpenOptions::new().read(true).write(for_writing).open(path)
    }

    pub fn has_name(_: &File, path: &Path) -> bool {
        path.exists()
    }

    pub fn is_own(_: &Metadata) -> bool {
        true
    }
}

use system::{has_name, is_own, open, open_new};

/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a new file beside `path`, syncs it, and puts it in the place of what was there.
///
/// No two writers share the unfinished file, neither of one process nor of two. Where writing
/// fails, what was at `path` is still there, and nothing else is left behind. What killed processes
/// left for the same `path` is removed.
pub(crate) fn replace_file(
    path: &Path,
    permissions: Permissions,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    remove_abandoned(path);
    let (unfinished, file) = create_file(path, permissions)?;
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
    use std::io::{ErrorKind, Write};
    use std::path::PathBuf;

    use super::*;

    /// A new folder, and the file in it that is to be written.
    fn place(name: &str) -> PathBuf {
        let folder = format!("coordgen-unfinished-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        folder.join("table")
    }

    #[test]
    fn without_locks_files_and_folders_are_made_and_nothing_is_removed() {
        let path = place("no-locks");
        let left = path.with_file_name(".table.0123456789ab.unfinished");
        fs::write(&left, "half").unwrap();
        let no_locks =
            |_: &File| -> TryLock { Err(TryLockError::Error(ErrorKind::Unsupported.into())) };
        assert!(matches!(
            lock_with(&left, LockMode::Exclusive, no_locks),
            Ok(FileLock::Unsupported)
        ));
        let (file, _open) = create_file_with(&path, Permissions::Default, no_locks).unwrap();
        let (folder, lock) = create_folder_with(&path, no_locks).unwrap();
        assert!(file.is_file() && folder.is_dir() && matches!(lock, FileLock::Unsupported));
        assert_eq!(remove_abandoned_with(&path, no_locks), []);
        assert!(file.is_file() && folder.is_dir() && left.is_file());
        fs::remove_file(file).unwrap();
        fs::remove_dir(folder).unwrap();
        assert_eq!(remove_abandoned(&path), [Leftover { path: left, num_bytes: 4 }]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn names_are_random_and_known_for_unfinished_ones() {
        let path = Path::new("folder/table");
        let mut names: Vec<PathBuf> = (0..100).map(|_| new_name(path).unwrap()).collect();
        for name in &names {
            assert_eq!(name.parent(), path.parent());
            assert!(is_unfinished(name.file_name().unwrap(), &prefix(path).unwrap()), "{name:?}");
        }
        let of_process = format!(".table.{:08x}", std::process::id());
        assert!(names.iter().all(|name| !name.to_string_lossy().contains(&of_process)));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 100);
    }

    #[test]
    fn a_lock_on_what_was_removed_meanwhile_is_not_held() {
        let path = place("removed");
        fs::write(&path, "").unwrap();
        let removed = |file: &File| {
            fs::remove_file(&path).unwrap();
            file.try_lock()
        };
        assert!(matches!(lock_with(&path, LockMode::Exclusive, removed), Ok(FileLock::Gone)));
        assert!(matches!(lock(&path, LockMode::Exclusive), Ok(FileLock::Gone)));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_system_that_locks_only_what_may_be_written_has_locks() {
        let path = place("writable");
        fs::write(&path, "kept").unwrap();
        let if_writable = |file: &File| -> TryLock {
            (&*file).write(b"").map_err(TryLockError::Error)?; // what is only read says EBADF
            file.try_lock()
        };
        assert!(matches!(
            lock_with(&path, LockMode::Exclusive, if_writable),
            Ok(FileLock::Held(_))
        ));
        let folder = path.parent().unwrap();
        assert!(matches!(
            lock_with(folder, LockMode::Exclusive, if_writable),
            Ok(FileLock::Unsupported)
        ));
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        let mut only_read = fs::metadata(&path).unwrap().permissions();
        only_read.set_readonly(true);
        fs::set_permissions(&path, only_read).unwrap();
        assert!(matches!(lock(&path, LockMode::Exclusive), Ok(FileLock::Held(_))));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn many_share_a_lock_that_nobody_gets_alone() {
        let path = place("shared");
        fs::write(&path, "").unwrap();
        let ask = |mode| lock(&path, mode).unwrap();
        let shared = [ask(LockMode::Shared), ask(LockMode::Shared)];
        assert!(shared.iter().all(|lock| matches!(lock, FileLock::Held(_))), "{shared:?}");
        assert!(matches!(ask(LockMode::Exclusive), FileLock::HeldByOther));
        drop(shared);
        let alone = ask(LockMode::Exclusive);
        assert!(matches!(alone, FileLock::Held(_)));
        assert!(matches!(ask(LockMode::Shared), FileLock::HeldByOther));
        drop(alone);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
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
        replace_file(&path, Permissions::Default, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(names(&path), [others[0], others[1], "table"]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_another_writes_meanwhile_stays() {
        let path = place("meanwhile");
        replace_file(&path, Permissions::Default, |first| {
            replace_file(&path, Permissions::Default, |second| second.write_all(b"second"))?;
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
        let failed = replace_file(&path, Permissions::Default, |file| {
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
        replace_file(&path, Permissions::OwnerOnly, |file| file.write_all(b"")).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
