//! The rule for late loads: a switch that would make its block's next run wait is put off until
//! that run is over, under the graph that is there. In: the plan, and how far both lanes have come.
//! Out: whether to put it off. It never reorders.
//!
//! A plan may hold switches that compute waits for, on purpose; so only a switch is put off that
//! the plan hides, and only when compute is further on than planned. The last run of a block has
//! no later chance before the answer begins, so it does wait.

use super::report::ReportBuilder;
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

/// A timetable that is about to be carried out, with what is asked of it again and again.
#[derive(Clone, Debug)]
pub struct PreparedTimetable {
    /// What is to be done.
    pub timetable: Timetable,
    /// Of each action, what [`hidden_switch_us`] says.
    pub switch_us: Vec<Option<u64>>,
}

impl From<Timetable> for PreparedTimetable {
    /// Cost: a pass over the runs for each release; so it is made before any lock is taken.
    fn from(timetable: Timetable) -> Self {
        let all = 0..timetable.actions.len();
        Self {
            switch_us: all.map(|index| hidden_switch_us(&timetable, index)).collect(),
            timetable,
        }
    }
}

/// Planned microseconds from the release at `index` to the end of the load that follows it, where
/// that ends before the block's next run; none otherwise.
pub fn hidden_switch_us(timetable: &Timetable, index: usize) -> Option<u64> {
    let release = &timetable.actions[index];
    if release.kind != ActionKind::Release {
        return None;
    }
    let same_block = |action: &&Action| action.block == release.block;
    let load = timetable.actions[index + 1..].iter().find(same_block)?;
    let of_block = |run: &&Run| run.block == release.block && run.start_us >= release.start_us;
    let next_run = timetable.runs.iter().find(of_block)?;
    let is_hidden = load.kind == ActionKind::Load && load.end_us <= next_run.start_us;
    // A timetable's clock need not hold, so its load may end before its release begins.
    load.end_us.checked_sub(release.start_us).filter(|_| is_hidden)
}

/// Number of runs after which to begin `release`, whose switch is planned to take `switch_us`;
/// none to begin it now. `num_over` runs are over and the next began `running_us` ago, if it did.
pub fn put_off(
    release: &Action,
    switch_us: u64,
    runs: &[Run],
    num_over: usize,
    running_us: u64,
    report: &ReportBuilder,
) -> Option<usize> {
    let planned_over = runs.partition_point(|run| run.end_us <= release.start_us);
    if num_over <= planned_over {
        return None;
    }
    let ahead = &runs[num_over..];
    let mut of_block = (0..ahead.len()).filter(|&index| ahead[index].block == release.block);
    let (next, _later) = (of_block.next()?, of_block.next()?);
    let planned_us = ahead[..next].iter().map(Run::duration_us).fold(0, u64::saturating_add);
    let left_us = report.run_slowdown.expect_us(planned_us).saturating_sub(running_us);
    (report.load_slowdown.expect_us(switch_us) > left_us).then_some(num_over + next + 1)
}

#[cfg(test)]
mod tests {
    use crate::ids::BlockId;
    use crate::ids::Graph::{Decode, Prefill};
    use crate::load::loader::progress::Progress;
    use crate::load::timetable::ActionKind::{Load, Release};
    use crate::load::timetable::{Action, Run, Timetable};

    const BLOCK: BlockId = BlockId(0);

    /// Two blocks of 100 us each over some chunks; behind its first run block 0 is switched in
    /// `load_us`.
    fn plan(num_chunks: usize, load_us: u64) -> Timetable {
        let run = |index: usize| Run {
            block: BlockId(index as u32 % 2),
            chunk: index / 2,
            graph: if index < 2 { Prefill } else { Decode },
            start_us: 100 * index as u64,
            end_us: 100 * (index + 1) as u64,
        };
        let release = Action {
            kind: Release,
            block: BLOCK,
            graph: Prefill,
            after_runs: 1,
            start_us: 100,
            end_us: 100,
        };
        let load = Action { kind: Load, graph: Decode, end_us: 100 + load_us, ..release };
        let runs = (0..2 * num_chunks).map(run).collect();
        Timetable { num_blocks: 2, runs, actions: vec![release, load] }
    }

    /// On G1, the first `num_over` runs done at the planned pace, and no action begun meanwhile.
    fn after_runs(plan: Timetable, num_over: u64) -> Progress {
        let mut progress = Progress::new(vec![[0, 0]; 2]);
        let all = [(BLOCK, Prefill), (BlockId(1), Prefill)];
        progress.begin(Timetable::immediate(2, Load, &all), 0).unwrap();
        while progress.next_action(0).is_some() {
            progress.action_over(Ok(()), 0);
        }
        progress.begin(plan, 0).unwrap();
        run(&mut progress, 0..num_over);
        progress
    }

    fn run(progress: &mut Progress, runs: std::ops::Range<u64>) {
        for index in runs {
            progress.enter(BlockId(index as u32 % 2), 100 * index).unwrap().unwrap();
            progress.leave(100 * (index + 1)).unwrap();
        }
    }

    #[test]
    fn a_load_that_ends_before_its_release_begins_is_no_hidden_switch() {
        let mut timetable = plan(3, 10);
        assert_eq!(super::hidden_switch_us(&timetable, 0), Some(10));
        timetable.actions[0].start_us = 150;
        assert_eq!(super::hidden_switch_us(&timetable, 0), None);
    }

    #[test]
    fn a_switch_on_time_begins() {
        assert!(after_runs(plan(3, 100), 1).next_action(100).is_some());
    }

    #[test]
    fn a_late_switch_is_put_off_until_its_block_has_run() {
        let mut progress = after_runs(plan(3, 100), 2);
        assert_eq!(progress.next_action(200), None);
        run(&mut progress, 2..3);
        assert_eq!(progress.next_action(300).unwrap().kind, Release);
    }

    #[test]
    fn a_late_switch_that_still_fits_is_not_put_off() {
        let mut progress = after_runs(plan(3, 40), 1);
        progress.enter(BlockId(1), 100).unwrap();
        assert!(progress.next_action(150).is_some());
    }

    #[test]
    fn before_its_blocks_last_run_a_late_switch_begins() {
        assert!(after_runs(plan(3, 100), 4).next_action(400).is_some());
    }

    #[test]
    fn a_switch_that_the_plan_does_not_hide_is_never_put_off() {
        assert!(after_runs(plan(3, 101), 2).next_action(200).is_some());
    }

    #[test]
    fn what_was_put_off_is_due_when_compute_stands_still() {
        let mut timetable = plan(4, 100);
        let release = Action { block: BlockId(1), after_runs: 2, ..timetable.actions[0] };
        let load = Action { block: BlockId(1), after_runs: 2, ..timetable.actions[1] };
        // Block 1 loses its graph first, and is to get the other behind the switch of block 0.
        timetable.actions.insert(0, release);
        timetable.actions.push(load);
        let mut progress = after_runs(timetable, 0);
        for index in 0..2 {
            progress.enter(BlockId(index), 50 * u64::from(index)).unwrap();
            progress.leave(50 * u64::from(index + 1)).unwrap(); // at twice the planned pace
        }
        assert_eq!(progress.next_action(100).unwrap().block, BlockId(1));
        progress.action_over(Ok(()), 100);
        assert_eq!(progress.next_action(100), None);
        progress.enter(BLOCK, 100).unwrap();
        progress.leave(150).unwrap();
        assert_eq!(progress.next_action(150), None);
        assert_eq!(progress.enter(BlockId(1), 150), Ok(None));
        progress.stop_waiting(150); // compute does something else, and will ask again
        assert_eq!(progress.next_action(150).unwrap().block, BLOCK);
    }
}
