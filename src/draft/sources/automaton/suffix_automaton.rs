//! Every substring of a growing text. In: tokens, one by one. Out: the longest suffix that
//! occurred before, and of any substring how often and where it occurred last.
//!
//! What is likely to come next is read from it in `source.rs`.
//!
//! One text only: answers to earlier requests are another source's business.

use super::edge_table::Edge;
use super::edges::{EdgeList, EdgeStore, MAX_STATES, grow};
use crate::draft::source::Cursor;
use crate::ids::{StateId, TokenId};

/// Occurrences are counted up to this figure.
///
/// An occurrence counts for every suffix of it too, and each shorter class counts strictly more
/// than the longer one below. Stopping at the first class with a full count therefore bounds the
/// walk, which on a run of one repeated token would be the whole text. It also means that the last
/// positions of such frequent substrings go stale. Counting four times as far drafts no better
/// within a request (0.7 % at most over a session of many) and makes such runs three times slower.
pub const MAX_COUNT: u32 = 1 << 8;

pub(super) const ROOT: StateId = StateId(0);

/// One class of substrings that end at the same positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Length of its longest substring.
    pub(super) len: u32,
    /// The class of the longest suffix that occurs elsewhere too.
    pub(super) link: StateId,
    /// Where the last occurrence ends, exclusive: the index of the token after it.
    pub(super) last_end: u32,
    /// Occurrences, up to [`MAX_COUNT`].
    pub(super) count: u32,
    pub(super) edges: EdgeList,
}

/// An online suffix automaton (Blumer et al. 1985) over tokens, with counts and last positions.
///
/// Use it where a text grows by a few tokens at a time and must be searched after each: its own
/// suffix is matched at any length, with back-off to shorter ones, without a limit on the n-gram.
/// Do not use it for a text that stays as it is: a suffix array needs a tenth of the memory.
/// Do not use it for several texts either: substrings would run across their borders.
///
/// # How it stores
/// States are 24 bytes in one flat array, about 1.3 to 1.5 of them a token on text. The only edge
/// of a state (85 to 90 % have one) stands in the state; more edges stand side by side in a pool,
/// beyond 16 in a hash table. All indices are `u32`. Arrays grow by a sixteenth.
///
/// # Cost
/// | what | time | note |
/// |---|---|---|
/// | [`extend`](Self::extend) | amortised O(1) a token | and at most [`MAX_COUNT`] counts raised |
/// | [`cursor`](crate::draft::source::Propose::cursor) | O(1) | the match is always at hand |
/// | [`advance`](crate::draft::source::Propose::advance) | O(suffix levels given up) | |
/// | [`successors`](crate::draft::source::Propose::successors) | at most 24 states visited | also where thousands of tokens follow |
/// | [`count`](Self::count), [`last_end`](Self::last_end) | O(length of the query) | |
///
/// `cargo bench --bench automaton` gives times. [`memory_bytes`](Self::memory_bytes) tells
/// 44 to 48 bytes a token on text, and 62 at worst seen (random text over two tokens).
///
/// # Panics
/// Extending panics at 2^31 states, which are at least 2^30 tokens and 50 GB.
///
/// # Example
/// What followed the longest suffix that was seen before?
/// ```
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::SuffixAutomaton;
/// use coordgen_rs::ids::TokenId;
///
/// let text: Vec<TokenId> = "to be or not to be".bytes().map(|b| TokenId(b.into())).collect();
/// let mut automaton = SuffixAutomaton::new();
/// automaton.extend(&text);
///
/// let cursor = automaton.cursor().unwrap();
/// assert_eq!(cursor.match_len, 5); // "to be"
/// let mut successors = Vec::new();
/// automaton.successors(cursor, &mut successors);
/// assert_eq!(successors[0].token, TokenId(b' '.into())); // as in "to be or"
/// assert_eq!(automaton.count(&text[..2]), 2);
/// assert_eq!(automaton.last_end(&text[..2]), Some(15));
/// ```
#[derive(Clone, Debug)]
pub struct SuffixAutomaton {
    states: Vec<State>,
    pub(super) edges: EdgeStore,
    /// The class of the whole text.
    pub(super) last: StateId,
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        Self::new()
    }
}

impl SuffixAutomaton {
    /// The name in options and statistics.
    pub const NAME: &'static str = "automaton";

    /// The automaton of the empty text.
    pub fn new() -> Self {
        let root = State { len: 0, link: ROOT, last_end: 0, count: 0, edges: EdgeList::EMPTY };
        Self { states: vec![root], edges: EdgeStore::default(), last: ROOT }
    }

    /// Where a search begins: nothing is matched, and every token of the text follows.
    pub const START: Cursor = Cursor { place: ROOT.0 as u64, match_len: 0 };

    /// Appends tokens to the text.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        grow(&mut self.states, tokens.len());
        tokens.iter().for_each(|&token| self.push(token));
    }

    /// Forgets the text; most of the capacity stays allocated.
    pub fn clear(&mut self) {
        self.states.truncate(1);
        self.states[ROOT.index()].edges = EdgeList::EMPTY;
        self.edges.clear();
        self.last = ROOT;
    }

    /// Bytes held on the heap, unused capacity included.
    pub fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<State>() + self.edges.memory_bytes()
    }

    /// Number of tokens in the text.
    pub fn text_len(&self) -> usize {
        self.state(self.last).len as usize
    }

    /// Length of the longest suffix of the text that also occurs earlier in it.
    pub fn match_len(&self) -> usize {
        self.state(self.state(self.last).link).len as usize
    }

    /// How often `tokens` occur in the text, up to [`MAX_COUNT`]; overlapping ones all count.
    ///
    /// No tokens occur 0 times: the empty substring is not counted.
    pub fn count(&self, tokens: &[TokenId]) -> usize {
        self.find(tokens).map_or(0, |found| self.state(found).count as usize)
    }

    /// Where the last occurrence of `tokens` ends: the index of the token after it.
    ///
    /// `None` where they do not occur, or are empty. For substrings that occur [`MAX_COUNT`]
    /// times and more it is the end of one of the occurrences, not of the last.
    pub fn last_end(&self, tokens: &[TokenId]) -> Option<usize> {
        let found = self.find(tokens).filter(|&found| found != ROOT)?;
        Some(self.state(found).last_end as usize)
    }

    /// Whether `tokens` occur in the text; the empty substring does.
    pub fn contains(&self, tokens: &[TokenId]) -> bool {
        self.find(tokens).is_some()
    }

    /// Number of states, the root included: at most twice the number of tokens.
    pub fn num_states(&self) -> usize {
        self.states.len()
    }

    /// Number of edges: at most three times the number of tokens.
    pub fn num_edges(&self) -> usize {
        self.edges.num_edges()
    }

    pub(super) fn state(&self, id: StateId) -> &State {
        &self.states[id.index()]
    }

    fn find(&self, tokens: &[TokenId]) -> Option<StateId> {
        let mut place = ROOT;
        for &token in tokens {
            place = self.edges.target(self.state(place).edges, token)?;
        }
        Some(place)
    }

    fn add_state(&mut self, state: State) -> StateId {
        let id = self.states.len();
        assert!(id < MAX_STATES, "a suffix automaton holds at most 2^31 states");
        grow(&mut self.states, 1);
        self.states.push(state);
        StateId(id as u32)
    }

    /// Appends one token.
    fn push(&mut self, token: TokenId) {
        let end = self.state(self.last).len + 1;
        let whole = State { len: end, link: ROOT, last_end: end, count: 1, edges: EdgeList::EMPTY };
        let whole = self.add_state(whole);
        let mut place = self.last;
        self.last = whole;
        // Every suffix that never had this continuation gets it now, the longest first.
        let link = loop {
            let state = &mut self.states[place.index()];
            if let Some(target) = self.edges.follow(state.edges, token) {
                break self.class_of(place, token, target);
            }
            self.edges.insert(&mut state.edges, Edge { token, target: whole });
            if place == ROOT {
                break ROOT;
            }
            place = state.link;
        };
        self.states[whole.index()].link = link;
        self.count_again(link, end);
    }

    /// The class of `place` + `token`, which is `target` or has to be split off from it.
    fn class_of(&mut self, mut place: StateId, token: TokenId, target: StateId) -> StateId {
        let len = self.state(place).len + 1;
        let longer = *self.state(target);
        if longer.len == len {
            return target;
        }
        let edges = self.edges.duplicate(longer.edges);
        let split = self.add_state(State { len, edges, ..longer });
        self.states[target.index()].link = split;
        loop {
            let state = &mut self.states[place.index()];
            if !self.edges.redirect(&mut state.edges, token, target, split) || place == ROOT {
                return split;
            }
            place = state.link;
        }
    }

    /// Counts an occurrence that ends at `end` for a class and all shorter ones.
    fn count_again(&mut self, mut place: StateId, end: u32) {
        while place != ROOT {
            let state = &mut self.states[place.index()];
            if state.count == MAX_COUNT {
                return;
            }
            state.count += 1;
            state.last_end = end;
            place = state.link;
        }
    }
}

#[cfg(test)]
pub(in crate::draft::sources) mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    pub fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    pub fn texts() -> impl Strategy<Value = Vec<TokenId>> {
        (2..5u32)
            .prop_flat_map(|alphabet| prop::collection::vec(0..alphabet, 1..60))
            .prop_map(|ids| tokens(&ids))
    }

    /// End positions, exclusive, of every occurrence.
    pub fn naive_ends(text: &[TokenId], query: &[TokenId]) -> Vec<usize> {
        (query.len()..=text.len()).filter(|&end| text[..end].ends_with(query)).collect()
    }

    fn naive_match_len(text: &[TokenId]) -> usize {
        let earlier = |len: &usize| naive_ends(text, &text[text.len() - len..]).len() > 1;
        (1..text.len()).rev().find(earlier).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn match_is_the_longest_suffix_seen_before(text in texts()) {
            let mut automaton = SuffixAutomaton::new();
            for end in 1..=text.len() {
                automaton.extend(&text[end - 1..end]);
                prop_assert_eq!(automaton.match_len(), naive_match_len(&text[..end]));
            }
        }

        #[test]
        fn substrings_have_their_counts_and_last_ends(text in texts(), query in texts()) {
            let mut automaton = SuffixAutomaton::new();
            automaton.extend(&text);
            let own = (0..text.len()).flat_map(|a| (a + 1..=text.len()).map(move |b| (a, b)));
            let own = own.map(|(a, b)| &text[a..b]);
            for query in own.chain((1..query.len()).map(|end| &query[..end])) {
                let ends = naive_ends(&text, query);
                prop_assert_eq!(automaton.count(query), ends.len());
                prop_assert_eq!(automaton.last_end(query), ends.last().copied());
                prop_assert_eq!(automaton.contains(query), !ends.is_empty());
            }
        }

        #[test]
        fn states_are_the_classes_of_end_positions(text in texts()) {
            let mut automaton = SuffixAutomaton::new();
            automaton.extend(&text);
            let substrings = (0..text.len()).flat_map(|a| (a + 1..=text.len()).map(move |b| (a, b)));
            let mut classes: HashMap<Vec<usize>, Vec<TokenId>> = HashMap::new();
            for (a, b) in substrings {
                classes.insert(naive_ends(&text, &text[a..b]), text[a..b].to_vec());
            }
            prop_assert_eq!(automaton.num_states(), classes.len() + 1);
            let mut num_edges = classes.values().map(|member| {
                let mut next: Vec<TokenId> = naive_ends(&text, member)
                    .iter().filter_map(|&end| text.get(end).copied()).collect();
                next.sort_unstable();
                next.dedup();
                next.len()
            }).sum::<usize>();
            let mut alphabet = text.clone();
            alphabet.sort_unstable();
            alphabet.dedup();
            num_edges += alphabet.len();
            prop_assert_eq!(automaton.num_edges(), num_edges);
        }
    }

    #[test]
    fn nothing_matches_without_text_or_repetition() {
        let mut automaton = SuffixAutomaton::new();
        assert_eq!(automaton.match_len(), 0);
        automaton.extend(&tokens(&[1, 2, 3]));
        assert_eq!(automaton.match_len(), 0);
        assert_eq!(automaton.count(&[]), 0);
        assert_eq!(automaton.last_end(&[]), None);
        assert!(automaton.contains(&[]));
    }

    #[test]
    fn counts_of_a_run_stop_at_the_limit() {
        let mut automaton = SuffixAutomaton::new();
        automaton.extend(&vec![TokenId(7); 5000]);
        assert_eq!(automaton.match_len(), 4999);
        assert_eq!(automaton.count(&[TokenId(7)]), MAX_COUNT as usize);
        assert_eq!(automaton.count(&[TokenId(7); 4999]), 2);
    }
}
