//! The suffix automaton as a draft source. In: a place, a substring of the text.
//! Out: what came after it and after its shorter suffixes, blended into one probability.

use super::edge_table::Edge;
use super::source::{Cursor, DraftSource, Successor};
use super::suffix_automaton::{MAX_COUNT, ROOT, State, SuffixAutomaton};
use crate::ids::{StateId, TokenId};

/// Most successors that a place answers with.
const MAX_SUCCESSORS: usize = 8;

/// Shorter and shorter suffixes whose continuations are blended. With four, real answers took as
/// many steps (within 0.2 %), and drafting up to twice the time.
const MAX_LEVELS: usize = 2;

/// Levels that could add less probability than this are not looked at.
const MIN_WEIGHT: f32 = 1.0 / 64.0;

impl DraftSource for SuffixAutomaton {
    fn name(&self) -> &'static str {
        "automaton"
    }

    fn extend(&mut self, tokens: &[TokenId]) {
        Self::extend(self, tokens);
    }

    /// The longest suffix that occurs earlier; `None` when not even the last token does.
    fn cursor(&self) -> Option<Cursor> {
        let place = self.state(self.last).link;
        (place != ROOT).then(|| Cursor { place: place.0, match_len: self.state(place).len })
    }

    /// The longest suffix of the cursor's substring that occurs before `token`, and `token`.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let mut place = StateId(cursor.place);
        let mut match_len = cursor.match_len;
        loop {
            let state = self.state(place);
            if let Some(target) = self.edges.target(state.edges, token) {
                return Some(Cursor { place: target.0, match_len: match_len + 1 });
            }
            if place == ROOT {
                return None;
            }
            place = state.link;
            match_len = self.state(place).len;
        }
    }

    /// Blends the continuations of the cursor's substring and of the next shorter class.
    ///
    /// Witten-Bell (1991), method C: a substring seen `n` times with a continuation, `d` different
    /// ones, gives each `count / (n + d)` and leaves `d / (n + d)` to the next shorter class.
    /// Of a busy state only the first few continuations are looked at.
    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        let start = out.len();
        let mut place = cursor;
        let mut weight = 1.0;
        for _ in 0..MAX_LEVELS {
            if place.place == ROOT.0 || weight < MIN_WEIGHT {
                break;
            }
            weight = self.add_level(place, weight, start, out);
            let shorter = self.state(StateId(place.place)).link;
            place = Cursor { place: shorter.0, match_len: self.state(shorter).len };
        }
        let last_end = |successor: &Successor| self.state(StateId(successor.cursor.place)).last_end;
        out[start..].sort_unstable_by(|a, b| {
            let by_probability = b.probability.total_cmp(&a.probability);
            by_probability.then_with(|| last_end(b).cmp(&last_end(a))).then(a.token.cmp(&b.token))
        });
        out.truncate(start + MAX_SUCCESSORS);
    }

    fn clear(&mut self) {
        Self::clear(self);
    }

    fn memory_bytes(&self) -> usize {
        Self::memory_bytes(self)
    }
}

impl SuffixAutomaton {
    /// Adds the continuations of one class to `out[start..]`, by their share of `weight`.
    ///
    /// A token that a longer class knows keeps that class's place. Returns the weight left over.
    fn add_level(&self, at: Cursor, weight: f32, start: usize, out: &mut Vec<Successor>) -> f32 {
        let state = self.state(StateId(at.place));
        let degree = state.edges.degree();
        if degree == 0 {
            return weight;
        }
        let share = weight / (self.num_continued(state) + degree as u32) as f32;
        self.edges.for_each_likely(state.edges, |Edge { token, target }| {
            let probability = share * self.state(target).count as f32;
            match out[start..].iter_mut().find(|known| known.token == token) {
                Some(known) => known.probability += probability,
                None => {
                    let cursor = Cursor { place: target.0, match_len: at.match_len + 1 };
                    out.push(Successor { token, probability, cursor });
                }
            }
        });
        share * degree as f32
    }

    /// How many occurrences of a class have a continuation: all but one at the end of the text.
    ///
    /// Of a class that is no longer counted: what its likely continuations add up to at least.
    fn num_continued(&self, state: &State) -> u32 {
        if state.count < MAX_COUNT {
            return state.count - u32::from(state.last_end as usize == self.text_len());
        }
        let mut total = 0;
        self.edges.for_each_likely(state.edges, |edge| total += self.state(edge.target).count);
        total.max(MAX_COUNT)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::suffix_automaton::tests::{naive_ends, texts, tokens};
    use super::*;

    /// The blend over all suffixes of `context`, classes told apart by their counts.
    fn naive_blend(text: &[TokenId], context: &[TokenId]) -> HashMap<TokenId, f32> {
        let (mut blend, mut weight, mut known, mut levels) = (HashMap::new(), 1.0, 0, 0);
        for start in 0..context.len() {
            let ends = naive_ends(text, &context[start..]);
            if ends.len() == known || levels == MAX_LEVELS || weight < MIN_WEIGHT {
                continue;
            }
            (known, levels) = (ends.len(), levels + 1);
            let mut next: HashMap<TokenId, f32> = HashMap::new();
            for &end in ends.iter().filter(|&&end| end < text.len()) {
                *next.entry(text[end]).or_default() += 1.0;
            }
            let total = next.values().sum::<f32>() + next.len() as f32;
            for (&token, &count) in &next {
                *blend.entry(token).or_default() += weight * count / total;
            }
            if !next.is_empty() {
                weight *= next.len() as f32 / total;
            }
        }
        blend
    }

    fn successors(automaton: &SuffixAutomaton, cursor: Cursor) -> Vec<Successor> {
        let mut found = Vec::new();
        automaton.successors(cursor, &mut found);
        found
    }

    proptest! {
        #[test]
        fn successors_are_the_blend_of_all_levels(text in texts(), draft in texts()) {
            let mut automaton = SuffixAutomaton::new();
            automaton.extend(&text);
            let mut cursor = automaton.cursor();
            let mut context = text.clone();
            for &token in draft.iter().take(6) {
                let Some(place) = cursor else { break };
                let matched = &context[context.len() - place.match_len as usize..];
                let blend = naive_blend(&text, matched);
                let found = successors(&automaton, place);
                prop_assert_eq!(found.len(), blend.len().min(MAX_SUCCESSORS));
                prop_assert!(found.is_sorted_by(|a, b| a.probability >= b.probability));
                for successor in &found {
                    prop_assert!((successor.probability - blend[&successor.token]).abs() < 1e-5);
                    prop_assert!(successor.probability > 0.0 && successor.probability <= 1.0);
                    let advanced = automaton.advance(place, successor.token).unwrap();
                    prop_assert_eq!(successor.cursor, advanced);
                }
                context.push(token);
                cursor = automaton.advance(place, token);
                let longest = (1..=place.match_len as usize + 1).rev().find(|len| {
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
        assert_eq!(found.len(), MAX_SUCCESSORS);
        for next in 1..1000 {
            assert_eq!(automaton.last_end(&tokens(&[0, next])), Some(2 * next as usize));
        }
    }

    #[test]
    fn nothing_comes_next_without_a_repetition() {
        let mut automaton = SuffixAutomaton::new();
        assert_eq!(automaton.cursor(), None);
        automaton.extend(&tokens(&[1, 2, 3]));
        assert_eq!(automaton.cursor(), None);
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
        assert!((found[0].probability - 0.5).abs() < 0.01);
        assert!((found[1].probability - 0.5).abs() < 0.01);
    }
}
