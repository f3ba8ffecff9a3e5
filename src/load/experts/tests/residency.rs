use proptest::prelude::*;

use crate::error::Error;
use crate::load::experts::residency::{Action, Forecast, Residency};
use crate::load::experts::shape::{LayerShape, Shape};

/// Expects each expert after as many turns as its number, and the first ones of a layer for sure.
struct InOrder;

impl Forecast for InOrder {
    fn observe(&mut self, _: usize, _: &[u16], _: usize) {}
    fn due(&self, expert: usize) -> f32 {
        if expert.is_multiple_of(4) { 1.0 } else { 0.0 }
    }
    fn turns_until_use(&self, expert: usize, _: usize) -> f32 {
        expert as f32
    }
}

/// Two layers of four experts of 10 and 20 bytes, read in pieces of 8.
fn shape() -> Shape {
    let layer = |num_bytes| LayerShape { num_experts: 4, num_bytes };
    Shape::new(vec![layer(10), layer(20)]).unwrap()
}

fn core(budget: u64) -> Residency<InOrder> {
    Residency::new(shape(), budget, 8, InOrder).unwrap()
}

/// Does all there is to do.
fn settle(core: &mut Residency<InOrder>) -> Vec<Action> {
    let mut done = Vec::new();
    while let Some(action) = core.next_action() {
        match &action {
            Action::Read(expert, bytes) => core.read_over(*expert, bytes, true),
            Action::Drop(expert) => core.drop_over(*expert),
        }
        done.push(action);
    }
    done
}

#[test]
fn what_is_asked_for_comes_first_and_in_pieces_then_what_is_due() {
    let mut core = core(80);
    let asked = core.ask(0, &[2, 2, 1], 1);
    assert_eq!(asked, [1, 2]);
    let read = |expert, start, end| Action::Read(expert, start..end);
    let first = [read(1, 0, 8), read(1, 8, 10), read(2, 0, 8), read(2, 8, 10)];
    let ahead = [read(4, 0, 8), read(4, 8, 16), read(4, 16, 20)];
    let done = settle(&mut core);
    assert_eq!(done[..7], [&first[..], &ahead[..]].concat());
    assert_eq!(core.held_bytes(), 80, "what is less likely fills the room that is left");
    let counts = core.counts();
    assert_eq!((counts.asked, counts.misses), (2, 2));
}

#[test]
fn the_last_to_be_used_goes_but_not_what_is_held() {
    let mut core = core(80);
    let held = core.ask(1, &[1, 2, 3], 3);
    let act = |core: &mut Residency<InOrder>| {
        let action = core.next_action().unwrap();
        match &action {
            Action::Read(expert, bytes) => core.read_over(*expert, bytes, true),
            Action::Drop(expert) => core.drop_over(*expert),
        }
        action
    };
    for _ in 0..9 {
        act(&mut core);
    }
    core.let_go(&held[..2]);
    core.ask(0, &[1, 2, 3], 3);
    let done: Vec<_> = (0..7).map(|_| act(&mut core)).collect();
    assert_eq!(done[4], Action::Drop(6), "no room is left, 7 is held, and 5 is used sooner");
    assert!([1, 2, 3, 5, 7].iter().all(|&expert| core.is_resident(expert)));
}

#[test]
fn what_first_rows_miss_is_told_apart() {
    let mut core = core(120);
    let held = core.ask(0, &[1, 2, 1, 3], 2);
    settle(&mut core);
    core.let_go(&held);
    assert_eq!((core.counts().first_row_misses, core.counts().misses), (2, 3));
    core.ask(0, &[1, 2, 3, 2], 2);
    assert_eq!((core.counts().first_row_misses, core.counts().misses), (2, 3));
}

#[test]
fn what_is_read_ahead_and_dropped_unused_is_told_in_bytes() {
    let mut core = core(80);
    let asked = core.ask(0, &[1, 2, 3], 3);
    settle(&mut core);
    core.let_go(&asked);
    assert_eq!(core.counts().wasted_bytes, 0);
    let read_before = core.counts().read_bytes; // 0, 4 and 5 came ahead: there was room
    core.ask(1, &[0, 1, 2, 3], 4);
    settle(&mut core);
    let counts = core.counts();
    assert_eq!((counts.ahead_used, counts.ahead_wasted, counts.wasted_bytes), (2, 1, 10));
    assert_eq!(counts.read_bytes, read_before + 2 * 20);
}

#[test]
fn a_read_that_fails_is_told_and_made_again_when_asked_for() {
    let mut core = core(80);
    let asked = core.ask(0, &[1], 1);
    let Some(Action::Read(1, bytes)) = core.next_action() else { panic!("it is read") };
    core.read_over(1, &bytes, false);
    assert!(core.has_failed(1) && !core.is_resident(1));
    core.let_go(&asked);
    core.ask(0, &[1], 1);
    settle(&mut core);
    assert!(core.is_resident(1) && !core.has_failed(1));
}

#[test]
fn a_budget_below_a_layer_is_refused() {
    let refused = Residency::new(shape(), 79, 8, InOrder).err();
    assert_eq!(refused, Some(Error::BudgetTooSmall { budget: 79, least: 80 }));
}

proptest! {
    /// Several readers, reads that fail, turns that end early: the budget holds, and all that is
    /// asked for comes or fails.
    #[test]
    fn the_budget_holds_whatever_comes(
        budget in 80..200u64,
        turns in prop::collection::vec((0..2usize, prop::collection::vec(0..4u16, 1..5), any::<u8>()), 1..40),
    ) {
        let mut core = core(budget);
        for (layer, chosen, luck) in turns {
            let asked = core.ask(layer, &chosen, 1);
            let mut flying = Vec::new();
            for round in 0..(u32::from(luck) % 50) {
                match core.next_action() {
                    Some(action) => flying.push(action),
                    None if flying.is_empty() => break,
                    None => {}
                }
                prop_assert!(core.held_bytes() <= budget);
                if flying.len() > 3 || round % 3 == 0 {
                    let at = (usize::from(luck) + round as usize) % flying.len().max(1);
                    if flying.is_empty() { continue; }
                    match flying.swap_remove(at) {
                        Action::Read(expert, bytes) => core.read_over(expert, &bytes, luck % 7 != 0),
                        Action::Drop(expert) => core.drop_over(expert),
                    }
                }
            }
            for action in flying {
                match action {
                    Action::Read(expert, bytes) => core.read_over(expert, &bytes, true),
                    Action::Drop(expert) => core.drop_over(expert),
                }
            }
            if luck % 2 == 0 {
                settle(&mut core);
                prop_assert!(asked.iter().all(|&it| core.is_resident(it) || core.has_failed(it)));
            }
            core.let_go(&asked);
            prop_assert!(core.held_bytes() <= budget);
        }
    }
}
