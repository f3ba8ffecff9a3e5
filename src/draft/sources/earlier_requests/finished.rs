//! Finished requests in memory, the newest only. In: requests, as they end. Out: one text of them, to be
//! searched.

use std::collections::VecDeque;

use crate::draft::sources::automaton::other_text::add_part;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::shared::Shared;
use crate::ids::TokenId;

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
