//! The documents of a history in one file, in the order in which they came. In: documents, at the end of
//! the file. Out: all of them, when it is opened.
//!
//! All numbers are little-endian `u32`. A header of 48 bytes: `coordlog`, version, vocabulary, a random key. Then
//! the documents: number of tokens, CRC-32 of that number and the tokens, the tokens. A document that is damaged,
//! or cut off, as a crash leaves it, is dropped at the next opening, and those behind it are found.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::recovery::{HEAD_BYTES, RecoveredDocuments, word};
use crate::atomic_file::{FileLock, LockMode, Permissions, create_file, lock, remove_abandoned};
use crate::draft::sources::history::format::Key;
use crate::error::{Error, Result};
use crate::ids::TokenId;

const MAGIC: [u8; 8] = *b"coordlog";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;

/// An opened file of documents, which nobody else has open meanwhile.
#[derive(Debug)]
pub(super) struct DocumentLog {
    path: PathBuf,
    file: File,
    num_bytes: u64,
    vocab_size: u32,
    key: Key,
}

/// What a file held when it was opened.
#[derive(Debug, Default)]
pub(super) struct LogContents {
    pub documents: Vec<Vec<TokenId>>,
    /// Bytes that are no documents.
    pub num_dropped_bytes: u64,
    /// Where the last document ends.
    end: usize,
}

impl DocumentLog {
    /// Opens the file at `path`, or makes one that its owner alone may read. Where documents stand behind
    /// damage, they alone are written to it anew, or it stays as it is where it cannot be written.
    ///
    /// Fails when another has it open, it is another file, or of another vocabulary, and when the system
    /// does.
    pub fn open(path: &Path, vocab_size: u32) -> Result<(Self, LogContents)> {
        make(path).map_err(|error| unusable(&error))?;
        let path = fs::canonicalize(path).map_err(|error| unusable(&error))?;
        remove_abandoned(&path);
        let mut file = locked(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| unusable(&error))?;
        if bytes.len() < HEADER_BYTES && MAGIC.starts_with(&bytes[..bytes.len().min(8)]) {
            bytes = header(vocab_size, new_key());
            overwrite(&mut file, &bytes).map_err(|error| not_written(&error))?;
        }
        let key = checked_key(&bytes, vocab_size)?;
        let found = found(&bytes, vocab_size);
        let mut log = Self { path, file, num_bytes: found.end as u64, vocab_size, key };
        let num_behind = (bytes.len() - found.end) as u64;
        if found.num_dropped_bytes > num_behind {
            let kept = found.documents.iter().map(Vec::as_slice);
            if log.replace(kept).is_err() {
                log.key = new_key(); // an index counts what was dropped
            }
        }
        Ok((log, found))
    }

    /// Where it is, every link followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new one whenever documents were removed.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Appends a document. Where that fails, the file holds what it held.
    pub fn append(&mut self, document: &[TokenId]) -> Result<()> {
        let bytes = to_bytes(document);
        let written = self.write_at_end(&bytes);
        if written.is_err() {
            let _ = self.file.set_len(self.num_bytes); // else it is dropped at the next opening
        }
        written.map_err(|error| not_written(&error))?;
        self.num_bytes += bytes.len() as u64;
        Ok(())
    }

    fn write_at_end(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(self.num_bytes)?; // without what was dropped
        self.file.seek(SeekFrom::Start(self.num_bytes))?;
        self.file.write_all(bytes)
    }

    /// Replaces all documents, at once. Where that fails, the file holds what it held.
    pub fn replace<'a>(&mut self, kept: impl Iterator<Item = &'a [TokenId]>) -> Result<()> {
        let key = new_key();
        let mut bytes = header(self.vocab_size, key);
        kept.for_each(|document| bytes.extend(to_bytes(document)));
        let (unfinished, mut file) =
            create_file(&self.path, Permissions::OwnerOnly).map_err(|error| not_written(&error))?;
        // It is locked before it has the name, so nobody comes between.
        let written = overwrite(&mut file, &bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&unfinished, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished); // nothing can be done if that fails, too
            return Err(not_written(&error));
        }
        sync_folder_of(&self.path);
        (self.file, self.num_bytes, self.key) = (file, bytes.len() as u64, key);
        Ok(())
    }
}

fn unusable(error: &io::Error) -> Error {
    Error::UnusableHistory { reason: error.to_string() }
}

/// Makes a new name last, where the system can: a cleared history must not come back.
fn sync_folder_of(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let _ = File::open(folder).and_then(|folder| folder.sync_all()); // Windows opens no folders
}

fn not_written(error: &io::Error) -> Error {
    Error::HistoryNotWritten { reason: error.to_string() }
}

fn make(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match path.metadata()?.is_file() {
                true => Ok(()),
                false => Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        made => made.map(drop),
    }
}

/// The file, for reading and writing. Where a file system has no locks, nobody is kept out.
fn locked(path: &Path) -> Result<File> {
    match lock(path, LockMode::Exclusive).map_err(|error| unusable(&error))? {
        FileLock::Held(file) => Ok(file),
        FileLock::HeldByOther | FileLock::Gone => Err(Error::HistoryInUse),
        FileLock::Unsupported => {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.map_err(|error| unusable(&error))
        }
    }
}

fn overwrite(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(bytes)
}

/// Random, so that no index fits a file that it was not made of.
fn new_key() -> Key {
    let mut key = Key::default();
    for (index, part) in key.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&RandomState::new().hash_one(index).to_le_bytes());
    }
    key
}

fn header(vocab_size: u32, key: Key) -> Vec<u8> {
    let parts = [&MAGIC[..], &VERSION.to_le_bytes(), &vocab_size.to_le_bytes(), &key];
    parts.concat()
}

fn checked_key(bytes: &[u8], vocab_size: u32) -> Result<Key> {
    let wrong = |reason: &str| Err(Error::UnusableHistory { reason: reason.into() });
    match (bytes.get(..8), word(bytes, 8), word(bytes, 12), bytes.get(16..HEADER_BYTES)) {
        (Some(magic), ..) if magic != MAGIC => wrong("it is no history"),
        (_, Some(version), ..) if version != VERSION => wrong("it has another version"),
        (_, _, Some(other), _) if other != vocab_size => {
            wrong(&format!("it has a vocabulary of {other} tokens, not of {vocab_size}"))
        }
        (.., Some(key)) => Ok(key.try_into().unwrap_or_default()),
        _ => wrong("it is no history"),
    }
}

/// What stands behind the header.
fn found(bytes: &[u8], vocab_size: u32) -> LogContents {
    let (mut documents, mut end) = (Vec::new(), HEADER_BYTES);
    while let Some((document, num_bytes)) = document(&bytes[end..], vocab_size) {
        documents.push(document);
        end += num_bytes;
    }
    let behind = &bytes[end..];
    let mut num_dropped = behind.len();
    for whole in RecoveredDocuments::new(behind, vocab_size) {
        num_dropped -= whole.len();
        end = bytes.len() - behind.len() + whole.end;
        documents.push(to_tokens(&behind[whole][HEAD_BYTES..]));
    }
    LogContents { documents, num_dropped_bytes: num_dropped as u64, end }
}

fn to_tokens(bytes: &[u8]) -> Vec<TokenId> {
    bytes.chunks_exact(4).filter_map(|token| word(token, 0)).map(TokenId).collect()
}

pub(super) fn document(bytes: &[u8], vocab_size: u32) -> Option<(Vec<TokenId>, usize)> {
    let num_bytes = HEAD_BYTES.checked_add((word(bytes, 0)? as usize).checked_mul(4)?)?;
    let tokens = bytes.get(HEAD_BYTES..num_bytes)?;
    let is_whole = word(bytes, 4)? == checksum(&bytes[..4], tokens);
    let tokens = to_tokens(tokens);
    let is_known = tokens.iter().all(|token| token.0 < vocab_size);
    (is_whole && is_known).then_some((tokens, num_bytes))
}

pub(super) fn to_bytes(document: &[TokenId]) -> Vec<u8> {
    let len = (document.len() as u32).to_le_bytes();
    let tokens: Vec<u8> = document.iter().flat_map(|token| token.0.to_le_bytes()).collect();
    [&len[..], &checksum(&len, &tokens).to_le_bytes(), &tokens].concat()
}

fn checksum(len: &[u8], tokens: &[u8]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(len);
    checksum.update(tokens);
    checksum.finalize()
}
