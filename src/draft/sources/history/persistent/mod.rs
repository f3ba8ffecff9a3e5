//! A history that stays, for programs without a database. In: finished requests, and a path. Out: a
//! [`History`] of all that were ever stored there.
//!
//! Requests are in the file at the path; an index of them is in a second file beside it, `PATH.index`, which can always
//! be built again. The Python package keeps its histories in a database, and reads none of these.

mod log;
mod recovery;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use self::log::DocumentLog;
use super::History;
use super::format::{TERMINATOR, write_index};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Tokens beyond which the oldest requests are dropped, where nothing else is said.
pub const DEFAULT_MAX_TOKENS: usize = 10_000_000;

/// At least so many tokens that no index covers are worth one when a history is closed.
const LEAST_INDEXED: usize = 4_096;
/// And this share of what it covers.
const GROWTH: usize = 8;
/// What is dropped at once, as a share of the most tokens.
const DROPPED: usize = 8;

/// Finished requests in a file, which one process has open at a time, or in memory alone.
///
/// # Cost
/// Opening reads the file: 4 bytes a token, and as many where it is damaged. Storing a request writes it,
/// without waiting for the disk: a crash of the system may lose the last ones. Indexing: 16 bytes of memory
/// a token, for as long as it takes.
/// Memory: 4 bytes a token, and what [`History`] takes for those that no index covers.
///
/// # Example
/// ```
/// use coordgen_rs::TokenId;
/// use coordgen_rs::draft::sources::history::persistent::PersistentHistory;
///
/// let path = std::env::temp_dir().join(format!("coordgen-{}-example", std::process::id()));
/// let mut history = PersistentHistory::open(&path, 10, 1_000)?;
/// history.add(&[3, 1, 4, 1, 5].map(TokenId))?;
/// history.close()?;
///
/// let history = PersistentHistory::open(&path, 10, 1_000)?;
/// assert_eq!(history.num_tokens(), 5);
/// assert_eq!(history.shared().num_recent_tokens(), 5); // too few for an index
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
#[derive(Debug)]
pub struct PersistentHistory {
    shared: History,
    log: Option<DocumentLog>,
    /// All requests that are stored, the oldest first; none where they are in memory alone.
    documents: VecDeque<Vec<TokenId>>,
    num_tokens: usize,
    max_tokens: usize,
    num_dropped_bytes: u64,
}

impl PersistentHistory {
    /// A history in memory alone, which keeps about the last two million tokens.
    pub fn in_memory(vocab_size: u32) -> Self {
        Self {
            shared: History::new(vocab_size),
            log: None,
            documents: VecDeque::new(),
            num_tokens: 0,
            max_tokens: usize::MAX,
            num_dropped_bytes: 0,
        }
    }

    /// Opens the history at `path`, of tokens below `vocab_size`, or makes an empty one. Where more than
    /// `max_tokens` are stored, the oldest requests are dropped, as soon as the file can be written; later
    /// by [`index`](Self::index) alone. Of a damaged file, requests that are damaged are dropped alone.
    ///
    /// Fails when it is open elsewhere, is another file or of another vocabulary, or cannot be read or written.
    pub fn open(path: &Path, vocab_size: u32, max_tokens: usize) -> Result<Self> {
        let (log, found) = DocumentLog::open(path, vocab_size)?;
        let num_tokens = found.documents.iter().map(Vec::len).sum();
        let mut opened = Self {
            log: Some(log),
            documents: found.documents.into(),
            num_tokens,
            max_tokens,
            num_dropped_bytes: found.num_dropped_bytes,
            ..Self::in_memory(vocab_size)
        };
        match opened.drop_oldest() {
            Err(Error::HistoryNotWritten { .. }) => {} // what is there can be read
            dropped => drop(dropped?),
        }
        opened.open_index();
        let covers = opened.shared.covers() as usize;
        for (index, document) in opened.documents.iter().enumerate().skip(covers) {
            opened.shared.remember_stored(1 + index as u64, document)?;
        }
        Ok(opened)
    }

    /// What drafters read from.
    pub fn shared(&self) -> &History {
        &self.shared
    }

    /// Tokens that are stored or, in memory alone, still remembered.
    pub fn num_tokens(&self) -> usize {
        if self.log.is_some() { self.num_tokens } else { self.shared.num_recent_tokens() }
    }

    /// Bytes of the file that were no documents when it was opened: damaged, or cut off.
    pub fn num_dropped_bytes(&self) -> u64 {
        self.num_dropped_bytes
    }

    /// Stores a finished request, prompt and answer together; requests that begin later draft from it.
    ///
    /// Fails when a token is unknown or the file cannot be written; then nothing is stored.
    pub fn add(&mut self, tokens: &[TokenId]) -> Result<()> {
        let Some(log) = &mut self.log else { return self.shared.remember(tokens) };
        let vocab_size = self.shared.vocab_size();
        if let Some(&token) = tokens.iter().find(|token| token.0 >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size: vocab_size as usize });
        }
        log.append(tokens)?;
        self.documents.push_back(tokens.to_vec());
        self.num_tokens += tokens.len();
        self.shared.remember_stored(self.documents.len() as u64, tokens)
    }

    /// Indexes what is stored, if anything is not covered yet, and drops the oldest requests where there
    /// are too many. In memory alone there is nothing to index.
    ///
    /// Fails when a file cannot be written; then drafts come from what they came from.
    pub fn index(&mut self) -> Result<()> {
        let is_replaced = self.drop_oldest()?;
        let Some(path) = self.index_path() else { return Ok(()) };
        let Some(log) = &self.log else { return Ok(()) };
        let is_whole = self.shared.covers() == self.documents.len() as u64;
        if !is_replaced && is_whole && !self.shared.is_damaged() {
            return Ok(());
        }
        let documents = self.documents.iter();
        let text = documents.flat_map(|document| document.iter().copied().chain([TERMINATOR]));
        let text: Vec<TokenId> = text.collect();
        let covers = self.documents.len() as u64;
        write_index(&path, &text, self.shared.vocab_size(), covers, *log.key())?;
        self.shared.open_index(&path, log.key())
    }

    /// Forgets all requests, in the file, too. Fails when it cannot be written; then none is forgotten.
    pub fn clear(&mut self) -> Result<()> {
        if let Some(log) = &mut self.log {
            log.replace(std::iter::empty())?;
        }
        self.documents.clear();
        self.num_tokens = 0;
        self.shared.clear();
        self.remove_index();
        Ok(())
    }

    /// Indexes where that pays, and lets go of the file. Fails where the index cannot be written: nothing
    /// is lost by that.
    pub fn close(&mut self) -> Result<()> {
        let grown = self.shared.num_indexed_tokens() / GROWTH;
        let covers = self.shared.covers() as usize;
        // Of these, only some may be remembered.
        let num_new: usize = self.documents.iter().skip(covers).map(Vec::len).sum();
        if self.shared.is_damaged() || num_new >= LEAST_INDEXED.max(grown) {
            self.index()?;
        }
        self.log = None;
        Ok(())
    }

    fn index_path(&self) -> Option<PathBuf> {
        let mut path = self.log.as_ref()?.path().as_os_str().to_owned();
        path.push(".index");
        Some(path.into())
    }

    /// Drafts from the index, unless it is of other documents.
    fn open_index(&mut self) {
        let (Some(path), Some(log)) = (self.index_path(), &self.log) else { return };
        let is_open = self.shared.open_index(&path, log.key()).is_ok();
        let is_theirs = self.shared.covers() <= self.documents.len() as u64;
        if !is_open || !is_theirs {
            self.shared.clear();
            self.remove_index();
        }
    }

    /// An index that stays is never used: it has another key, or is replaced.
    fn remove_index(&self) {
        if let Some(path) = self.index_path() {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Keeps the newest requests, as many as may be, and some room. Returns whether any was dropped.
    fn drop_oldest(&mut self) -> Result<bool> {
        let Some(log) = &mut self.log else { return Ok(false) };
        if self.num_tokens <= self.max_tokens {
            return Ok(false);
        }
        let most = self.max_tokens - self.max_tokens / DROPPED;
        let (mut num_tokens, mut num_dropped) = (self.num_tokens, 0);
        for document in &self.documents {
            if num_tokens <= most {
                break;
            }
            num_tokens -= document.len();
            num_dropped += 1;
        }
        log.replace(self.documents.range(num_dropped..).map(Vec::as_slice))?;
        self.documents.drain(..num_dropped);
        self.num_tokens = num_tokens;
        self.shared.clear();
        for (index, document) in self.documents.iter().enumerate() {
            self.shared.remember_stored(1 + index as u64, document)?;
        }
        Ok(true)
    }
}
