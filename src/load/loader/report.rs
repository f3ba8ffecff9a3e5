//! What carrying out a timetable came to. In: what went on between two moments. Out: a report.

use crate::error::Error;
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

/// What was done since the last report, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// The plan as it came to be: the runs of timetables and the actions that took place, with
    /// their true graphs and times in microseconds from the first `begin`. Failed loads, and
    /// actions that had nothing to do, are left out.
    pub actual: Timetable,
    /// Microseconds that compute waited for loads, in `enter` or for the last of them in `finish`.
    pub exposed_us: u64,
    /// Microseconds that loads took, failed ones included.
    pub busy_us: u64,
    /// Microseconds of these during which a block was running.
    pub overlap_us: u64,
    /// Most bytes held at one moment, graphs on their way in or out included.
    pub peak_bytes: u64,
    /// Runs under another graph than planned.
    pub num_under_other_graph: usize,
    /// Loads that failed, in their order.
    pub failures: Vec<Error>,
    /// Whether it was cancelled.
    pub is_cancelled: bool,
}

/// Planned against true durations of what is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowdown {
    planned_us: u64,
    actual_us: u64,
}

impl Slowdown {
    fn add(&mut self, planned_us: u64, actual_us: u64) {
        self.planned_us = self.planned_us.saturating_add(planned_us);
        self.actual_us += actual_us;
    }

    /// What to expect of something that is planned to take so long.
    pub fn expect_us(&self, planned_us: u64) -> u64 {
        if self.planned_us == 0 {
            return planned_us;
        }
        (planned_us as f64 * self.actual_us as f64 / self.planned_us as f64) as u64
    }
}

/// What goes on at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    /// Compute waits for a load.
    pub is_waiting: bool,
    /// A load is under way.
    pub is_loading: bool,
    /// A block is running.
    pub is_running: bool,
}

/// A report in the making.
#[derive(Clone, Debug)]
pub struct ReportBuilder {
    report: LoadReport,
    begun_us: Option<u64>,
    swept_us: u64,
    /// Of loads.
    pub load_slowdown: Slowdown,
    /// Of runs under their planned graph.
    pub run_slowdown: Slowdown,
}

impl ReportBuilder {
    /// Nothing done yet, `held_bytes` in memory.
    pub fn new(num_blocks: usize, held_bytes: u64) -> Self {
        let actual = Timetable { num_blocks, runs: Vec::new(), actions: Vec::new() };
        let report = LoadReport {
            actual,
            exposed_us: 0,
            busy_us: 0,
            overlap_us: 0,
            peak_bytes: held_bytes,
            num_under_other_graph: 0,
            failures: Vec::new(),
            is_cancelled: false,
        };
        let [load_slowdown, run_slowdown] = [Slowdown::default(); 2];
        Self { report, begun_us: None, swept_us: 0, load_slowdown, run_slowdown }
    }

    /// A timetable begins.
    pub fn begin(&mut self, now_us: u64) {
        self.begun_us.get_or_insert(now_us);
        [self.load_slowdown, self.run_slowdown] = [Slowdown::default(); 2];
        self.report.is_cancelled = false;
    }

    /// `activity` went on since the last sweep.
    pub fn sweep(&mut self, now_us: u64, activity: Activity) {
        let elapsed_us = now_us.saturating_sub(self.swept_us);
        self.swept_us = now_us;
        let report = &mut self.report;
        for (sum_us, applies) in [
            (&mut report.exposed_us, activity.is_waiting),
            (&mut report.busy_us, activity.is_loading),
            (&mut report.overlap_us, activity.is_loading && activity.is_running),
        ] {
            *sum_us += if applies { elapsed_us } else { 0 };
        }
    }

    /// So many bytes are held.
    pub fn held(&mut self, num_bytes: u64) {
        self.report.peak_bytes = self.report.peak_bytes.max(num_bytes);
    }

    /// A run is over that was `planned`; `run` says what it was.
    pub fn ran(&mut self, planned: &Run, run: Run) {
        if planned.graph == run.graph {
            self.run_slowdown.add(planned.duration_us(), run.duration_us());
        } else {
            self.report.num_under_other_graph += 1;
        }
        let (start_us, end_us) = (self.since_begin(run.start_us), self.since_begin(run.end_us));
        self.report.actual.runs.push(Run { start_us, end_us, ..run });
    }

    /// An action is over that was `planned`; `action` says when it took place.
    pub fn done(&mut self, planned: &Action, action: Action) {
        if action.kind == ActionKind::Load {
            self.load_slowdown.add(planned.duration_us(), action.duration_us());
        }
        let (start_us, end_us) =
            (self.since_begin(action.start_us), self.since_begin(action.end_us));
        self.report.actual.actions.push(Action { start_us, end_us, ..action });
    }

    /// A load failed.
    pub fn failed(&mut self, error: Error) {
        self.report.failures.push(error);
    }

    /// What remained was cancelled.
    pub fn cancelled(&mut self) {
        self.report.is_cancelled = true;
    }

    /// The report; a new one begins, with `held_bytes` in memory.
    pub fn close(&mut self, held_bytes: u64) -> LoadReport {
        let next = Self::new(self.report.actual.num_blocks, held_bytes);
        let swept_us = self.swept_us;
        let closed = std::mem::replace(self, Self { swept_us, ..next });
        closed.report
    }

    fn since_begin(&self, moment_us: u64) -> u64 {
        moment_us.saturating_sub(self.begun_us.unwrap_or(moment_us))
    }
}
