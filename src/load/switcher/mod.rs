//! The scheduler above the loader: which graphs of the blocks are in memory while a prompt is read
//! and answered. In: what the blocks cost, a strategy and a memory budget, and what compute enters
//! and leaves. Out: the graph to run each block under, and a report. It carries out what `policy`
//! decides, and hands the work to the loader.

mod policy;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard};

use self::policy::{LoadMode, Policy};
use super::BlockStore;
use super::loader::{LoadReport, LoadTimes, Loader, SimulatedClock, Worker};
use super::plan::{Plan, Strategy};
use super::profile::{BlockCost, Profile};
use super::stream::Streaming;
use super::timetable::{ActionKind, Timetable};
use crate::error::Result;
use crate::ids::{BlockId, Graph};
use crate::locks;

/// How the loads of one prompt went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// What was planned; none where blocks are streamed.
    pub planned: Option<Plan>,
    /// What happened.
    pub loads: LoadReport,
}

impl SwitchReport {
    /// The strategy of the plan, of `Auto` what it chose; or "streaming".
    pub fn strategy(&self) -> &'static str {
        self.planned.as_ref().map_or("streaming", |plan| plan.strategy.name())
    }
}

/// Decides when graphs of blocks are loaded and released, and has that done beside compute.
///
/// A [`Strategy`] and a memory budget say how. Each prompt goes like this:
///
/// 1. [`begin`](Self::begin) plans its loads from what is in memory, or finds that blocks are to be
///    streamed; [`stand_by`](Self::stand_by) instead where no token has to be computed.
/// 2. For each chunk [`begin_pass`](Self::begin_pass), then for each block in order
///    [`enter`](Self::enter), its run, [`leave`](Self::leave).
/// 3. [`finish`](Self::finish) waits for the last loads, learns what blocks cost from what they
///    took, and reports.
/// 4. Decode steps: where it [`is_streaming`](Self::is_streaming) as in 2, each of them a pass;
///    elsewhere each block under its [`step_graph`](Self::step_graph).
///
/// A call that comes out of its order, or asks for what cannot be, changes nothing. After an error in
/// between, [`cancel`](Self::cancel): what is in memory stays usable, and the next prompt starts from
/// it. A wait fails with `WaitInterrupted` when the store says so.
///
/// In a fork of its process it is of no use: calls fail with `Forked`, and those that cannot fail
/// must not be made, but for `cancel`, `abandon` and `close`, which do nothing there.
///
/// # Cost
/// `begin` makes a plan. `step_graph`, `try_enter`, `enter` and `leave`: a lock, and a wake-up where
/// there is something to load.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use coordgen_rs::{BlockId, Graph};
/// use coordgen_rs::load::BlockStore;
/// use coordgen_rs::load::plan::Strategy;
/// use coordgen_rs::load::profile::{BlockCost, Profile};
/// use coordgen_rs::load::switcher::Switcher;
///
/// struct Nothing;
/// impl BlockStore for Nothing {
///     fn load(&self, _: BlockId, _: Graph) -> Result<(), String> {
///         Ok(())
///     }
///     fn release(&self, _: BlockId, _: Graph) {}
/// }
///
/// let costs = vec![BlockCost::guessed(1_000_000, 0, 256, 32); 2];
/// let switcher = Switcher::new(Arc::new(Nothing), Profile::new(costs, 256, 32)?, false)?;
/// switcher.settle(Strategy::Single, None);
/// switcher.begin(256)?;
/// switcher.begin_pass()?;
/// for block in [BlockId(0), BlockId(1)] {
///     assert_eq!(switcher.enter(block)?, Graph::Decode);
///     switcher.leave()?;
/// }
/// assert_eq!(switcher.finish()?.strategy(), "single");
/// assert_eq!(switcher.step_graph(BlockId(0))?, Graph::Decode);
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
pub struct Switcher {
    loader: Loader,
    num_blocks: usize,
    state: Mutex<State>,
}

struct State {
    policy: Policy,
    mode: Option<LoadMode>,
    /// What the next pass needs is in memory, and nothing else.
    is_streaming_ready: bool,
    /// The prompt was reported on: what the steps of its answer did is in no report.
    is_reported: bool,
}

impl State {
    fn streaming(&self) -> Option<&Streaming> {
        match &self.mode {
            Some(LoadMode::Streamed(streaming)) => Some(streaming),
            _ => None,
        }
    }

    fn stop_streaming(&mut self) {
        if self.streaming().is_some() {
            self.mode = None;
        }
    }
}

impl Switcher {
    /// A switcher over the blocks of `profile`, measured or guessed: an unfit figure makes plans
    /// worse, never results, and is mended prompt by prompt. Nothing is loaded yet; the strategy is
    /// `Auto`, without a limit of memory.
    ///
    /// `is_shared` says that a block's second graph costs nothing where the first is loaded. Fails
    /// where the system gives no thread.
    pub fn new(store: Arc<dyn BlockStore>, profile: Profile, is_shared: bool) -> Result<Self> {
        let loader = Loader::new(store, bytes_of_blocks(&profile))?;
        Ok(Self::over(loader, profile, is_shared))
    }

    /// [`new`](Self::new) without a thread, on a simulated clock; see [`Loader::simulated`].
    pub fn simulated(
        store: Arc<dyn BlockStore>,
        profile: Profile,
        is_shared: bool,
        clock: Arc<SimulatedClock>,
        load_us: LoadTimes,
    ) -> Self {
        let loader = Loader::simulated(store, bytes_of_blocks(&profile), clock, load_us);
        Self::over(loader, profile, is_shared)
    }

    fn over(loader: Loader, profile: Profile, is_shared: bool) -> Self {
        let num_blocks = profile.blocks().len();
        let policy = Policy::new(profile, is_shared);
        let state =
            Mutex::new(State { policy, mode: None, is_streaming_ready: false, is_reported: false });
        Self { loader, num_blocks, state }
    }

    /// Plans of prompts to come are made by `strategy`, and graphs hold at most `memory_budget`
    /// bytes; none for no limit. With `Auto`, blocks that do not fit are streamed.
    pub fn settle(&self, strategy: Strategy, memory_budget: Option<u64>) {
        self.state().policy.settle(strategy, memory_budget);
    }

    /// What the blocks cost, as far as is known.
    pub fn costs(&self) -> Vec<BlockCost> {
        self.state().policy.profile().blocks().to_vec()
    }

    /// Most bytes that graphs may hold; none for no limit.
    pub fn memory_budget(&self) -> Option<u64> {
        self.state().policy.memory_budget()
    }

    /// Whether both graphs of all blocks simply stay in memory: they cost no more than one, there
    /// is no limit, and nothing else was asked for.
    pub fn keeps_both(&self) -> bool {
        self.state().policy.keeps_both()
    }

    /// Whether blocks come and go in every pass, because not all of them fit.
    pub fn is_streaming(&self) -> bool {
        self.state().streaming().is_some()
    }

    /// Of each block, whether G1 and whether G2 can run.
    pub fn resident(&self) -> Vec<[bool; 2]> {
        self.loader.resident()
    }

    /// Loads what of `graphs` is not in memory, block after block, and waits for it. Fails with
    /// `LoadFailed` where a block cannot be loaded; the others are.
    pub fn ensure(&self, graphs: &[Graph]) -> Result<()> {
        self.check_process()?;
        let each = |block| graphs.iter().map(move |&graph| (block, graph));
        let wanted: Vec<_> = self.blocks().flat_map(each).collect();
        let resident = self.resident();
        let is_there = |&(block, graph): &(BlockId, Graph)| resident[block.index()][graph.index()];
        if !self.is_streaming() && wanted.iter().all(is_there) {
            return Ok(());
        }
        self.loader.check_ready()?;
        self.state().stop_streaming();
        self.at_once(&[], &wanted)
    }

    /// Has `graph` of all blocks in memory, and no other. Fails with `LoadFailed` where a block
    /// cannot be loaded; the others are.
    pub fn only(&self, graph: Graph) -> Result<()> {
        self.loader.check_ready()?;
        self.state().stop_streaming();
        let of_all = |graph| self.blocks().map(|block| (block, graph)).collect::<Vec<_>>();
        self.at_once(&of_all(graph.other()), &of_all(graph))
    }

    /// The graph in memory that `block` can run a decode step under: G2 if it is there, else G1.
    pub fn held_graph(&self, block: BlockId) -> Option<Graph> {
        let held = self.resident().get(block.index()).copied().unwrap_or_default();
        [Graph::Decode, Graph::Prefill].into_iter().find(|graph| held[graph.index()])
    }

    /// [`held_graph`](Self::held_graph), or G2 where there is none, once it is loaded. Fails with
    /// `LoadFailed` where it cannot be.
    pub fn step_graph(&self, block: BlockId) -> Result<Graph> {
        match self.held_graph(block) {
            Some(graph) => Ok(graph),
            None => self.at_once(&[], &[(block, Graph::Decode)]).map(|()| Graph::Decode),
        }
    }

    /// Begins a prompt of which `num_tokens` are computed: plans its loads from what is in memory,
    /// or, where nothing fits at once, has blocks streamed from now on.
    ///
    /// Fails with `BudgetTooSmall` where the budget does not do, and with `BadOption` where there
    /// is no token or too many.
    pub fn begin(&self, num_tokens: usize) -> Result<()> {
        let mode = self.decide(num_tokens)?;
        self.loader.begin_anew(match &mode {
            LoadMode::Planned(plan) => plan.timetable.clone(),
            LoadMode::Streamed(_) => Timetable::immediate(self.num_blocks, ActionKind::Load, &[]),
        })?;
        self.go(mode, false);
        Ok(())
    }

    /// Makes ready for an answer where no token of the prompt has to be computed, as a prompt would
    /// leave it. Fails as [`begin`](Self::begin), and with `LoadFailed` where a block cannot be
    /// loaded.
    pub fn stand_by(&self) -> Result<()> {
        let mode = self.decide(1)?;
        if let LoadMode::Planned(_) = mode {
            let switched = self.blocks().try_for_each(|block| {
                self.at_once(&[(block, Graph::Prefill)], &[(block, Graph::Decode)])
            });
            switched.inspect_err(|_| self.cancel())?;
        }
        self.go(mode, true);
        Ok(())
    }

    /// Begins a pass: all blocks run once, in order. Where blocks are streamed, its loads begin
    /// here; fails with `LoadFailed` where a block that streaming starts with cannot be loaded.
    pub fn begin_pass(&self) -> Result<()> {
        self.check_process()?;
        let (streaming, is_ready, is_reported) = {
            let state = self.state();
            match state.streaming() {
                None => return Ok(()),
                Some(streaming) => (streaming.clone(), state.is_streaming_ready, state.is_reported),
            }
        };
        self.loader.check_ready()?;
        if !is_ready {
            self.start_streaming(&streaming).inspect_err(|_| self.cancel())?;
        }
        match is_reported {
            true => self.loader.begin_anew(streaming.pass().clone()),
            false => self.loader.begin(streaming.pass().clone()),
        }
    }

    /// Says that compute is about to run `block`, and returns the graph to run it under, which
    /// stays until [`leave`](Self::leave). Waits where it must.
    ///
    /// Fails when another block is running or due, when the block has no graph and none will come,
    /// and when what it waits for is cancelled.
    pub fn enter(&self, block: BlockId) -> Result<Graph> {
        self.loader.enter(block)
    }

    /// [`enter`](Self::enter) for a caller who has something else to do meanwhile: none, and
    /// nothing entered, where it would wait.
    pub fn try_enter(&self, block: BlockId) -> Result<Option<Graph>> {
        self.loader.try_enter(block)
    }

    /// Microseconds until `block` has a graph, as far as can be told; for a load that takes longer than
    /// planned, as long again as it is late. Fails in a fork.
    pub fn wait_us(&self, block: BlockId) -> Result<u64> {
        self.loader.wait_us(block)
    }

    /// Says that the run is over. Fails when nothing was entered; a run that was given up may be
    /// left once.
    pub fn leave(&self) -> Result<()> {
        self.loader.leave()
    }

    /// Gives up the run that was entered, if there is one: it does not take place, and its block is
    /// the next to enter.
    pub fn abandon(&self) {
        self.loader.abandon();
    }

    /// Gives a prompt or pass up, with the run that this thread is within: loads that have not
    /// begun are left out. A run on another thread goes on until it is left.
    pub fn cancel(&self) {
        if self.check_process().is_ok() {
            self.state().is_streaming_ready = false;
            self.loader.cancel();
        }
    }

    /// Waits for the loads that a prompt has left, learns from what they took, and reports. What
    /// could not be loaded is told in the report: its block goes on under its other graph. Fails
    /// while runs are left.
    pub fn finish(&self) -> Result<SwitchReport> {
        let loads = self.loader.finish()?;
        let mut state = self.state();
        state.is_reported = true;
        state.policy.learn(&loads);
        let planned = match &state.mode {
            Some(LoadMode::Planned(plan)) => Some(plan.clone()),
            _ => None,
        };
        Ok(SwitchReport { planned, loads })
    }

    /// Cancels, and ends the loader's thread when the action under way is over. What is loaded
    /// stays with the store, and can be run.
    pub fn close(&self) {
        self.loader.close();
    }

    /// The loader's thread, to wait for where the switcher itself is gone.
    pub fn worker(&self) -> &Arc<Worker> {
        self.loader.worker()
    }

    /// Fails in a fork of the process that made it.
    pub fn check_process(&self) -> Result<()> {
        self.loader.check_process()
    }

    /// For tests: calls `call` while the locks are held that compute and its caller share.
    #[cfg(feature = "python")]
    pub(crate) fn while_held<T>(&self, call: impl FnOnce() -> T) -> T {
        let _held = self.state();
        self.loader.while_held(call)
    }

    /// Never held while something waits or plans.
    fn state(&self) -> MutexGuard<'_, State> {
        locks::lock(&self.state)
    }

    fn blocks(&self) -> impl Iterator<Item = BlockId> {
        (0..self.num_blocks as u32).map(BlockId)
    }

    fn decide(&self, num_tokens: usize) -> Result<LoadMode> {
        self.loader.rest()?; // a streamed pass leaves loads for the next; plans start from rest
        let policy = self.state().policy.clone(); // planning may take long
        policy.decide(num_tokens, &self.resident())
    }

    /// From now on `mode` is gone.
    fn go(&self, mode: LoadMode, is_reported: bool) {
        let mut state = self.state();
        (state.mode, state.is_streaming_ready) = (Some(mode), false);
        state.is_reported = is_reported;
    }

    /// Puts into memory what the first pass needs, and nothing else.
    fn start_streaming(&self, streaming: &Streaming) -> Result<()> {
        let needed = streaming.at_start();
        let leaves = |&(block, graph): &(BlockId, Graph)| {
            graph == Graph::Prefill || !needed.contains(&block)
        };
        let all = self.blocks().flat_map(|block| Graph::BOTH.map(|graph| (block, graph)));
        let loads: Vec<_> = needed.iter().map(|&block| (block, Graph::Decode)).collect();
        self.at_once(&all.filter(leaves).collect::<Vec<_>>(), &loads)?;
        self.state().is_streaming_ready = true;
        Ok(())
    }

    /// Releases, then loads, and waits for it; the first failure is the error.
    fn at_once(&self, releases: &[(BlockId, Graph)], loads: &[(BlockId, Graph)]) -> Result<()> {
        self.loader.rest()?;
        let mut timetable = Timetable::immediate(self.num_blocks, ActionKind::Release, releases);
        let loads = Timetable::immediate(self.num_blocks, ActionKind::Load, loads);
        timetable.actions.extend(loads.actions);
        self.loader.begin_anew(timetable)?; // what failed before is no failure of these
        self.loader.finish()?.failures.into_iter().next().map_or(Ok(()), Err)
    }
}

/// What each block holds under G1 and G2.
fn bytes_of_blocks(profile: &Profile) -> Vec<[u64; 2]> {
    let num_bytes = |cost: &BlockCost| Graph::BOTH.map(|graph| cost.under(graph).num_bytes);
    profile.blocks().iter().map(num_bytes).collect()
}
