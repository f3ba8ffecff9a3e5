//! The requests that a drafter served before, as a draft source. In: the current request, token by
//! token. Out: what came next in an earlier one.
//!
//! In memory, for one drafter, the newest requests only: what is kept on disk and shared between
//! drafters is the history's matter.

use std::collections::VecDeque;

use super::automaton::other_text::OtherText;
use crate::draft::source::{Cursor, Learn, Propose, Successor, all_successors};
use crate::ids::TokenId;

/// Tokens of finished requests that are kept at most; 24 to 26 MB. Replays of sessions (`coordgen
/// replay --history earlier-requests`) hold fewer.
pub(super) const MOST_TOKENS: usize = 1 << 19;

/// An automaton over finished requests, prompts and answers, and where the current one
/// matches it.
///
/// Beyond half a million tokens the oldest requests are forgotten, down to half of that at once: an
/// automaton cannot forget, so the rest is read again.
///
/// Cost: that of a [`SuffixAutomaton`](crate::SuffixAutomaton); a request is added when the next one
/// begins. Forgetting takes as long as adding what is kept, about 40 ms each quarter of a million
/// tokens.
///
/// ```
/// use coordgen_rs::draft::sources::earlier_requests::EarlierRequests;
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::ids::TokenId;
///
/// let mut earlier = EarlierRequests::new();
/// earlier.extend(&[1, 2, 3, 4].map(TokenId));
/// assert_eq!(earlier.cursor(), None); // a request is no source for itself
/// earlier.clear();
/// earlier.extend(&[9, 2, 3].map(TokenId));
/// assert_eq!(earlier.cursor().unwrap().match_len, 2);
/// ```
#[derive(Debug)]
pub struct EarlierRequests {
    finished: OtherText,
    /// The requests that `finished` holds, the oldest first.
    kept: VecDeque<Vec<TokenId>>,
    /// Tokens of all of them.
    num_kept: usize,
    current: Vec<TokenId>,
    /// [`MOST_TOKENS`], or less in tests.
    most_tokens: usize,
}

impl Default for EarlierRequests {
    fn default() -> Self {
        Self::keeping(MOST_TOKENS)
    }
}

impl EarlierRequests {
    /// The name in options and statistics.
    pub const NAME: &'static str = "earlier-requests";

    /// No request was served yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps at most so many tokens.
    fn keeping(most_tokens: usize) -> Self {
        let (finished, kept) = (OtherText::default(), VecDeque::new());
        Self { finished, kept, num_kept: 0, current: Vec::new(), most_tokens }
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
        self.finished.clear();
        for request in &self.kept {
            self.finished.add_part(request);
        }
    }
}

/// What a request takes of the tokens that may be kept: its own, and the border behind it, without
/// which requests of one token would take twice what they count for.
fn with_border(request: &[TokenId]) -> usize {
    request.len() + 1
}

impl Propose for EarlierRequests {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cursor(&self) -> Option<Cursor> {
        self.finished.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.finished.advance(cursor, token)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        all_successors(self, cursor, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        self.finished.successors_above(cursor, at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for EarlierRequests {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.current.extend_from_slice(tokens);
        self.finished.follow(tokens);
    }

    /// Takes the request in among the earlier ones.
    fn clear(&mut self) {
        if !self.current.is_empty() {
            let mut request = std::mem::take(&mut self.current);
            request.shrink_to_fit(); // it has grown by doubling
            self.num_kept += with_border(&request);
            if self.num_kept <= self.most_tokens {
                self.finished.add_part(&request);
            }
            self.kept.push_back(request);
        }
        if self.num_kept > self.most_tokens {
            self.forget_oldest();
        }
        self.finished.set_place(None);
    }

    fn memory_bytes(&self) -> usize {
        let kept: usize = self.kept.iter().map(Vec::capacity).sum();
        self.finished.memory_bytes() + (kept + self.current.capacity()) * size_of::<TokenId>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::other_text::BORDER;
    use crate::draft::sources::automaton::suffix_automaton::tests::{naive_ends, texts};

    #[test]
    fn the_oldest_requests_are_forgotten_and_a_long_one_keeps_its_end() {
        let numbers = |range: std::ops::Range<u32>| range.map(TokenId).collect::<Vec<_>>();
        let mut earlier = EarlierRequests::keeping(20);
        let knows = |earlier: &mut EarlierRequests, token: u32| {
            earlier.extend(&[TokenId(token)]);
            let known = earlier.cursor().is_some();
            earlier.current.clear();
            earlier.clear();
            known
        };
        for first in [0, 8, 16] {
            earlier.extend(&numbers(first..first + 8));
            earlier.clear();
        }
        assert!(!knows(&mut earlier, 0) && !knows(&mut earlier, 15) && knows(&mut earlier, 16));
        earlier.extend(&numbers(100..140));
        earlier.clear();
        assert!(!knows(&mut earlier, 16) && !knows(&mut earlier, 130) && knows(&mut earlier, 131));
        assert_eq!(earlier.num_kept, 10);
    }

    proptest! {
        #[test]
        fn what_is_kept_is_bounded(requests in prop::collection::vec(texts(), 0..12)) {
            let mut earlier = EarlierRequests::keeping(50);
            for request in &requests {
                earlier.extend(request);
                earlier.clear();
                let num_tokens: usize = earlier.kept.iter().map(Vec::len).sum();
                let num_kept = num_tokens + earlier.kept.len();
                prop_assert!(num_kept == earlier.num_kept && num_kept <= 50);
                let room: usize = earlier.kept.iter().map(Vec::capacity).sum();
                prop_assert_eq!(room, num_tokens);
            }
        }

        #[test]
        fn the_longest_suffix_of_the_request_is_found_in_earlier_ones(
            old in prop::collection::vec(texts(), 0..4),
            text in texts(),
        ) {
            let mut earlier = EarlierRequests::new();
            for request in &old {
                earlier.extend(request);
                earlier.clear();
            }
            for end in 1..=text.len() {
                earlier.extend(&text[end - 1..end]);
                let occurs = |len: &usize| {
                    old.iter().any(|old| !naive_ends(old, &text[end - len..end]).is_empty())
                };
                let longest = (1..=end).rev().find(occurs);
                let cursor = earlier.cursor();
                prop_assert_eq!(cursor.map(|cursor| cursor.match_len as usize), longest);
                let mut found = Vec::new();
                cursor.into_iter().for_each(|place| earlier.successors(place, &mut found));
                prop_assert!(found.iter().all(|next| next.token != BORDER));
            }
        }
    }
}
