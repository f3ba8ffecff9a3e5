//! Laws of the loader under all orders in which compute, the thread, its store and those who cancel
//! or close may act, wake-ups included: every order of some small timetables, and random orders of
//! random ones, against a sequential twin.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::thread::{self, ThreadId};

use proptest::prelude::*;

use super::progress::Progress;
use super::state::{Next, State, Wake};
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
    /// The loader's thread, if it is awake, asks for its next action; or its store has done the one
    /// that it has.
    Loader,
    /// Compute enters the next run, or leaves it.
    Compute,
    /// Compute gives up the run that it is within.
    Abandon,
    /// Another thread cancels.
    Cancel,
    /// Compute cancels.
    GiveUp,
    /// Another thread closes.
    Close,
}

/// Where the loader's thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    Awake,
    Asleep,
    At(Action),
    Ended,
}

/// Where compute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compute {
    /// Between two runs; where it `polls`, perhaps after asking in vain.
    Free,
    Within(BlockId, Graph),
    /// Within `enter`, until it is woken.
    Asleep(BlockId),
    Woken(BlockId),
}

/// The loader's state with a thread, a store and a compute lane, moved one move at a time. Nobody
/// wakes by the clock: a wake-up that is missing leaves the machine standing still half-way.
#[derive(Clone, Debug)]
struct Machine {
    state: State,
    timetable: Timetable,
    held: Held,
    calls: Vec<(ActionKind, BlockId, Graph)>,
    /// Loads that fail, by number.
    fails: Vec<usize>,
    /// Whether compute asks again and again in place of waiting.
    polls: bool,
    has_polled: bool,
    worker: Worker,
    compute: Compute,
    num_over: usize,
    is_cancelled: bool,
    is_closed: bool,
    /// Time that a run takes, and nothing else: orders that end in the same place are one.
    run_us: u64,
    now_us: u64,
}

/// The threads of compute, and of whoever else cancels.
fn threads() -> [ThreadId; 2] {
    static IDS: OnceLock<[ThreadId; 2]> = OnceLock::new();
    *IDS.get_or_init(|| [(); 2].map(|()| thread::spawn(|| ()).thread().id()))
}

impl Machine {
    fn new(start: &Held, timetable: &Timetable, fails: &[usize]) -> Self {
        let mut state = State::new(Progress::new(vec![[1, 1]; timetable.num_blocks]));
        let loaded = start.iter().enumerate().flat_map(|(block, held)| {
            let block = BlockId(block as u32);
            Graph::BOTH
                .into_iter()
                .filter(|graph| held[graph.index()])
                .map(move |graph| (block, graph))
        });
        let loads = Timetable::immediate(timetable.num_blocks, Load, &loaded.collect::<Vec<_>>());
        state.begin(loads, 0).unwrap();
        while let Next::Begin(_) = state.next(0) {
            state.action_over(Ok(()), 0);
        }
        state.finish(0).unwrap().unwrap();
        state.take_wake();
        let mut machine = Self {
            state,
            timetable: timetable.clone(),
            held: start.clone(),
            calls: Vec::new(),
            fails: fails.to_vec(),
            polls: false,
            has_polled: false,
            worker: Worker::Asleep,
            compute: Compute::Free,
            num_over: 0,
            is_cancelled: false,
            is_closed: false,
            run_us: 0,
            now_us: 0,
        };
        machine.state.begin(timetable.clone(), 0).unwrap();
        machine.wake();
        machine
    }

    fn polling(self) -> Self {
        Self { polls: true, ..self }
    }

    /// With runs of half of their planned time.
    fn timed(self) -> Self {
        Self { run_us: 50, ..self }
    }

    /// Whether anything happened.
    fn apply(&mut self, next: Move) -> bool {
        let moved = match next {
            Move::Loader => self.loader(),
            Move::Compute => self.compute(),
            Move::Abandon => {
                self.state.abandon(self.now_us);
                self.stop_within()
            }
            Move::Cancel => {
                self.state.cancel(threads()[1], self.now_us);
                self.cancelled()
            }
            Move::GiveUp if matches!(self.compute, Compute::Free | Compute::Within(..)) => {
                self.state.cancel(threads()[0], self.now_us);
                self.stop_within();
                self.cancelled()
            }
            Move::GiveUp => false,
            Move::Close => {
                self.state.close(self.now_us);
                self.cancelled();
                !std::mem::replace(&mut self.is_closed, true)
            }
        };
        self.wake();
        moved
    }

    fn wake(&mut self) {
        let Wake { worker, waiting } = self.state.take_wake();
        if worker && self.worker == Worker::Asleep {
            self.worker = Worker::Awake;
        }
        if let (true, Compute::Asleep(block)) = (waiting, self.compute) {
            self.compute = Compute::Woken(block);
        }
    }

    fn stop_within(&mut self) -> bool {
        let is_within = matches!(self.compute, Compute::Within(..));
        if is_within {
            self.compute = Compute::Free;
        }
        is_within
    }

    fn cancelled(&mut self) -> bool {
        self.timetable.runs.truncate(self.num_over);
        !std::mem::replace(&mut self.is_cancelled, true)
    }

    fn loader(&mut self) -> bool {
        match self.worker {
            Worker::Asleep | Worker::Ended => return false,
            Worker::Awake => {
                self.worker = match self.state.next(self.now_us) {
                    Next::Begin(action) => Worker::At(action),
                    Next::Sleep => Worker::Asleep,
                    Next::End => Worker::Ended,
                };
                if let Worker::At(Action { kind, block, graph, after_runs, .. }) = self.worker {
                    assert!(!self.is_cancelled, "an action began after the cancellation");
                    assert!(after_runs <= self.num_over, "an action began too early");
                    let must_be = kind == Release;
                    let is_held = self.held[block.index()][graph.index()];
                    assert_eq!(is_held, must_be, "a useless action");
                    let in_use = self.compute == Compute::Within(block, graph);
                    assert!(!(must_be && in_use), "released while in use");
                }
            }
            Worker::At(Action { kind, block, graph, .. }) => {
                let num_loads = self.calls.iter().filter(|call| call.0 == Load).count();
                let outcome = match kind == Load && self.fails.contains(&num_loads) {
                    true => Err("told to fail".to_owned()),
                    false => Ok(()),
                };
                self.calls.push((kind, block, graph));
                self.held[block.index()][graph.index()] = kind == Load && outcome.is_ok();
                self.state.action_over(outcome, self.now_us);
                self.worker = Worker::Awake;
            }
        }
        true
    }

    fn compute(&mut self) -> bool {
        match self.compute {
            Compute::Within(..) => {
                self.now_us += self.run_us;
                self.state.leave(self.now_us).unwrap();
                self.num_over = self.timetable.runs.len().min(self.num_over + 1);
                self.compute = Compute::Free;
                true
            }
            Compute::Asleep(_) => false,
            Compute::Woken(block) => {
                self.enter(block);
                true
            }
            Compute::Free => {
                let next = self.timetable.runs.get(self.num_over).map(|run| run.block);
                next.is_some_and(|block| self.enter(block))
            }
        }
    }

    /// Whether anything happened.
    fn enter(&mut self, block: BlockId) -> bool {
        let planned = self.timetable.runs.get(self.num_over).map_or(Decode, |run| run.graph);
        let usable = Graph::BOTH.into_iter().filter(|&graph| {
            let released = matches!(self.worker, Worker::At(action)
                if (action.kind, action.block, action.graph) == (Release, block, graph));
            self.held[block.index()][graph.index()] && !released
        });
        let usable: Vec<Graph> = usable.collect();
        match self.state.enter(block, threads()[0], self.now_us) {
            Ok(Some(graph)) => {
                assert!(usable.contains(&graph), "entered under a graph that is not there");
                assert!(graph == planned || !usable.contains(&planned), "not as planned");
                self.compute = Compute::Within(block, graph);
                self.has_polled = false;
                true
            }
            Ok(None) => {
                assert!(usable.is_empty(), "waits though it could go on");
                if self.polls {
                    self.state.stop_waiting(self.now_us);
                } else {
                    self.compute = Compute::Asleep(block);
                }
                self.wake();
                let mut loader = self.clone();
                while loader.worker == Worker::Awake {
                    loader.loader();
                }
                let is_at_work = matches!(loader.worker, Worker::At(_));
                assert!(is_at_work, "waits though the loader does nothing");
                !std::mem::replace(&mut self.has_polled, self.polls)
            }
            Err(Error::LoadFailed { block: named, .. }) => {
                assert!(usable.is_empty() && named == block, "fails though it could go on");
                assert!(!self.is_cancelled, "another error than the cancellation");
                self.compute = Compute::Free;
                self.apply(Move::GiveUp)
            }
            Err(Error::LoadingCancelled) => {
                assert!(self.is_cancelled && usable.is_empty(), "not cancelled");
                self.compute = Compute::Free;
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Once nothing moves: all that could be done was, as the twin does it, and all have come home.
    fn check_end(mut self, start: &Held) {
        assert_eq!(self.compute, Compute::Free, "compute stands still half-way");
        let home = if self.is_closed { Worker::Ended } else { Worker::Asleep };
        assert_eq!(self.worker, home, "the thread stands still half-way");
        assert_eq!(self.num_over, self.timetable.runs.len(), "runs are left");
        assert_eq!(self.state.resident(), self.held);
        let (held, calls) =
            in_turn(start, &self.timetable.actions, |load| self.fails.contains(&load));
        if self.is_cancelled {
            assert_eq!(self.calls, calls[..self.calls.len()], "another order than planned");
        } else {
            assert_eq!((&self.held, &self.calls), (&held, &calls), "not what the plan says");
        }
        let report = self.state.finish(self.now_us).unwrap().expect("all is over");
        assert_eq!(report.is_cancelled, self.is_cancelled);
        assert_eq!(report.actual.actions.len() + report.failures.len(), self.calls.len());
        assert!(report.overlap_us <= report.busy_us);
        if self.is_closed {
            let refused = self.state.begin(self.timetable, self.now_us);
            assert_eq!(refused, Err(Error::LoadingCancelled));
        }
    }
}

/// Tries every order of moves from `machine` on, with any one of `interruptions` at any moment;
/// returns in how many ways it can stand.
fn every_order(machine: Machine, start: &Held, interruptions: &[Move]) -> usize {
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

/// A switch of block 0 that is put off where compute is ahead of the plan, with one of block 1
/// around it: block 1 loses its graph first, and gets the other last.
fn late_switches() -> (Held, Timetable) {
    let mut late = timetable(
        2,
        &[Prefill, Prefill, Decode, Decode, Decode, Decode, Decode],
        &[
            (Release, 1, Prefill, 2),
            (Release, 0, Prefill, 1),
            (Load, 0, Decode, 1),
            (Load, 1, Decode, 2),
        ],
    );
    for (index, run) in late.runs.iter_mut().enumerate() {
        (run.start_us, run.end_us) = (100 * index as u64, 100 * (index as u64 + 1));
    }
    for action in &mut late.actions {
        (action.start_us, action.end_us) = (100, if action.kind == Load { 200 } else { 100 });
    }
    (vec![ON_G1; 2], late)
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
