//! Indexes as a draft source: a history's own, a fleet's, or those of a corpus, the documents that somebody
//! added to draft from. In: the request's text. Out: what followed its longest suffix in a document.
//!
//! The documents of a corpus lie in several indexes, its *segments*, so that adding some sorts those alone
//! and sorting takes bounded memory; of the others there is one. Each segment is followed by itself, and the
//! one with the longest match drafts.

use std::sync::{Arc, Mutex};

use super::index::HistoryIndex;
use super::matcher::Matcher;
use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Which of a history's indexes a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// That of its own documents.
    Own,
    /// That of a fleet's.
    Fleet,
    /// Those of a corpus.
    Corpus,
}

/// Drafts for one drafter from all segments of a layer.
///
/// A cursor is that of a segment, the ranks of all segments numbered through.
pub(super) struct IndexSource {
    shared: Arc<Mutex<Shared>>,
    layer: Layer,
    /// None before a request, and where there is no index.
    segments: Vec<NumberedSegment>,
}

/// A segment, and the number of its first rank.
struct NumberedSegment {
    first: u32,
    matcher: Matcher,
}

impl IndexSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>, layer: Layer) -> Self {
        Self { shared, layer, segments: Vec::new() }
    }

    /// The segment that a cursor is of, and the segment's own cursor.
    fn own(&self, cursor: Cursor) -> Option<(&NumberedSegment, Cursor)> {
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

impl Propose for IndexSource {
    fn name(&self) -> &'static str {
        match self.layer {
            Layer::Own => History::INDEX,
            Layer::Fleet => History::FLEET,
            Layer::Corpus => History::CORPUS,
        }
    }

    /// The longest match of all segments; of equal ones that which occurs most often.
    fn cursor(&self) -> Option<Cursor> {
        let found = self.segments.iter().filter_map(|segment| {
            segment.matcher.cursor().map(|cursor| numbered(segment.first, cursor))
        });
        found.max_by_key(|&cursor| (cursor.match_len, count(cursor)))
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let (segment, cursor) = self.own(cursor)?;
        let next = segment.matcher.advance(cursor, token)?;
        Some(numbered(segment.first, next))
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let Some((segment, cursor)) = self.own(cursor) else { return };
        let start = out.len();
        segment.matcher.successors_above(cursor, at_least, out);
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

impl Learn for IndexSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.segments.iter_mut().for_each(|segment| segment.matcher.extend(tokens));
    }

    /// Takes up the segments as they are now; those that were found damaged are left alone.
    fn clear(&mut self) {
        let shared = lock(&self.shared);
        let indexes: Vec<_> = match self.layer {
            Layer::Own => shared.index.iter().cloned().collect(),
            Layer::Fleet => shared.fleet.iter().cloned().collect(),
            Layer::Corpus => shared.corpus.iter().map(|segment| segment.index.clone()).collect(),
        };
        drop(shared);
        let mut first = 0;
        let number = |index: Arc<HistoryIndex>| {
            let num_tokens = index.header().num_tokens;
            let numbered = NumberedSegment { first, matcher: Matcher::new(index) };
            first += num_tokens; // fits: `open_corpus` has checked it
            numbered
        };
        self.segments = indexes.into_iter().filter(|it| !it.is_damaged()).map(number).collect();
    }

    fn ended(&mut self) {
        self.segments = Vec::new();
    }

    fn memory_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.matcher.memory_bytes()).sum()
    }
}
