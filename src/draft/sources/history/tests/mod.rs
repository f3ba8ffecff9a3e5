//! Both sources against twins that scan the documents, and an index under every kind of damage.

mod corpus;
mod threads;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::format::{Key, TERMINATOR, write_index};
use super::index::{HistoryIndex, Range};
use super::matcher::MAX_LEVELS;
use super::*;
use crate::draft::source::{Cursor, Successor};
use crate::draft::sources::automaton::escape;

const VOCAB_SIZE: u32 = 4;
const KEY: Key = [7; 32];

/// A path of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("coordgen-{}-{number}.index", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn with(documents: &[Vec<TokenId>], vocab_size: u32) -> Self {
        let scratch = Self::new();
        let covers = documents.len() as u64;
        write_index(&scratch.0, &joined(documents), vocab_size, covers, KEY).unwrap();
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn joined(documents: &[Vec<TokenId>]) -> Vec<TokenId> {
    documents.iter().flat_map(|document| [document, &[TERMINATOR][..]].concat()).collect()
}

fn documents() -> impl Strategy<Value = Vec<Vec<TokenId>>> {
    let document = prop::collection::vec((0..VOCAB_SIZE).prop_map(TokenId), 0..40);
    prop::collection::vec(document, 0..6)
}

fn text() -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec((0..VOCAB_SIZE).prop_map(TokenId), 1..30)
}

/// What followed each occurrence of `query`, `None` at the end of a document.
fn naive_followers(documents: &[Vec<TokenId>], query: &[TokenId]) -> Vec<Option<TokenId>> {
    let ends = |document: &Vec<TokenId>| {
        let ends = query.len()..=document.len();
        let ends = ends.filter(|&end| document[..end].ends_with(query));
        ends.map(|end| document.get(end).copied()).collect::<Vec<_>>()
    };
    documents.iter().flat_map(ends).collect()
}

fn naive_match_len(documents: &[Vec<TokenId>], text: &[TokenId]) -> usize {
    let occurs = |len: &usize| !naive_followers(documents, &text[text.len() - len..]).is_empty();
    (1..=text.len().min(MAX_MATCH)).rev().find(occurs).unwrap_or(0)
}

/// Continuations of the suffixes of `context`, those at the same positions taken once; of each
/// suffix those that no longer one has.
fn naive_blend(documents: &[Vec<TokenId>], context: &[TokenId]) -> HashMap<TokenId, f32> {
    let (mut blend, mut weight, mut known, mut levels) = (HashMap::new(), 1.0, 0, 0);
    for start in 0..context.len() {
        let followers = naive_followers(documents, &context[start..]);
        if followers.len() == known || levels == 4 || weight < 1.0 / 64.0 {
            continue;
        }
        (known, levels) = (followers.len(), levels + 1);
        let mut counts: HashMap<TokenId, f32> = HashMap::new();
        let new = followers.into_iter().flatten().filter(|token| !blend.contains_key(token));
        new.for_each(|token| *counts.entry(token).or_default() += 1.0);
        if counts.is_empty() {
            continue;
        }
        let total = counts.values().sum::<f32>();
        let match_len = (context.len() - start) as u32;
        let lower = if blend.is_empty() { 1.0 } else { 0.7 };
        let share = lower * (1.0 - escape(match_len, total as u32, counts.len() as u32));
        blend.extend(counts.iter().map(|(&token, count)| (token, weight * share * count / total)));
        weight *= 1.0 - share;
    }
    blend
}

fn begin(source: &mut Box<dyn DraftSource>, text: &[TokenId]) {
    source.clear();
    source.extend(text);
}

fn successors(source: &dyn DraftSource, cursor: Cursor) -> Vec<Successor> {
    let mut found = Vec::new();
    source.successors(cursor, &mut found);
    found
}

fn opened(scratch: &Scratch, vocab_size: u32) -> History {
    let history = History::new(vocab_size);
    history.open_index(&scratch.0, &KEY).unwrap();
    history
}

proptest! {
    #[test]
    fn ranges_hold_every_occurrence(documents in documents(), query in text()) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let index = HistoryIndex::open(&scratch.0, &KEY).unwrap();
        let mut range = Some(index.all());
        for depth in 0..query.len() {
            range = range.and_then(|range| index.find(range, depth as u32, query[depth]));
            let expected = naive_followers(&documents, &query[..=depth]).len();
            prop_assert_eq!(range.map_or(0, Range::count) as usize, expected);
        }
    }

    #[test]
    fn the_longest_suffix_is_matched_after_every_token(documents in documents(), text in text()) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let history = opened(&scratch, VOCAB_SIZE);
        let [mut source, _] = history.sources();
        source.clear();
        for end in 1..=text.len() {
            source.extend(&text[end - 1..end]);
            let found = source.cursor().map_or(0, |cursor| cursor.match_len as usize);
            prop_assert_eq!(found, naive_match_len(&documents, &text[..end]));
            let counts = (0..end).map(|start| naive_followers(&documents, &text[start..end]).len());
            // Beyond this many kinds of suffixes some are no longer followed.
            prop_assume!(counts.collect::<BTreeSet<_>>().len() <= MAX_LEVELS);
        }
    }

    #[test]
    fn many_tokens_at_once_end_where_single_ones_do(documents in documents(), text in text()) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let history = opened(&scratch, VOCAB_SIZE);
        let match_len = |source: &dyn DraftSource| source.cursor().map_or(0, |at| at.match_len);
        let [mut at_once, _] = history.sources();
        begin(&mut at_once, &text[..1]);
        at_once.extend(&text[1..]);
        let naive = naive_match_len(&documents, &text) as u32;
        prop_assert!(match_len(&*at_once) <= naive);
        prop_assert!(match_len(&*at_once) >= naive.min(1));
        if naive as usize == text.len() {
            prop_assert_eq!(match_len(&*at_once), naive);
        }
    }

    #[test]
    fn successors_are_the_blend_of_all_levels(documents in documents(), text in text()) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let history = opened(&scratch, VOCAB_SIZE);
        let [mut source, _] = history.sources();
        begin(&mut source, &text);
        let Some(cursor) = source.cursor() else { return Ok(()) };
        // Beyond this many occurrences a sample is read.
        prop_assume!(naive_followers(&documents, &text[text.len() - 1..]).len() <= 32);
        let blend = naive_blend(&documents, &text[text.len() - cursor.match_len as usize..]);
        let found = successors(&*source, cursor);
        prop_assert_eq!(found.len(), blend.len());
        prop_assert!(found.is_sorted_by(|a, b| a.probability >= b.probability));
        for successor in &found {
            prop_assert!((successor.probability - blend[&successor.token]).abs() < 1e-5);
            let advanced = source.advance(cursor, successor.token).unwrap();
            prop_assert_eq!(successor.cursor, advanced);
        }
    }

    #[test]
    fn a_walk_of_successors_stands_in_the_documents(documents in documents(), text in text()) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let history = opened(&scratch, VOCAB_SIZE);
        documents.iter().for_each(|document| history.remember(document).unwrap());
        for mut source in history.sources() {
            begin(&mut source, &text);
            let (mut cursor, mut said) = (source.cursor(), text.clone());
            while let Some(place) = cursor.filter(|_| said.len() < text.len() + 10) {
                let found = successors(&*source, place);
                for next in &found {
                    let len = next.cursor.match_len as usize;
                    let mut matched = said[said.len() + 1 - len..].to_vec();
                    matched.push(next.token);
                    prop_assert!(!naive_followers(&documents, &matched).is_empty());
                }
                cursor = found.last().map(|next| { said.push(next.token); next.cursor });
            }
        }
    }

    #[test]
    fn what_is_recent_is_matched_like_what_is_indexed(documents in documents(), text in text()) {
        let history = History::new(VOCAB_SIZE);
        let [_, mut source] = history.sources();
        begin(&mut source, &text);
        prop_assert_eq!(source.cursor(), None);
        for (number, document) in documents.iter().enumerate() {
            history.remember(document).unwrap();
            begin(&mut source, &text);
            let found = source.cursor().map_or(0, |cursor| cursor.match_len as usize);
            prop_assert_eq!(found, naive_match_len(&documents[..=number], &text));
        }
    }

    #[test]
    fn a_changed_byte_is_found_or_changes_nothing(
        documents in documents(), text in text(), at in any::<prop::sample::Index>(), bit in 0..8u32,
    ) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let [mut whole, _] = opened(&scratch, VOCAB_SIZE).sources();
        begin(&mut whole, &text);
        let right = whole.cursor().map_or_else(Vec::new, |cursor| successors(&*whole, cursor));

        let mut bytes = fs::read(&scratch.0).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let damaged = Scratch::new();
        fs::write(&damaged.0, bytes).unwrap();
        let history = History::new(VOCAB_SIZE);
        if history.open_index(&damaged.0, &KEY).is_ok() {
            let twin = opened(&damaged, VOCAB_SIZE);
            prop_assert_eq!(twin.check_index(), !twin.is_damaged());
            let [mut source, _] = history.sources();
            begin(&mut source, &text);
            let found = source.cursor().map_or_else(Vec::new, |cursor| successors(&*source, cursor));
            prop_assert!(found == right || history.is_damaged());
            let known = |next: &Successor| right.iter().any(|one| one.token == next.token);
            prop_assert!(found.iter().all(known));
        }
    }

    #[test]
    fn a_file_of_another_length_is_refused(
        documents in documents(), cut in any::<prop::sample::Index>(),
    ) {
        let scratch = Scratch::with(&documents, VOCAB_SIZE);
        let mut bytes = fs::read(&scratch.0).unwrap();
        bytes.truncate(cut.index(bytes.len()));
        fs::write(&scratch.0, bytes).unwrap();
        prop_assert!(HistoryIndex::open(&scratch.0, &KEY).is_err());
    }
}

#[test]
fn what_is_read_ahead_of_its_use_is_checked() {
    let document = (0..9_000).map(|number| TokenId(number % VOCAB_SIZE)).collect();
    let scratch = Scratch::with(&[document], VOCAB_SIZE);
    let above = || {
        let history = History::above_fleet(VOCAB_SIZE).above_corpus();
        assert!(!history.is_shared_cold() && !history.warm_shared());
        history.open_fleet_index(&scratch.0, &KEY).unwrap();
        history.open_corpus(vec![scratch.0.clone()], &KEY).unwrap();
        assert!(history.is_shared_cold());
        while history.warm_shared() {}
        history
    };
    let whole = above();
    assert!(!whole.is_fleet_damaged() && !whole.is_corpus_damaged());
    let mut bytes = fs::read(&scratch.0).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&scratch.0, bytes).unwrap();
    let damaged = above();
    assert!(damaged.is_fleet_damaged() && damaged.is_corpus_damaged());
}

#[test]
fn a_file_is_read_where_there_is_an_index_alone() {
    let scratch = Scratch::with(&[vec![TokenId(1)]], VOCAB_SIZE);
    let history = History::above_fleet(VOCAB_SIZE).above_corpus();
    let permissions = || -> Vec<_> {
        let mut sources: Vec<_> = history.all_sources().collect();
        sources.iter_mut().for_each(|source| source.clear());
        sources.iter().filter(|source| source.reads_disk()).map(|source| source.name()).collect()
    };
    assert!(permissions().is_empty());
    history.open_index(&scratch.0, &KEY).unwrap();
    assert_eq!(permissions(), [History::INDEX]);
    history.open_fleet_index(&scratch.0, &KEY).unwrap();
    history.open_corpus(vec![scratch.0.clone()], &KEY).unwrap();
    assert_eq!(permissions(), [History::INDEX, History::FLEET, History::CORPUS]);
}

#[test]
fn a_busy_place_answers_with_a_bounded_number() {
    // "0" is followed by 1 in half of the cases, by thousands of others in the rest.
    let likely = |other: u32| [0, 1, 0, other].map(TokenId);
    let documents = vec![(2..5000).flat_map(likely).collect::<Vec<_>>()];
    let scratch = Scratch::with(&documents, 5000);
    let history = opened(&scratch, 5000);
    let [mut source, _] = history.sources();
    begin(&mut source, &[TokenId(0)]);
    let cursor = source.cursor().unwrap();
    let found = successors(&*source, cursor);
    assert_eq!(found.len(), 8);
    assert_eq!(found[0].token, TokenId(1));
    assert!(found[0].probability > 2.0 * found[1].probability);
    for other in 2..5000 {
        assert_eq!(source.advance(cursor, TokenId(other)).unwrap().match_len, 2);
    }
}

#[test]
fn an_index_takes_the_place_of_the_documents_that_it_covers() {
    let documents = [vec![1, 2, 3], vec![3, 2, 1]];
    let documents = documents.map(|document| document.into_iter().map(TokenId).collect::<Vec<_>>());
    let history = History::new(VOCAB_SIZE);
    for (number, document) in (1..).zip(&documents) {
        history.remember_stored(number, document).unwrap();
    }
    let scratch = Scratch::with(&documents[..1], VOCAB_SIZE);
    history.open_index(&scratch.0, &KEY).unwrap();
    assert_eq!((history.num_indexed_tokens(), history.num_recent_tokens()), (4, 3));
    history.remember_stored(1, &documents[0]).unwrap();
    assert_eq!((history.covers(), history.num_recent_tokens()), (1, 3));

    let match_len = |text: [u32; 2]| {
        history.sources().map(|mut source| {
            begin(&mut source, &text.map(TokenId));
            source.cursor().map_or(0, |cursor| cursor.match_len)
        })
    };
    assert_eq!(match_len([1, 2]), [2, 1]);
    assert_eq!(match_len([2, 1]), [1, 2]);
    history.clear();
    assert_eq!(match_len([1, 2]), [0, 0]);
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    let scratch = Scratch::with(&[vec![TokenId(1)]], VOCAB_SIZE);
    let open = |key: Key| HistoryIndex::open(&scratch.0, &key).map(|_| ());
    let unusable = |reason| Err(Error::UnusableIndex { reason });
    assert_eq!(open(KEY), Ok(()));
    assert_eq!(open([8; 32]), unusable("it belongs to another history"));
    let other = History::new(VOCAB_SIZE + 1).open_index(&scratch.0, &KEY);
    assert_eq!(other, unusable("it belongs to another vocabulary"));

    let mut bytes = fs::read(&scratch.0).unwrap();
    bytes[8] += 1;
    fs::write(&scratch.0, bytes).unwrap();
    assert_eq!(open(KEY), unusable("it has another version"));
    fs::remove_file(&scratch.0).unwrap();
    assert_eq!(open(KEY), unusable("there is none"));

    let unknown = TokenId(VOCAB_SIZE);
    let out_of_range = Err(Error::TokenOutOfRange { token: unknown, vocab_size: 4 });
    assert_eq!(History::new(VOCAB_SIZE).remember(&[unknown]), out_of_range);
    let write = |tokens: &[TokenId]| write_index(&scratch.0, tokens, VOCAB_SIZE, 0, KEY).map(drop);
    assert_eq!(write(&[unknown, TERMINATOR]), out_of_range);
    assert!(matches!(write(&[TokenId(1)]), Err(Error::BadOption { .. })));
    let nowhere = write_index(&scratch.0.join("x"), &[], VOCAB_SIZE, 0, KEY);
    assert!(matches!(nowhere, Err(Error::IndexNotWritten { .. })));
}

#[test]
fn runs_of_one_token_are_matched_to_the_limit() {
    let scratch = Scratch::with(&[vec![TokenId(1); 200]], VOCAB_SIZE);
    let [mut source, _] = opened(&scratch, VOCAB_SIZE).sources();
    begin(&mut source, &[TokenId(1); 300]);
    assert_eq!(source.cursor().unwrap().match_len as usize, MAX_MATCH);
    source.extend(&[TokenId(2)]);
    assert_eq!(source.cursor(), None);
}

#[test]
fn memory_stays_bounded_without_an_index() {
    let history = History::new(VOCAB_SIZE);
    for _ in 0..5 {
        history.remember(&vec![TokenId(1); MAX_RECENT_TOKENS / 4]).unwrap();
    }
    assert_eq!(history.num_recent_tokens(), MAX_RECENT_TOKENS / 2);
}

#[test]
fn a_sample_misses_no_token_that_followed_a_tenth_of_the_occurrences() {
    // Contexts that lie at all distances from the fences, with others' tokens around the common one.
    let first_other = 1_000;
    let mut contexts = Vec::new();
    for (count, num_contexts) in [(33, 64), (101, 64), (501, 8), (1_101, 8), (1_999, 8), (2_501, 8)]
    {
        contexts.extend([count].repeat(num_contexts));
    }
    let num_common = |count: u32| count.div_ceil(10);
    let common_of = |context: usize, count: u32| {
        let place = context as u32 * 37 % (count - num_common(count) + 1);
        TokenId(first_other + 2 * place + 1)
    };
    let document = (0u32..).zip(&contexts).flat_map(|(context, &count)| {
        let common = common_of(context as usize, count);
        let others =
            (0..count - num_common(count)).map(|other| TokenId(first_other + 2 * other + 2));
        let followers = others.chain((0..num_common(count)).map(move |_| common));
        followers.flat_map(move |matcher| [TokenId(context), matcher]).collect::<Vec<_>>()
    });
    let document: Vec<_> = document.collect();
    let vocab_size = 10_000;
    let scratch = Scratch::with(&[document], vocab_size);
    let index = HistoryIndex::open(&scratch.0, &KEY).unwrap();
    let missed = contexts.iter().enumerate().filter(|&(context, &count)| {
        let range = index.find(index.all(), 0, TokenId(context as u32)).unwrap();
        assert_eq!(range.count(), count);
        let mut is_found = false;
        index.continuations(range, 1, |next| is_found |= next.token == common_of(context, count));
        !is_found
    });
    assert_eq!(missed.map(|(_, count)| count).collect::<Vec<_>>(), Vec::<&u32>::new());
}
