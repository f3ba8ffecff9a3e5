//! The requests that a drafter served before, as a draft source. In: the current request, token by
//! token. Out: what came next in an earlier one.
//!
//! In memory, for one drafter, and without an end: what is kept on disk, shared between drafters
//! and limited is the history's matter.

use super::automaton::other_text::OtherText;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// An automaton over finished requests, prompts and answers, and where the current one
/// matches it.
///
/// Cost: that of a [`SuffixAutomaton`](crate::SuffixAutomaton); a request is added when the next one
/// begins.
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
#[derive(Debug, Default)]
pub struct EarlierRequests {
    finished: OtherText,
    current: Vec<TokenId>,
}

impl EarlierRequests {
    /// The name in options and statistics.
    pub const NAME: &'static str = "earlier-requests";

    /// No request was served yet.
    pub fn new() -> Self {
        Self::default()
    }
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
        self.successors_above(cursor, 0.0, out);
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
            self.finished.add_part(&self.current);
            self.current.clear();
        }
        self.finished.set_place(None);
    }

    fn memory_bytes(&self) -> usize {
        self.finished.memory_bytes() + self.current.capacity() * size_of::<TokenId>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::other_text::BORDER;
    use crate::draft::sources::automaton::suffix_automaton::tests::{naive_ends, texts};

    proptest! {
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
