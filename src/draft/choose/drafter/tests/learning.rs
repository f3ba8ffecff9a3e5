//! What the drafter learns of its sources, and how much it asks of them.

use super::*;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use std::sync::Arc;

/// Proposes one token everywhere, and is sure of it.
struct Sure(TokenId);

impl Propose for Sure {
    fn name(&self) -> &'static str {
        "sure"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        out.push(Successor { token: self.0, probability: 1.0, cursor });
    }
}

impl Learn for Sure {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_wrong_source_is_soon_not_drafted_from_and_is_again_when_it_is_right() {
    let steps = [1, 3, 8].map(|rows| StepShape { rows, attended: 4000 });
    let costs = [1.0, 1.2, 1.9].map(StepCost::from);
    let options = DrafterOptions {
        steps: StepChoice::new(steps.to_vec(), Some(costs.to_vec())).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit: CommitPolicy::Canonical,
        end_tokens: vec![],
        shape: TreeShape::BestFirst,
    };
    let mut drafter = Drafter::new(vec![Box::new(Sure(TokenId(1)))], options).unwrap();
    drafter.begin(&[TokenId(0)], 3000).unwrap();
    let mut past_len = 0;
    let mut step_that_says = |token: u32| {
        let step = drafter.propose(past_len).unwrap();
        let answer = [TokenId(token); 10];
        past_len += drafter.accept_recorded(&answer).unwrap().token_ids.len();
        step
    };
    let wrong: Vec<usize> = (0..100).map(|_| step_that_says(2)).collect();
    assert!(wrong[20..].iter().all(|&step| step == 0), "{wrong:?}");
    let right: Vec<usize> = (0..200).map(|_| step_that_says(1)).collect();
    assert!(right[150..].iter().all(|&step| step == 2), "{right:?}");
}

/// Proposes the same five tokens everywhere, and counts how often it is asked.
#[derive(Clone, Default)]
struct Unsure(Arc<std::sync::atomic::AtomicUsize>);

impl Propose for Unsure {
    fn name(&self) -> &'static str {
        "unsure"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        out.extend((0..4).map(|token| Successor {
            token: TokenId(token),
            probability: 0.24,
            cursor,
        }));
    }
}

impl Learn for Unsure {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn what_is_asked_follows_what_is_drafted_and_not_the_widest_step() {
    let asked = |steps: &[(usize, f32)]| {
        let source = Unsure::default();
        let shapes = steps.iter().map(|&(rows, _)| StepShape { rows, attended: 8_192 }).collect();
        let costs = steps.iter().map(|&(_, cost)| StepCost::from(cost)).collect();
        let options = DrafterOptions {
            steps: StepChoice::new(shapes, Some(costs)).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: vec![],
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(vec![Box::new(source.clone())], options).unwrap();
        drafter.begin(&[TokenId(1)], 10_000).unwrap();
        let step = drafter.propose(0).unwrap();
        (steps[step].0, source.0.load(std::sync::atomic::Ordering::Relaxed))
    };
    let (rows, without) = asked(&[(1, 1.0), (4, 1.2), (32, 3.0)]);
    assert_eq!(rows, 4);
    assert_eq!(asked(&[(1, 1.0), (4, 1.2), (32, 3.0), (4_096, 900.0)]), (4, without));
    // Where so many rows pay they are drafted.
    assert_eq!(asked(&[(1, 1.0), (4, 1.2), (32, 3.0), (64, 1.3)]).0, 64);
}
