//! The frozen index over finished requests. In: a file. Out: where a run of tokens occurs,
//! and what followed it.
//!
//! It knows nothing of the request that runs; `index_source.rs` does.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::format::{BLOCK_BYTES, FENCE_DEPTH, FENCE_DISTANCE, Header, Key, ReadFile, symbol};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Most continuations of a range: those up to this length are read to the last entry.
const MAX_CONTINUATIONS: u32 = 32;
/// Of longer ranges this many entries are read.
const NUM_SAMPLES: u32 = 16;

/// Blocks that are read ahead of their use in one call.
const WARMED_AT_ONCE: usize = (16 << 20) / BLOCK_BYTES;

/// Some consecutive entries of the suffix array: the suffixes that share their first tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub start: u32,
    /// Behind the last.
    pub end: u32,
}

impl Range {
    /// Number of occurrences.
    pub fn count(self) -> u32 {
        self.end - self.start
    }
}

/// Doublings by which the end of a range is looked for near its start.
const NUM_NEAR_STEPS: u32 = 4;

/// A token that followed the suffixes of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Continuation {
    /// The token.
    pub token: TokenId,
    /// How often: counted in short ranges, estimated from a sample in long ones.
    pub count: f32,
    /// The suffixes that it followed; in long ranges perhaps not all of them.
    pub range: Range,
}

/// A suffix array over many documents, in a file that is read by blocks.
///
/// Use it for texts that stay as they are. New ones are kept in a
/// [`SuffixAutomaton`](crate::SuffixAutomaton) until the next index.
///
/// # How damage is found
/// Opening checks the header and the table of checksums, and the length of the file. Every block of
/// 4 KiB is read and checked when it is first needed, once for a process. A block that is not what was
/// written turns the index [damaged](Self::is_damaged): it then answers nothing. What is read is
/// held against the index's limits besides, so that no file can cause a panic.
///
/// # Cost
/// | what | time | note |
/// |---|---|---|
/// | [`open`](Self::open) | a thousandth of the file is read | |
/// | [`find`](Self::find) | O(log of the range) reads | first tokens O(1) in large indexes |
/// | [`continuations`](Self::continuations) | at most 32 suffixes read | also where thousands of tokens follow |
///
/// A read touches two places of the file. `cargo bench --bench history` gives times and sizes.
#[derive(Debug)]
pub struct HistoryIndex {
    file: ReadFile,
    header: Header,
    /// Everything before the words.
    head: Box<[u8]>,
    /// Blocks of words that were read, and whose checksum was found right.
    blocks: Box<[OnceLock<Box<[u8]>>]>,
    damaged: AtomicBool,
    /// Blocks that [`warm`](HistoryIndex::warm) has come to.
    num_warmed: AtomicUsize,
}

impl HistoryIndex {
    /// Opens the index at `path` if it belongs to `key`.
    ///
    /// Fails when there is no file, or it has another version or key, or is cut off, or its header
    /// is damaged.
    pub fn open(path: &Path, key: &Key) -> Result<Self> {
        let file = ReadFile::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::UnusableIndex { reason: "there is none" },
            _ => Error::UnusableIndex { reason: "it cannot be read" },
        })?;
        let head = Header::read_head(&file)
            .map_err(|_| Error::UnusableIndex { reason: "it cannot be read" })?;
        let header = Header::read(&head, file.num_bytes())?;
        if header.key != *key {
            return Err(Error::UnusableIndex { reason: "it belongs to another history" });
        }
        Ok(Self {
            blocks: (0..header.num_blocks()).map(|_| OnceLock::new()).collect(),
            damaged: AtomicBool::new(false),
            num_warmed: AtomicUsize::new(0),
            file,
            header,
            head,
        })
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether a block was read that is not what was written.
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Checks every block, and keeps none. Returns whether the index is right.
    ///
    /// Where it runs beside what draws on the index, that need not wait for the disk any more.
    pub fn check_all(&self) -> bool {
        (0..self.blocks.len()).all(|block| self.read(block).is_some())
    }

    /// Reads and checks the next 16 MiB, keeping none, so that what draws on the index need not wait for
    /// the disk.
    pub fn warm(&self) {
        let start = self.num_warmed.fetch_add(WARMED_AT_ONCE, Ordering::Relaxed);
        let end = (start + WARMED_AT_ONCE).min(self.blocks.len());
        (start..end).all(|block| self.read(block).is_some());
    }

    /// Whether [`warm`](Self::warm) has not come to its end.
    pub fn is_cold(&self) -> bool {
        !self.is_damaged() && self.num_warmed.load(Ordering::Relaxed) < self.blocks.len()
    }

    /// All suffixes.
    pub fn all(&self) -> Range {
        Range { start: 0, end: self.header.num_tokens }
    }

    /// The suffixes of `range` whose token after the first `depth` ones is `token`.
    ///
    /// All suffixes of `range` must share those `depth` tokens.
    pub fn find(&self, range: Range, depth: u32, token: TokenId) -> Option<Range> {
        if token.0 >= self.header.vocab_size {
            return None;
        }
        let wanted = symbol(token);
        if depth == 0 && self.header.has_starts {
            return self.range_of_first(wanted);
        }
        let start = self.bound(range, |found| found < wanted, depth)?;
        // Most ranges end soon after they start; the end of a long one is found faster by fences.
        let mut rest = Range { start, end: range.end };
        for step in (0..=NUM_NEAR_STEPS).map(|doubling| start.saturating_add(1 << doubling)) {
            if step >= range.end || self.symbol_after(step, depth)? != wanted {
                rest.end = step.min(range.end);
                break;
            }
            rest.start = step;
        }
        let end = self.bound(rest, |found| found <= wanted, depth)?;
        (start < end).then_some(Range { start, end })
    }

    /// Calls `visit` with the tokens that followed the suffixes of `range` after their first `depth`
    /// ones, at most 32 of them, each once.
    ///
    /// A range of at most 32 suffixes is read whole. Of a longer one 16 are, the first and the last
    /// among them: in it the suffixes stand in the order of the tokens that follow, so no token is
    /// missed that follows a tenth of them.
    pub fn continuations(&self, range: Range, depth: u32, visit: impl FnMut(Continuation)) {
        // Nothing is to be done about a damaged block but to say no more.
        let _ = self.try_continuations(range, depth, visit);
    }

    fn try_continuations(
        &self,
        range: Range,
        depth: u32,
        mut visit: impl FnMut(Continuation),
    ) -> Option<()> {
        let (count, last) = (range.count(), range.end.checked_sub(1)?);
        let first_symbol = self.symbol_after(range.start, depth)?;
        let last_symbol = self.symbol_after(last, depth)?;
        if first_symbol == last_symbol {
            self.tell(first_symbol, count as f32, range, &mut visit);
            return Some(());
        }
        let num_read = if count <= MAX_CONTINUATIONS { count } else { NUM_SAMPLES };
        // What a fence says is one read, what a suffix says two: but a sample that moves by much of
        // the distance to the next one misses common tokens.
        let at_fences = count / NUM_SAMPLES >= 2 * FENCE_DISTANCE && depth < FENCE_DEPTH;
        let evenly =
            |index: u32| (u64::from(index) * u64::from(count - 1) / u64::from(num_read - 1)) as u32;
        let weight = count as f32 / num_read as f32;
        let mut num_equal = 1.0;
        let (mut current, mut found) =
            (first_symbol, Range { start: range.start, end: range.start + 1 });
        for index in 1..num_read {
            let rank = match index {
                _ if index == num_read - 1 => last,
                _ if at_fences => fence_before(range.start + evenly(index), range.start),
                _ => range.start + evenly(index),
            };
            let next = if rank == last { last_symbol } else { self.symbol_after(rank, depth)? };
            if next != current {
                self.tell(current, num_equal * weight, found, &mut visit);
                (current, num_equal, found.start) = (next, 0.0, rank);
            }
            num_equal += 1.0;
            found.end = rank + 1;
        }
        self.tell(current, num_equal * weight, found, &mut visit);
        Some(())
    }

    fn tell(&self, symbol: u32, count: f32, range: Range, visit: &mut impl FnMut(Continuation)) {
        // Symbol 0 is the end of a document.
        if let Some(token) = symbol.checked_sub(1).filter(|&token| token < self.header.vocab_size) {
            visit(Continuation { token: TokenId(token), count, range });
        }
    }

    fn range_of_first(&self, symbol: u32) -> Option<Range> {
        let starts = self.header.starts_start() + symbol as usize;
        let (start, end) = (self.word(starts)?, self.word(starts + 1)?);
        (start < end && end <= self.header.num_tokens).then_some(Range { start, end })
    }

    /// The first suffix of `range` that does not pass, where those that pass come first.
    fn bound(&self, range: Range, passes: impl Fn(u32) -> bool, depth: u32) -> Option<u32> {
        let Range { mut start, mut end } = range;
        while start < end {
            let middle = fence_before(start + (end - start) / 2, start);
            match passes(self.symbol_after(middle, depth)?) {
                true => start = middle + 1,
                false => end = middle,
            }
        }
        Some(start)
    }

    /// The symbol after the first `depth` ones of the suffix at `rank`.
    fn symbol_after(&self, rank: u32, depth: u32) -> Option<u32> {
        let num_tokens = self.header.num_tokens;
        if rank >= num_tokens {
            return None;
        }
        if rank.is_multiple_of(FENCE_DISTANCE) && depth < FENCE_DEPTH {
            let fence = (rank / FENCE_DISTANCE * FENCE_DEPTH + depth) as usize;
            return self.word(self.header.fences_start() + fence);
        }
        let suffix = self.word(self.header.suffixes_start() + rank as usize)?;
        let position = suffix.checked_add(depth).filter(|&position| position < num_tokens)?;
        self.word(position as usize).map(|token| symbol(TokenId(token)))
    }

    /// A word of the file, after its block was checked; `None` where it is damaged.
    #[inline]
    fn word(&self, index: usize) -> Option<u32> {
        let start = 4 * index;
        let block = self.blocks.get(start / BLOCK_BYTES)?;
        let bytes = match block.get() {
            Some(bytes) => bytes,
            None => self.load(start / BLOCK_BYTES)?,
        };
        let start = start % BLOCK_BYTES;
        let word = bytes.get(start..start + 4)?;
        Some(u32::from_le_bytes(word.try_into().ok()?))
    }

    #[cold]
    fn load(&self, block: usize) -> Option<&[u8]> {
        let bytes = self.read(block)?;
        Some(self.blocks[block].get_or_init(|| bytes))
    }

    /// Reads a block and checks it.
    fn read(&self, block: usize) -> Option<Box<[u8]>> {
        let start = block * BLOCK_BYTES;
        let num_bytes = BLOCK_BYTES.min(4 * self.header.num_words() - start);
        let start = (self.header.words_start() + start) as u64;
        let bytes = self.file.read(start, num_bytes).ok();
        let found = bytes.as_deref().map(crc32fast::hash);
        if self.is_damaged() || found.is_none() || found != self.checksum(block) {
            self.damaged.store(true, Ordering::Relaxed);
            return None;
        }
        bytes
    }

    fn checksum(&self, block: usize) -> Option<u32> {
        Header::block_checksum(&self.head, block)
    }
}

/// The last fence up to `rank`, or `rank` itself where that is not behind `start`.
fn fence_before(rank: u32, start: u32) -> u32 {
    let fence = rank - rank % FENCE_DISTANCE;
    if fence > start { fence } else { rank }
}
