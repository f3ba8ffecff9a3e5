//! Carries out a timetable beside compute. In: a timetable, and what compute enters and leaves. Out:
//! calls to a store on a thread of its own, the graph to run each block under, and a report. What
//! is done next is decided in `progress`, what is put off in `deferral`, who is woken in `state`; here
//! are the lock, the clock and the thread, for which `lane` may stand.

mod deferral;
mod lane;
mod progress;
mod report;
mod state;
#[cfg(test)]
mod tests;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::deferral::PreparedTimetable;
use self::lane::Lane;
pub use self::lane::{LoadTimes, SimulatedClock};
use self::progress::Progress;
pub use self::report::LoadReport;
use self::state::{NextAction, State, Wakeups};
pub use self::worker::Worker;
use super::BlockStore;
use super::timetable::{Action, ActionKind, Timetable};
use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::locks;

/// How often a store is asked whether to go on waiting.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Loads and releases graphs on its own thread while compute runs blocks.
///
/// The order of the timetable holds, its clock does not:
///
/// - Actions keep their order; each waits until its `after_runs` runs are over. Loading what is
///   loaded and releasing what is not is nothing to do.
/// - A release waits for a run under its graph.
/// - A run whose planned graph is not there goes on under the block's other graph, unless that is
///   being released; then it waits. A switch that is late is put off until its block has run.
/// - A load that fails: the graph that was released for it is loaded again, a release that would
///   leave the block with nothing is left out, and all other actions take place. A block with
///   nothing loaded is an error of [`enter`](Self::enter), which never waits for what will not come.
///
/// Compute is one lane: it enters a block, runs it, and leaves it. A run behind the timetable's last
/// is a decode step: planned under G2.
///
/// Dropping it closes it, see [`close`](Self::close). Whatever waits here fails with
/// `WaitInterrupted` where the store says so; the loader goes on. A store that begins or
/// waits for something within a load or a release fails with `WithinAction`: that would have to end first.
///
/// In a fork of its process the thread does not exist, and the lock may be anybody's: there every
/// call fails with `Forked` or, where it cannot fail, does nothing.
///
/// # Cost
/// `begin`: a pass over the runs for each release. `enter` and `leave`: a lock, the process's id, and
/// a wake-up where the loader has something to do.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use coordgen_rs::{BlockId, Graph};
/// use coordgen_rs::load::BlockStore;
/// use coordgen_rs::load::loader::Loader;
/// use coordgen_rs::load::timetable::{ActionKind, Timetable};
///
/// struct Nothing;
/// impl BlockStore for Nothing {
///     fn load(&self, _: BlockId, _: Graph) -> Result<(), String> {
///         Ok(())
///     }
///     fn release(&self, _: BlockId, _: Graph) {}
/// }
///
/// let loader = Loader::new(Arc::new(Nothing), vec![[0, 0]])?;
/// let block = BlockId(0);
/// loader.begin(Timetable::immediate(1, ActionKind::Load, &[(block, Graph::Prefill)]))?;
/// assert_eq!(loader.enter(block)?, Graph::Prefill); // G2 would be planned, but is not there
/// loader.leave()?;
/// assert!(loader.finish()?.failures.is_empty());
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
pub struct Loader {
    store: Arc<dyn BlockStore>,
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    num_blocks: usize,
}

struct Shared {
    state: Mutex<State>,
    /// There may be something to do.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    created: Instant,
    /// Stands for the thread and the clock.
    lane: Option<Lane>,
}

impl Loader {
    /// A loader over a target of as many blocks as `num_bytes` has entries: the bytes that each
    /// holds under G1 and G2, for the report, or 0. Nothing is loaded yet. Fails where the system
    /// gives no thread.
    pub fn new(store: Arc<dyn BlockStore>, num_bytes: Vec<[u64; 2]>) -> Result<Self> {
        let num_blocks = num_bytes.len();
        let shared = Arc::new(Shared::new(num_bytes, None));
        let (of_worker, its_store) = (Arc::clone(&shared), Arc::clone(&store));
        let worker = Arc::new(Worker::start(move || of_worker.work(&*its_store))?);
        Ok(Self { store, shared, worker, num_blocks })
    }

    /// A loader without a thread, whose loads take `load_us` on `clock`: who waits advances it to
    /// the end of the load, who runs a block by what the run takes. The store is called within the
    /// calls to the loader, on their thread, which is to be one.
    pub fn simulated(
        store: Arc<dyn BlockStore>,
        num_bytes: Vec<[u64; 2]>,
        clock: Arc<SimulatedClock>,
        load_us: LoadTimes,
    ) -> Self {
        let num_blocks = num_bytes.len();
        let shared = Arc::new(Shared::new(num_bytes, Some(Lane::new(clock, load_us))));
        Self { store, shared, worker: Arc::new(Worker::none()), num_blocks }
    }

    /// Its thread, to wait for where the loader itself is gone.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Begins a timetable. What an earlier one has left to load is carried out first, so a step's
    /// timetable may load for the next step.
    ///
    /// Fails while runs of an earlier one are left, when it names a block that there is not or waits
    /// for more runs than it has, and after `close`.
    pub fn begin(&self, timetable: Timetable) -> Result<()> {
        self.check_caller()?;
        let prepared = PreparedTimetable::from(timetable);
        self.change(|state, now_us| state.begin(prepared, now_us))?
    }

    /// [`begin`](Self::begin), and a new report: what was done before is in none any more.
    pub fn begin_anew(&self, timetable: Timetable) -> Result<()> {
        self.check_caller()?;
        let prepared = PreparedTimetable::from(timetable);
        self.change(|state, now_us| state.begin_anew(prepared, now_us))?
    }

    /// Fails where [`begin`](Self::begin) would fail now, whatever the timetable.
    pub fn check_ready(&self) -> Result<()> {
        self.check_caller()?;
        self.change(|state, _| state.check_ready())?
    }

    /// Says that compute is about to run `block`, and returns the graph to run it under, which stays
    /// until [`leave`](Self::leave). Waits where it must.
    ///
    /// Fails when another block is running or due, when the block has no graph and none will come,
    /// and when what it waits for is cancelled.
    pub fn enter(&self, block: BlockId) -> Result<Graph> {
        let who = thread::current().id();
        self.wait(|state, now_us| state.enter(block, who, now_us))
    }

    /// [`enter`](Self::enter) for a caller who does something else meanwhile: none, and nothing
    /// entered, where it would wait. Until the next call that enters, compute counts as standing
    /// still, so that what was put off for its sake is carried out.
    pub fn try_enter(&self, block: BlockId) -> Result<Option<Graph>> {
        let who = thread::current().id();
        self.wait_within(Duration::ZERO, |state, now_us| state.enter(block, who, now_us))
    }

    /// Microseconds until `block` has a graph, as far as can be told.
    pub fn wait_us(&self, block: BlockId) -> Result<u64> {
        self.change(|state, now_us| state.wait_us(block, now_us))
    }

    /// Says that the run is over. Fails when nothing was entered; a run that was given up may be
    /// left once.
    pub fn leave(&self) -> Result<()> {
        self.change(State::leave)?
    }

    /// Gives up the run that was entered, if there is one: it does not take place, and its block is
    /// the next to enter.
    pub fn abandon(&self) {
        let _ = self.change(State::abandon); // a fork has entered nothing
    }

    /// Waits until nothing is left to load. Fails while runs are left.
    pub fn rest(&self) -> Result<()> {
        self.wait(State::rest)
    }

    /// Waits until nothing is left to load, and reports on all since the last report. Fails while
    /// runs are left.
    pub fn finish(&self) -> Result<LoadReport> {
        self.wait(State::finish)
    }

    /// Forgets the runs that are left and the actions that have not begun. The one under way is
    /// carried out and counts; a wait for another one fails.
    ///
    /// A thread that cancels while it is within a run gives that run up, too. A run on another
    /// thread goes on, and its graph stays until it is left.
    pub fn cancel(&self) {
        let who = thread::current().id();
        let _ = self.change(|state, now_us| state.cancel(who, now_us)); // a fork has begun nothing
    }

    /// Of each block, whether G1 and whether G2 can run: in a fork, none.
    pub fn resident(&self) -> Vec<[bool; 2]> {
        let resident = self.change(|state, _| state.resident());
        resident.unwrap_or_else(|_| vec![[false; 2]; self.num_blocks])
    }

    /// Cancels, and ends the thread when the action under way is over; waits for that unless called
    /// within that action: then [`Worker::join`] does, elsewhere. What is loaded stays with the
    /// store, and can be run.
    pub fn close(&self) {
        if self.change(State::close).is_ok() {
            self.worker.join();
        }
    }

    /// Fails in a fork of the loader's process.
    pub fn check_process(&self) -> Result<()> {
        self.worker.check_process()
    }

    /// Fails in a fork, and within a load or a release.
    fn check_caller(&self) -> Result<()> {
        self.check_process()?;
        let on_lane = self.shared.lane.as_ref().is_some_and(Lane::is_performing);
        if on_lane || self.worker.is_current() { Err(Error::WithinAction) } else { Ok(()) }
    }

    /// For tests: calls `call` while the lock is held.
    #[cfg(feature = "python")]
    pub(crate) fn while_held<T>(&self, call: impl FnOnce() -> T) -> T {
        let _held = self.shared.lock();
        call()
    }

    /// Makes a change, and wakes those whom it concerns. Fails in a fork.
    fn change<T>(&self, change: impl FnOnce(&mut State, u64) -> T) -> Result<T> {
        self.check_process()?;
        self.catch_up();
        let mut state = self.shared.lock();
        let changed = change(&mut state, self.shared.now_us());
        self.shared.wake(&mut state);
        drop(state);
        self.catch_up();
        Ok(changed)
    }

    /// Where a lane stands for the thread: has it do what is due.
    fn catch_up(&self) {
        if let Some(lane) = &self.shared.lane {
            lane.catch_up(&self.shared, &*self.store);
        }
    }

    fn wait<T>(&self, ask: impl Fn(&mut State, u64) -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(answer) = self.wait_within(ASK_INTERVAL, &ask)? {
                return Ok(answer);
            }
            if !self.store.keep_waiting() {
                return Err(Error::WaitInterrupted);
            }
        }
    }

    fn wait_within<T>(
        &self,
        patience: Duration,
        ask: impl Fn(&mut State, u64) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.check_caller()?;
        self.catch_up();
        let shared = &self.shared;
        let mut until_us = shared.now_us() + patience.as_micros() as u64;
        let mut state = shared.lock();
        loop {
            let now_us = shared.now_us();
            let asked = ask(&mut state, now_us);
            shared.wake(&mut state);
            if let Some(answer) = asked? {
                return Ok(Some(answer));
            }
            if now_us >= until_us {
                state.stop_waiting(now_us);
                return Ok(None);
            }
            if let Some(lane) = &shared.lane {
                drop(state);
                self.catch_up(); // what was put off
                if !lane.pass_time() {
                    until_us = now_us; // all is done that may be: it is asked once more
                }
                self.catch_up();
                state = shared.lock();
                continue;
            }
            let left = Duration::from_micros(until_us - now_us);
            state = shared
                .done
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn new(num_bytes: Vec<[u64; 2]>, lane: Option<Lane>) -> Self {
        Self {
            state: Mutex::new(State::new(Progress::new(num_bytes))),
            work: Condvar::new(),
            done: Condvar::new(),
            created: Instant::now(),
            lane,
        }
    }

    /// Never held while the store works.
    fn lock(&self) -> MutexGuard<'_, State> {
        locks::lock(&self.state)
    }

    /// [`lock`](Self::lock) for the thread, which holds nothing that others need.
    fn lock_as_worker(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        let real_us = || self.created.elapsed().as_micros() as u64;
        self.lane.as_ref().map_or_else(real_us, Lane::now_us)
    }

    /// Wakes those who have to look again.
    fn wake(&self, state: &mut State) {
        let Wakeups { worker, waiting } = state.take_wakeups();
        if worker {
            self.work.notify_one();
        }
        if waiting {
            self.done.notify_all();
        }
    }

    /// The thread: takes an action, does it, says what came of it.
    fn work(&self, store: &dyn BlockStore) {
        while let Some(action) = self.next_action() {
            let outcome = perform(store, &action);
            let mut state = self.lock_as_worker();
            state.action_over(outcome, self.now_us());
            self.wake(&mut state);
        }
    }

    /// The next action, when there is one; none when the loader closes.
    fn next_action(&self) -> Option<Action> {
        let mut state = self.lock_as_worker();
        loop {
            let next = state.next(self.now_us());
            self.wake(&mut state);
            match next {
                NextAction::Begin(action) => return Some(action),
                NextAction::End => return None,
                NextAction::Sleep => {
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn perform(store: &dyn BlockStore, action: &Action) -> std::result::Result<(), String> {
    let Action { kind, block, graph, .. } = *action;
    let called = catch_unwind(AssertUnwindSafe(|| match kind {
        ActionKind::Load => store.load(block, graph),
        ActionKind::Release => {
            store.release(block, graph);
            Ok(())
        }
    }));
    match (called, kind) {
        (Ok(outcome), _) => outcome,
        (Err(_), ActionKind::Release) => Ok(()),
        (Err(panic), ActionKind::Load) => {
            let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("the store panicked: {}", said.unwrap_or_default()))
        }
    }
}
