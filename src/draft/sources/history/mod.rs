//! What was said before: finished requests as a draft source. In: documents, an index of older ones,
//! one that was built of many machines' requests, and those of a corpus, which are texts that somebody
//! added to draft from. Out: a source for each, for each drafter.
//!
//! It stores nothing: the database from which an index can always be rebuilt is the caller's.

pub mod format;
pub mod gather;
pub mod index;
mod index_source;
mod matcher;
pub mod persistent;
mod recent_source;
pub mod suffix_array;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use self::format::Key;
use self::index::HistoryIndex;
use self::index_source::{IndexSource, Layer};
use self::recent_source::{RecentSource, RecentText};
use crate::draft::source::DraftSource;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::locks;

/// Recent documents hold at most this many tokens; then the older half of them is forgotten.
const MAX_RECENT_TOKENS: usize = 1 << 21;

/// Of a request's text the sources match this many last tokens, whatever its length.
const MAX_MATCH: usize = 64;

/// A finished request.
#[derive(Clone, Debug)]
struct Document {
    /// Number in the database; `None` where it is in no database.
    number: Option<u64>,
    tokens: Arc<[TokenId]>,
}

/// A part of a corpus.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    index: Arc<HistoryIndex>,
}

/// What the sources of all drafters read from, when a request begins.
#[derive(Debug, Default)]
struct Shared {
    index: Option<Arc<HistoryIndex>>,
    /// The fleet's, below the history's own documents.
    fleet: Option<Arc<HistoryIndex>>,
    /// What was added to draft from, in the order in which it was opened.
    corpus: Arc<[Segment]>,
    /// Documents that the index does not cover, the oldest first.
    recent: Vec<Document>,
    num_recent_tokens: usize,
    /// The automaton over all of them, as soon as a request begins.
    text: Arc<RecentText>,
}

/// Finished requests of one namespace, shared by the drafters of a process.
///
/// Without an index it is a history in memory: [`remember`](Self::remember) each finished request.
/// Where documents are kept in a database, they are remembered with their numbers, and an index
/// of all up to some number takes the place of those that it covers.
///
/// A request drafts from the index that was there when it began, and from what was remembered before
/// any request began. When it has ended, its drafter holds neither: an index that was replaced is
/// closed, and what was cleared is gone from memory.
///
/// # Cost
/// Remembering: a copy. Beginning a request: 0.2 to 0.3 us a token remembered since the last one of
/// any drafter began; all that are not covered after an index was opened. Memory: 26 to 45 bytes a
/// recent token, whatever the number of drafters; an index's blocks of 4 KiB as they are touched.
///
/// # Example
/// ```
/// use coordgen_rs::draft::sources::history::History;
/// use coordgen_rs::ids::TokenId;
///
/// let history = History::new(10);
/// let mut sources = history.sources();
/// history.remember(&[3, 1, 4, 1, 5].map(TokenId))?;
///
/// let [_index, recent] = &mut sources;
/// recent.clear(); // as a request begins
/// recent.extend(&[9, 1, 4].map(TokenId));
/// let mut successors = Vec::new();
/// recent.successors(recent.cursor().unwrap(), &mut successors);
/// assert_eq!(successors[0].token, TokenId(1));
/// # Ok::<(), coordgen_rs::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct History {
    shared: Arc<Mutex<Shared>>,
    vocab_size: u32,
    has_fleet: bool,
    has_corpus: bool,
}

impl History {
    /// The name of the source over the index.
    pub const INDEX: &'static str = "history";
    /// The name of the source over what the index does not cover yet.
    pub const RECENT: &'static str = "recent";
    /// The name of the source over the fleet's index.
    pub const FLEET: &'static str = "fleet";
    /// The name of the source over the corpus.
    pub const CORPUS: &'static str = "corpus";

    /// An empty history of tokens below `vocab_size`.
    pub fn new(vocab_size: u32) -> Self {
        Self { shared: Arc::default(), vocab_size, has_fleet: false, has_corpus: false }
    }

    /// An empty history that stands above a fleet's index, which may be opened later, and again.
    pub fn above_fleet(vocab_size: u32) -> Self {
        Self { has_fleet: true, ..Self::new(vocab_size) }
    }

    /// The same history, which stands above a corpus: one that may be opened later, and again.
    pub fn above_corpus(self) -> Self {
        Self { has_corpus: true, ..self }
    }

    /// Number of ids in the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Sources for one drafter: "history", over the index, and "recent", over what is newer.
    pub fn sources(&self) -> [Box<dyn DraftSource>; 2] {
        let index = IndexSource::new(Arc::clone(&self.shared), Layer::Own);
        let recent = RecentSource::new(Arc::clone(&self.shared));
        [Box::new(index), Box::new(recent)]
    }

    /// A further source for one drafter, "fleet", where the history stands above a fleet's index.
    pub fn fleet_source(&self) -> Option<Box<dyn DraftSource>> {
        let source = IndexSource::new(Arc::clone(&self.shared), Layer::Fleet);
        self.has_fleet.then(|| Box::new(source) as Box<dyn DraftSource>)
    }

    /// A further source for one drafter, "corpus", where the history stands above one.
    pub fn corpus_source(&self) -> Option<Box<dyn DraftSource>> {
        let source = IndexSource::new(Arc::clone(&self.shared), Layer::Corpus);
        self.has_corpus.then(|| Box::new(source) as Box<dyn DraftSource>)
    }

    /// All sources for one drafter: those of [`sources`](Self::sources), and the fleet's and the corpus's
    /// if there are such.
    pub fn all_sources(&self) -> impl Iterator<Item = Box<dyn DraftSource>> {
        self.sources().into_iter().chain(self.fleet_source()).chain(self.corpus_source())
    }

    /// Appends a finished request, prompt and answer together. Fails when a token is unknown.
    pub fn remember(&self, tokens: &[TokenId]) -> Result<()> {
        self.append(None, tokens)
    }

    /// Appends a finished request that the database keeps under `number`.
    ///
    /// Numbers rise; one that is covered by the index already is left out. Fails when a token is
    /// unknown.
    pub fn remember_stored(&self, number: u64, tokens: &[TokenId]) -> Result<()> {
        self.append(Some(number), tokens)
    }

    fn append(&self, number: Option<u64>, tokens: &[TokenId]) -> Result<()> {
        let vocab_size = self.vocab_size;
        if let Some(&token) = tokens.iter().find(|token| token.0 >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size: vocab_size as usize });
        }
        let tokens: Arc<[TokenId]> = tokens.into();
        let mut shared = lock(&self.shared);
        let covered = shared.index.as_ref().map_or(0, |index| index.header().covers);
        if number.is_none_or(|number| number > covered) {
            shared.num_recent_tokens += tokens.len();
            shared.text.add(Arc::clone(&tokens));
            shared.recent.push(Document { number, tokens });
            let forgotten = shared.forget_oldest();
            drop((shared, forgotten)); // in this order: to free what is long takes long
        }
        Ok(())
    }

    /// Opens the index at `path` in place of the one before, and forgets the documents it covers.
    ///
    /// Fails when the index cannot be used; then everything stays as it is.
    pub fn open_index(&self, path: &Path, key: &Key) -> Result<()> {
        let index = self.opened(path, key)?;
        let covers = index.header().covers;
        let mut shared = lock(&self.shared);
        let before = shared.index.replace(Arc::new(index));
        let covered =
            shared.retain(|document| document.number.is_none_or(|number| number > covers));
        drop((shared, before, covered));
        Ok(())
    }

    /// Opens the fleet's index at `path` in place of the one before.
    ///
    /// A request that runs drafts on from the one before, whose file may be gone by then. Fails when
    /// the index cannot be used; then everything stays as it is.
    pub fn open_fleet_index(&self, path: &Path, key: &Key) -> Result<()> {
        let index = self.opened(path, key)?;
        let before = lock(&self.shared).fleet.replace(Arc::new(index));
        drop(before);
        Ok(())
    }

    /// Opens the segments of a corpus in place of those before; one that is open already stays open.
    ///
    /// A request that runs drafts on from those before. A path always stands for the same file. Fails
    /// when a segment cannot be used, or they have 2^32 tokens together; then everything stays as it is.
    pub fn open_corpus(&self, paths: Vec<PathBuf>, key: &Key) -> Result<()> {
        let before = Arc::clone(&lock(&self.shared).corpus);
        let open = |path: PathBuf| {
            let known = before.iter().find(|segment| segment.path == path);
            let index = match known {
                Some(segment) => Arc::clone(&segment.index),
                None => Arc::new(self.opened(&path, key)?),
            };
            Ok(Segment { path, index })
        };
        let segments = paths.into_iter().map(open).collect::<Result<Arc<[_]>>>()?;
        if num_tokens(&segments) > u32::MAX as usize {
            return Err(Error::UnusableIndex { reason: "the corpus has more than 2^32 tokens" });
        }
        let before = std::mem::replace(&mut lock(&self.shared).corpus, segments);
        drop(before);
        Ok(())
    }

    fn opened(&self, path: &Path, key: &Key) -> Result<HistoryIndex> {
        let index = HistoryIndex::open(path, key)?;
        if index.header().vocab_size != self.vocab_size {
            return Err(Error::UnusableIndex { reason: "it belongs to another vocabulary" });
        }
        Ok(index)
    }

    /// Forgets the index and all documents; the fleet's index and the corpus stay.
    pub fn clear(&self) {
        let mut shared = lock(&self.shared);
        let before = shared.index.take();
        let forgotten = shared.retain(|_| false);
        drop((shared, before, forgotten));
    }

    /// Checks the whole index, see [`HistoryIndex::check_all`]; what else uses it goes on meanwhile.
    /// Returns whether it is right, or absent.
    pub fn check_index(&self) -> bool {
        let index = lock(&self.shared).index.clone();
        index.is_none_or(|index| index.check_all())
    }

    /// Reads some of the fleet's index or of the corpus ahead of its use, see [`HistoryIndex::warm`].
    /// Returns whether there is more.
    pub fn warm_shared(&self) -> bool {
        if let Some(index) = self.shared_indexes().iter().find(|index| index.is_cold()) {
            index.warm();
        }
        self.is_shared_cold()
    }

    /// Whether some of them was not read ahead.
    pub fn is_shared_cold(&self) -> bool {
        self.shared_indexes().iter().any(|index| index.is_cold())
    }

    /// The fleet's index and the corpus.
    fn shared_indexes(&self) -> Vec<Arc<HistoryIndex>> {
        let shared = lock(&self.shared);
        let corpus = shared.corpus.iter().map(|segment| &segment.index);
        shared.fleet.iter().chain(corpus).cloned().collect()
    }

    /// Whether the index was found damaged; it answers nothing any more.
    pub fn is_damaged(&self) -> bool {
        lock(&self.shared).index.as_ref().is_some_and(|index| index.is_damaged())
    }

    /// Tokens of the index, a terminator a document included.
    pub fn num_indexed_tokens(&self) -> usize {
        lock(&self.shared).index.as_ref().map_or(0, |index| index.header().num_tokens as usize)
    }

    /// Whether a damaged block of the fleet's index was read; it drafts nothing any more.
    pub fn is_fleet_damaged(&self) -> bool {
        lock(&self.shared).fleet.as_ref().is_some_and(|index| index.is_damaged())
    }

    /// Tokens of the fleet's index, a terminator a document included.
    pub fn num_fleet_tokens(&self) -> usize {
        lock(&self.shared).fleet.as_ref().map_or(0, |index| index.header().num_tokens as usize)
    }

    /// Whether a damaged block of the corpus was read; that segment drafts nothing any more.
    pub fn is_corpus_damaged(&self) -> bool {
        lock(&self.shared).corpus.iter().any(|segment| segment.index.is_damaged())
    }

    /// Tokens of the corpus, a terminator a document included.
    pub fn num_corpus_tokens(&self) -> usize {
        num_tokens(&lock(&self.shared).corpus)
    }

    /// Tokens of the documents that the index does not cover.
    pub fn num_recent_tokens(&self) -> usize {
        lock(&self.shared).num_recent_tokens
    }

    /// For tests: calls `call` while the locks are held that drafters and their callers share.
    #[cfg(feature = "python")]
    pub(crate) fn while_held<T>(&self, call: impl FnOnce() -> T) -> T {
        let shared = lock(&self.shared);
        shared.text.while_held(call)
    }

    /// Number of the last document that the index covers; 0 without an index.
    pub fn covers(&self) -> u64 {
        lock(&self.shared).index.as_ref().map_or(0, |index| index.header().covers)
    }
}

fn num_tokens(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.index.header().num_tokens as usize).sum()
}

/// What was forgotten, to be freed when nobody waits for the lock any more.
type Forgotten = (Vec<Document>, Arc<RecentText>);

impl Shared {
    fn retain(&mut self, keep: impl FnMut(&Document) -> bool) -> Forgotten {
        let (kept, forgotten) = std::mem::take(&mut self.recent).into_iter().partition(keep);
        self.recent = kept;
        self.num_recent_tokens = self.recent.iter().map(|document| document.tokens.len()).sum();
        let text = RecentText::of(self.recent.iter().map(|document| Arc::clone(&document.tokens)));
        // Requests that run keep the one that they began with.
        (forgotten, std::mem::replace(&mut self.text, Arc::new(text)))
    }

    /// Keeps memory bounded where no index ever takes over.
    fn forget_oldest(&mut self) -> Option<Forgotten> {
        if self.num_recent_tokens <= MAX_RECENT_TOKENS {
            return None;
        }
        let mut surplus = self.num_recent_tokens - MAX_RECENT_TOKENS / 2;
        let mut num_left = self.recent.len();
        Some(self.retain(|document| {
            num_left -= 1;
            let forget = surplus > 0 && num_left > 0; // the newest stays
            surplus = surplus.saturating_sub(document.tokens.len());
            !forget
        }))
    }
}

/// The state stays whole if a thread panics while it holds the lock: no change runs foreign code.
/// Never held while anything long is done.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    locks::lock(shared)
}

/// The part of a request's new tokens that a match can reach back to.
fn matched(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[tokens.len().saturating_sub(MAX_MATCH)..]
}
