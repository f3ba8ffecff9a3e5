//! What is found in earlier requests, by naive search; and what several places that share them see.

use proptest::prelude::*;

use super::*;
use crate::draft::sources::automaton::BORDER;
use crate::draft::sources::automaton::suffix_automaton::tests::{naive_ends, texts};
use crate::locks::Shared;
use crate::sampling::random::uniform;

fn keeping(most_tokens: usize) -> EarlierRequests {
    EarlierRequests::new(Shared::new(FinishedRequests::keeping(most_tokens)))
}

#[test]
fn the_oldest_requests_are_forgotten_and_a_long_one_keeps_its_end() {
    let numbers = |range: std::ops::Range<u32>| range.map(TokenId).collect::<Vec<_>>();
    let mut earlier = keeping(20);
    let knows = |earlier: &mut EarlierRequests, token: u32| {
        earlier.extend(&[TokenId(token)]);
        let known = earlier.cursor().is_some();
        earlier.current.clear();
        earlier.clear();
        known
    };
    for first in [0, 8, 16] {
        earlier.extend(&numbers(first..first + 8));
        earlier.clear();
    }
    assert!(!knows(&mut earlier, 0) && !knows(&mut earlier, 15) && knows(&mut earlier, 16));
    earlier.extend(&numbers(100..140));
    earlier.clear();
    assert!(!knows(&mut earlier, 16) && !knows(&mut earlier, 130) && knows(&mut earlier, 131));
    assert_eq!(earlier.finished.lock().num_kept, 10);
}

proptest! {
    #[test]
    fn what_is_kept_is_bounded(requests in prop::collection::vec(texts(), 0..12)) {
        let mut earlier = keeping(50);
        for request in &requests {
            earlier.extend(request);
            earlier.clear();
            let finished = earlier.finished.lock();
            let num_tokens: usize = finished.kept.iter().map(Vec::len).sum();
            let num_kept = num_tokens + finished.kept.len();
            prop_assert!(num_kept == finished.num_kept && num_kept <= 50);
            let room: usize = finished.kept.iter().map(Vec::capacity).sum();
            prop_assert_eq!(room, num_tokens);
        }
    }

    #[test]
    fn the_longest_suffix_of_the_request_is_found_in_earlier_ones(
        old in prop::collection::vec(texts(), 0..4),
        text in texts(),
    ) {
        let mut earlier = EarlierRequests::default();
        for request in &old {
            earlier.extend(request);
            earlier.clear();
        }
        for end in 1..=text.len() {
            earlier.extend(&text[end - 1..end]);
            let occurs = |len: &usize| {
                old.iter().any(|old| !naive_ends(old, &text[end - len..end]).is_empty())
            };
            let longest = (1..=end).rev().find(occurs);
            let cursor = earlier.cursor();
            prop_assert_eq!(cursor.map(|cursor| cursor.match_len as usize), longest);
            let mut found = Vec::new();
            cursor.into_iter().for_each(|place| earlier.successors(place, &mut found));
            prop_assert!(found.iter().all(|next| next.token != BORDER));
        }
    }

    /// Places of others are looked up anew, or unknown, whatever is added and forgotten beside them.
    #[test]
    fn places_hold_whatever_ends_and_is_forgotten_beside_them(
        events in prop::collection::vec((0usize..3, 0u8..5, texts(), texts()), 1..30),
        most_tokens in prop::sample::select(vec![40, 200, MOST_TOKENS]),
    ) {
        let shared = Shared::new(FinishedRequests::keeping(most_tokens));
        let mut sources = [(); 3].map(|()| EarlierRequests::new(shared.clone()));
        sources.iter_mut().for_each(Learn::clear);
        let mut is_over = [false; 3];
        for (who, event, text, draft) in events {
            let source = &mut sources[who];
            is_over[who] = event == 1 || event > 0 && is_over[who];
            match event {
                0 => source.clear(),
                1 => source.ended(),
                _ if is_over[who] => {}
                _ => {
                    let known = known(&shared);
                    let was_up_to_date = source.known == known;
                    let was_forgotten = source.known.0 != known.0;
                    source.extend(&text);
                    let anew = anew(source);
                    let found = [source.place, anew].map(|it| it.map_or(0, |it| it.match_len));
                    prop_assert!(found[0] <= found[1], "no more is matched than there is");
                    prop_assert!(!was_forgotten || source.place == anew);
                    prop_assert!(!was_up_to_date || source.known == known);
                }
            }
            for source in &sources {
                let is_forgotten = source.known.0 != known(&shared).0;
                let path = draft.iter().scan(source.cursor(), |place, &token| {
                    *place = source.advance((*place)?, token);
                    *place
                });
                for place in source.cursor().into_iter().chain(path) {
                    let mut said = Vec::new();
                    source.successors(place, &mut said);
                    prop_assert!(!is_forgotten || said.is_empty());
                    let finished = shared.lock();
                    let is_kept = |token| finished.kept.iter().any(|kept| kept.contains(&token));
                    prop_assert!(said.iter().all(|next| is_kept(next.token)), "{:?}", said);
                }
            }
        }
    }
}

/// The generation and length of the text of finished requests.
fn known(shared: &SharedRequests) -> (u64, usize) {
    let finished = shared.lock();
    (finished.generation, finished.text.text_len())
}

/// Where a source's request would stand, were it followed from its beginning.
fn anew(source: &EarlierRequests) -> Option<Cursor> {
    let finished = source.finished.lock();
    source.current.iter().fold(None, |place, &token| {
        finished.text.advance(place.unwrap_or(SuffixAutomaton::START), token)
    })
}

#[test]
fn what_nothing_matched_before_the_oldest_were_forgotten_is_matched_anew() {
    let shared = Shared::new(FinishedRequests::keeping(40));
    let mut sources = [(); 3].map(|()| EarlierRequests::new(shared.clone()));
    let [long, short, running] = &mut sources;
    long.extend(&[TokenId(0); 37]);
    long.ended();
    short.extend(&[3, 1].map(TokenId));
    short.ended();
    running.extend(&[TokenId(3)]);
    assert_eq!(running.cursor(), None);
    long.clear();
    assert_eq!(shared.lock().kept, [[3, 1].map(TokenId)]);
    running.extend(&[TokenId(1)]);
    assert_eq!(running.cursor().map(|place| place.match_len), Some(2));
}

#[test]
fn a_request_is_drafted_from_once_it_has_ended_and_another_begins() {
    let shared = SharedRequests::default();
    let [mut one, mut other] = [(); 2].map(|()| EarlierRequests::new(shared.clone()));
    let text = [5, 6, 7].map(TokenId);
    let knows = |source: &mut EarlierRequests| {
        source.extend(&text[..1]);
        let known = source.cursor().is_some();
        source.current.clear();
        known
    };
    one.clear();
    one.extend(&text);
    other.clear();
    assert!(!knows(&mut other), "it is running");
    one.ended();
    assert!(!knows(&mut other), "other texts are read when a request begins");
    other.clear();
    assert!(knows(&mut other));
    one.clear();
    assert!(knows(&mut one), "it is one of the earlier ones");
    assert_eq!(shared.lock().num_kept, text.len() + 1, "and there once");
}

/// Nothing but the lock orders them.
#[test]
fn requests_of_several_threads_begin_and_end_beside_each_other() {
    const MOST: usize = 400;
    let shared = Shared::new(FinishedRequests::keeping(MOST));
    let begun = std::sync::Barrier::new(3);
    let serve = |seed: u64| {
        let mut source = EarlierRequests::new(shared.clone());
        begun.wait();
        for request in 0..60 {
            source.clear();
            for step in 0..10 {
                let number = |index| uniform(seed, request * 100 + step * 10 + index);
                let tokens: Vec<_> =
                    (0..8u64).map(|it| TokenId((number(it) * 3.0) as u32)).collect();
                source.extend(&tokens);
                let mut said = Vec::new();
                let place = source.cursor().and_then(|place| source.advance(place, tokens[0]));
                place.into_iter().for_each(|place| source.successors(place, &mut said));
                assert!(said.iter().all(|next| next.token.0 < 3), "{said:?}");
            }
            source.ended();
        }
    };
    std::thread::scope(|scope| (1..=3).for_each(|seed| drop(scope.spawn(move || serve(seed)))));
    let mut last = EarlierRequests::new(shared.clone());
    last.clear();
    let finished = shared.lock();
    assert!(finished.generation > 10 && finished.num_kept <= MOST);
    let kept: usize = finished.kept.iter().map(|request| request.len() + 1).sum();
    assert_eq!((finished.num_kept, finished.text.text_len()), (kept, kept));
}
