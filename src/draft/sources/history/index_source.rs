//! An index as a draft source. In: the request's text. Out: what followed its longest suffixes in
//! earlier requests.

use std::sync::{Arc, Mutex};

use super::index::{Continuation, HistoryIndex, Range};
use super::{History, Shared, lock, matched};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::automaton::escape::escape;
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

/// Which of a history's two indexes a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// That of its own documents.
    Own,
    /// That of a fleet's.
    Fleet,
}

/// A suffix of the text that occurs in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    range: Range,
    len: u32,
}

/// Drafts for one drafter from the index.
///
/// A place is a range of the suffix array. Shorter suffixes of the same text stand elsewhere in it,
/// so they are followed along with the text, each its own range; a draft node follows one of them.
pub(super) struct IndexSource {
    shared: Arc<Mutex<Shared>>,
    layer: Layer,
    index: Option<Arc<HistoryIndex>>,
    /// The longest suffix first, each occurring more often than the one before it.
    levels: Vec<Level>,
    next_levels: Vec<Level>,
}

impl IndexSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>, layer: Layer) -> Self {
        Self { shared, layer, index: None, levels: Vec::new(), next_levels: Vec::new() }
    }

    /// Follows every level by one token, and adds the level of that token alone if it `starts` one
    /// or no level is left. A suffix that occurs no more often than a longer one occurs at the same
    /// positions, now and ever after, and is dropped.
    fn follow(&mut self, token: TokenId, starts: bool) {
        let Some(index) = &self.index else { return };
        self.next_levels.clear();
        let nothing = Level { range: index.all(), len: 0 };
        for level in self.levels.iter().chain([&nothing]) {
            if level.len == 0 && !starts && !self.next_levels.is_empty() {
                break;
            }
            let Some(range) = index.find(level.range, level.len, token) else { continue };
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

impl Propose for IndexSource {
    fn name(&self) -> &'static str {
        match self.layer {
            Layer::Own => History::INDEX,
            Layer::Fleet => History::FLEET,
        }
    }

    fn cursor(&self) -> Option<Cursor> {
        self.levels.first().copied().map(Cursor::from)
    }

    /// The suffixes of the cursor's range that go on with `token`; where the text ends also those
    /// of a shorter level.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let index = self.index.as_ref()?;
        self.levels_at(cursor).find_map(|level| {
            let range = index.find(level.range, level.len, token)?;
            Some(Level { range, len: level.len + 1 }.into())
        })
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.successors_above(cursor, 0.0, out);
    }

    /// The continuations of the cursor's longest level, and of the shorter ones what they know
    /// beside: blended as the suffix automaton does it.
    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let Some(index) = &self.index else { return };
        let (start, mut weight) = (out.len(), 1.0);
        for level in self.levels_at(cursor).take(MAX_BLENDED) {
            if weight < at_least.max(MIN_WEIGHT) {
                break;
            }
            weight = add_level(index, level, weight, start, out);
        }
        out[start..].sort_by(|one, other| other.probability.total_cmp(&one.probability));
        out.truncate(start + MAX_SUCCESSORS);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for IndexSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        let tokens = matched(tokens);
        let all_start = self.levels.is_empty();
        for (num_left, &token) in (0..tokens.len()).rev().zip(tokens) {
            self.follow(token, all_start || num_left < NUM_STARTS);
        }
    }

    /// Takes up the index as it is now; one that was found damaged is left alone.
    fn clear(&mut self) {
        let shared = lock(&self.shared);
        let index = match self.layer {
            Layer::Own => &shared.index,
            Layer::Fleet => &shared.fleet,
        };
        self.index = index.clone().filter(|index| !index.is_damaged());
        drop(shared);
        self.levels.clear();
    }

    fn ended(&mut self) {
        self.index = None;
        self.levels.clear();
    }

    fn memory_bytes(&self) -> usize {
        (self.levels.capacity() + self.next_levels.capacity()) * size_of::<Level>()
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
