//! The documents newer than the index as a draft source. In: a request's text. Out: what followed it in a document.

use std::sync::{Arc, Mutex};

use super::recent_text::RecentText;
use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor, all_successors};
use crate::draft::sources::automaton::other_text::successors_above;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::ids::TokenId;

/// Drafts for one drafter from the documents that the index does not cover.
pub(super) struct RecentSource {
    shared: Arc<Mutex<Shared>>,
    documents: Arc<RecentText>,
    /// Where the request's text ends in them.
    place: Option<Cursor>,
    /// Their length when that was found.
    known_len: usize,
}

impl RecentSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>) -> Self {
        Self { shared, documents: Arc::default(), place: None, known_len: 0 }
    }

    /// Where a place is by now that was found since the request's text was last followed: where it was,
    /// unless another drafter's request has been added meanwhile.
    fn still_at(&self, automaton: &SuffixAutomaton, found: Cursor) -> Cursor {
        if automaton.text_len() == self.known_len { found } else { automaton.still_at(found) }
    }
}

impl Propose for RecentSource {
    fn name(&self) -> &'static str {
        History::RECENT
    }

    fn cursor(&self) -> Option<Cursor> {
        self.place
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let automaton = self.documents.read();
        automaton.advance(self.still_at(&automaton, cursor), token)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        all_successors(self, cursor, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let automaton = self.documents.read();
        successors_above(&automaton, self.still_at(&automaton, cursor), at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for RecentSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        let automaton = self.documents.read();
        let mut place = self.place.map(|place| self.still_at(&automaton, place));
        for &token in tokens {
            place = automaton.advance(place.unwrap_or(SuffixAutomaton::START), token);
        }
        self.known_len = automaton.text_len();
        drop(automaton);
        self.place = place;
    }

    /// Takes in what was remembered since a request of any drafter began.
    fn clear(&mut self) {
        self.place = None;
        self.documents = Arc::clone(&lock(&self.shared).text);
        self.documents.grow();
        self.known_len = self.documents.read().text_len();
    }

    fn ended(&mut self) {
        (self.documents, self.place, self.known_len) = (Arc::default(), None, 0);
    }

    /// Of the text that it shares with other drafters.
    fn memory_bytes(&self) -> usize {
        self.documents.read().memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::suffix_automaton::tests::{texts, tokens};

    /// What is said after each place of a walk, with what is known of it.
    fn said(source: &RecentSource, walk: &[Cursor]) -> Vec<Vec<Successor>> {
        let each = walk.iter().map(|&place| {
            let mut found = Vec::new();
            source.successors(place, &mut found);
            found
        });
        each.collect()
    }

    proptest! {
        #[test]
        fn places_are_looked_up_anew_wherever_text_was_added(
            steps in prop::collection::vec((texts(), texts(), texts(), any::<bool>()), 1..6),
        ) {
            let history = History::new(100);
            let new = || RecentSource::new(Arc::clone(&history.shared));
            let (mut source, mut always, mut another) = (new(), new(), new());
            history.remember(&tokens(&[0, 1, 2, 0, 1])).unwrap();
            source.clear();
            always.clear();
            for (said_now, draft, remembered, is_added) in steps {
                source.extend(&said_now);
                always.extend(&said_now);
                always.known_len = usize::MAX;
                prop_assert_eq!(source.cursor(), always.cursor());
                let mut walk: Vec<Cursor> = source.cursor().into_iter().collect();
                for (at, &token) in draft.iter().enumerate() {
                    if is_added && at == draft.len() / 2 {
                        history.remember(&remembered).unwrap();
                        another.clear(); // its request begins: what is remembered is added
                    }
                    let Some(&place) = walk.last() else { break };
                    let next = source.advance(place, token);
                    prop_assert_eq!(next, always.advance(place, token));
                    walk.extend(next);
                }
                prop_assert_eq!(said(&source, &walk), said(&always, &walk));
            }
        }
    }
}
