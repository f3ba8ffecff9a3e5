//! A file as bytes in memory. In: a path. Out: its bytes, read from disk as they are touched.
//!
//! Unsafe by measured need: nothing but a mapping opens an index of 10M tokens
//! in less than the time of reading it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A read-only mapping of a file that nobody changes while it is mapped.
///
/// The files of an index are written under another name, then renamed, and never changed in place:
/// a mapping keeps the old file alive. Should another program overwrite bytes all the same, they
/// change under the reader, who must hold every value against its limits. Should it cut the file
/// off, the system ends the process at the next access, as with any mapping.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the file at `path`. Fails when it is absent, not readable, or empty.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private to this type and read-only. That the file stays as it is
        // cannot be enforced; the type's documentation says why it does.
        unsafe { Mmap::map(&file) }.map(Self)
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
