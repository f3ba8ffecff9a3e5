//! A history that several threads use at once. For the sanitizer as well (`make sanitize`): nothing
//! but the history's own locks orders them.

use std::sync::Barrier;
use std::thread;

use super::*;

const ROUNDS: usize = 30;

#[test]
fn a_history_is_drafted_from_while_it_remembers_and_opens_indexes() {
    let text = [1, 2, 3, 1, 2].map(TokenId);
    let scratch = Scratch::with(&[text.to_vec(), vec![TokenId(0); 9]], VOCAB_SIZE);
    let history = History::above_fleet(VOCAB_SIZE);
    let begun = Barrier::new(4);
    let draft = || {
        let mut sources: Vec<_> = history.all_sources().collect();
        begun.wait();
        for _ in 0..ROUNDS {
            for source in &mut sources {
                begin(source, &text);
                if let Some(cursor) = source.cursor() {
                    let found = successors(&**source, cursor);
                    assert!(found.iter().all(|next| next.token.0 < VOCAB_SIZE), "{found:?}");
                }
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(draft);
        scope.spawn(draft);
        scope.spawn(|| {
            begun.wait();
            (0..ROUNDS).for_each(|_| history.remember(&text).unwrap());
        });
        scope.spawn(|| {
            begun.wait();
            for _ in 0..ROUNDS {
                history.open_index(&scratch.0, &KEY).unwrap();
                history.open_fleet_index(&scratch.0, &KEY).unwrap();
                assert!(history.check_index());
            }
        });
    });
    assert_eq!(history.num_recent_tokens(), ROUNDS * text.len());
    for mut source in history.all_sources() {
        begin(&mut source, &text);
        let followed = successors(&*source, source.cursor().unwrap());
        assert_eq!(followed[0].token, TokenId(3), "{}", source.name());
    }
}
