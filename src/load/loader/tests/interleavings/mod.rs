//! Laws of the loader under all orders in which compute, the thread, its store and those who cancel
//! or close may act, wake-ups included: every order of some small timetables, and random orders of
//! random ones, against a sequential twin.

mod machine;
pub(super) mod timetables;

use std::collections::HashSet;

use proptest::prelude::*;

use self::machine::{Machine, Move};
use self::timetables::{ResidentGraphs, late_switches, small_timetables, timetable};
use crate::ids::Graph::{self, Decode, Prefill};
use crate::load::timetable::ActionKind::{self, Load, Release};
use crate::load::timetable::Timetable;

/// Tries every order of moves from `machine` on, with any one of `interruptions` at any moment;
/// returns in how many ways it can stand.
fn every_order(machine: Machine, start: &ResidentGraphs, interruptions: &[Move]) -> usize {
    let (mut seen, mut todo) = (HashSet::new(), vec![machine]);
    while let Some(machine) = todo.pop() {
        if !seen.insert(format!("{machine:?}")) {
            continue;
        }
        let after = |next: &Move| {
            let mut after = machine.clone();
            after.apply(*next).then_some(after)
        };
        let moved: Vec<_> = [Move::Loader, Move::Compute].iter().filter_map(after).collect();
        if moved.is_empty() {
            machine.clone().check_end(start);
        }
        todo.extend(moved);
        if !machine.is_cancelled {
            todo.extend(interruptions.iter().filter_map(after));
        }
    }
    seen.len()
}

#[test]
fn every_order_of_moves_ends_as_planned_whatever_fails() {
    for (start, timetable) in small_timetables() {
        for fails in [&[][..], &[0], &[1], &[0, 1], &[0, 1, 2, 3]] {
            let machine = Machine::new(&start, &timetable, fails);
            assert!(every_order(machine.clone(), &start, &[]) > 10);
            assert!(every_order(machine.polling(), &start, &[]) > 10);
        }
    }
}

#[test]
fn what_was_put_off_is_carried_out_whether_compute_waits_or_polls() {
    let (start, timetable) = late_switches();
    for fails in [&[][..], &[0]] {
        let machine = Machine::new(&start, &timetable, fails).timed();
        assert!(every_order(machine.clone(), &start, &[]) > 10);
        assert!(every_order(machine.polling(), &start, &[]) > 10);
    }
}

#[test]
fn cancelling_or_closing_at_any_moment_keeps_what_is_done_and_hangs_nobody() {
    for (start, timetable) in small_timetables() {
        for fails in [&[][..], &[0]] {
            let machine = Machine::new(&start, &timetable, fails);
            let interruptions = [Move::Cancel, Move::GiveUp, Move::Close];
            assert!(every_order(machine.clone(), &start, &interruptions) > 10);
            assert!(every_order(machine.polling(), &start, &interruptions) > 10);
        }
    }
}

prop_compose! {
    fn any_action(num_blocks: usize, num_runs: usize)(
        is_load in any::<bool>(),
        block in 0..num_blocks as u32,
        is_prefill in any::<bool>(),
        after_runs in 0..=num_runs,
    ) -> (ActionKind, u32, Graph, usize) {
        let kind = if is_load { Load } else { Release };
        (kind, block, if is_prefill { Prefill } else { Decode }, after_runs)
    }
}

prop_compose! {
    fn any_timetable()(num_blocks in 1usize..4, num_chunks in 0usize..4)(
        runs in prop::collection::vec(any::<bool>(), num_blocks * num_chunks),
        actions in prop::collection::vec(any_action(num_blocks, num_blocks * num_chunks), 0..12),
        start in prop::collection::vec(any::<[bool; 2]>(), num_blocks),
    ) -> (ResidentGraphs, Timetable) {
        let runs: Vec<_> = runs.iter().map(|&on| if on { Prefill } else { Decode }).collect();
        (start.clone(), timetable(start.len(), &runs, &actions))
    }
}

proptest! {
    #[test]
    fn random_orders_of_random_timetables_end_as_the_twin_says(
        (start, timetable) in any_timetable(),
        fails in prop::collection::vec(0usize..6, 0..4),
        moves in prop::collection::vec(0u32..40, 0..60),
        polls in any::<bool>(),
    ) {
        let machine = Machine::new(&start, &timetable, &fails).timed();
        let mut machine = if polls { machine.polling() } else { machine };
        for next in moves {
            machine.apply(match next {
                39 => Move::Cancel,
                38 => Move::Abandon,
                37 => Move::Close,
                36 => Move::GiveUp,
                _ if next % 2 == 0 => Move::Loader,
                _ => Move::Compute,
            });
        }
        while machine.apply(Move::Loader) || machine.apply(Move::Compute) {}
        machine.check_end(&start);
    }
}
