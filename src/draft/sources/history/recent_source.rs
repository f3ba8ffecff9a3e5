//! The documents newer than the index as a draft source: a suffix automaton over all of them, which
//! the drafters of a process share. In: a request's text. Out: what followed it in a document.

use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::automaton::other_text::{add_part, successors_above};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::ids::TokenId;

/// An automaton over documents. It grows while drafters stand in it: what they found in it before
/// is looked up anew, see [`SuffixAutomaton::still_at`].
#[derive(Clone, Debug, Default)]
pub(super) struct SharedText(Arc<RwLock<SuffixAutomaton>>);

impl SharedText {
    /// Appends documents.
    pub fn extend<'a>(&self, documents: impl Iterator<Item = &'a [TokenId]>) {
        let mut automaton = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        documents.for_each(|document| add_part(&mut automaton, document));
    }

    /// To be asked; nothing is appended meanwhile.
    fn read(&self) -> RwLockReadGuard<'_, SuffixAutomaton> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Drafts for one drafter from the documents that the index does not cover.
pub(super) struct RecentSource {
    shared: Arc<Mutex<Shared>>,
    documents: SharedText,
    /// Where the request's text ends in them.
    place: Option<Cursor>,
}

impl RecentSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>) -> Self {
        Self { shared, documents: SharedText::default(), place: None }
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
        automaton.advance(automaton.still_at(cursor), token)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.successors_above(cursor, 0.0, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let automaton = self.documents.read();
        successors_above(&automaton, automaton.still_at(cursor), at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for RecentSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        let automaton = self.documents.read();
        for &token in tokens {
            let from = self.place.map_or(SuffixAutomaton::START, |place| automaton.still_at(place));
            self.place = automaton.advance(from, token);
        }
    }

    /// Takes in what was remembered since a request of any drafter began.
    fn clear(&mut self) {
        self.place = None;
        self.documents = lock(&self.shared).recent_text();
    }

    /// Of the text that it shares with other drafters.
    fn memory_bytes(&self) -> usize {
        self.documents.read().memory_bytes()
    }
}
