//! A corpus in several segments against scans of all its documents.

use super::*;

/// The corpus of `documents`, those of a part in one segment.
fn corpus(documents: &[Vec<TokenId>], len: usize) -> (History, Vec<Scratch>) {
    let parts = documents.chunks(len);
    let segments: Vec<Scratch> = parts.map(|part| Scratch::with(part, VOCAB_SIZE)).collect();
    let history = History::new(VOCAB_SIZE).above_corpus();
    history.open_corpus(segments.iter().map(|part| part.0.clone()).collect(), &KEY).unwrap();
    (history, segments)
}

proptest! {
    #[test]
    fn the_segment_with_the_longest_match_drafts_what_followed_it(
        documents in documents(), text in text(), len in 1..4usize,
    ) {
        let (history, _segments) = corpus(&documents, len);
        let mut source = history.corpus_source().unwrap();
        source.clear();
        for end in 1..=text.len() {
            source.extend(&text[end - 1..end]);
            let counts = (0..end).map(|start| naive_followers(&documents, &text[start..end]).len());
            // Beyond this many kinds of suffixes some are no longer followed.
            prop_assume!(counts.collect::<BTreeSet<_>>().len() <= MAX_LEVELS);
            let match_len = naive_match_len(&documents, &text[..end]);
            let cursor = source.cursor();
            prop_assert_eq!(cursor.map_or(0, |cursor| cursor.match_len as usize), match_len);
            let Some(cursor) = cursor else { continue };
            // Beyond this many occurrences a sample is read.
            prop_assume!(naive_followers(&documents, &text[end - 1..end]).len() <= 32);
            for next in successors(&*source, cursor) {
                let matched = next.cursor.match_len as usize - 1;
                let followers = naive_followers(&documents, &text[end - matched..end]);
                prop_assert!(followers.contains(&Some(next.token)));
                prop_assert_eq!(source.advance(cursor, next.token), Some(next.cursor));
            }
        }
    }

    #[test]
    fn one_segment_drafts_as_an_index_does(documents in documents(), text in text()) {
        prop_assume!(!documents.is_empty());
        let (history, segments) = corpus(&documents, documents.len());
        history.open_index(&segments[0].0, &KEY).unwrap();
        let [mut index, _] = history.sources();
        let mut source = history.corpus_source().unwrap();
        begin(&mut index, &text);
        begin(&mut source, &text);
        prop_assert_eq!(source.cursor(), index.cursor());
        if let Some(cursor) = source.cursor() {
            prop_assert_eq!(successors(&*source, cursor), successors(&*index, cursor));
        }
    }
}

#[test]
fn a_request_drafts_on_from_the_segments_that_it_began_with() {
    let documents = [1, 2, 3].map(|first| [first, 0, first].map(TokenId).to_vec());
    let (history, segments) = corpus(&documents, 1);
    let mut source = history.corpus_source().unwrap();
    begin(&mut source, &[3, 0].map(TokenId));
    history.open_corpus(vec![segments[0].0.clone()], &KEY).unwrap();
    let cursor = source.cursor().unwrap();
    assert_eq!(successors(&*source, cursor)[0].token, TokenId(3));
    source.ended();
    assert_eq!(source.cursor(), None);
    begin(&mut source, &[3, 0].map(TokenId));
    assert_eq!(source.cursor().unwrap().match_len, 1);
    assert_eq!(history.num_corpus_tokens(), 4);
}

#[test]
fn where_a_segment_cannot_be_opened_those_before_stay() {
    let (history, segments) = corpus(&[vec![TokenId(1)], vec![TokenId(2)]], 1);
    let absent = Scratch::new().0.clone();
    let failed = history.open_corpus(vec![segments[0].0.clone(), absent], &KEY);
    assert!(matches!(failed, Err(Error::UnusableIndex { .. })));
    assert_eq!(history.num_corpus_tokens(), 4);
}

#[test]
fn a_damaged_segment_leaves_the_others_drafting() {
    let (history, segments) = corpus(&[vec![TokenId(1), TokenId(2)], vec![TokenId(3)]], 1);
    drop(history);
    let mut bytes = fs::read(&segments[1].0).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&segments[1].0, bytes).unwrap();
    let history = History::new(VOCAB_SIZE).above_corpus();
    history.open_corpus(segments.iter().map(|part| part.0.clone()).collect(), &KEY).unwrap();
    let mut source = history.corpus_source().unwrap();
    begin(&mut source, &[TokenId(3)]);
    assert!(history.is_corpus_damaged());
    begin(&mut source, &[TokenId(1)]);
    assert_eq!(successors(&*source, source.cursor().unwrap())[0].token, TokenId(2));
}
