//! How far a timetable has come. In: what compute and the store did, and when. Out: what the loader
//! does next, and under which graph compute goes on, or that it must wait. No thread, no lock, no
//! clock: those are the loader's.

use std::collections::VecDeque;

use super::deferral::{self, PreparedTimetable};
use super::report::{Activity, LoadReport, ReportBuilder};
use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

/// Where a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Loading,
    Loaded,
    Releasing,
}

#[derive(Clone, Debug)]
struct Block {
    graphs: [Presence; 2],
    num_bytes: [u64; 2],
    /// Released, and nothing loaded since: comes back where the load that follows fails.
    released: Option<Graph>,
    /// Why the last load failed, if it did.
    failure: Option<Error>,
}

impl Block {
    fn is_loaded(&self, graph: Graph) -> bool {
        self.graphs[graph.index()] == Presence::Loaded
    }

    fn held_bytes(&self) -> u64 {
        let held = self.graphs.iter().zip(self.num_bytes);
        held.filter(|(graph, _)| **graph != Presence::Absent).map(|(_, num_bytes)| num_bytes).sum()
    }
}

/// An action that has not begun.
#[derive(Clone, Debug)]
struct Pending {
    action: Action,
    /// Of a release: what `deferral::hidden_switch_us` says.
    switch_us: Option<u64>,
    /// Put off until this many runs are over, or compute stands still.
    deferred_until: usize,
}

/// The action that the loader is at.
#[derive(Clone, Debug)]
struct Current {
    planned: Action,
    start_us: u64,
}

/// The run that compute is at.
#[derive(Clone, Debug)]
struct Running {
    block: BlockId,
    graph: Graph,
    start_us: u64,
    /// Where it is one of the timetable's.
    planned: Option<Run>,
}

/// How far a timetable has come.
#[derive(Clone, Debug)]
pub struct Progress {
    blocks: Vec<Block>,
    runs: Vec<Run>,
    num_over: usize,
    running: Option<Running>,
    /// A run was abandoned, and compute may still leave it.
    was_abandoned: bool,
    pending: VecDeque<Pending>,
    current: Option<Current>,
    /// Compute waits within a call: that time is exposed.
    is_waiting: bool,
    /// Compute asked for a block that has no graph yet, and has entered nothing since. It may do
    /// something else meanwhile.
    stands_still: bool,
    is_cancelled: bool,
    report: ReportBuilder,
}

impl Progress {
    /// Nothing loaded, of blocks that hold so many bytes under G1 and G2.
    pub fn new(num_bytes: Vec<[u64; 2]>) -> Self {
        let report = ReportBuilder::new(num_bytes.len(), 0);
        let absent = [Presence::Absent; 2];
        let block = |num_bytes| Block { graphs: absent, num_bytes, released: None, failure: None };
        Self {
            blocks: num_bytes.into_iter().map(block).collect(),
            runs: Vec::new(),
            num_over: 0,
            running: None,
            was_abandoned: false,
            pending: VecDeque::new(),
            current: None,
            is_waiting: false,
            stands_still: false,
            is_cancelled: false,
            report,
        }
    }

    /// [`begin`](Self::begin), and a new report: what was done before is in none any more.
    pub fn begin_anew(
        &mut self,
        prepared: impl Into<PreparedTimetable>,
        now_us: u64,
    ) -> Result<()> {
        let prepared = prepared.into();
        self.check_idle()?;
        check(&prepared.timetable, self.blocks.len())?;
        self.sweep(now_us);
        self.report.close(self.held_bytes());
        self.begin(prepared, now_us)
    }

    /// Begins a timetable; what the last one left to load is carried out first.
    pub fn begin(&mut self, prepared: impl Into<PreparedTimetable>, now_us: u64) -> Result<()> {
        let PreparedTimetable { timetable, switch_us } = prepared.into();
        self.check_idle()?;
        check(&timetable, self.blocks.len())?;
        self.sweep(now_us);
        self.report.begin(now_us);
        (self.is_cancelled, self.was_abandoned, self.stands_still) = (false, false, false);
        for left in &mut self.pending {
            left.action.after_runs = 0;
            (left.switch_us, left.deferred_until) = (None, 0);
        }
        for block in &mut self.blocks {
            if Graph::BOTH.iter().any(|&graph| block.is_loaded(graph)) {
                block.failure = None;
            }
        }
        let pending = |(action, switch_us)| Pending { action, switch_us, deferred_until: 0 };
        self.pending.extend(timetable.actions.into_iter().zip(switch_us).map(pending));
        (self.runs, self.num_over) = (timetable.runs, 0);
        Ok(())
    }

    /// The action that the loader begins now, if there is one.
    pub fn next_action(&mut self, now_us: u64) -> Option<Action> {
        self.sweep(now_us);
        while let Some(&Pending { action: planned, .. }) = self.pending.front() {
            if planned.after_runs > self.num_over {
                break;
            }
            if self.is_moot(&planned) {
                self.pending.pop_front();
                continue;
            }
            if !self.may_begin(now_us) {
                break;
            }
            self.pending.pop_front();
            let (block, graph) = (&mut self.blocks[planned.block.index()], planned.graph.index());
            block.graphs[graph] = match planned.kind {
                ActionKind::Load => Presence::Loading,
                ActionKind::Release => Presence::Releasing,
            };
            self.report.held(self.held_bytes());
            self.current = Some(Current { planned, start_us: now_us });
            return Some(planned);
        }
        None
    }

    /// Whether the release of a graph would leave a block without any that has just failed to load
    /// the other; or the graph is where it is to be.
    fn is_moot(&self, action: &Action) -> bool {
        let block = &self.blocks[action.block.index()];
        let is_last = !block.is_loaded(action.graph.other()) && block.failure.is_some();
        match action.kind {
            ActionKind::Load => block.is_loaded(action.graph),
            ActionKind::Release => !block.is_loaded(action.graph) || is_last,
        }
    }

    /// Whether neither a run under the graph nor the rule for late loads is in the way of the
    /// first pending action.
    fn may_begin(&mut self, now_us: u64) -> bool {
        let running = self.running.as_ref();
        let Some(front) = self.pending.front_mut() else { return false };
        let action = &front.action;
        if action.kind == ActionKind::Load || self.stands_still {
            return true;
        }
        if running.is_some_and(|run| (run.block, run.graph) == (action.block, action.graph)) {
            return false;
        }
        if let Some(switch_us) = front.switch_us
            && front.deferred_until <= self.num_over
        {
            let running_us = running.map_or(0, |run| now_us.saturating_sub(run.start_us));
            let (runs, num_over) = (&self.runs, self.num_over);
            let until =
                deferral::put_off(action, switch_us, runs, num_over, running_us, &self.report);
            front.deferred_until = until.unwrap_or(0);
        }
        front.deferred_until <= self.num_over
    }

    /// The action that `next_action` gave is over.
    pub fn action_over(&mut self, outcome: std::result::Result<(), String>, now_us: u64) {
        self.sweep(now_us);
        let current = self.current.take();
        let Current { planned, start_us } = current.expect("an action is under way");
        let Action { kind, block, graph, .. } = planned;
        let state = &mut self.blocks[block.index()];
        state.graphs[graph.index()] = match (kind, &outcome) {
            (ActionKind::Load, Ok(())) => Presence::Loaded,
            _ => Presence::Absent,
        };
        match outcome {
            Ok(()) => {
                state.released = (kind == ActionKind::Release).then_some(graph);
                if kind == ActionKind::Load {
                    state.failure = None;
                }
                let after_runs = self.num_over;
                let action = Action { after_runs, start_us, end_us: now_us, ..planned };
                self.report.done(&planned, action);
            }
            Err(reason) => self.load_failed(planned, reason),
        }
    }

    /// Notes a failed load, and has the graph loaded again that was released for it.
    fn load_failed(&mut self, planned: Action, reason: String) {
        let Action { block, graph, .. } = planned;
        let error = Error::LoadFailed { block, graph, reason };
        let state = &mut self.blocks[block.index()];
        state.failure = Some(error.clone());
        self.report.failed(error);
        if state.released.take() == Some(graph.other()) && !self.is_cancelled {
            let action = Action { graph: graph.other(), after_runs: 0, ..planned };
            self.pending.push_front(Pending { action, switch_us: None, deferred_until: 0 });
        }
    }

    /// Compute is about to run `block`; returns the graph to run under, now pinned, or none where
    /// it must wait.
    pub fn enter(&mut self, block: BlockId, now_us: u64) -> Result<Option<Graph>> {
        self.check_not_running()?;
        check_block(block, self.blocks.len())?;
        let planned = self.runs.get(self.num_over).copied();
        if let Some(run) = planned.filter(|run| run.block != block) {
            return Err(Error::WrongBlock { got: block, expected: run.block });
        }
        self.sweep(now_us);
        let wanted = planned.map_or(Graph::Decode, |run| run.graph);
        let state = &self.blocks[block.index()];
        let graph = [wanted, wanted.other()].into_iter().find(|&graph| state.is_loaded(graph));
        self.stands_still = graph.is_none() && self.is_coming(block);
        self.is_waiting = self.stands_still;
        match graph {
            Some(graph) => {
                self.running = Some(Running { block, graph, start_us: now_us, planned });
                self.was_abandoned = false;
            }
            None if self.is_waiting => {}
            None => return Err(self.why_absent(block, wanted)),
        }
        Ok(graph)
    }

    /// Whether a graph of `block` will be loaded though compute does nothing until then.
    fn is_coming(&self, block: BlockId) -> bool {
        let loads = |action: &Action| action.kind == ActionKind::Load && action.block == block;
        let mut reachable = self.pending.iter().map(|pending| &pending.action);
        self.current.as_ref().is_some_and(|current| loads(&current.planned))
            || reachable.by_ref().take_while(|action| action.after_runs <= self.num_over).any(loads)
    }

    /// Microseconds until `block` has a graph: what the loads up to its own take, as planned and as
    /// much slower as others were. One that is late is expected to take as long again as it is late.
    pub fn wait_us(&self, block: BlockId, now_us: u64) -> u64 {
        let state = self.blocks.get(block.index());
        if state.is_none_or(|state| Graph::BOTH.iter().any(|&graph| state.is_loaded(graph))) {
            return 0;
        }
        let expected_us = |action: &Action| match action.kind {
            ActionKind::Load => self.report.load_slowdown.expect_us(action.duration_us()),
            ActionKind::Release => 0,
        };
        let left_us = |current: &Current| {
            expected_us(&current.planned).abs_diff(now_us.saturating_sub(current.start_us))
        };
        let is_last = |action: &Action| action.kind == ActionKind::Load && action.block == block;
        let current = self.current.as_ref().map(|current| (&current.planned, left_us(current)));
        let pending = self.pending.iter().map(|it| (&it.action, expected_us(&it.action)));
        let mut wait_us: u64 = 0;
        for (action, left_us) in current.into_iter().chain(pending) {
            wait_us = wait_us.saturating_add(left_us);
            if is_last(action) {
                break;
            }
        }
        wait_us
    }

    fn why_absent(&self, block: BlockId, graph: Graph) -> Error {
        if self.is_cancelled {
            return Error::LoadingCancelled;
        }
        let failure = self.blocks[block.index()].failure.clone();
        let reason = || "nothing loads it before its run".to_owned();
        failure.unwrap_or_else(|| Error::LoadFailed { block, graph, reason: reason() })
    }

    /// The run that was entered is over. Leaving one that was abandoned is nothing to do.
    pub fn leave(&mut self, now_us: u64) -> Result<()> {
        self.sweep(now_us);
        let Some(run) = self.running.take() else {
            let was_abandoned = std::mem::take(&mut self.was_abandoned);
            return was_abandoned.then_some(()).ok_or(Error::NothingRunning);
        };
        if let Some(planned) = run.planned {
            self.num_over = self.runs.len().min(self.num_over + 1); // there is none after a cancel
            let (graph, start_us, end_us) = (run.graph, run.start_us, now_us);
            self.report.ran(&planned, Run { graph, start_us, end_us, ..planned });
        }
        Ok(())
    }

    /// The run that was entered, if there is one, does not take place: its block is due again.
    pub fn abandon(&mut self, now_us: u64) {
        self.sweep(now_us);
        self.was_abandoned |= self.running.take().is_some();
    }

    /// Whether all is over, or none where that must be waited for.
    pub fn rest(&mut self, now_us: u64) -> Result<Option<()>> {
        self.check_idle()?;
        self.sweep(now_us);
        self.is_waiting = self.current.is_some() || !self.pending.is_empty();
        Ok((!self.is_waiting).then_some(()))
    }

    /// The report, once all is over; none where it must be waited for.
    pub fn finish(&mut self, now_us: u64) -> Result<Option<LoadReport>> {
        if self.rest(now_us)?.is_none() {
            return Ok(None);
        }
        self.is_cancelled = false;
        Ok(Some(self.report.close(self.held_bytes())))
    }

    /// Compute does something else until it asks again.
    pub fn stop_waiting(&mut self, now_us: u64) {
        self.sweep(now_us);
        self.is_waiting = false;
    }

    /// Forgets all runs but the one that compute is at, and all actions that have not begun.
    pub fn cancel(&mut self, now_us: u64) {
        self.sweep(now_us);
        self.pending.clear();
        self.runs.clear();
        self.num_over = 0;
        self.stands_still = false;
        self.is_cancelled = true;
        self.report.cancelled();
    }

    /// Whether an action has not begun.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Of each block, whether G1 and whether G2 can run.
    pub fn resident(&self) -> Vec<[bool; 2]> {
        self.blocks.iter().map(|block| Graph::BOTH.map(|graph| block.is_loaded(graph))).collect()
    }

    fn held_bytes(&self) -> u64 {
        self.blocks.iter().map(Block::held_bytes).sum()
    }

    fn check_not_running(&self) -> Result<()> {
        match &self.running {
            Some(running) => Err(Error::StillRunning { block: running.block }),
            None => Ok(()),
        }
    }

    /// Fails while a block is running, or runs are left.
    pub fn check_idle(&self) -> Result<()> {
        self.check_not_running()?;
        match self.runs.len() - self.num_over {
            0 => Ok(()),
            num_runs => Err(Error::RunsLeft { num_runs }),
        }
    }

    fn sweep(&mut self, now_us: u64) {
        let is_load = |current: &Current| current.planned.kind == ActionKind::Load;
        let activity = Activity {
            is_waiting: self.is_waiting,
            is_loading: self.current.as_ref().is_some_and(is_load),
            is_running: self.running.is_some(),
        };
        self.report.sweep(now_us, activity);
    }
}

fn check_block(block: BlockId, num_blocks: usize) -> Result<()> {
    if block.index() < num_blocks {
        return Ok(());
    }
    let (what, must) = ("the block", "one of the target's");
    Err(Error::BadOption { what, got: block.0.to_string(), must })
}

fn check(timetable: &Timetable, num_blocks: usize) -> Result<()> {
    let num_runs = timetable.runs.len();
    timetable.runs.iter().try_for_each(|run| check_block(run.block, num_blocks))?;
    for action in &timetable.actions {
        check_block(action.block, num_blocks)?;
        if action.after_runs > num_runs {
            let (got, must) = (action.after_runs.to_string(), "at most the number of runs");
            return Err(Error::BadOption { what: "after_runs", got, must });
        }
    }
    Ok(())
}
