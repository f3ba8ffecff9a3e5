//! The file of an index. In: documents as one run of tokens. Out: a file that is whole or absent,
//! and what its first page says.
//!
//! All numbers are little-endian. A header, a CRC-32 of every block of 4 KiB, then from the next
//! multiple of 4 KiB on the *words*, `u32` each: the text (`num_tokens`), its suffix array
//! (`num_tokens`), the *fences*, which are the first 4 symbols of each 64th of its suffixes, and for
//! large texts the starts by first symbol (`vocab_size + 2`). 8 bytes a token, a quarter for the
//! fences, at most 2 for the starts, and a thousandth for the checksums.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::suffix_array::suffix_array;
use crate::atomic_file::{Permissions, replace_file};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Closes every document; no vocabulary holds it.
pub const TERMINATOR: TokenId = TokenId(u32::MAX);

/// Raised whenever the layout or the meaning of the file changes.
pub const VERSION: u32 = 1;

/// Bytes that share a checksum: a page, so that checking one costs little more than loading it.
///
/// The checksum is CRC-32, which processors compute: what is to be found is damage, not an attacker,
/// who could only make drafts wrong.
pub(super) const BLOCK_BYTES: usize = 4096;

/// Suffixes from one fence to the next.
pub(super) const FENCE_DISTANCE: u32 = 64;
/// Symbols of a fence. Searching a long range reads fences first, which stand close together; ranges
/// of suffixes that share more symbols than these are short.
pub(super) const FENCE_DEPTH: u32 = 4;

/// Beyond the most tokens of an index.
pub(super) const MOST_TOKENS: usize = 1 << 31;

const MAGIC: [u8; 8] = *b"coordgen";
/// Bytes of the header, before the checksums of the blocks.
const HEADER_BYTES: usize = 80;
/// The header's own checksum covers everything from here to the last block's checksum.
const CHECKED_FROM: usize = 16;
/// The starts by first symbol are worth at most this many words a token.
const STARTS_SHARE: f64 = 0.5;

/// What the database and the index must agree on, hashed by the caller: tokenizer and namespace.
pub type Key = [u8; 32];

/// What the first page of an index says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tokens of the text, terminators included.
    pub num_tokens: u32,
    /// Number of ids in the vocabulary.
    pub vocab_size: u32,
    /// Number of the last document in the database that the index covers.
    pub covers: u64,
    /// What the index belongs to.
    pub key: Key,
    pub(super) has_starts: bool,
}

/// The order of tokens in an index: a terminator before all others.
pub(super) fn symbol(token: TokenId) -> u32 {
    token.0.wrapping_add(1)
}

impl Header {
    fn new(num_tokens: u32, vocab_size: u32, covers: u64, key: Key) -> Self {
        let has_starts = f64::from(vocab_size) <= STARTS_SHARE * f64::from(num_tokens);
        Self { num_tokens, vocab_size, covers, key, has_starts }
    }

    pub(super) fn num_words(&self) -> usize {
        let num_starts = if self.has_starts { self.vocab_size as usize + 2 } else { 0 };
        self.starts_start() + num_starts
    }

    /// Index of the suffix array's first word.
    pub(super) fn suffixes_start(&self) -> usize {
        self.num_tokens as usize
    }

    /// Index of the first fence's first word.
    pub(super) fn fences_start(&self) -> usize {
        2 * self.num_tokens as usize
    }

    /// Index of the first word of the starts.
    pub(super) fn starts_start(&self) -> usize {
        let num_fences = self.num_tokens.div_ceil(FENCE_DISTANCE);
        self.fences_start() + num_fences as usize * FENCE_DEPTH as usize
    }

    pub(super) fn num_blocks(&self) -> usize {
        (4 * self.num_words()).div_ceil(BLOCK_BYTES)
    }

    /// Where the words begin.
    pub(super) fn words_start(&self) -> usize {
        (HEADER_BYTES + 4 * self.num_blocks()).next_multiple_of(BLOCK_BYTES)
    }

    /// The checksum that the head of the file holds for a block.
    pub(super) fn block_checksum(head: &[u8], block: usize) -> Option<u32> {
        word_at(head, HEADER_BYTES + 4 * block)
    }

    /// Everything before the words, or less where the file is too short for it.
    pub(super) fn read_head(file: &ReadFile) -> io::Result<Box<[u8]>> {
        let at_most = |len: usize| file.num_bytes().min(len as u64) as usize;
        let first = file.read(0, at_most(HEADER_BYTES))?;
        let len = Self::fields(&first).map_or(first.len(), |header| header.words_start());
        file.read(0, at_most(len))
    }

    /// Checks everything before the words, and that the file is as long as they need.
    ///
    /// Cost: a thousandth of the file is read.
    pub(super) fn read(head: &[u8], file_bytes: u64) -> Result<Self> {
        let unusable = |reason| Err(Error::UnusableIndex { reason });
        if head.get(..8) != Some(&MAGIC[..]) {
            return unusable("it is no index");
        }
        if word_at(head, 8) != Some(VERSION) {
            return unusable("it has another version");
        }
        let Some(header) = Self::fields(head) else { return unusable("it is cut off") };
        let end = HEADER_BYTES.saturating_add(header.num_blocks().saturating_mul(4));
        let checked = head.get(CHECKED_FROM..end);
        if checked.map(crc32fast::hash) != word_at(head, 12) {
            return unusable("its header is damaged");
        }
        if file_bytes != (header.words_start() + 4 * header.num_words()) as u64 {
            return unusable("it is cut off");
        }
        Ok(header)
    }

    fn fields(head: &[u8]) -> Option<Self> {
        Some(Self {
            num_tokens: word_at(head, 16)?,
            vocab_size: word_at(head, 20)?,
            covers: u64::from_le_bytes(head.get(24..32)?.try_into().ok()?),
            has_starts: word_at(head, 32)? == 1,
            key: head.get(40..72)?.try_into().ok()?,
        })
    }

    fn to_bytes(self, checksums: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; self.words_start()];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.num_tokens.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.vocab_size.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.covers.to_le_bytes());
        bytes[32] = u8::from(self.has_starts);
        bytes[40..72].copy_from_slice(&self.key);
        for (block, checksum) in checksums.iter().enumerate() {
            let start = HEADER_BYTES + 4 * block;
            bytes[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        let end = HEADER_BYTES + 4 * checksums.len();
        let checksum = crc32fast::hash(&bytes[CHECKED_FROM..end]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

fn word_at(bytes: &[u8], start: usize) -> Option<u32> {
    let word = bytes.get(start..start.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// Sorts `documents` and writes their index to `path`, replacing what was there at the end only.
///
/// `documents` are tokens below `vocab_size`, every document closed by [`TERMINATOR`]; `covers` and
/// `key` come back from [`Header`]. Cost: linear time, and 16 bytes of memory a token. Fails when
/// a token is unknown, a document is open, the text has 2^31 tokens, or the file cannot be written;
/// then nothing is left behind. Returns the byte of the file at which the text begins.
pub fn write_index(
    path: &Path,
    documents: &[TokenId],
    vocab_size: u32,
    covers: u64,
    key: Key,
) -> Result<u64> {
    write_own_index(path, documents.to_vec(), vocab_size, covers, key, Permissions::OwnerOnly)
}

/// As [`write_index`], of documents that need not be kept, for `permissions`. Returns the byte of the file
/// at which the text begins.
pub(super) fn write_own_index(
    path: &Path,
    documents: Vec<TokenId>,
    vocab_size: u32,
    covers: u64,
    key: Key,
    permissions: Permissions,
) -> Result<u64> {
    check(&documents, vocab_size)?;
    let header = Header::new(documents.len() as u32, vocab_size, covers, key);
    // The same memory is used again: tokens and symbols are both words.
    let symbols: Vec<u32> = documents.into_iter().map(symbol).collect();
    let suffixes = suffix_array(&symbols);
    let fences = fences(&symbols, &suffixes);
    let starts = if header.has_starts { starts(&symbols, vocab_size) } else { Vec::new() };
    let text = symbols.iter().map(|symbol| symbol.wrapping_sub(1));
    let words = text.chain(suffixes).chain(fences).chain(starts);

    replace_file(path, permissions, |file| write_words(file, header, words))
        .map_err(|error| Error::IndexNotWritten { reason: error.to_string() })?;
    Ok(header.words_start() as u64)
}

fn check(documents: &[TokenId], vocab_size: u32) -> Result<()> {
    let unknown = |token: &&TokenId| token.0 >= vocab_size && **token != TERMINATOR;
    if let Some(&token) = documents.iter().find(unknown) {
        return Err(Error::TokenOutOfRange { token, vocab_size: vocab_size as usize });
    }
    if documents.last().is_some_and(|&last| last != TERMINATOR) || documents.len() >= MOST_TOKENS {
        let got = format!("{} tokens", documents.len());
        let must = "less than 2^31 tokens, each document closed by a terminator";
        return Err(Error::BadOption { what: "documents", got, must });
    }
    Ok(())
}

/// The first symbols of some suffixes; 0 behind the end of the text.
fn fences(symbols: &[u32], suffixes: &[u32]) -> Vec<u32> {
    let symbol_at = |position: u32| symbols.get(position as usize).copied().unwrap_or(0);
    let fenced = suffixes.iter().step_by(FENCE_DISTANCE as usize);
    fenced.flat_map(|&start| (start..start + FENCE_DEPTH).map(symbol_at)).collect()
}

/// Entry `s`: how many suffixes start with a smaller symbol than `s`.
fn starts(symbols: &[u32], vocab_size: u32) -> Vec<u32> {
    let mut starts = vec![0; vocab_size as usize + 2];
    for &symbol in symbols {
        starts[symbol as usize + 1] += 1;
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    starts
}

fn write_words(
    file: &mut BufWriter<File>,
    header: Header,
    words: impl Iterator<Item = u32>,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(header.words_start() as u64))?;
    let mut checksums = Vec::with_capacity(header.num_blocks());
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        block.extend_from_slice(&word.to_le_bytes());
        if block.len() == BLOCK_BYTES || words.peek().is_none() {
            checksums.push(crc32fast::hash(&block));
            file.write_all(&block)?;
            block.clear();
        }
    }
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header.to_bytes(&checksums))
}

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
