//! Requests one after another, against a store that fails as it is told.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

use super::*;
use crate::error::Error;
use crate::load::plan::Strategy;
use crate::load::profile::GraphCost;
use Graph::{Decode, Prefill};

const NUM_BLOCKS: usize = 3;
const PREFILL_ROWS: usize = 8;
const ALL: [BlockId; NUM_BLOCKS] = [BlockId(0), BlockId(1), BlockId(2)];

/// Holds graphs. Load number `n` fails where bit `n % 64` is set.
#[derive(Default)]
struct Store {
    held: Mutex<HashSet<(BlockId, Graph)>>,
    failing: AtomicU64,
    num_loads: AtomicU64,
}

impl Store {
    fn held(&self) -> HashSet<(BlockId, Graph)> {
        self.held.lock().unwrap().clone()
    }
}

impl BlockStore for Store {
    fn load(&self, block: BlockId, graph: Graph) -> std::result::Result<(), String> {
        let number = self.num_loads.fetch_add(1, Ordering::SeqCst);
        if self.failing.load(Ordering::SeqCst) >> (number % 64) & 1 == 1 {
            return Err("told to fail".to_owned());
        }
        assert!(self.held.lock().unwrap().insert((block, graph)), "it was loaded already");
        Ok(())
    }

    fn release(&self, block: BlockId, graph: Graph) {
        assert!(self.held.lock().unwrap().remove(&(block, graph)), "it was not loaded");
    }
}

/// Blocks of 10 bytes a graph; loads and runs take as long as each other.
fn switcher(is_shared: bool) -> (Switcher, Arc<Store>) {
    let graph = GraphCost { load_us: 10, compute_us: 10, num_bytes: 10 };
    let blocks = vec![BlockCost { prefill: graph, decode: graph }; NUM_BLOCKS];
    let profile = Profile::new(blocks, PREFILL_ROWS, 4).unwrap();
    let store = Arc::new(Store::default());
    let of_switcher = Arc::clone(&store) as Arc<dyn BlockStore>;
    (Switcher::new(of_switcher, profile, is_shared).unwrap(), store)
}

/// All blocks once, each under a graph that is held while it runs.
fn pass(switcher: &Switcher, store: &Store) -> Result<()> {
    switcher.begin_pass()?;
    for block in ALL {
        let entered = switcher.enter(block).inspect_err(|_| switcher.cancel())?;
        assert!(store.held().contains(&(block, entered)));
        switcher.leave()?;
    }
    Ok(())
}

/// A prompt of some chunks, read to its end or to its first error.
fn read(switcher: &Switcher, store: &Store, num_chunks: usize) -> Result<SwitchReport> {
    switcher.begin(num_chunks * PREFILL_ROWS)?;
    (0..num_chunks).try_for_each(|_| pass(switcher, store))?;
    switcher.finish()
}

/// A step of the answer.
fn step(switcher: &Switcher, store: &Store) -> Result<()> {
    if switcher.is_streaming() {
        return pass(switcher, store);
    }
    for block in ALL {
        let graph = switcher.step_graph(block)?;
        assert!(store.held().contains(&(block, graph)));
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Op {
    Settle(usize, Option<u64>),
    Read(usize),
    GiveUp(usize),
    Step,
    StandBy,
    Only(Graph),
    Ensure,
}

fn ops() -> impl Generator<Value = Vec<Op>> {
    let budget = prop::option::of(0..70u64);
    let graph = prop_oneof![Just(Prefill), Just(Decode)];
    let op = prop_oneof![
        (0..Strategy::ALL.len(), budget).prop_map(|(index, budget)| Op::Settle(index, budget)),
        (1..4usize).prop_map(Op::Read),
        (0..NUM_BLOCKS).prop_map(Op::GiveUp),
        Just(Op::Step),
        Just(Op::StandBy),
        graph.prop_map(Op::Only),
        Just(Op::Ensure),
    ];
    prop::collection::vec(op, 1..12)
}

fn perform(switcher: &Switcher, store: &Store, op: &Op) -> Result<()> {
    match *op {
        Op::Settle(index, budget) => switcher.settle(Strategy::ALL[index], budget),
        Op::Read(num_chunks) => drop(read(switcher, store, num_chunks)?),
        Op::GiveUp(num_runs) => {
            switcher.begin(2 * PREFILL_ROWS)?;
            switcher.begin_pass()?;
            for block in &ALL[..num_runs] {
                switcher.enter(*block).inspect_err(|_| switcher.cancel())?;
                switcher.leave()?;
            }
            switcher.cancel();
        }
        Op::Step => step(switcher, store)?,
        Op::StandBy => switcher.stand_by()?,
        Op::Only(graph) => switcher.only(graph)?,
        Op::Ensure => switcher.ensure(&[Prefill, Decode])?,
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn after_any_failure_what_is_in_memory_stays_usable(
        ops in ops(), failing: u64, is_shared: bool,
    ) {
        let (switcher, store) = switcher(is_shared);
        store.failing.store(failing, Ordering::SeqCst);
        for op in &ops {
            match perform(&switcher, &store, op) {
                Ok(()) | Err(Error::LoadFailed { .. } | Error::BudgetTooSmall { .. }) => {}
                Err(other) => prop_assert!(false, "{op:?}: {other}"),
            }
        }
        store.failing.store(0, Ordering::SeqCst);
        switcher.settle(Strategy::Auto, None);
        for num_chunks in [1, 3] {
            let read = read(&switcher, &store, num_chunks);
            prop_assert!(read.is_ok_and(|report| report.loads.failures.is_empty()));
            prop_assert_eq!(step(&switcher, &store), Ok(()));
        }
        let resident = switcher.resident();
        for block in ALL {
            for graph in Graph::BOTH {
                let is_held = store.held().contains(&(block, graph));
                prop_assert_eq!(resident[block.index()][graph.index()], is_held);
            }
        }
    }

    #[test]
    fn what_is_read_ends_on_decode_graphs_within_the_budget(
        index in 0..Strategy::ALL.len(),
        budget in prop::option::of(10..70u64),
        is_shared: bool,
        num_chunks in prop::collection::vec(1..5usize, 1..4),
    ) {
        let (switcher, store) = switcher(is_shared);
        switcher.settle(Strategy::ALL[index], budget);
        for num_chunks in num_chunks {
            match read(&switcher, &store, num_chunks) {
                Err(Error::BudgetTooSmall { least, .. }) => prop_assert!(Some(least) > budget),
                Err(other) => prop_assert!(false, "{}", other),
                Ok(report) => {
                    prop_assert!(budget.is_none_or(|budget| report.loads.peak_bytes <= budget));
                    prop_assert_eq!(report.planned.is_none(), switcher.is_streaming());
                    let loaded = |block: &BlockId| store.held().contains(&(*block, Decode));
                    prop_assert!(switcher.is_streaming() || ALL.iter().all(loaded));
                    prop_assert_eq!(step(&switcher, &store), Ok(()));
                }
            }
        }
    }
}

#[test]
fn standing_by_leaves_what_a_prompt_would_leave() {
    let (switcher, store) = switcher(false);
    switcher.settle(Strategy::Sync, None);
    switcher.ensure(&[Prefill]).unwrap();
    switcher.stand_by().unwrap();
    assert_eq!(store.held(), ALL.map(|block| (block, Decode)).into());
}

#[test]
fn runs_that_are_left_keep_an_answer_waiting_until_they_are_given_up() {
    let (switcher, _store) = switcher(false);
    let requests: [fn(&Switcher) -> Result<()>; 3] =
        [Switcher::stand_by, |it| it.begin(PREFILL_ROWS), |it| it.ensure(&[Decode])];
    let left = Err(Error::RunsLeft { num_runs: NUM_BLOCKS });
    for request in requests {
        switcher.begin(PREFILL_ROWS).unwrap();
        assert_eq!(switcher.stand_by(), left);
        assert_eq!(switcher.begin(PREFILL_ROWS), left);
        assert_eq!(switcher.only(Decode), left);
        switcher.cancel();
        assert_eq!(request(&switcher), Ok(()));
        switcher.cancel();
    }
}

#[test]
fn auto_streams_what_does_not_fit_and_stops_when_all_are_asked_for() {
    let (switcher, store) = switcher(false);
    switcher.settle(Strategy::Auto, Some(10));
    let report = read(&switcher, &store, 2).unwrap();
    assert_eq!((report.strategy(), report.loads.peak_bytes), ("streaming", 10));
    assert!(switcher.is_streaming());
    step(&switcher, &store).unwrap();
    switcher.settle(Strategy::Auto, Some(9));
    let refused = Error::BudgetTooSmall { budget: 9, least: 10 };
    assert_eq!(switcher.begin(PREFILL_ROWS), Err(refused.clone()));
    assert_eq!(switcher.stand_by(), Err(refused));
    assert!(switcher.is_streaming()); // as it was
    switcher.ensure(&[Prefill, Decode]).unwrap();
    assert!(!switcher.is_streaming());
    assert_eq!(store.held().len(), 2 * NUM_BLOCKS);
}

#[test]
fn an_answer_of_many_steps_leaves_no_more_to_report_than_one_step() {
    let (switcher, store) = switcher(false);
    switcher.settle(Strategy::Auto, Some(10));
    read(&switcher, &store, 2).unwrap();
    for _ in 0..200 {
        pass(&switcher, &store).unwrap();
    }
    let left = switcher.finish().unwrap().loads.actual;
    assert!(left.runs.len() <= 2 * NUM_BLOCKS, "{} runs", left.runs.len());
    assert!(left.actions.len() <= 4 * NUM_BLOCKS, "{} actions", left.actions.len());
}

#[test]
fn a_streamed_prompt_goes_on_after_calls_that_come_out_of_order() {
    let (switcher, store) = switcher(false);
    switcher.settle(Strategy::Auto, Some(10));
    switcher.begin(2 * PREFILL_ROWS).unwrap();
    switcher.begin_pass().unwrap();
    switcher.enter(ALL[0]).unwrap();
    let running = Err(Error::StillRunning { block: ALL[0] });
    assert_eq!(switcher.begin_pass(), running);
    assert_eq!(switcher.begin(PREFILL_ROWS), running);
    assert_eq!(switcher.stand_by(), running);
    assert_eq!(switcher.only(Decode), running);
    assert_eq!(switcher.ensure(&[Prefill]), running);
    switcher.leave().unwrap();
    for block in &ALL[1..] {
        switcher.enter(*block).unwrap();
        switcher.leave().unwrap();
    }
    pass(&switcher, &store).unwrap();
    let report = switcher.finish().unwrap();
    assert_eq!((report.strategy(), report.loads.actual.runs.len()), ("streaming", 2 * NUM_BLOCKS));
}

#[test]
fn only_one_graph_is_left_of_each_block() {
    let (switcher, store) = switcher(false);
    switcher.ensure(&[Prefill, Decode]).unwrap();
    for graph in [Prefill, Decode, Prefill] {
        switcher.only(graph).unwrap();
        assert_eq!(store.held(), ALL.map(|block| (block, graph)).into());
    }
    let there = switcher.step_graph(BlockId(1));
    assert_eq!(there, Ok(Prefill)); // no G2 is there, and none need be
}

#[test]
fn a_load_that_fails_is_told_and_its_block_goes_on_under_the_other_graph() {
    let (switcher, store) = switcher(false);
    switcher.settle(Strategy::Sync, None);
    switcher.only(Prefill).unwrap();
    let next = store.num_loads.load(Ordering::SeqCst);
    store.failing.store(1 << next, Ordering::SeqCst);
    let report = read(&switcher, &store, 2).unwrap();
    let [Error::LoadFailed { block, graph: Decode, reason }] = &report.loads.failures[..] else {
        panic!("{:?}", report.loads.failures);
    };
    assert_eq!(reason, "told to fail");
    assert_eq!(switcher.step_graph(*block), Ok(Prefill));
    assert_eq!(store.held().len(), NUM_BLOCKS);
}

/// Loads nothing, ever, and waits no longer than the first question.
struct Stuck {
    go_on: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl BlockStore for Stuck {
    fn load(&self, _: BlockId, _: Graph) -> std::result::Result<(), String> {
        self.go_on.lock().unwrap().recv().map_err(|error| error.to_string())
    }

    fn release(&self, _: BlockId, _: Graph) {}

    fn keep_waiting(&self) -> bool {
        false
    }
}

#[test]
fn whoever_waits_is_interrupted_when_the_store_says_so() {
    let (go_on, receiver) = std::sync::mpsc::channel();
    let store = Arc::new(Stuck { go_on: Mutex::new(receiver) });
    let profile = Profile::new(vec![BlockCost::guessed(1, 0, 1, 1)], 1, 1).unwrap();
    let switcher = Switcher::new(store, profile, false).unwrap();
    assert_eq!(switcher.ensure(&[Decode]), Err(Error::WaitInterrupted));
    assert_eq!(switcher.try_enter(BlockId(0)), Ok(None));
    assert_eq!(switcher.begin(1), Err(Error::WaitInterrupted));
    go_on.send(()).unwrap();
    drop(go_on);
    switcher.close();
}

/// A switcher on the lane, whose runs take what its profile says.
struct Simulation {
    switcher: Switcher,
    clock: Arc<SimulatedClock>,
    profile: Profile,
}

impl Simulation {
    fn new(blocks: Vec<BlockCost>, pieces: usize, load_us: LoadTimes) -> Self {
        let profile = Profile::new(blocks, PREFILL_ROWS, PREFILL_ROWS / pieces).unwrap();
        let (store, clock) = (Arc::new(Store::default()), Arc::new(SimulatedClock::default()));
        let (its_clock, its_profile) = (Arc::clone(&clock), profile.clone());
        let switcher = Switcher::simulated(store, its_profile, false, its_clock, load_us);
        Self { switcher, clock, profile }
    }

    /// Loads take what the blocks' costs say.
    fn as_planned(blocks: Vec<BlockCost>, pieces: usize) -> Self {
        let costs = blocks.clone();
        let load_us = move |block: BlockId, graph| costs[block.index()].under(graph).load_us;
        Self::new(blocks, pieces, Box::new(load_us))
    }

    fn read(&self, num_tokens: usize) -> Result<SwitchReport> {
        self.switcher.begin(num_tokens)?;
        for first in (0..num_tokens).step_by(PREFILL_ROWS) {
            self.switcher.begin_pass()?;
            for block in self.switcher.blocks() {
                let graph = self.switcher.enter(block)?;
                let tokens = PREFILL_ROWS.min(num_tokens - first);
                self.clock.advance(self.profile.compute_us(block, graph, tokens));
                self.switcher.leave()?;
            }
        }
        self.switcher.finish()
    }
}

/// When the last run and the last load were over.
fn makespan_us(report: &SwitchReport) -> u64 {
    let actual = &report.loads.actual;
    let ends = actual.actions.iter().map(|action| action.end_us);
    ends.chain(actual.runs.iter().map(|run| run.end_us)).max().unwrap_or(0)
}

/// Six blocks and two chunks; a load takes as long as two blocks compute (CoordGen, Figure 8).
fn figure_8() -> Vec<BlockCost> {
    let graph = |compute_us| GraphCost { load_us: 2_000, compute_us, num_bytes: 1 };
    vec![BlockCost { prefill: graph(1_000), decode: graph(250) }; 6]
}

#[test]
fn figure_8_takes_24_19_and_12_computations_of_a_block() {
    for budget in [None, Some(6)] {
        for (strategy, computations) in [
            (Strategy::Sync, 24),
            (Strategy::Async, 19),
            (Strategy::Greedy, 12),
            (Strategy::JustInTime, 12),
        ] {
            let simulation = Simulation::as_planned(figure_8(), 4);
            simulation.switcher.settle(strategy, budget);
            simulation.switcher.only(Prefill).unwrap();
            let report = simulation.read(2 * PREFILL_ROWS).unwrap();
            let planned = report.planned.as_ref().unwrap();
            assert_eq!(planned.makespan_us, 1_000 * computations, "{strategy:?}");
            assert_eq!(makespan_us(&report), 1_000 * computations, "{strategy:?}");
            assert!(budget.is_none_or(|budget| report.loads.peak_bytes <= budget));
        }
    }
}

fn block_costs() -> impl Generator<Value = Vec<BlockCost>> {
    let graph = (0..1_000u64, 1..1_000u64, 1..50u64)
        .prop_map(|(load_us, compute_us, num_bytes)| GraphCost { load_us, compute_us, num_bytes });
    let block = (graph.clone(), graph).prop_map(|(prefill, decode)| BlockCost { prefill, decode });
    prop::collection::vec(block, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_prompt_takes_what_was_planned_where_loads_do(
        blocks in block_costs(),
        strategy in prop::sample::select(&Strategy::ALL[..]),
        start in prop::option::of(prop_oneof![Just(Prefill), Just(Decode)]),
        share in prop::option::of(0.5..1.2f64),
        num_tokens in 1..5 * PREFILL_ROWS,
    ) {
        let all: u64 = blocks.iter().map(|cost| cost.prefill.num_bytes + cost.decode.num_bytes).sum();
        let simulation = Simulation::as_planned(blocks, 4);
        simulation.switcher.settle(strategy, share.map(|share| (all as f64 * share) as u64));
        if let Some(graph) = start {
            simulation.switcher.only(graph).unwrap();
        }
        match simulation.read(num_tokens) {
            Err(Error::BudgetTooSmall { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
            Ok(SwitchReport { planned: None, .. }) => {}
            Ok(report) => {
                let planned = report.planned.as_ref().unwrap();
                // Where a run's planned graph is late, it goes on under one that is still there.
                if report.loads.num_under_other_graph == 0 {
                    prop_assert_eq!(makespan_us(&report), planned.makespan_us);
                }
            }
        }
    }
}
