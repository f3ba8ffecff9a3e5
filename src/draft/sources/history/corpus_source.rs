//! A corpus as a draft source: the documents that somebody added to draft from. In: the request's text.
//! Out: what followed its longest suffix in a document.
//!
//! The documents lie in several indexes, its *segments*, so that adding some sorts those alone and sorting
//! takes bounded memory. Each segment is followed by itself, and the one with the longest match drafts.

use std::sync::{Arc, Mutex};

use super::follower::Follower;
use super::index::HistoryIndex;
use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Drafts for one drafter from all segments of a corpus.
///
/// A cursor is that of a segment, the ranks of all segments numbered through.
pub(super) struct CorpusSource {
    shared: Arc<Mutex<Shared>>,
    segments: Vec<Numbered>,
}

/// A segment, and the number of its first rank.
struct Numbered {
    first: u32,
    follower: Follower,
}

impl CorpusSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>) -> Self {
        Self { shared, segments: Vec::new() }
    }

    /// The segment that a cursor is of, and the segment's own cursor.
    fn own(&self, cursor: Cursor) -> Option<(&Numbered, Cursor)> {
        let start = (cursor.place >> 32) as u32;
        let behind = self.segments.partition_point(|segment| segment.first <= start);
        let segment = self.segments.get(behind.checked_sub(1)?)?;
        Some((segment, Cursor { place: cursor.place - both(segment.first), ..cursor }))
    }
}

/// What moves both ends of a cursor's range by `first`.
fn both(first: u32) -> u64 {
    u64::from(first) << 32 | u64::from(first)
}

/// A segment's cursor, its ranks numbered through.
fn numbered(first: u32, cursor: Cursor) -> Cursor {
    Cursor { place: cursor.place + both(first), ..cursor }
}

/// Number of occurrences that a cursor stands for.
fn count(cursor: Cursor) -> u32 {
    (cursor.place as u32).wrapping_sub((cursor.place >> 32) as u32)
}

impl Propose for CorpusSource {
    fn name(&self) -> &'static str {
        History::CORPUS
    }

    /// The longest match of all segments; of equal ones that which occurs most often.
    fn cursor(&self) -> Option<Cursor> {
        let found = self.segments.iter().filter_map(|segment| {
            segment.follower.cursor().map(|cursor| numbered(segment.first, cursor))
        });
        found.max_by_key(|&cursor| (cursor.match_len, count(cursor)))
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let (segment, cursor) = self.own(cursor)?;
        let next = segment.follower.advance(cursor, token)?;
        Some(numbered(segment.first, next))
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.successors_above(cursor, 0.0, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let Some((segment, cursor)) = self.own(cursor) else { return };
        let start = out.len();
        segment.follower.successors_above(cursor, at_least, out);
        for successor in &mut out[start..] {
            successor.cursor = numbered(segment.first, successor.cursor);
        }
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }

    fn reads_disk(&self) -> bool {
        !self.segments.is_empty()
    }
}

impl Learn for CorpusSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.segments.iter_mut().for_each(|segment| segment.follower.extend(tokens));
    }

    /// Takes up the segments as they are now; those that were found damaged are left alone.
    fn clear(&mut self) {
        let segments = Arc::clone(&lock(&self.shared).corpus);
        let mut first = 0;
        let indexes = segments.iter().map(|segment| &segment.index);
        let number = |index: &Arc<HistoryIndex>| {
            let follower = Follower::new(Arc::clone(index));
            let numbered = Numbered { first, follower };
            first += index.header().num_tokens; // fits: `open_corpus` has checked it
            numbered
        };
        self.segments = indexes.filter(|index| !index.is_damaged()).map(number).collect();
    }

    fn ended(&mut self) {
        self.segments = Vec::new();
    }

    fn memory_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.follower.memory_bytes()).sum()
    }
}
