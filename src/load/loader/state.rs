//! What stands under the loader's lock: how far the timetable is, who computes, whether it is
//! closed. In: what compute, the thread and their caller do. Out: answers, and who has to look
//! again. It neither waits nor wakes: so every order of calls can be tried (`tests/interleavings`).

use std::thread::ThreadId;

use super::deferral::PreparedTimetable;
use super::progress::Progress;
use super::report::LoadReport;
use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::load::timetable::Action;

/// Who has to look again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// The thread: there may be something to do.
    pub worker: bool,
    /// Those who wait: something was done.
    pub waiting: bool,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Carry this out, then tell that it is over.
    Begin(Action),
    /// Sleep until it is woken.
    Sleep,
    /// End.
    End,
}

/// What compute, the thread and their caller share.
#[derive(Clone, Debug)]
pub struct State {
    progress: Progress,
    /// Who entered a block last.
    compute: Option<ThreadId>,
    is_closed: bool,
    wake: Wakeups,
}

impl State {
    /// Open, with nothing done.
    pub fn new(progress: Progress) -> Self {
        Self { progress, compute: None, is_closed: false, wake: Wakeups::default() }
    }

    /// Who has to look again after the calls since the last time that this was asked.
    pub fn take_wakeups(&mut self) -> Wakeups {
        std::mem::take(&mut self.wake)
    }

    /// Begins a timetable.
    pub fn begin(&mut self, prepared: impl Into<PreparedTimetable>, now_us: u64) -> Result<()> {
        self.check_open()?;
        self.progress.begin(prepared, now_us)?;
        self.wake.worker = true;
        Ok(())
    }

    /// Begins a timetable, and a report.
    pub fn begin_anew(
        &mut self,
        prepared: impl Into<PreparedTimetable>,
        now_us: u64,
    ) -> Result<()> {
        self.check_open()?;
        self.progress.begin_anew(prepared, now_us)?;
        self.wake.worker = true;
        Ok(())
    }

    /// Fails where a timetable cannot begin now.
    pub fn check_ready(&self) -> Result<()> {
        self.progress.check_idle()?;
        self.check_open()
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed { Err(Error::LoadingCancelled) } else { Ok(()) }
    }

    /// The thread `who` is about to run `block`: its graph, or none where it must wait.
    pub fn enter(&mut self, block: BlockId, who: ThreadId, now_us: u64) -> Result<Option<Graph>> {
        let graph = self.progress.enter(block, now_us)?;
        match graph {
            Some(_) => self.compute = Some(who),
            None => self.wake.worker = true, // what was put off is due
        }
        Ok(graph)
    }

    /// Microseconds until `block` has a graph, as [`Progress::wait_us`] tells.
    pub fn wait_us(&self, block: BlockId, now_us: u64) -> u64 {
        self.progress.wait_us(block, now_us)
    }

    /// The run is over.
    pub fn leave(&mut self, now_us: u64) -> Result<()> {
        self.progress.leave(now_us)?;
        self.wake.worker |= self.progress.has_pending();
        Ok(())
    }

    /// The run that was entered, if there is one, does not take place.
    pub fn abandon(&mut self, now_us: u64) {
        self.progress.abandon(now_us);
        self.wake.worker |= self.progress.has_pending();
    }

    /// Whether all is over; none where that must be waited for.
    pub fn rest(&mut self, now_us: u64) -> Result<Option<()>> {
        let is_over = self.progress.rest(now_us)?;
        self.wake.worker |= is_over.is_none();
        Ok(is_over)
    }

    /// The report; none where it must be waited for.
    pub fn finish(&mut self, now_us: u64) -> Result<Option<LoadReport>> {
        let report = self.progress.finish(now_us)?;
        self.wake.worker |= report.is_none();
        Ok(report)
    }

    /// Nobody waits any longer within a call.
    pub fn stop_waiting(&mut self, now_us: u64) {
        self.progress.stop_waiting(now_us);
    }

    /// Forgets the runs that are left and the actions that have not begun; also the run that is
    /// going on, where it is one of `who`, the thread that cancels.
    pub fn cancel(&mut self, who: ThreadId, now_us: u64) {
        self.progress.cancel(now_us);
        if self.compute == Some(who) {
            self.progress.abandon(now_us);
        }
        self.wake.waiting = true;
    }

    /// Cancels all but a run that somebody is within, and lets the thread end.
    pub fn close(&mut self, now_us: u64) {
        self.progress.cancel(now_us);
        self.is_closed = true;
        self.wake = Wakeups { worker: true, waiting: true };
    }

    /// What the thread does next.
    pub fn next(&mut self, now_us: u64) -> NextAction {
        if self.is_closed {
            return NextAction::End;
        }
        match self.progress.next_action(now_us) {
            Some(action) => NextAction::Begin(action),
            None => {
                self.wake.waiting = true; // actions with nothing to do are over, too
                NextAction::Sleep
            }
        }
    }

    /// The action that `next` gave is over.
    pub fn action_over(&mut self, outcome: std::result::Result<(), String>, now_us: u64) {
        self.progress.action_over(outcome, now_us);
        self.wake.waiting = true;
    }

    /// Of each block, whether G1 and whether G2 can run.
    pub fn resident(&self) -> Vec<[bool; 2]> {
        self.progress.resident()
    }
}
