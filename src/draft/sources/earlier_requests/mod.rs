//! The requests that a drafter served before, or several that share them, as a draft source. In: the
//! current request, token by token; requests, as they end. Out: what came next in an earlier one.
//!
//! In memory, the newest requests only: what is kept on disk, or lives longer than the drafters, is the
//! history's matter.

use std::collections::VecDeque;

use super::automaton::suffix_automaton::{MAX_MATCH, SuffixAutomaton};
use super::automaton::{add_part, successors_above};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;
use crate::locks::Shared;

/// An automaton over finished requests, prompts and answers, and where the current one
/// matches it.
///
/// Sources that share their finished requests have places of their own. What ends while others run is
/// taken in when any of them begins another request; places that were found before are looked up anew
/// then, and where the oldest requests were forgotten meanwhile, a source knows none until its request
/// goes on.
///
/// Cost: that of a [`SuffixAutomaton`], and a lock for each call; a request is added when the next one
/// begins. Forgetting takes as long as adding what is kept, about 40 ms each quarter of a million
/// tokens.
///
/// ```
/// use coordgen_rs::draft::sources::earlier_requests::{EarlierRequests, SharedRequests};
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::ids::TokenId;
///
/// let shared = SharedRequests::default();
/// let mut earlier = EarlierRequests::new(shared.clone());
/// earlier.extend(&[1, 2, 3, 4].map(TokenId));
/// assert_eq!(earlier.cursor(), None); // a request is no source for itself
/// earlier.ended();
/// let mut beside = EarlierRequests::new(shared);
/// beside.clear(); // as a request begins
/// beside.extend(&[9, 2, 3].map(TokenId));
/// assert_eq!(beside.cursor().unwrap().match_len, 2);
/// ```
#[derive(Debug, Default)]
pub struct EarlierRequests {
    finished: SharedRequests,
    /// Where the current request's text ends in them.
    place: Option<Cursor>,
    /// The generation and length of their text when that was found.
    known: (u64, usize),
    current: Vec<TokenId>,
}

impl EarlierRequests {
    /// The name in options and statistics.
    pub const NAME: &'static str = "earlier-requests";

    /// Draws on these requests, and adds its own.
    pub fn new(finished: SharedRequests) -> Self {
        Self { finished, ..Self::default() }
    }

    /// The current request is finished, if there is one.
    fn finish(&mut self) {
        if !self.current.is_empty() {
            let mut request = std::mem::take(&mut self.current);
            request.shrink_to_fit(); // it has grown by doubling
            self.finished.lock().add(request);
        }
    }

    /// Where a place is by now that was found since the request's text was last followed: where it was,
    /// unless requests were added meanwhile. `None` where others were forgotten.
    fn still_at(&self, finished: &FinishedRequests, found: Cursor) -> Option<Cursor> {
        let (generation, text_len) = self.known;
        match finished.generation == generation {
            true if finished.text.text_len() == text_len => Some(found),
            true => Some(finished.text.still_at(found)),
            false => None,
        }
    }
}

impl Propose for EarlierRequests {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cursor(&self) -> Option<Cursor> {
        self.place
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let finished = self.finished.lock();
        finished.text.advance(self.still_at(&finished, cursor)?, token)
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let finished = self.finished.lock();
        if let Some(cursor) = self.still_at(&finished, cursor) {
            successors_above(&finished.text, cursor, at_least, out);
        }
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for EarlierRequests {
    fn extend(&mut self, tokens: &[TokenId]) {
        let num_before = self.current.len();
        self.current.extend_from_slice(tokens);
        let finished = self.finished.lock();
        let place = self.place.and_then(|place| self.still_at(&finished, place));
        let start = match self.known.0 == finished.generation {
            true => num_before,
            // What is known now may hold what was not matched before; no longer match is known.
            false => num_before.saturating_sub(MAX_MATCH),
        };
        let follow = |place: Option<Cursor>, &token: &TokenId| {
            finished.text.advance(place.unwrap_or(SuffixAutomaton::START), token)
        };
        self.place = self.current[start..].iter().fold(place, follow);
        self.known = (finished.generation, finished.text.text_len());
    }

    /// The request has ended, if it had not before. Takes in what has ended since a request of any
    /// source that shares them began.
    fn clear(&mut self) {
        self.finish();
        let mut finished = self.finished.lock();
        finished.take_in();
        self.place = None;
        self.known = (finished.generation, finished.text.text_len());
    }

    fn ended(&mut self) {
        self.finish();
    }

    /// Of the requests that it shares with other drafters, too.
    fn memory_bytes(&self) -> usize {
        self.finished.lock().memory_bytes() + self.current.capacity() * size_of::<TokenId>()
    }
}

/// Tokens of finished requests that are kept at most; 24 to 26 MB. Replays of sessions (`coordgen
/// replay --history earlier-requests`) hold fewer.
pub(in crate::draft::sources) const MOST_TOKENS: usize = 1 << 19;

/// Finished requests, which the sources of several drafters may draw on.
///
/// Beyond half a million tokens the oldest requests are forgotten, down to half of that at once: an
/// automaton cannot forget, so the rest is read again.
#[derive(Debug)]
pub struct FinishedRequests {
    /// Over all that were taken in.
    pub(super) text: SuffixAutomaton,
    /// The requests that `text` holds, the oldest first.
    pub(super) kept: VecDeque<Vec<TokenId>>,
    /// Tokens of all of them.
    pub(super) num_kept: usize,
    /// Requests that have ended since: they are taken in when the next one begins.
    ended: Vec<Vec<TokenId>>,
    /// How often the text was made anew: places in the one before mean nothing.
    pub(super) generation: u64,
    /// [`MOST_TOKENS`], or less in tests.
    most_tokens: usize,
}

/// Finished requests, locked for each use.
pub type SharedRequests = Shared<FinishedRequests>;

impl Default for FinishedRequests {
    fn default() -> Self {
        Self::keeping(MOST_TOKENS)
    }
}

impl FinishedRequests {
    /// Keeps at most so many tokens.
    pub(super) fn keeping(most_tokens: usize) -> Self {
        Self {
            text: SuffixAutomaton::new(),
            kept: VecDeque::new(),
            num_kept: 0,
            ended: Vec::new(),
            generation: 0,
            most_tokens,
        }
    }

    /// Notes a request that has ended.
    pub(super) fn add(&mut self, request: Vec<TokenId>) {
        self.ended.push(request);
    }

    /// Takes in the requests that have ended, and forgets the oldest where they are too many.
    pub(super) fn take_in(&mut self) {
        for request in std::mem::take(&mut self.ended) {
            self.num_kept += with_border(&request);
            if self.num_kept <= self.most_tokens {
                add_part(&mut self.text, &request);
                self.text.settle();
            }
            self.kept.push_back(request);
            if self.num_kept > self.most_tokens {
                self.forget_oldest();
            }
        }
    }

    /// Forgets the oldest requests until half of what may be kept is left, and of a single longer
    /// one its beginning.
    fn forget_oldest(&mut self) {
        let half = self.most_tokens / 2;
        while self.num_kept > half {
            let Some(mut oldest) = self.kept.pop_front() else { break };
            self.num_kept -= with_border(&oldest);
            if self.kept.is_empty() {
                oldest.drain(..oldest.len().saturating_sub(half.saturating_sub(1)));
                oldest.shrink_to_fit();
                self.num_kept = with_border(&oldest);
                self.kept.push_back(oldest);
                break;
            }
        }
        self.text.clear();
        self.generation += 1;
        for request in &self.kept {
            add_part(&mut self.text, request);
        }
        self.text.settle();
    }

    /// Bytes held on the heap.
    pub(super) fn memory_bytes(&self) -> usize {
        let tokens = self.kept.iter().chain(&self.ended).map(Vec::capacity).sum::<usize>();
        self.text.memory_bytes() + tokens * size_of::<TokenId>()
    }
}

/// What a request takes of the tokens that may be kept: its own, and the border behind it, without
/// which requests of one token would take twice what they count for.
fn with_border(request: &[TokenId]) -> usize {
    request.len() + 1
}

#[cfg(test)]
mod tests;
