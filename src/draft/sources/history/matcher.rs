//! One index followed along a request's text. In: tokens. Out: which suffixes of the text occur in the
//! index, and what followed them. Sources hold one, or several.

use std::sync::Arc;

use super::index::{Continuation, HistoryIndex, Range};
use super::matched;
use crate::draft::source::{Cursor, Successor};
use crate::draft::sources::automaton::escape;
use crate::ids::TokenId;

/// Most successors that a place answers with.
const MAX_SUCCESSORS: usize = 8;
/// Suffixes of the text that are followed from token to token.
pub(super) const MAX_LEVELS: usize = 8;
/// Of many tokens given out at once only the last ones start levels of their own. The others would
/// add long suffixes, which are there already; following all of them made such steps up to twice
/// as slow.
const NUM_STARTS: usize = 4;
/// Suffixes whose continuations are blended.
const MAX_BLENDED: usize = 4;
/// Share of its estimate that a shorter level keeps: what the longer ones know is taken out.
const LOWER_LEVEL: f32 = 0.7;
/// Levels that could add less probability than this are not looked at.
const MIN_WEIGHT: f32 = 1.0 / 64.0;

/// A suffix of the text that occurs in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    range: Range,
    len: u32,
}

/// Where a request's text stands in an index.
///
/// A place is a range of the suffix array. Shorter suffixes of the same text stand elsewhere in it,
/// so they are followed along with the text, each its own range; a draft node follows one of them.
pub(super) struct Matcher {
    index: Arc<HistoryIndex>,
    /// The longest suffix first, each occurring more often than the one before it.
    levels: Vec<Level>,
    next_levels: Vec<Level>,
}

impl Matcher {
    /// At the start of a request.
    pub fn new(index: Arc<HistoryIndex>) -> Self {
        Self { index, levels: Vec::new(), next_levels: Vec::new() }
    }

    /// The request's text goes on with `tokens`.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        let tokens = matched(tokens);
        let all_start = self.levels.is_empty();
        for (num_left, &token) in (0..tokens.len()).rev().zip(tokens) {
            self.follow(token, all_start || num_left < NUM_STARTS);
        }
    }

    /// The longest suffix of the text that occurs.
    pub fn cursor(&self) -> Option<Cursor> {
        self.levels.first().copied().map(Cursor::from)
    }

    /// The suffixes of the cursor's range that go on with `token`; where the text ends also those
    /// of a shorter level.
    pub fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.levels_at(cursor).find_map(|level| {
            let range = self.index.find(level.range, level.len, token)?;
            Some(Level { range, len: level.len + 1 }.into())
        })
    }

    /// The continuations of the cursor's longest level, and of the shorter ones what they know
    /// beside: blended as the suffix automaton does it.
    pub fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let (start, mut weight) = (out.len(), 1.0);
        for level in self.levels_at(cursor).take(MAX_BLENDED) {
            if weight < at_least.max(MIN_WEIGHT) {
                break;
            }
            weight = add_level(&self.index, level, weight, start, out);
        }
        out[start..].sort_by(|one, other| other.probability.total_cmp(&one.probability));
        out.truncate(start + MAX_SUCCESSORS);
    }

    /// Bytes that it takes beside the index.
    pub fn memory_bytes(&self) -> usize {
        (self.levels.capacity() + self.next_levels.capacity()) * size_of::<Level>()
    }

    /// Follows every level by one token, and adds the level of that token alone if it `starts` one
    /// or no level is left. A suffix that occurs no more often than a longer one occurs at the same
    /// positions, now and ever after, and is dropped.
    fn follow(&mut self, token: TokenId, starts: bool) {
        self.next_levels.clear();
        let nothing = Level { range: self.index.all(), len: 0 };
        for level in self.levels.iter().chain([&nothing]) {
            if level.len == 0 && !starts && !self.next_levels.is_empty() {
                break;
            }
            let Some(range) = self.index.find(level.range, level.len, token) else { continue };
            if self.next_levels.last().is_none_or(|longer| longer.range.count() < range.count()) {
                self.next_levels.push(Level { range, len: level.len + 1 });
            }
        }
        if self.next_levels.len() > MAX_LEVELS {
            // Of a run of one token there are as many levels as tokens, all saying the same.
            self.next_levels.remove(MAX_LEVELS / 2);
        }
        std::mem::swap(&mut self.levels, &mut self.next_levels);
    }

    /// The levels that a cursor stands for: all where the text ends, else its own.
    fn levels_at(&self, cursor: Cursor) -> impl Iterator<Item = Level> {
        let own = Level::from(cursor);
        let end = if self.levels.first() == Some(&own) { self.levels.len() } else { 0 };
        std::iter::once(own).chain(self.levels[..end].iter().skip(1).copied())
    }
}

impl From<Cursor> for Level {
    fn from(cursor: Cursor) -> Self {
        let range = Range { start: (cursor.place >> 32) as u32, end: cursor.place as u32 };
        Self { range, len: cursor.match_len }
    }
}

impl From<Level> for Cursor {
    fn from(Level { range, len }: Level) -> Self {
        Self { place: u64::from(range.start) << 32 | u64::from(range.end), match_len: len }
    }
}

/// Adds to `out[start..]` the continuations of one level that no longer level knows, by their share
/// of `weight`. Returns the weight left over.
fn add_level(
    index: &HistoryIndex,
    level: Level,
    weight: f32,
    start: usize,
    out: &mut Vec<Successor>,
) -> f32 {
    let first_new = out.len();
    let (mut num_continued, mut num_different) = (0.0, 0);
    index.continuations(level.range, level.len, |Continuation { token, count, range }| {
        if out[start..first_new].iter().all(|known| known.token != token) {
            let cursor = Level { range, len: level.len + 1 }.into();
            out.push(Successor { token, probability: count, cursor });
            num_continued += count;
            num_different += 1;
        }
    });
    if num_different == 0 {
        return weight;
    }
    let mut known = 1.0 - escape(level.len, num_continued as u32, num_different);
    if first_new > start {
        known *= LOWER_LEVEL;
    }
    let share = weight * known / num_continued;
    out[first_new..].iter_mut().for_each(|new| new.probability *= share);
    weight * (1.0 - known)
}
