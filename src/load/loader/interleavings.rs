//! Laws of `Progress` under all orders in which compute, the store and a canceller may act: every
//! order of some small timetables, and random orders of random ones, against a sequential twin.

use proptest::prelude::*;

use super::progress::Progress;
use crate::error::{Error, Result};
use crate::ids::BlockId;
use crate::ids::Graph::{self, Decode, Prefill};
use crate::load::timetable::ActionKind::{self, Load, Release};
use crate::load::timetable::{Action, Run, Timetable};

type Held = Vec<[bool; 2]>;

/// Chunks of all blocks in turn, under the graph that each is planned to have.
fn timetable(
    num_blocks: usize,
    runs: &[Graph],
    actions: &[(ActionKind, u32, Graph, usize)],
) -> Timetable {
    let run = |(index, &graph): (usize, &Graph)| Run {
        block: BlockId((index % num_blocks) as u32),
        chunk: index / num_blocks,
        graph,
        start_us: 0,
        end_us: 0,
    };
    let action = |&(kind, block, graph, after_runs): &(ActionKind, u32, Graph, usize)| Action {
        kind,
        block: BlockId(block),
        graph,
        after_runs,
        start_us: 0,
        end_us: 0,
    };
    Timetable {
        num_blocks,
        runs: runs.iter().enumerate().map(run).collect(),
        actions: actions.iter().map(action).collect(),
    }
}

/// The naive twin: all actions one after another, the runs left out. Returns what is held in the end
/// and the calls that the store got; load number `n` fails where `fails(n)`.
fn in_turn(
    start: &Held,
    actions: &[Action],
    fails: impl Fn(usize) -> bool,
) -> (Held, Vec<(ActionKind, BlockId, Graph)>) {
    let (mut held, mut calls, mut num_loads) = (start.clone(), Vec::new(), 0);
    let (mut released, mut failed) = (vec![None; held.len()], vec![false; held.len()]);
    let mut todo: std::collections::VecDeque<_> =
        actions.iter().map(|action| (action.kind, action.block, action.graph)).collect();
    while let Some((kind, block, graph)) = todo.pop_front() {
        let (own, other) = (block.index(), graph.other());
        let is_held = held[own][graph.index()];
        let is_last = failed[own] && !held[own][other.index()];
        match kind {
            Load if !is_held => {
                calls.push((kind, block, graph));
                held[own][graph.index()] = !fails(num_loads);
                failed[own] = fails(num_loads);
                if fails(num_loads) && released[own] == Some(other) {
                    todo.push_front((Load, block, other));
                }
                released[own] = None;
                num_loads += 1;
            }
            Release if is_held && !is_last => {
                calls.push((kind, block, graph));
                held[own][graph.index()] = false;
                released[own] = Some(graph);
            }
            _ => {}
        }
    }
    (held, calls)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// The loader asks for its next action, or the store has done the one it has.
    Loader,
    /// Compute enters the next run, or leaves it.
    Compute,
    /// Compute gives up the run that it is within.
    Abandon,
    Cancel,
}

/// A progress with a store and a compute lane, moved one move at a time.
#[derive(Clone, Debug)]
struct Machine {
    progress: Progress,
    timetable: Timetable,
    held: Held,
    calls: Vec<(ActionKind, BlockId, Graph)>,
    /// Loads that fail, by number.
    fails: Vec<usize>,
    current: Option<Action>,
    running: Option<(BlockId, Graph)>,
    num_over: usize,
    is_waiting: bool,
    is_cancelled: bool,
    moment: u64,
}

impl Machine {
    fn new(start: &Held, timetable: &Timetable, fails: &[usize]) -> Self {
        let mut progress = Progress::new(vec![[1, 1]; timetable.num_blocks]);
        let loaded = start.iter().enumerate().flat_map(|(block, held)| {
            let block = BlockId(block as u32);
            Graph::BOTH
                .into_iter()
                .filter(|graph| held[graph.index()])
                .map(move |graph| (block, graph))
        });
        let loads = Timetable::immediate(timetable.num_blocks, Load, &loaded.collect::<Vec<_>>());
        progress.begin(loads, 0).unwrap();
        while progress.next_action(0).is_some() {
            progress.action_over(Ok(()), 0);
        }
        progress.finish(0).unwrap().unwrap();
        progress.begin(timetable.clone(), 0).unwrap();
        Self {
            progress,
            timetable: timetable.clone(),
            held: start.clone(),
            calls: Vec::new(),
            fails: fails.to_vec(),
            current: None,
            running: None,
            num_over: 0,
            is_waiting: false,
            is_cancelled: false,
            moment: 0,
        }
    }

    /// Whether anything happened.
    fn apply(&mut self, next: Move) -> bool {
        self.moment += 1;
        match next {
            Move::Loader => self.loader(),
            Move::Compute => self.compute(),
            Move::Abandon => {
                self.progress.abandon(self.moment);
                self.running.take().is_some()
            }
            Move::Cancel => {
                self.progress.cancel(self.moment);
                self.timetable.runs.truncate(self.num_over);
                !std::mem::replace(&mut self.is_cancelled, true)
            }
        }
    }

    fn loader(&mut self) -> bool {
        let Some(action) = self.current.take() else {
            self.current = self.progress.next_action(self.moment);
            if let Some(Action { kind, block, graph, after_runs, .. }) = self.current {
                assert!(!self.is_cancelled, "an action began after the cancellation");
                assert!(after_runs <= self.num_over, "an action began too early");
                let must_be = kind == Release;
                assert_eq!(self.held[block.index()][graph.index()], must_be, "a useless action");
                assert!(
                    !(must_be && self.running == Some((block, graph))),
                    "released while in use"
                );
            }
            return self.current.is_some();
        };
        let Action { kind, block, graph, .. } = action;
        let num_loads = self.calls.iter().filter(|call| call.0 == Load).count();
        let outcome = match kind == Load && self.fails.contains(&num_loads) {
            true => Err("told to fail".to_owned()),
            false => Ok(()),
        };
        self.calls.push((kind, block, graph));
        self.held[block.index()][graph.index()] = kind == Load && outcome.is_ok();
        self.progress.action_over(outcome, self.moment);
        true
    }

    fn compute(&mut self) -> bool {
        if self.running.take().is_some() {
            self.progress.leave(self.moment).unwrap();
            self.num_over += 1;
            return true;
        }
        let Some(run) = self.timetable.runs.get(self.num_over) else { return false };
        let block = run.block;
        let held = self.held[block.index()];
        let usable = Graph::BOTH.into_iter().filter(|&graph| {
            let being_released = |action: &Action| {
                (action.kind, action.block, action.graph) == (Release, block, graph)
            };
            held[graph.index()] && !self.current.as_ref().is_some_and(being_released)
        });
        let usable: Vec<Graph> = usable.collect();
        match self.progress.enter(block, self.moment) {
            Ok(Some(graph)) => {
                assert!(usable.contains(&graph), "entered under a graph that is not there");
                assert!(graph == run.graph || !usable.contains(&run.graph), "not as planned");
                self.running = Some((block, graph));
                self.is_waiting = false;
                true
            }
            Ok(None) => {
                assert!(usable.is_empty(), "waits though it could go on");
                let has_begun = !std::mem::replace(&mut self.is_waiting, true);
                let mut loader = self.clone();
                assert!(loader.loader(), "waits though the loader has nothing to do");
                has_begun
            }
            Err(Error::LoadFailed { block: named, .. }) => {
                assert!(usable.is_empty() && named == block, "fails though it could go on");
                self.apply(Move::Cancel)
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Once nothing moves: all that could be done was, as the twin does it.
    fn check_end(mut self, start: &Held) {
        let is_still = self.running.is_none() && self.current.is_none() && !self.loader();
        assert!(is_still, "stands still half-way");
        assert_eq!(self.progress.resident(), self.held);
        let (held, calls) =
            in_turn(start, &self.timetable.actions, |load| self.fails.contains(&load));
        if self.is_cancelled {
            assert_eq!(self.calls, calls[..self.calls.len()], "another order than planned");
        } else {
            assert_eq!((&self.held, &self.calls), (&held, &calls), "not what the plan says");
        }
        let report = self.progress.finish(self.moment).unwrap().expect("all is over");
        assert_eq!(report.is_cancelled, self.is_cancelled);
        assert_eq!(report.actual.runs.len(), self.num_over);
        assert_eq!(report.actual.actions.len() + report.failures.len(), self.calls.len());
        assert!(report.overlap_us <= report.busy_us);
    }
}

/// Tries every order of moves from `machine` on, and counts them.
fn every_order(machine: &Machine, start: &Held, may_cancel: bool) -> usize {
    let mut num_ends = 0;
    let mut moved = false;
    for next in [Move::Loader, Move::Compute] {
        let mut after = machine.clone();
        if after.apply(next) {
            moved = true;
            num_ends += every_order(&after, start, may_cancel);
        }
    }
    if may_cancel && !machine.is_cancelled {
        let mut after = machine.clone();
        after.apply(Move::Cancel);
        num_ends += every_order(&after, start, false);
    }
    if !moved {
        machine.clone().check_end(start);
        num_ends += 1;
    }
    num_ends
}

const ON_G1: [bool; 2] = [true, false];
const ON_G2: [bool; 2] = [false, true];

fn small_timetables() -> Vec<(Held, Timetable)> {
    let release_first = timetable(
        2,
        &[Prefill, Prefill, Prefill, Decode],
        &[
            (Release, 1, Prefill, 2),
            (Load, 1, Decode, 2),
            (Release, 0, Prefill, 3),
            (Load, 0, Decode, 3),
        ],
    );
    let make_before_break = timetable(
        2,
        &[Prefill, Prefill, Prefill, Decode],
        &[
            (Load, 1, Decode, 0),
            (Release, 1, Prefill, 2),
            (Load, 0, Decode, 0),
            (Release, 0, Prefill, 3),
        ],
    );
    let cold = timetable(
        2,
        &[Prefill, Prefill],
        &[
            (Load, 0, Prefill, 0),
            (Load, 1, Prefill, 0),
            (Release, 0, Prefill, 1),
            (Load, 0, Decode, 1),
        ],
    );
    let way_back = timetable(
        2,
        &[Decode, Prefill, Prefill, Decode],
        &[
            (Release, 1, Decode, 0),
            (Load, 1, Prefill, 0),
            (Release, 1, Prefill, 2),
            (Load, 1, Decode, 2),
        ],
    );
    let streaming = timetable(
        2,
        &[Decode, Decode, Decode],
        &[
            (Load, 1, Decode, 0),
            (Release, 0, Decode, 1),
            (Load, 0, Decode, 1),
            (Release, 1, Decode, 2),
        ],
    );
    vec![
        (vec![ON_G1; 2], release_first),
        (vec![ON_G1; 2], make_before_break),
        (vec![[false; 2]; 2], cold),
        (vec![ON_G2; 2], way_back),
        (vec![ON_G2, [false; 2]], streaming),
    ]
}

#[test]
fn every_order_of_moves_ends_as_planned_whatever_fails() {
    for (start, timetable) in small_timetables() {
        for fails in [&[][..], &[0], &[1], &[0, 1], &[0, 1, 2, 3]] {
            let machine = Machine::new(&start, &timetable, fails);
            assert!(every_order(&machine, &start, false) > 1);
        }
    }
}

#[test]
fn cancelling_at_any_moment_keeps_what_is_done() {
    for (start, timetable) in small_timetables() {
        for fails in [&[][..], &[0]] {
            every_order(&Machine::new(&start, &timetable, fails), &start, true);
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
    ) -> (Held, Timetable) {
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
    ) {
        let mut machine = Machine::new(&start, &timetable, &fails);
        for next in moves {
            machine.apply(match next {
                39 => Move::Cancel,
                38 => Move::Abandon,
                _ if next % 2 == 0 => Move::Loader,
                _ => Move::Compute,
            });
        }
        while machine.apply(Move::Loader) || machine.apply(Move::Compute) {}
        machine.check_end(&start);
    }
}

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
