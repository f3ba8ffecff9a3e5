//! The suffix automaton as a draft source. In: a place, a substring of the text.
//! Out: what came after it and after its shorter suffixes, blended into one probability.

use super::edge_table::{Edge, MAX_LIKELY};
use super::edges::NO_EDGES;
use super::frequent::Frequent;
use super::states::{MAX_COUNT, ROOT};
use super::suffix_automaton::SuffixAutomaton;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::automaton::escape;
use crate::ids::{StateId, TokenId};

/// Most successors that a place answers with, beside the tokens that are frequent anywhere.
const MAX_SUCCESSORS: usize = 8;

/// Shorter and shorter suffixes whose continuations are blended, the empty one not among them. With
/// eight, `coordgen replay` counts as many steps (within 0.3 %), and drafting takes longer.
const MAX_LEVELS: usize = 4;

/// With this many continuations no shorter suffix is asked: those are for rows that would otherwise
/// stay empty.
const ENOUGH_SUCCESSORS: usize = 4;

/// Most continuations that a shorter suffix is asked for. With eight, `coordgen replay` counts as
/// many steps (within 0.1 %), and drafting takes a sixth longer.
const MAX_FROM_SHORTER: usize = 4;

/// What is left of a shorter suffix's own estimate once the longer one has been wrong.
const SHORTER_SHARE: f32 = 0.7;

/// Share of the tokens of the text in what was not seen after any suffix: the others are new to it. On
/// recorded answers 0.65 to 1.2 do alike, within 0.3 % of the tokens a step.
const FREQUENT_SHARE: f32 = 0.8;

/// So many pairs of tokens more are thought to follow: what little text has is no measure yet.
const UNSEEN_PAIRS: u32 = 32;

/// Levels that could add less probability than this are not looked at.
const MIN_WEIGHT: f32 = 1.0 / 64.0;

impl Propose for SuffixAutomaton {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// The longest suffix that occurs earlier; the empty one where not even the last token does.
    fn cursor(&self) -> Option<Cursor> {
        let (place, match_len) = self.repeated();
        Some(Cursor { place: place.0.into(), match_len })
    }

    /// The longest suffix of the cursor's substring that occurs before `token`, and `token`.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let mut place = state_at(cursor);
        let mut match_len = cursor.match_len;
        loop {
            let state = self.states.get(place);
            if let Some(target) = self.edges.target(state.edges, token) {
                return Some(self.after(match_len, target));
            }
            if place == ROOT {
                return None;
            }
            place = state.link;
            match_len = self.states.len(place);
        }
    }

    /// The continuations of the cursor's substring, and of shorter and shorter ones what they know
    /// beside: prediction by partial matching (Cleary and Witten 1984) with exclusion, the escapes
    /// being [`escape`]'s. Of a busy state only the first few continuations are looked at. The empty
    /// one knows the tokens that come after the most different ones, as in Kneser and Ney (1995).
    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let start = out.len();
        let mut place = state_at(cursor);
        let mut match_len = cursor.match_len;
        let mut weight = 1.0;
        for _ in 0..MAX_LEVELS {
            let most = if weight < 1.0 { weight * SHORTER_SHARE } else { weight };
            let is_enough = out.len() - start >= ENOUGH_SUCCESSORS;
            if place == ROOT || weight < MIN_WEIGHT || most < at_least || is_enough {
                break;
            }
            // The next level is read while this one's counts are waited for.
            let link = self.states.get(place).link;
            self.states.prefetch(link);
            weight = self.add_level(place, match_len, weight, at_least, start, out);
            place = link;
            match_len = self.states.len(place);
        }
        sort_by_probability(&mut out[start..]);
        out.truncate(start + MAX_SUCCESSORS);
        let unasked = Cursor { place: place.0.into(), match_len };
        self.add_frequent(unasked, weight, at_least, start, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for SuffixAutomaton {
    fn extend(&mut self, tokens: &[TokenId]) {
        Self::extend(self, tokens);
        // A prompt. A step must not wait for a copy of all that was said so far.
        if tokens.len() > self.text_len() / 8 {
            self.settle();
        }
    }

    fn clear(&mut self) {
        Self::clear(self);
    }

    fn memory_bytes(&self) -> usize {
        Self::memory_bytes(self)
    }
}

/// The likeliest first, the older one first among equals. There are few, in order but for some.
fn sort_by_probability(successors: &mut [Successor]) {
    for end in 1..successors.len() {
        let next = successors[end];
        let mut place = end;
        while place > 0 && successors[place - 1].probability < next.probability {
            successors[place] = successors[place - 1];
            place -= 1;
        }
        successors[place] = next;
    }
}

/// The state that a cursor of the automaton stands for.
fn state_at(cursor: Cursor) -> StateId {
    StateId(cursor.place as u32)
}

impl SuffixAutomaton {
    /// Adds to `out[start..]` the continuations of one class that no longer class knows, by their
    /// share of `weight`, unless all of them must be below `at_least`. Returns the weight left over.
    fn add_level(
        &self,
        place: StateId,
        match_len: u32,
        weight: f32,
        at_least: f32,
        start: usize,
        out: &mut Vec<Successor>,
    ) -> f32 {
        let state = self.states.get(place);
        let mut num_different = state.edges.degree() as u32;
        if num_different == 0 {
            return weight;
        }
        let mut num_continued = self.num_continued(place);
        let is_longest = weight == 1.0;
        let share = if is_longest { 1.0 } else { SHORTER_SHARE };
        let known_of = |num_continued, num_different| {
            share * (1.0 - escape(match_len, num_continued, num_different))
        };
        let mut known = known_of(num_continued, num_different);
        // Were all others but once, and what longer classes know taken out of a shorter one.
        let likeliest = (num_continued + 1).saturating_sub(num_different).max(1);
        let bound = match is_longest {
            true => known * likeliest as f32 / num_continued as f32,
            false => share * (1.0 - escape(match_len, likeliest, 1)),
        };
        if weight * bound < at_least {
            return weight * (1.0 - known);
        }
        let first_new = out.len();
        let seen = (num_continued, num_different);
        let mut num_found = 0;
        let only = num_different == 1 && is_longest;
        let limit = if is_longest { MAX_LIKELY } else { MAX_FROM_SHORTER };
        // No more than this many can be that likely, and the likely ones stand in front.
        let limit = limit.min(((weight * known / at_least) as usize).saturating_add(1));
        let mut buffer = NO_EDGES;
        let likely = self.edges.likely(state.edges, limit, &mut buffer);
        // All counts are read before one is needed: few of them are in a cache.
        let mut counts = [num_continued; MAX_LIKELY];
        for (count, edge) in counts.iter_mut().zip(likely) {
            *count = if only { num_continued } else { self.states.count(edge.target) };
        }
        for (&Edge { token, target }, &count) in likely.iter().zip(&counts) {
            if out[start..first_new].iter().any(|known| known.token == token) {
                num_continued = num_continued.saturating_sub(count);
                num_different -= 1;
            } else {
                let cursor = self.after(match_len, target);
                // Of what is proposed, much is asked about soon.
                self.states.prefetch(target);
                out.push(Successor { token, probability: count as f32, cursor });
                num_found += count;
            }
        }
        if num_found == 0 {
            return weight;
        }
        let num_continued = num_continued.max(num_found);
        if (num_continued, num_different) != seen {
            known = known_of(num_continued, num_different);
        }
        let factor = weight * known / num_continued as f32;
        out[first_new..].iter_mut().for_each(|new| new.probability *= factor);
        weight * (1.0 - known)
    }

    /// Adds to `out[start..]`, which is in order and stays so, the tokens that come after the most
    /// different ones, by their share of `weight`. Suffixes longer than that at `unasked` do not go on
    /// with them.
    ///
    /// Each of them has an edge at the root, so that none is [put off](Cursor::put_off) in vain.
    fn add_frequent(
        &self,
        unasked: Cursor,
        weight: f32,
        at_least: f32,
        start: usize,
        out: &mut Vec<Successor>,
    ) {
        let mut buffer =
            [Successor { token: TokenId(0), probability: 0.0, cursor: unasked }; MAX_SUCCESSORS];
        let factor = weight * FREQUENT_SHARE / (self.frequent.total() + UNSEEN_PAIRS) as f32;
        let most = self.frequent.most();
        let is_likely = |one: &Frequent| factor * one.num_contexts as f32 >= at_least;
        if !most.first().is_some_and(is_likely) {
            return;
        }
        let known = &mut buffer[..out.len() - start];
        known.copy_from_slice(&out[start..]);
        let known = &*known;
        out.truncate(start);
        let mut tokens = known.first().map(|first| [first.token; MAX_SUCCESSORS]);
        for (token, known) in tokens.iter_mut().flatten().zip(known) {
            *token = known.token;
        }
        let is_known = |token| {
            tokens.is_some_and(|known| known.iter().fold(false, |any, &one| any | (one == token)))
        };
        let mut rest = known.iter().copied().peekable();
        let cursor = unasked.put_off();
        for &Frequent { token, num_contexts } in most.iter().take_while(|one| is_likely(one)) {
            let probability = factor * num_contexts as f32;
            if !is_known(token) {
                while let Some(one) = rest.next_if(|one| one.probability >= probability) {
                    out.push(one);
                }
                out.push(Successor { token, probability, cursor });
            }
        }
        out.extend(rest);
    }

    /// Where a match is by now that was found before the text had its last tokens: they may have
    /// split its class.
    ///
    /// ```
    /// # use coordgen_rs::ids::TokenId;
    /// # use coordgen_rs::draft::source::Propose;
    /// # use coordgen_rs::SuffixAutomaton;
    /// let mut automaton = SuffixAutomaton::new();
    /// automaton.extend(&[1, 2, 3].map(TokenId));
    /// let found = automaton.advance(SuffixAutomaton::START, TokenId(2)).unwrap();
    /// automaton.extend(&[4, 2, 5].map(TokenId)); // now 2 is not always behind 1
    /// let mut successors = vec![];
    /// automaton.successors(automaton.still_at(found), &mut successors);
    /// assert_eq!(successors[..2].iter().map(|next| next.token.0).sum::<u32>(), 3 + 5);
    /// ```
    pub fn still_at(&self, found: Cursor) -> Cursor {
        let mut place = state_at(found);
        while place != ROOT && self.states.len(self.states.get(place).link) >= found.match_len {
            place = self.states.get(place).link;
        }
        Cursor { place: place.0.into(), ..found }
    }

    /// The place once a token joined a match of that length and led to `target`.
    fn after(&self, match_len: u32, target: StateId) -> Cursor {
        if match_len < self.max_match {
            return Cursor { place: target.0.into(), match_len: match_len + 1 };
        }
        Cursor { place: self.matched(target).0.into(), match_len }
    }

    /// How many occurrences of a class have a continuation: all but one at the end of the text.
    ///
    /// Of a class that is no longer counted: what its likely continuations add up to at least.
    fn num_continued(&self, place: StateId) -> u32 {
        if place == ROOT {
            return self.text_len() as u32;
        }
        let (state, count) = (self.states.get(place), self.states.count(place));
        if count < MAX_COUNT {
            return count - u32::from(state.last_end as usize == self.text_len());
        }
        let mut buffer = NO_EDGES;
        let likely = self.edges.likely(state.edges, MAX_LIKELY, &mut buffer);
        let total: u32 = likely.iter().map(|edge| self.states.count(edge.target)).sum();
        total.max(MAX_COUNT)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::frequent::MOST_FREQUENT;
    use crate::draft::sources::automaton::suffix_automaton::MAX_MATCH;
    use crate::draft::sources::automaton::suffix_automaton::tests::{
        TEST_MATCH, automata, naive_ends, texts, tokens,
    };

    /// The blend over all suffixes of `context`, classes told apart by their counts.
    fn naive_blend(text: &[TokenId], context: &[TokenId]) -> HashMap<TokenId, f32> {
        let (mut blend, mut weight, mut num_ends, mut levels) = (HashMap::new(), 1.0, 0, 0);
        let mut frequent = HashMap::new();
        for start in 0..context.len() {
            let ends = naive_ends(text, &context[start..]);
            if ends.len() == num_ends || levels == MAX_LEVELS || weight < MIN_WEIGHT {
                continue;
            }
            (num_ends, levels) = (ends.len(), levels + 1);
            let mut next: HashMap<TokenId, u32> = HashMap::new();
            for &end in ends.iter().filter(|&&end| end < text.len()) {
                *next.entry(text[end]).or_default() += 1;
            }
            next.retain(|token, _| !blend.contains_key(token));
            if next.is_empty() {
                continue;
            }
            let total = next.values().sum::<u32>();
            let match_len = (context.len() - start) as u32;
            let share = if weight == 1.0 { 1.0 } else { SHORTER_SHARE };
            let known = share * (1.0 - escape(match_len, total, next.len() as u32));
            for (&token, &count) in &next {
                blend.insert(token, weight * known * count as f32 / total as f32);
            }
            weight *= 1.0 - known;
        }
        let before = std::iter::once(None).chain(text.iter().map(Some));
        let pairs: HashSet<_> = before.zip(text).collect();
        for &token in
            text.iter().filter(|&token| !blend.contains_key(token)).collect::<HashSet<_>>()
        {
            let num_contexts = pairs.iter().filter(|pair| *pair.1 == token).count() as f32;
            let share =
                weight * FREQUENT_SHARE * num_contexts / (pairs.len() as u32 + UNSEEN_PAIRS) as f32;
            frequent.insert(token, share);
        }
        blend.extend(frequent);
        blend
    }

    proptest! {
        #[test]
        fn a_match_is_found_again_after_the_text_has_grown(
            text in texts(),
            query in texts(),
            more in texts(),
        ) {
            for mut automaton in automata() {
                automaton.extend(&text);
                let mut found = Some(SuffixAutomaton::START);
                for &token in &query {
                    found = automaton.advance(found.unwrap_or(SuffixAutomaton::START), token);
                }
                let Some(found) = found else { continue };
                automaton.extend(&more);
                let matched = &query[query.len() - found.match_len as usize..];
                let mut anew = SuffixAutomaton::START;
                for &token in matched {
                    anew = automaton.advance(anew, token).unwrap();
                }
                prop_assert_eq!(automaton.still_at(found), anew);
            }
        }
    }

    fn successors(automaton: &SuffixAutomaton, cursor: Cursor) -> Vec<Successor> {
        let mut found = Vec::new();
        automaton.successors(cursor, &mut found);
        found
    }

    proptest! {
        #[test]
        fn successors_are_the_blend_of_all_levels(
            text in texts(),
            draft in texts(),
            short in any::<bool>(),
        ) {
            let [of_short, of_any] = automata();
            let (mut automaton, max_match) =
                if short { (of_short, TEST_MATCH as usize) } else { (of_any, MAX_MATCH) };
            automaton.extend(&text);
            let mut cursor = automaton.cursor();
            let mut context = text.clone();
            for &token in draft.iter().take(6) {
                let Some(place) = cursor else { break };
                let matched = &context[context.len() - place.match_len as usize..];
                let blend = naive_blend(&text, matched);
                let found = successors(&automaton, place);
                prop_assert_eq!(found.len(), blend.len());
                prop_assert!(found.is_sorted_by(|a, b| a.probability >= b.probability));
                for successor in &found {
                    prop_assert!((successor.probability - blend[&successor.token]).abs() < 1e-5);
                    prop_assert!(successor.probability > 0.0 && successor.probability <= 1.0);
                    let advanced = automaton.advance(place, successor.token).unwrap();
                    prop_assert_eq!(successor.cursor, advanced);
                }
                context.push(token);
                cursor = automaton.advance(place, token);
                let longest = (1..=max_match.min(place.match_len as usize + 1)).rev().find(|len| {
                    !naive_ends(&text, &context[context.len() - len..]).is_empty()
                });
                prop_assert_eq!(cursor.map(|cursor| cursor.match_len as usize), longest);
            }
        }

        #[test]
        fn cleared_is_as_good_as_new(old in texts(), text in texts()) {
            let mut reused = SuffixAutomaton::new();
            reused.extend(&old);
            reused.clear();
            reused.extend(&text);
            let mut fresh = SuffixAutomaton::new();
            fresh.extend(&text);
            prop_assert_eq!(reused.cursor(), fresh.cursor());
            prop_assert_eq!(reused.num_edges(), fresh.num_edges());
            if let Some(cursor) = fresh.cursor() {
                prop_assert_eq!(successors(&reused, cursor), successors(&fresh, cursor));
            }
        }
    }

    #[test]
    fn a_busy_state_answers_with_a_bounded_number() {
        let mut automaton = SuffixAutomaton::new();
        let text: Vec<u32> = (1..1000).flat_map(|next| [0, next]).chain([0]).collect();
        automaton.extend(&tokens(&text));
        let found = successors(&automaton, automaton.cursor().unwrap());
        assert!(found.len() <= MAX_SUCCESSORS + MOST_FREQUENT);
        for next in 1..1000 {
            assert_eq!(automaton.last_end(&tokens(&[0, next])), Some(2 * next as usize));
        }
    }

    #[test]
    fn without_a_repetition_the_text_itself_may_come_next() {
        let mut automaton = SuffixAutomaton::new();
        assert_eq!(successors(&automaton, automaton.cursor().unwrap()), []);
        automaton.extend(&tokens(&[1, 2, 3]));
        let cursor = automaton.cursor().unwrap();
        assert_eq!(cursor, SuffixAutomaton::START);
        let found = successors(&automaton, cursor);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|successor| successor.probability < 0.1));
    }

    #[test]
    fn what_may_be_left_out_is_only_the_unlikely() {
        let mut automaton = SuffixAutomaton::new();
        automaton.extend(&tokens(&[1, 2, 3, 1, 2, 4, 1, 2, 3, 2, 5, 1, 2]));
        let cursor = automaton.cursor().unwrap();
        let all = successors(&automaton, cursor);
        for at_least in [0.0, 0.01, 0.1, 0.3, 0.6, 0.99] {
            let mut found = Vec::new();
            automaton.successors_above(cursor, at_least, &mut found);
            assert!(found.len() <= all.len());
            assert!(found.first() == all.first() || all[0].probability < at_least);
        }
    }

    #[test]
    fn full_counts_still_give_probabilities() {
        let mut automaton = SuffixAutomaton::new();
        // "0" is followed by "1" and "2", both far more often than is counted.
        automaton.extend(&tokens(&[0, 1, 0, 2].repeat(1000)));
        automaton.extend(&tokens(&[3, 0]));
        let cursor = automaton.cursor().unwrap();
        assert_eq!(cursor.match_len, 1);
        let found = successors(&automaton, cursor);
        assert!(found[0].probability > 0.4 && found[1].probability > 0.4);
        assert!(found.iter().map(|successor| successor.probability).sum::<f32>() <= 1.0);
    }
}
