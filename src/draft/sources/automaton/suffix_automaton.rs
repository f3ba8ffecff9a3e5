//! Every short substring of a growing text. In: tokens, one by one. Out: the longest suffix that
//! occurred before, and of any short substring how often and where it occurred last.
//!
//! What is likely to come next is read from it in `source.rs`.
//!
//! One text only: answers to earlier requests are another source's business.

use super::edge_table::Edge;
use super::edges::{EdgeList, EdgeStore};
use super::frequent::FrequentTokens;
pub use super::states::MAX_COUNT;
use super::states::{ROOT, State, States};
use crate::draft::source::Cursor;
use crate::ids::{StateId, TokenId};

/// Tokens of the longest match, after which no more context tells what comes next.
///
/// A text that repeats itself has a suffix level for each length at which it does, and every walk
/// over the levels would take as long as the text is periodic: in a million equal tokens, a million
/// levels. This bounds them all, in a step and in memory. `coordgen replay` takes the very same number
/// of steps as without a limit; with 64 it takes 1.7 % more where screens of other requests are much
/// alike (`--history earlier-requests`).
pub const MAX_MATCH: usize = 128;

/// An online suffix automaton (Blumer et al. 1985) over tokens, with counts and last positions, for
/// matches of at most [`MAX_MATCH`] tokens.
///
/// Use it where a text grows by a few tokens at a time and must be searched after each: its own
/// suffix is matched at any length up to that, with back-off to shorter ones.
/// Do not use it for a text that stays as it is: a suffix array needs a tenth of the memory.
/// Do not use it for several texts either: substrings would run across their borders.
///
/// # Longer matches
/// The classical automaton knows substrings of every length. This one knows those of a match and
/// one token more. A match that is full drops its first token when another one joins it; the end of
/// the text is in an old state where its last 129 tokens occurred before.
///
/// # How it stores
/// States are 18 bytes in two flat arrays, about 1.3 to 1.5 of them a token on text. The only edge
/// of a state (85 to 90 % have one) stands in the state; more edges stand side by side in a pool,
/// beyond 16 in a hash table. All indices are `u32`. Arrays grow by a sixteenth.
///
/// # Cost
/// | what | time | note |
/// |---|---|---|
/// | [`extend`](Self::extend) | amortised O(1) a token | at most [`MAX_MATCH`] levels visited |
/// | [`cursor`](crate::draft::source::Propose::cursor) | O(1) | the match is always at hand |
/// | [`advance`](crate::draft::source::Propose::advance) | at most [`MAX_MATCH`] levels given up | 1 or 2 in most cases |
/// | [`successors`](crate::draft::source::Propose::successors) | at most 24 states visited | also where thousands of tokens follow |
/// | [`count`](Self::count), [`last_end`](Self::last_end) | O(length of the query) | |
///
/// `cargo bench --bench automaton` gives times. [`memory_bytes`](Self::memory_bytes) tells
/// 37 to 41 bytes a token on text that seldom repeats itself, 22 on recorded prompts and answers, and
/// 50 at worst seen (random text over two tokens).
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
    pub(super) states: States,
    pub(super) edges: EdgeStore,
    pub(super) frequent: FrequentTokens,
    /// The class of the end of the text.
    pub(super) last: StateId,
    text_len: usize,
    /// Its length at the last [`settle`](Self::settle).
    settled_len: usize,
    /// [`MAX_MATCH`], or less in tests.
    pub(super) max_match: u32,
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
        Self::matching(MAX_MATCH as u32)
    }

    /// The automaton of substrings of at most `max_match` tokens.
    fn matching(max_match: u32) -> Self {
        Self {
            states: States::new(),
            edges: EdgeStore::default(),
            frequent: FrequentTokens::default(),
            last: ROOT,
            text_len: 0,
            settled_len: 0,
            max_match,
        }
    }

    /// Where a search begins: nothing is matched, and every token of the text follows.
    pub const START: Cursor = Cursor { place: ROOT.0 as u64, match_len: 0 };

    /// Appends tokens to the text.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        self.states.reserve(tokens.len());
        tokens.iter().for_each(|&token| self.push(token));
    }

    /// Prepares for being asked much more often than extended: a long text goes into large pages.
    ///
    /// Cost: nothing unless the text has grown by an eighth since the last call; then a copy of it,
    /// up to a tenth of what extending took.
    pub fn settle(&mut self) {
        if self.text_len - self.settled_len > self.text_len / 8 {
            self.settled_len = self.text_len;
            self.states.use_large_pages();
            self.edges.use_large_pages();
        }
    }

    /// Forgets the text; most of the capacity stays allocated.
    pub fn clear(&mut self) {
        self.states.clear();
        self.edges.clear();
        self.frequent.clear();
        self.last = ROOT;
        (self.text_len, self.settled_len) = (0, 0);
    }

    /// Bytes held on the heap, unused capacity included.
    pub fn memory_bytes(&self) -> usize {
        self.states.memory_bytes() + self.edges.memory_bytes() + self.frequent.memory_bytes()
    }

    /// Number of tokens in the text.
    pub fn text_len(&self) -> usize {
        self.text_len
    }

    /// Length, up to [`MAX_MATCH`], of the longest suffix of the text that also occurs earlier in it.
    pub fn match_len(&self) -> usize {
        self.repeated().1 as usize
    }

    /// How often `tokens` occur in the text, up to [`MAX_COUNT`]; overlapping ones all count.
    ///
    /// No tokens occur 0 times: the empty substring is not counted. More than [`MAX_MATCH`] tokens
    /// do neither: they are not known.
    pub fn count(&self, tokens: &[TokenId]) -> usize {
        let found = self.find(tokens).filter(|&found| found != ROOT);
        found.map_or(0, |found| self.states.count(found) as usize)
    }

    /// Where the last occurrence of `tokens` ends: the index of the token after it.
    ///
    /// `None` where they do not occur, or are empty or more than [`MAX_MATCH`]. For substrings that
    /// occur [`MAX_COUNT`] times and more it is the end of one of the occurrences, not of the last.
    pub fn last_end(&self, tokens: &[TokenId]) -> Option<usize> {
        let found = self.find(tokens).filter(|&found| found != ROOT)?;
        Some(self.states.get(found).last_end as usize)
    }

    /// Whether `tokens` occur in the text; the empty substring does, and none of more than
    /// [`MAX_MATCH`] tokens.
    pub fn contains(&self, tokens: &[TokenId]) -> bool {
        self.find(tokens).is_some()
    }

    /// Number of states, the root included: at most twice the number of tokens.
    pub fn num_states(&self) -> usize {
        self.states.num_states()
    }

    /// Number of edges: at most three times the number of tokens.
    pub fn num_edges(&self) -> usize {
        self.edges.num_edges()
    }

    /// The class of the longest suffix that occurs earlier, and its length.
    pub(super) fn repeated(&self) -> (StateId, u32) {
        let mut place = self.matched(self.last);
        if self.states.count(place) <= 1 {
            place = self.states.get(place).link;
        }
        (place, self.states.len(place).min(self.max_match))
    }

    /// The class that a match is in once a token joined it and led to `place`.
    pub(super) fn matched(&self, place: StateId) -> StateId {
        // Only of what is longer than a match can a suffix be as long as one.
        if self.states.len(place) <= self.max_match {
            return place;
        }
        let link = self.states.get(place).link;
        if self.states.len(link) == self.max_match { link } else { place }
    }

    fn find(&self, tokens: &[TokenId]) -> Option<StateId> {
        if tokens.len() > self.max_match as usize {
            return None;
        }
        let mut place = ROOT;
        for &token in tokens {
            place = self.edges.target(self.states.get(place).edges, token)?;
        }
        Some(place)
    }

    /// Appends one token.
    fn push(&mut self, token: TokenId) {
        self.text_len += 1;
        let end = u32::try_from(self.text_len).expect("a text holds less than 2^32 tokens");
        let mut place = self.matched(self.last);
        let len = self.len_after(place);
        if let Some(known) = self.edges.follow(self.states.get(place).edges, token) {
            // The match is full, for all of a shorter text would be new.
            self.last = known;
            return self.states.count_again(known, end);
        }
        let whole = State { link: ROOT, last_end: end, edges: EdgeList::EMPTY };
        let whole = self.states.add(whole, len);
        self.last = whole;
        // Every suffix that never had this continuation gets it now, the longest first.
        let link = loop {
            let state = self.states.get_mut(place);
            if place == ROOT {
                self.frequent.count(token);
            }
            if let Some(target) = self.edges.follow(state.edges, token) {
                break self.class_of(place, token, target);
            }
            self.edges.insert(&mut state.edges, Edge { token, target: whole });
            if place == ROOT {
                break ROOT;
            }
            place = state.link;
        };
        self.states.get_mut(whole).link = link;
        self.states.count_again(link, end);
    }

    /// Length of the longest match in the class at `place`, and one token more.
    fn len_after(&self, place: StateId) -> u32 {
        self.states.len(place).min(self.max_match) + 1
    }

    /// The class of `place` + `token`, which is `target` or has to be split off from it.
    fn class_of(&mut self, mut place: StateId, token: TokenId, target: StateId) -> StateId {
        let len = self.len_after(place);
        if self.states.len(target) == len {
            return target;
        }
        let longer = &mut self.states.get_mut(target).edges;
        let edges = if len == self.max_match {
            // What stays is too long for a match.
            std::mem::replace(longer, EdgeList::EMPTY)
        } else {
            self.edges.duplicate(*longer)
        };
        let split = self.states.add_shorter(target, len, edges);
        self.states.get_mut(target).link = split;
        loop {
            let state = self.states.get_mut(place);
            if !self.edges.redirect(&mut state.edges, token, target, split) || place == ROOT {
                return split;
            }
            place = state.link;
        }
    }
}

#[cfg(test)]
pub(in crate::draft::sources) mod tests {
    use std::collections::HashSet;

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

    /// The longest that these tests let an automaton match.
    pub const TEST_MATCH: u32 = 6;

    /// Automata that match up to [`TEST_MATCH`] tokens, and as many as all do.
    pub fn automata() -> [SuffixAutomaton; 2] {
        [SuffixAutomaton::matching(TEST_MATCH), SuffixAutomaton::new()]
    }

    fn naive_match_len(text: &[TokenId], max_match: u32) -> usize {
        let earlier = |len: &usize| naive_ends(text, &text[text.len() - len..]).len() > 1;
        (1..text.len().min(max_match as usize + 1)).rev().find(earlier).unwrap_or(0)
    }

    /// The distinct substrings of at most `max_match` tokens.
    fn substrings(text: &[TokenId], max_match: u32) -> impl Iterator<Item = &[TokenId]> {
        let ends = move |start: usize| start + 1..=text.len().min(start + max_match as usize);
        (0..text.len()).flat_map(move |start| ends(start).map(move |end| &text[start..end]))
    }

    proptest! {
        #[test]
        fn match_is_the_longest_suffix_seen_before(text in texts()) {
            for mut automaton in automata() {
                for end in 1..=text.len() {
                    automaton.extend(&text[end - 1..end]);
                    let expected = naive_match_len(&text[..end], automaton.max_match);
                    prop_assert_eq!(automaton.match_len(), expected);
                    prop_assert_eq!(automaton.text_len(), end);
                }
            }
        }

        #[test]
        fn substrings_have_their_counts_and_last_ends(text in texts(), query in texts()) {
            for mut automaton in automata() {
                automaton.extend(&text);
                let own = substrings(&text, u32::MAX);
                for query in own.chain((1..query.len()).map(|end| &query[..end])) {
                    let mut ends = naive_ends(&text, query);
                    if query.len() > automaton.max_match as usize {
                        ends.clear();
                    }
                    prop_assert_eq!(automaton.count(query), ends.len());
                    prop_assert_eq!(automaton.last_end(query), ends.last().copied());
                    prop_assert_eq!(automaton.contains(query), !ends.is_empty());
                }
            }
        }

        #[test]
        fn states_are_the_classes_of_end_positions(text in texts()) {
            for mut automaton in automata() {
                automaton.extend(&text);
                let (mut classes, mut matched) = (HashSet::new(), HashSet::new());
                for substring in substrings(&text, automaton.max_match + 1) {
                    let ends = naive_ends(&text, substring);
                    if substring.len() <= automaton.max_match as usize {
                        matched.insert(ends.clone());
                    }
                    classes.insert(ends);
                }
                prop_assert_eq!(automaton.num_states(), classes.len() + 1);
                let num_different = |next: &mut dyn Iterator<Item = TokenId>| {
                    next.collect::<HashSet<_>>().len()
                };
                let followers = |ends: &Vec<usize>| {
                    num_different(&mut ends.iter().filter_map(|&end| text.get(end).copied()))
                };
                let num_edges: usize = matched.iter().map(followers).sum();
                let alphabet = num_different(&mut text.iter().copied());
                prop_assert_eq!(automaton.num_edges(), num_edges + alphabet);
            }
        }
    }

    #[test]
    fn a_settled_text_is_known_as_before_and_grows_on() {
        let mut random = 1u64; // Knuth's generator: a text of all but no repetition
        let text: Vec<TokenId> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            TokenId((random >> 52) as u32)
        })
        .take(300_000)
        .collect();
        let (mut settled, mut plain) = (SuffixAutomaton::new(), SuffixAutomaton::new());
        for part in text.chunks(70_000) {
            settled.extend(part);
            settled.settle();
            plain.extend(part);
        }
        assert!(settled.memory_bytes() > 4 << 20);
        assert_eq!(settled.num_edges(), plain.num_edges());
        for query in text.windows(4).step_by(997) {
            assert_eq!(settled.count(query), plain.count(query));
            assert_eq!(settled.last_end(query), plain.last_end(query));
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
        assert_eq!(automaton.match_len(), MAX_MATCH);
        assert_eq!(automaton.count(&[TokenId(7)]), MAX_COUNT as usize);
        assert_eq!(automaton.count(&[TokenId(7); MAX_MATCH]), MAX_COUNT as usize);
        assert_eq!(automaton.count(&[TokenId(7); MAX_MATCH + 1]), 0);
    }

    /// Periodic texts, the Fibonacci word, and one in which every context goes on in many ways.
    fn repetitive_texts(len: u32) -> impl Iterator<Item = Vec<TokenId>> {
        let periodic = (1..4).map(move |period| (0..len).map(|at| at % period).collect());
        let mut fibonacci = (vec![0], vec![0, 1]);
        while fibonacci.1.len() < len as usize {
            let longer = [&fibonacci.1[..], &fibonacci.0].concat();
            fibonacci = (fibonacci.1, longer);
        }
        let parities = (0..len).map(|at| at.count_ones() % 2).collect();
        periodic.chain([fibonacci.1, parities]).map(|ids: Vec<u32>| tokens(&ids))
    }

    #[test]
    fn no_walk_over_suffixes_is_longer_than_a_match_whatever_the_text() {
        for text in repetitive_texts(20_000) {
            let mut automaton = SuffixAutomaton::new();
            automaton.extend(&text);
            automaton.extend(&[TokenId(9)]); // ends every run
            let links = |from: &StateId| {
                let next =
                    |place: &StateId| (*place != ROOT).then(|| automaton.states.get(*place).link);
                std::iter::successors(Some(*from), next).count() - 1
            };
            let states = (0..automaton.num_states() as u32).map(StateId);
            assert!(states.map(|state| links(&state)).max().unwrap() <= MAX_MATCH + 1);
        }
    }

    #[test]
    fn a_periodic_text_has_as_many_states_as_a_match_has_tokens() {
        for period in [1, 2, 3] {
            let mut automaton = SuffixAutomaton::new();
            automaton.extend(&(0..100_000).map(|at| TokenId(at % period)).collect::<Vec<_>>());
            assert!(automaton.num_states() <= 1 + period as usize * (MAX_MATCH + 1));
        }
    }
}
