//! The documents newer than the index as a draft source: a suffix automaton over all of them.

use std::sync::{Arc, Mutex};

use super::{Document, History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::automaton::other_text::OtherText;
use crate::ids::TokenId;

/// Drafts for one drafter from the documents that the index does not cover.
pub(super) struct RecentSource {
    shared: Arc<Mutex<Shared>>,
    generation: u64,
    /// How many of the recent documents `documents` holds.
    num_taken: usize,
    documents: OtherText,
}

impl RecentSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>) -> Self {
        Self { shared, generation: 0, num_taken: 0, documents: OtherText::default() }
    }

    /// The documents that came since the last call; after another change all of them.
    fn news(&mut self) -> Vec<Document> {
        let shared = lock(&self.shared);
        if self.generation != shared.generation {
            self.generation = shared.generation;
            self.num_taken = 0;
            self.documents = OtherText::default();
        }
        let news = shared.recent[self.num_taken..].to_vec();
        self.num_taken = shared.recent.len();
        news
    }
}

impl Propose for RecentSource {
    fn name(&self) -> &'static str {
        History::RECENT
    }

    fn cursor(&self) -> Option<Cursor> {
        self.documents.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.documents.advance(cursor, token)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.successors_above(cursor, 0.0, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        self.documents.successors_above(cursor, at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for RecentSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.documents.follow(tokens);
    }

    /// Takes in what was remembered since.
    fn clear(&mut self) {
        self.documents.set_place(None);
        for document in self.news() {
            self.documents.add_part(&document.tokens);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.documents.memory_bytes()
    }
}
