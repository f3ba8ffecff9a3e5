//! Files of documents beside a list of them, and under damage.

use std::fs;
use std::path::PathBuf;

use super::*;

const VOCAB_SIZE: u32 = 16;
const MOST: usize = 1 << 20;

/// A folder of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = format!("coordgen-stored-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("history")
    }

    fn open(&self) -> PersistentHistory {
        PersistentHistory::open(&self.path(), VOCAB_SIZE, MOST).unwrap()
    }

    fn documents(&self) -> Vec<Vec<TokenId>> {
        self.open().documents.into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn document(first: u32, len: u32) -> Vec<TokenId> {
    (first..first + len).map(|token| TokenId(token * token % VOCAB_SIZE)).collect()
}

#[test]
fn what_was_stored_is_there_again() {
    let scratch = Scratch::new("again");
    let documents: Vec<_> = (0..5).map(|first| document(first, 3 * first)).collect();
    for document in &documents {
        let mut history = scratch.open();
        history.add(document).unwrap();
        history.close().unwrap();
    }
    assert_eq!(scratch.documents(), documents);
    let mut history = scratch.open();
    assert!(matches!(history.add(&[TokenId(16)]), Err(Error::TokenOutOfRange { .. })));
    history.clear().unwrap();
    assert_eq!(history.shared().num_recent_tokens(), 0);
    drop(history);
    assert!(scratch.documents().is_empty());
}

#[test]
fn one_has_it_open_and_others_vocabularies_are_refused() {
    let scratch = Scratch::new("alone");
    let history = scratch.open();
    let again = PersistentHistory::open(&scratch.path(), VOCAB_SIZE, MOST);
    assert_eq!(again.unwrap_err(), Error::HistoryInUse);
    drop(history);
    let other = PersistentHistory::open(&scratch.path(), VOCAB_SIZE + 1, MOST);
    assert!(matches!(other.unwrap_err(), Error::UnusableHistory { .. }));
    for foreign in ["a diary, no history, and longer than a header is", "short"] {
        fs::write(scratch.path(), foreign).unwrap();
        let other = PersistentHistory::open(&scratch.path(), VOCAB_SIZE, MOST);
        assert!(matches!(other.unwrap_err(), Error::UnusableHistory { .. }));
        assert_eq!(fs::read_to_string(scratch.path()).unwrap(), foreign);
    }
}

#[test]
fn any_cut_leaves_the_documents_before_it_and_any_damaged_byte_all_others() {
    let scratch = Scratch::new("damage");
    let documents: Vec<_> = (0..4).map(|first| document(first, 2 + first)).collect();
    let mut history = scratch.open();
    documents.iter().for_each(|document| history.add(document).unwrap());
    drop(history);
    let whole = fs::read(scratch.path()).unwrap();
    for len in 0..whole.len() {
        fs::write(scratch.path(), &whole[..len]).unwrap();
        let mut history = scratch.open();
        let num_left = history.documents.len();
        assert_eq!(history.documents, &documents[..num_left]);
        history.add(&documents[3]).unwrap();
        drop(history);
        let after = scratch.documents();
        assert_eq!((after.len(), after.last()), (num_left + 1, Some(&documents[3])));
    }
    for index in 48..whole.len() {
        let mut bytes = whole.clone();
        bytes[index] ^= 1 << (index % 8);
        fs::write(scratch.path(), bytes).unwrap();
        let history = scratch.open();
        let ends = documents.iter().scan(48, |end, document| {
            *end += 8 + 4 * document.len();
            Some(*end)
        });
        let damaged = ends.filter(|&end| end <= index).count();
        let mut left = documents.clone();
        let dropped = left.remove(damaged);
        assert_eq!(history.documents, left);
        assert_eq!(history.num_dropped_bytes(), 8 + 4 * dropped.len() as u64);
        drop(history);
        let again = scratch.open();
        assert_eq!(again.documents, left);
    }
}

#[test]
fn damage_in_the_middle_drops_what_is_damaged_alone_and_the_index_of_it() {
    let scratch = Scratch::new("middle");
    let mut history = scratch.open();
    let documents: Vec<_> = (0..200).map(|first| document(first, 155)).collect();
    documents.iter().for_each(|document| history.add(document).unwrap());
    history.index().unwrap();
    drop(history);
    let mut bytes = fs::read(scratch.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8].fill(0xff);
    fs::write(scratch.path(), bytes).unwrap();
    let mut history = scratch.open();
    assert_eq!((history.num_tokens(), history.num_dropped_bytes()), (199 * 155, 8 + 4 * 155));
    // What it covered is counted otherwise by now.
    assert_eq!((history.shared.covers(), history.shared.num_recent_tokens()), (0, 199 * 155));
    history.add(&documents[0]).unwrap();
    history.close().unwrap();
    let history = scratch.open();
    assert_eq!((history.documents.len(), history.num_dropped_bytes()), (200, 0));
    assert_eq!(history.shared.covers(), 200);
}

#[cfg(unix)]
#[test]
fn a_damaged_history_that_cannot_be_written_is_read() {
    let scratch = Scratch::new("unwritten");
    let mut history = scratch.open();
    (0..3).for_each(|first| history.add(&document(first, 10)).unwrap());
    history.index().unwrap();
    drop(history);
    let mut bytes = fs::read(scratch.path()).unwrap();
    bytes[48 + 20] ^= 1;
    fs::write(scratch.path(), &bytes).unwrap();
    let folder = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&scratch.0, mode).unwrap();
    };
    folder(0o500);
    let can_write = fs::write(scratch.0.join("new"), "").is_ok(); // who may do everything
    for _ in 0..2 {
        let history = scratch.open();
        assert_eq!((history.documents.len(), history.shared.num_recent_tokens()), (2, 20));
        assert_eq!(history.shared.covers(), 0);
    }
    assert!(can_write || fs::read(scratch.path()).unwrap() == bytes);
    folder(0o700);
}

#[test]
fn an_index_covers_what_was_stored_before_it() {
    let scratch = Scratch::new("index");
    let mut history = scratch.open();
    history.add(&document(1, 20)).unwrap();
    history.index().unwrap();
    history.add(&document(2, 9)).unwrap();
    let counts = |history: &PersistentHistory| {
        (history.shared.num_indexed_tokens(), history.shared.num_recent_tokens())
    };
    assert_eq!(counts(&history), (21, 9));
    history.close().unwrap();
    let mut history = scratch.open();
    assert_eq!(counts(&history), (21, 9));
    history.index().unwrap();
    assert_eq!(counts(&history), (31, 0));
    history.clear().unwrap();
    assert!(!scratch.0.join("history.index").exists());
    drop(history);
    assert_eq!(counts(&scratch.open()), (0, 0));
}

#[test]
fn an_index_of_other_documents_is_not_used() {
    let scratch = Scratch::new("others");
    let mut history = scratch.open();
    (0..3).for_each(|first| history.add(&document(first, 10)).unwrap());
    history.index().unwrap();
    drop(history);
    let whole = fs::read(scratch.path()).unwrap();
    fs::write(scratch.path(), &whole[..whole.len() - 1]).unwrap();
    let history = scratch.open(); // the index covers a document that is gone
    assert_eq!((history.shared.covers(), history.shared.num_recent_tokens()), (0, 20));
}

#[test]
fn the_oldest_are_dropped_where_there_are_too_many() {
    let scratch = Scratch::new("oldest");
    let mut history = PersistentHistory::open(&scratch.path(), VOCAB_SIZE, 100).unwrap();
    (0..20).for_each(|first| history.add(&document(first, 10)).unwrap());
    assert_eq!(history.num_tokens(), 200);
    history.index().unwrap();
    assert_eq!((history.num_tokens(), history.shared.num_indexed_tokens()), (80, 88));
    history.add(&document(1, 30)).unwrap();
    history.close().unwrap();
    let history = PersistentHistory::open(&scratch.path(), VOCAB_SIZE, 100).unwrap();
    assert_eq!((history.num_tokens(), history.shared.num_recent_tokens()), (80, 80));
    assert_eq!(history.documents.back(), Some(&document(1, 30)));
}

#[test]
fn many_requests_are_indexed_when_it_is_closed() {
    let scratch = Scratch::new("many");
    let mut history = scratch.open();
    (0..50).for_each(|first| history.add(&document(first, 100)).unwrap());
    history.close().unwrap();
    assert_eq!(scratch.open().shared.covers(), 50);
}

#[test]
fn a_damaged_index_is_built_again() {
    let scratch = Scratch::new("rot");
    let mut history = scratch.open();
    (0..2_000).for_each(|first| history.add(&document(first % 7, 12)).unwrap());
    history.index().unwrap();
    drop(history);
    let index = scratch.0.join("history.index");
    let whole = fs::read(&index).unwrap();
    for call in [PersistentHistory::index, PersistentHistory::close] {
        let mut bytes = whole.clone();
        bytes[whole.len() / 2] ^= 1;
        fs::write(&index, bytes).unwrap();
        let mut history = scratch.open();
        history.shared().check_index();
        assert!(history.shared().is_damaged());
        call(&mut history).unwrap();
        assert!(!history.shared().is_damaged());
        drop(history);
        assert_eq!(fs::read(&index).unwrap(), whole);
    }
}

#[test]
fn a_request_longer_than_what_is_remembered_is_drafted_from() {
    let history = PersistentHistory::in_memory(VOCAB_SIZE);
    history.shared().remember(&document(0, 5)).unwrap();
    history.shared().remember(&vec![TokenId(3); 3_000_000]).unwrap();
    assert_eq!(history.num_tokens(), 3_000_000);
}
