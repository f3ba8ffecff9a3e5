//! SAM-Decoding (Hu et al. 2024, arXiv 2411.10666), for comparison. In: tokens. Out: one chain, the
//! longer the longer the match.
//!
//! Its choices are kept: the longest match, its first occurrence, no counts.

use std::collections::BTreeMap;

use super::earlier_requests::MOST_TOKENS;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Draft tokens for each matched one, and one more.
const TOKENS_PER_MATCH: u32 = 4;

/// Stands between two texts; no vocabulary has it.
const BORDER: TokenId = TokenId(u32::MAX);

/// Places from here on are in the texts of earlier requests.
const EARLIER: u64 = 1 << 32;

/// What followed the first occurrence of the longest match, in the request or in earlier ones.
///
/// Of two matches of equal length the request's own is taken. A draft has `1 + 4 * match_len`
/// tokens at most. Of earlier requests half a million tokens are kept at most, as by our own source
/// of that name; beyond, the oldest go, down to half of that at once.
///
/// # Cost
/// Extending: amortised a look-up in a sorted map for each suffix level; the token that ends a run
/// takes as many levels as the run has tokens. Everything else: O(1). The structure is the plain
/// one; where speed counts, a [`SuffixAutomaton`](crate::SuffixAutomaton) serves.
///
/// ```
/// use coordgen_rs::draft::sources::sam_decoding::SamDecoding;
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::ids::TokenId;
///
/// let mut sam = SamDecoding::new();
/// sam.extend(&[3, 1, 4, 3, 1, 5, 3, 1].map(TokenId));
/// let mut successors = Vec::new();
/// sam.successors(sam.cursor().unwrap(), &mut successors);
/// assert_eq!(successors[0].token, TokenId(4)); // not 5, which came later
/// ```
#[derive(Debug, Default)]
pub struct SamDecoding {
    request: FirstOccurrences,
    /// `None` where earlier requests are none of its business.
    earlier: Option<FirstOccurrences>,
    /// Tokens of them that are kept at most.
    most_tokens: usize,
    /// State of the longest suffix of the request that earlier ones hold, and its length.
    matched: (usize, u32),
}

impl SamDecoding {
    /// The name in options and statistics.
    pub const NAME: &'static str = "sam";
    /// The name of the one that draws on earlier requests too.
    pub const WITH_EARLIER_REQUESTS: &'static str = "sam-earlier-requests";

    /// Drafts from the request alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drafts from the request and from those served before.
    pub fn with_earlier_requests() -> Self {
        Self::keeping(MOST_TOKENS)
    }

    fn keeping(most_tokens: usize) -> Self {
        Self { earlier: Some(FirstOccurrences::default()), most_tokens, ..Self::default() }
    }

    fn text(&self, place: u64) -> Option<TokenId> {
        let (occurrences, index) = match place.checked_sub(EARLIER) {
            None => (&self.request, place),
            Some(index) => (self.earlier.as_ref()?, index),
        };
        occurrences.text.get(index as usize).copied().filter(|&token| token != BORDER)
    }
}

impl Propose for SamDecoding {
    fn name(&self) -> &'static str {
        match self.earlier {
            None => Self::NAME,
            Some(_) => Self::WITH_EARLIER_REQUESTS,
        }
    }

    fn cursor(&self) -> Option<Cursor> {
        let request = self.request.repeated();
        let earlier = self.earlier.as_ref().zip(Some(self.matched));
        match earlier {
            Some((earlier, (state, match_len))) if match_len > request.map_or(0, |own| own.1) => {
                let place = EARLIER + u64::from(earlier.states[state].first_end);
                Some(Cursor { place, match_len })
            }
            _ => request.map(|(end, match_len)| Cursor { place: end.into(), match_len }),
        }
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let next = Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 };
        (self.text(cursor.place) == Some(token)).then_some(next)
    }

    /// The one token that stands there, unless the chain is at its full length.
    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        let Some(start) = self.cursor() else { return };
        let chain_len = u64::from(1 + TOKENS_PER_MATCH * start.match_len);
        if cursor.place.wrapping_sub(start.place) < chain_len {
            out.extend(self.text(cursor.place).and_then(|token| {
                let probability = cursor.match_len as f32 / (cursor.match_len + 1) as f32;
                Some(Successor { token, probability, cursor: self.advance(cursor, token)? })
            }));
        }
    }
}

impl Learn for SamDecoding {
    fn extend(&mut self, tokens: &[TokenId]) {
        for &token in tokens {
            self.request.push(token);
            if let Some(earlier) = &self.earlier {
                self.matched = earlier.follow(self.matched, token);
            }
        }
    }

    fn clear(&mut self) {
        let request = std::mem::take(&mut self.request);
        if let Some(earlier) = self.earlier.as_mut().filter(|_| !request.text.is_empty()) {
            request.text.iter().chain([&BORDER]).for_each(|&token| earlier.push(token));
            earlier.keep(self.most_tokens);
        }
        self.matched = (0, 0);
    }

    fn memory_bytes(&self) -> usize {
        self.request.memory_bytes() + self.earlier.as_ref().map_or(0, |e| e.memory_bytes())
    }
}

/// A suffix automaton that knows where each class of substrings ended first.
#[derive(Debug)]
struct FirstOccurrences {
    text: Vec<TokenId>,
    states: Vec<State>,
    last: usize,
}

#[derive(Clone, Debug, Default)]
struct State {
    len: u32,
    /// The class of the longest suffix that occurs elsewhere too; the root's own is itself.
    link: usize,
    /// Index of the token after the first occurrence.
    first_end: u32,
    edges: BTreeMap<TokenId, usize>,
}

impl Default for FirstOccurrences {
    fn default() -> Self {
        Self { text: Vec::new(), states: vec![State::default()], last: 0 }
    }
}

impl FirstOccurrences {
    fn push(&mut self, token: TokenId) {
        self.text.push(token);
        let end = self.text.len() as u32;
        let whole = self.states.len();
        self.states.push(State { len: end, first_end: end, ..State::default() });
        let mut place = Some(std::mem::replace(&mut self.last, whole));
        while let Some(from) = place.filter(|&from| !self.states[from].edges.contains_key(&token)) {
            self.states[from].edges.insert(token, whole);
            place = (from != 0).then(|| self.states[from].link);
        }
        if let Some(from) = place {
            self.states[whole].link = self.class_of(from, token);
        }
    }

    /// Where there are more than `most_tokens`, begins again with the last half of so many.
    fn keep(&mut self, most_tokens: usize) {
        if self.text.len() > most_tokens {
            let newest = self.text.split_off(self.text.len() - most_tokens / 2);
            *self = Self::default();
            newest.into_iter().for_each(|token| self.push(token));
        }
    }

    /// The class of `from` + `token`, split off from a longer one where it has to be.
    fn class_of(&mut self, from: usize, token: TokenId) -> usize {
        let target = self.states[from].edges[&token];
        let len = self.states[from].len + 1;
        if self.states[target].len == len {
            return target;
        }
        let split = self.states.len();
        self.states.push(State { len, ..self.states[target].clone() });
        self.states[target].link = split;
        let mut place = Some(from);
        while let Some(from) =
            place.filter(|&at| self.states[at].edges.get(&token) == Some(&target))
        {
            self.states[from].edges.insert(token, split);
            place = (from != 0).then(|| self.states[from].link);
        }
        split
    }

    /// Where the longest suffix of the text that occurs earlier ended first, and its length.
    fn repeated(&self) -> Option<(u32, u32)> {
        let State { len, first_end, .. } = self.states[self.states[self.last].link];
        (len > 0).then_some((first_end, len))
    }

    /// The state and length of the longest suffix of what was matched, and `token`.
    fn follow(&self, (mut state, mut len): (usize, u32), token: TokenId) -> (usize, u32) {
        loop {
            if let Some(&next) = self.states[state].edges.get(&token) {
                return (next, len + 1);
            }
            if state == 0 {
                return (0, 0);
            }
            state = self.states[state].link;
            len = self.states[state].len;
        }
    }

    fn memory_bytes(&self) -> usize {
        let edges: usize = self.states.iter().map(|state| state.edges.len()).sum();
        self.text.capacity() * size_of::<TokenId>()
            + self.states.capacity() * size_of::<State>()
            + edges * size_of::<(TokenId, usize)>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::suffix_automaton::tests::texts;

    /// The longest suffix of `text` that occurs in `other` before its last `margin` tokens begin:
    /// its length, and the index behind its first occurrence.
    fn naive_match(text: &[TokenId], other: &[TokenId], margin: usize) -> Option<(usize, usize)> {
        (1..=text.len()).rev().find_map(|len| {
            let suffix = &text[text.len() - len..];
            let end = (len..=other.len() - margin).find(|&end| other[..end].ends_with(suffix))?;
            Some((len, end))
        })
    }

    fn naive_chain(text: &[TokenId], earlier: &[TokenId]) -> Vec<TokenId> {
        let own = naive_match(text, text, 1).map(|(len, end)| (len, &text[end..]));
        let other = naive_match(text, earlier, 0).map(|(len, end)| (len, &earlier[end..]));
        let longer = other.filter(|&(len, _)| len > own.map_or(0, |(len, _)| len));
        let Some((len, next)) = longer.or(own) else { return Vec::new() };
        let in_one_text = next.iter().take_while(|&&token| token != BORDER);
        in_one_text.copied().take(1 + 4 * len).collect()
    }

    fn chain(sam: &SamDecoding) -> Vec<TokenId> {
        let (mut cursor, mut tokens) = (sam.cursor(), Vec::new());
        while let Some(place) = cursor {
            let mut found = Vec::new();
            sam.successors(place, &mut found);
            cursor = found.first().map(|next| next.cursor);
            tokens.extend(found.first().map(|next| next.token));
        }
        tokens
    }

    proptest! {
        #[test]
        fn the_chain_follows_the_first_occurrence_of_the_longest_match(
            old in prop::collection::vec(texts(), 0..3),
            text in texts(),
        ) {
            let (mut sam, mut earlier) = (SamDecoding::with_earlier_requests(), Vec::new());
            for request in &old {
                sam.extend(request);
                sam.clear();
                earlier.extend(request.iter().copied().chain([BORDER]));
            }
            for end in 1..=text.len() {
                sam.extend(&text[end - 1..end]);
                prop_assert_eq!(chain(&sam), naive_chain(&text[..end], &earlier));
            }
        }
    }

    #[test]
    fn of_earlier_requests_the_newest_tokens_are_kept() {
        let mut sam = SamDecoding::keeping(20);
        for first in [0, 10, 20, 30] {
            sam.extend(&(first..first + 10).map(TokenId).collect::<Vec<_>>());
            sam.clear();
            assert!(sam.earlier.as_ref().unwrap().text.len() <= 20);
        }
        for (token, next) in [(12, None), (22, None), (33, Some(34))] {
            sam.extend(&[TokenId(token)]);
            assert_eq!(chain(&sam).first().copied(), next.map(TokenId), "{token}");
            sam.request = FirstOccurrences::default(); // not to be remembered
            sam.clear();
        }
    }

    #[test]
    fn earlier_requests_are_left_out_unless_asked_for() {
        let mut sam = SamDecoding::new();
        sam.extend(&[1, 2, 3].map(TokenId));
        sam.clear();
        sam.extend(&[1, 2].map(TokenId));
        assert_eq!(sam.cursor(), None);
    }
}
