//! Carries out a timetable beside compute. In: a timetable, and what compute enters and leaves. Out:
//! calls to a store on a thread of its own, the graph to run each block under, and a report. What
//! is done next is decided in `progress`, what is put off in `late`; here are the lock, the clock
//! and the thread.

mod account;
#[cfg(test)]
mod interleavings;
mod late;
mod progress;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

pub use self::account::LoadReport;
use self::progress::Progress;
use super::block_store::BlockStore;
use super::timetable::{Action, ActionKind, Timetable};
use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};

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
/// `WaitInterrupted` where the store says so; the loader goes on.
///
/// # Cost
/// `begin`: a pass over the runs for each release. `enter` and `leave`: a lock, and a wake-up where
/// the loader has something to do.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use coordgen_rs::{BlockId, Graph};
/// use coordgen_rs::load::block_store::BlockStore;
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
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There may be something to do.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    created: Instant,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    /// Who entered a block last.
    compute: Option<ThreadId>,
    is_closed: bool,
}

impl State {
    fn enter(&mut self, block: BlockId, now_us: u64) -> Result<Option<Graph>> {
        let graph = self.progress.enter(block, now_us)?;
        if graph.is_some() {
            self.compute = Some(std::thread::current().id());
        }
        Ok(graph)
    }
}

impl Loader {
    /// A loader over a target of as many blocks as `num_bytes` has entries: the bytes that each
    /// holds under G1 and G2, for the report, or 0. Nothing is loaded yet. Fails where the system
    /// gives no thread.
    pub fn new(store: Arc<dyn BlockStore>, num_bytes: Vec<[u64; 2]>) -> Result<Self> {
        let progress = Progress::new(num_bytes);
        let state = State { progress, compute: None, is_closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            created: Instant::now(),
        });
        let (of_worker, its_store) = (Arc::clone(&shared), Arc::clone(&store));
        let worker = std::thread::Builder::new()
            .name("coordgen-loader".to_owned())
            .spawn(move || of_worker.work(&*its_store))
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        Ok(Self { store, shared, worker: Mutex::new(Some(worker)) })
    }

    /// Begins a timetable. What an earlier one has left to load is carried out first, so a step's
    /// timetable may load for the next step.
    ///
    /// Fails while runs of an earlier one are left, when it names a block that there is not or waits
    /// for more runs than it has, and after `close`.
    pub fn begin(&self, timetable: Timetable) -> Result<()> {
        let mut state = self.shared.lock();
        if state.is_closed {
            return Err(Error::LoadingCancelled);
        }
        state.progress.begin(timetable, self.shared.now_us())?;
        self.shared.work.notify_one();
        Ok(())
    }

    /// Says that compute is about to run `block`, and returns the graph to run it under, which stays
    /// until [`leave`](Self::leave). Waits where it must.
    ///
    /// Fails when another block is running or due, when the block has no graph and none will come,
    /// and when what it waits for is cancelled.
    pub fn enter(&self, block: BlockId) -> Result<Graph> {
        self.wait(|state, now_us| state.enter(block, now_us))
    }

    /// [`enter`](Self::enter) for a caller who does not wait: none, and nothing entered, where it
    /// would.
    pub fn try_enter(&self, block: BlockId) -> Result<Option<Graph>> {
        self.wait_within(Duration::ZERO, |state, now_us| state.enter(block, now_us))
    }

    /// Says that the run is over. Fails when nothing was entered; a run that was given up may be
    /// left once.
    pub fn leave(&self) -> Result<()> {
        let mut state = self.shared.lock();
        state.progress.leave(self.shared.now_us())?;
        self.compute_is_through(&state);
        Ok(())
    }

    /// Gives up the run that was entered, if there is one: it does not take place, and its block is
    /// the next to enter.
    pub fn abandon(&self) {
        let mut state = self.shared.lock();
        state.progress.abandon(self.shared.now_us());
        self.compute_is_through(&state);
    }

    /// Waits until nothing is left to load, and reports on all since the last report. Fails while
    /// runs are left.
    pub fn finish(&self) -> Result<LoadReport> {
        self.wait(|state, now_us| state.progress.finish(now_us))
    }

    /// Forgets the runs that are left and the actions that have not begun. The one under way is
    /// carried out and counts; a wait for another one fails.
    ///
    /// A thread that cancels while it is within a run gives that run up, too. A run on another
    /// thread goes on, and its graph stays until it is left.
    pub fn cancel(&self) {
        let mut state = self.shared.lock();
        let now_us = self.shared.now_us();
        state.progress.cancel(now_us);
        if state.compute == Some(std::thread::current().id()) {
            state.progress.abandon(now_us);
        }
        self.shared.done.notify_all();
    }

    /// Of each block, whether G1 and whether G2 can run.
    pub fn resident(&self) -> Vec<[bool; 2]> {
        self.shared.lock().progress.resident()
    }

    /// Cancels, and ends the thread when the action under way is over; waits for that unless called
    /// within that action. What is loaded stays with the store, and can be run.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.progress.cancel(self.shared.now_us());
        state.is_closed = true;
        drop(state);
        self.shared.work.notify_one();
        self.shared.done.notify_all();
        // A store, or a garbage collector within it, may close on the thread itself.
        let is_elsewhere =
            |worker: &mut JoinHandle<()>| worker.thread().id() != std::thread::current().id();
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = worker.take_if(is_elsewhere);
        drop(worker); // the action under way may close, too
        if let Some(worker) = ended {
            // Its own panics are caught; there is nothing to learn from the result.
            let _ = worker.join();
        }
    }

    /// What waited for a run to be over has its turn.
    fn compute_is_through(&self, state: &State) {
        if state.progress.has_pending() {
            self.shared.work.notify_one();
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
        let shared = &self.shared;
        let until_us = shared.now_us() + patience.as_micros() as u64;
        let mut state = shared.lock();
        loop {
            let now_us = shared.now_us();
            if let Some(answer) = ask(&mut state, now_us)? {
                return Ok(Some(answer));
            }
            if now_us >= until_us {
                state.progress.stop_waiting(now_us);
                return Ok(None);
            }
            shared.work.notify_one(); // what was put off is due when compute waits
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
    /// Never held while the store works.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        self.created.elapsed().as_micros() as u64
    }

    /// The thread: takes an action, does it, says what came of it.
    fn work(&self, store: &dyn BlockStore) {
        while let Some(action) = self.next_action() {
            let outcome = perform(store, &action);
            self.lock().progress.action_over(outcome, self.now_us());
            self.done.notify_all();
        }
    }

    /// The next action, when there is one; none when the loader closes.
    fn next_action(&self) -> Option<Action> {
        let mut state = self.lock();
        while !state.is_closed {
            if let Some(action) = state.progress.next_action(self.now_us()) {
                return Some(action);
            }
            self.done.notify_all(); // actions with nothing to do are over, too
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
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
