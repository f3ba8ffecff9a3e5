//! The documents newer than the index as a draft source. In: documents; a request's text. Out: what followed it in
//! a document, by one suffix automaton over all of them, which the drafters of a process share.
//!
//! The automaton grows part by part while drafters ask it, so that none of them waits for a long document.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::automaton::{BORDER, successors_above};
use crate::ids::TokenId;
use crate::locks;

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

/// Tokens that are appended at once, in about a millisecond where documents are much alike.
const PART_LEN: usize = 1024;
/// How often others are let in before the processor is, too.
const NUM_YIELDS: usize = 100;
const A_MOMENT: Duration = Duration::from_micros(100);

/// An automaton over documents. It grows while drafters stand in it: what they found in it before
/// is looked up anew, see [`SuffixAutomaton::still_at`].
#[derive(Debug, Default)]
pub(super) struct RecentText {
    automaton: RwLock<SuffixAutomaton>,
    /// Who has to wait for a part to be appended; the next one waits for them.
    num_waiting: AtomicUsize,
    /// Documents that are still to be appended, the oldest first.
    new: Mutex<VecDeque<Arc<[TokenId]>>>,
    /// Held while documents are appended, by one drafter after another.
    growing: Mutex<()>,
}

impl RecentText {
    /// A text of documents.
    pub fn of(documents: impl Iterator<Item = Arc<[TokenId]>>) -> Self {
        Self { new: Mutex::new(documents.collect()), ..Self::default() }
    }

    /// Notes a document, which is appended when [`grow`](Self::grow) is called next.
    pub fn add(&self, document: Arc<[TokenId]>) {
        locks::lock(&self.new).push_back(document);
    }

    /// Appends all documents that were noted. Where another drafter does so, waits for it.
    pub fn grow(&self) {
        let _growing = locks::lock(&self.growing);
        loop {
            let next = locks::lock(&self.new).pop_front();
            let Some(document) = next else { break };
            document.chunks(PART_LEN).for_each(|part| self.append(part));
            self.append(&[BORDER]);
        }
    }

    fn append(&self, part: &[TokenId]) {
        self.let_others_in();
        let mut automaton = locks::write(&self.automaton);
        automaton.extend(part);
        automaton.settle();
    }

    /// A lock does not see to it that those who wait have their turn. It is over in microseconds, but
    /// where they wait for the interpreter as well: that may take long, and is not spun through.
    fn let_others_in(&self) {
        let is_waited_for = || self.num_waiting.load(Ordering::Relaxed) > 0;
        for _ in 0..NUM_YIELDS {
            if !is_waited_for() {
                return;
            }
            thread::yield_now();
        }
        while is_waited_for() {
            thread::sleep(A_MOMENT);
        }
    }

    /// Calls `call` while the text can be neither asked nor extended.
    #[cfg(feature = "python")]
    pub fn while_held<T>(&self, call: impl FnOnce() -> T) -> T {
        let _held = (locks::write(&self.automaton), locks::lock(&self.new));
        call()
    }

    /// To be asked; nothing is appended meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, SuffixAutomaton> {
        if let Ok(automaton) = self.automaton.try_read() {
            return automaton;
        }
        self.num_waiting.fetch_add(1, Ordering::Relaxed);
        let automaton = locks::read(&self.automaton);
        self.num_waiting.fetch_sub(1, Ordering::Relaxed);
        automaton
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::add_part;
    use crate::draft::sources::automaton::suffix_automaton::tests::{texts, tokens};
    use crate::draft::sources::history::{History, lock};

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

    fn document(len: u32) -> Arc<[TokenId]> {
        (0..len).map(|index| TokenId(index * index % 7)).collect()
    }

    fn text_of(documents: &[Arc<[TokenId]>]) -> SuffixAutomaton {
        let mut automaton = SuffixAutomaton::new();
        documents.iter().for_each(|document| add_part(&mut automaton, document));
        automaton
    }

    #[test]
    fn what_grows_part_by_part_is_what_grows_at_once() {
        let documents = [document(3 * PART_LEN as u32 + 5), document(0), document(9)];
        let text = RecentText::of(documents[..2].iter().cloned());
        text.grow();
        text.add(Arc::clone(&documents[2]));
        text.grow();
        let expected = text_of(&documents);
        let automaton = text.read();
        assert_eq!(automaton.text_len(), expected.text_len());
        assert_eq!(automaton.num_states(), expected.num_states());
        for end in [2, 9, 500] {
            let tokens = &documents[0][end - 2..end];
            assert_eq!(automaton.count(tokens), expected.count(tokens));
        }
    }

    #[test]
    fn documents_are_remembered_and_counted_while_a_request_takes_others_in() {
        let history = History::new(10);
        let text = Arc::clone(&lock(&history.shared).text);
        let _growing = locks::lock(&text.growing); // whoever waited for it would wait for ever
        history.remember(&document(9)).unwrap();
        assert_eq!((history.num_recent_tokens(), history.covers()), (9, 0));
        history.clear();
        assert_eq!(history.num_recent_tokens(), 0);
    }

    #[test]
    fn who_asks_waits_for_one_part_of_a_long_document_at_most() {
        let text = RecentText::of([document(64 * PART_LEN as u32)].into_iter());
        let seen = thread::scope(|scope| {
            let before = text.read(); // the first part waits for this
            scope.spawn(|| text.grow());
            let reader = scope.spawn(|| text.read().text_len());
            let is_waiting = || text.num_waiting.load(Ordering::Relaxed) > 0;
            while !is_waiting() && !reader.is_finished() {
                thread::yield_now();
            }
            drop(before);
            reader.join().unwrap()
        });
        assert!(seen == 0 || seen == PART_LEN, "{seen}");
        assert_eq!(text.read().text_len(), 64 * PART_LEN + 1);
    }
}
