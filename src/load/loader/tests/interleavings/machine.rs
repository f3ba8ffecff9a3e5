//! The loader's state with a thread, a store and a compute lane, moved one move at a time.

use std::sync::OnceLock;
use std::thread::{self, ThreadId};

use super::timetables::{ResidentGraphs, in_turn};
use crate::error::Error;
use crate::ids::BlockId;
use crate::ids::Graph::{self, Decode};
use crate::load::loader::progress::Progress;
use crate::load::loader::state::{NextAction, State, Wakeups};
use crate::load::timetable::ActionKind::{self, Load, Release};
use crate::load::timetable::{Action, Timetable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
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
pub(super) enum Worker {
    Awake,
    Asleep,
    At(Action),
    Ended,
}

/// Where compute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compute {
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
pub(super) struct Machine {
    state: State,
    timetable: Timetable,
    held: ResidentGraphs,
    calls: Vec<(ActionKind, BlockId, Graph)>,
    /// Loads that fail, by number.
    fails: Vec<usize>,
    /// Whether compute asks again and again in place of waiting.
    polls: bool,
    has_polled: bool,
    worker: Worker,
    compute: Compute,
    num_over: usize,
    pub(super) is_cancelled: bool,
    is_closed: bool,
    /// Time that a run takes, and nothing else: orders that end in the same place are one.
    run_us: u64,
    now_us: u64,
}

/// The threads of compute, and of whoever else cancels.
pub(super) fn threads() -> [ThreadId; 2] {
    static IDS: OnceLock<[ThreadId; 2]> = OnceLock::new();
    *IDS.get_or_init(|| [(); 2].map(|()| thread::spawn(|| ()).thread().id()))
}

impl Machine {
    pub(super) fn new(start: &ResidentGraphs, timetable: &Timetable, fails: &[usize]) -> Self {
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
        while let NextAction::Begin(_) = state.next(0) {
            state.action_over(Ok(()), 0);
        }
        state.finish(0).unwrap().unwrap();
        state.take_wakeups();
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

    pub(super) fn polling(self) -> Self {
        Self { polls: true, ..self }
    }

    /// With runs of half of their planned time.
    pub(super) fn timed(self) -> Self {
        Self { run_us: 50, ..self }
    }

    /// Whether anything happened.
    pub(super) fn apply(&mut self, next: Move) -> bool {
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
        let Wakeups { worker, waiting } = self.state.take_wakeups();
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
                    NextAction::Begin(action) => Worker::At(action),
                    NextAction::Sleep => Worker::Asleep,
                    NextAction::End => Worker::Ended,
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
    pub(super) fn check_end(mut self, start: &ResidentGraphs) {
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
