//! A file that is read at any place, by several threads at once. In: a path. Out: some of its bytes.
//!
//! Not a mapping: where another program cuts a mapped file off, the system ends the process at the
//! next access, and where it writes into it, bytes change after they were checked. Here a read
//! fails, and what was read stays as it is.

use std::fs::File;
use std::io;
use std::path::Path;

/// An opened file; its length is that at opening.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    num_bytes: u64,
}

impl ReadFile {
    /// Opens the file at `path`. Fails when it is absent or not readable, or no file.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Opening a pipe would wait for who writes to it.
        if !path.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = File::open(path)?;
        let num_bytes = file.metadata()?.len();
        Ok(Self { file, num_bytes })
    }

    /// Its length.
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// The bytes from `start` on. Fails where the file does not have so many.
    pub fn read(&self, start: u64, num_bytes: usize) -> io::Result<Box<[u8]>> {
        if start.checked_add(num_bytes as u64).is_none_or(|end| end > self.num_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; num_bytes].into_boxed_slice();
        read_exact_at(&self.file, &mut bytes, start)?;
        Ok(bytes)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], start: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, start)
}

#[cfg(windows)]
fn read_exact_at(file: &File, bytes: &mut [u8], start: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match std::os::windows::fs::FileExt::seek_read(
            file,
            &mut bytes[done..],
            start + done as u64,
        )? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(())
}
