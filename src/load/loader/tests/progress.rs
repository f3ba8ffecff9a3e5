//! Calls of one progress in a row: what is refused, and what is reported.

use super::interleavings::timetables::timetable;
use crate::error::{Error, Result};
use crate::ids::BlockId;
use crate::ids::Graph::{Decode, Prefill};
use crate::load::loader::progress::Progress;
use crate::load::loader::state::{NextAction, State};
use crate::load::timetable::ActionKind::{Load, Release};
use crate::load::timetable::Timetable;

#[test]
fn calls_out_of_order_are_named() -> Result<()> {
    let runs = timetable(2, &[Prefill, Prefill], &[]);
    let mut progress = Progress::new(vec![[0, 0]; 2]);
    assert_eq!(progress.leave(0), Err(Error::NothingRunning));
    progress.begin(Timetable::immediate(2, Load, &[(BlockId(0), Prefill)]), 0)?;
    progress.next_action(0).unwrap();
    progress.action_over(Ok(()), 0);
    progress.begin(runs.clone(), 0)?;
    assert_eq!(progress.begin(runs, 0), Err(Error::RunsLeft { num_runs: 2 }));
    assert_eq!(progress.finish(0), Err(Error::RunsLeft { num_runs: 2 }));
    let wrong = Error::WrongBlock { got: BlockId(1), expected: BlockId(0) };
    assert_eq!(progress.enter(BlockId(1), 0), Err(wrong));
    assert!(matches!(progress.enter(BlockId(2), 0), Err(Error::BadOption { .. })));
    assert_eq!(progress.enter(BlockId(0), 0)?, Some(Prefill));
    assert_eq!(progress.enter(BlockId(1), 0), Err(Error::StillRunning { block: BlockId(0) }));
    Ok(())
}

#[test]
fn timetables_that_cannot_be_carried_out_are_refused() {
    let mut progress = Progress::new(vec![[0, 0]]);
    for (block, after_runs) in [(0, 2), (1, 0)] {
        let refused = timetable(1, &[Prefill], &[(Load, block, Prefill, after_runs)]);
        assert!(matches!(progress.begin(refused, 0), Err(Error::BadOption { .. })));
    }
    assert_eq!(progress.finish(0).unwrap().unwrap().actual.runs, []);
}

#[test]
fn the_report_tells_what_was_hidden_and_what_was_not() -> Result<()> {
    let mut progress = Progress::new(vec![[30, 20]]);
    let plan = timetable(
        1,
        &[Prefill, Decode],
        &[(Load, 0, Prefill, 0), (Load, 0, Decode, 0), (Release, 0, Prefill, 1)],
    );
    progress.begin(plan, 1_000)?;
    assert_eq!(progress.next_action(1_000).unwrap().graph, Prefill);
    assert_eq!(progress.enter(BlockId(0), 1_000)?, None);
    progress.action_over(Ok(()), 1_100); // 100 us waited for
    assert_eq!(progress.enter(BlockId(0), 1_100)?, Some(Prefill));
    assert_eq!(progress.next_action(1_120).unwrap().graph, Decode);
    progress.leave(1_150)?; // 30 us beside the run
    assert_eq!(progress.enter(BlockId(0), 1_160)?, Some(Prefill)); // the other graph than planned
    progress.action_over(Ok(()), 1_190); // 30 us more beside this one
    progress.leave(1_200)?;
    assert_eq!(progress.next_action(1_200).unwrap().kind, Release);
    assert_eq!(progress.finish(1_200)?, None);
    progress.action_over(Ok(()), 1_205);
    let report = progress.finish(1_205)?.unwrap();
    assert_eq!((report.exposed_us, report.busy_us, report.overlap_us), (105, 170, 60));
    assert_eq!((report.peak_bytes, report.num_under_other_graph), (50, 1));
    let times = |start_us, end_us| (start_us, end_us);
    let runs: Vec<_> =
        report.actual.runs.iter().map(|run| times(run.start_us, run.end_us)).collect();
    assert_eq!(runs, [(100, 150), (160, 200)]);
    assert_eq!(report.actual.actions[1].end_us, 190);
    assert_eq!(progress.finish(1_300)?.unwrap().peak_bytes, 20);
    Ok(())
}

#[test]
fn the_wait_for_a_block_is_that_for_all_loads_up_to_its_own() -> Result<()> {
    let mut progress = Progress::new(vec![[0, 0]; 3]);
    let loads = [0, 1, 2].map(|block| (Load, block, Decode, 0));
    let mut plan = timetable(3, &[Decode; 3], &loads);
    for action in &mut plan.actions {
        action.end_us = 100;
    }
    progress.begin(plan, 0)?;
    progress.next_action(0).unwrap();
    let waits = |progress: &Progress, now_us| {
        [0, 1, 2].map(|block| progress.wait_us(BlockId(block), now_us))
    };
    assert_eq!(waits(&progress, 0), [100, 200, 300]);
    assert_eq!(waits(&progress, 70), [30, 130, 230]);
    assert_eq!(waits(&progress, 150), [50, 150, 250], "late by 50: as long again");
    progress.action_over(Ok(()), 200); // twice as slow as planned
    assert_eq!(waits(&progress, 200), [0, 200, 400]);
    progress.next_action(200).unwrap();
    assert_eq!(waits(&progress, 260), [0, 140, 340]);
    Ok(())
}

#[test]
fn a_report_that_begins_anew_tells_of_one_of_50_000_passes() -> Result<()> {
    let mut progress = Progress::new(vec![[0, 10]; 2]);
    let turns = [
        (Load, 0, Decode, 0),
        (Release, 0, Decode, 1),
        (Load, 1, Decode, 1),
        (Release, 1, Decode, 2),
    ];
    for pass in 0..50_000 {
        progress.begin_anew(timetable(2, &[Decode, Decode], &turns), pass)?;
        for block in [BlockId(0), BlockId(1)] {
            while progress.next_action(pass).is_some() {
                progress.action_over(Ok(()), pass);
            }
            assert_eq!(progress.enter(block, pass)?, Some(Decode));
            progress.leave(pass)?;
        }
    }
    while progress.next_action(50_000).is_some() {
        progress.action_over(Ok(()), 50_000);
    }
    let report = progress.finish(50_000)?.unwrap();
    assert_eq!(report.actual.runs.len(), 2);
    assert!(report.actual.actions.len() <= 2 * turns.len());
    assert_eq!(report.peak_bytes, 10);
    Ok(())
}

#[test]
fn who_waits_is_woken_where_all_that_is_left_is_done_already() {
    let mut state = State::new(Progress::new(vec![[1, 1]]));
    let load = || Timetable::immediate(1, Load, &[(BlockId(0), Prefill)]);
    state.begin(load(), 0).unwrap();
    while let NextAction::Begin(_) = state.next(0) {
        state.action_over(Ok(()), 0);
    }
    state.begin(load(), 0).unwrap();
    assert!(state.rest(0).unwrap().is_none());
    state.take_wakeups();
    assert_eq!(state.next(0), NextAction::Sleep);
    assert!(state.take_wakeups().waiting);
    assert!(state.rest(0).unwrap().is_some());
}
