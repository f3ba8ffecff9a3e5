//! Plans by every strategy: they replay to their own figures, keep within the budget, and come near
//! the best that there is.

mod exhaustive;
mod simulate;
mod violations;

use proptest::prelude::{Just, ProptestConfig, prop, prop_assert, prop_oneof, proptest};
use proptest::strategy::Strategy as Generator;

use self::exhaustive::optimum;
use self::simulate::simulate;
use super::route::Evaluator;
use super::*;
use crate::ids::Graph;
use crate::load::profile::{BlockCost, GraphCost, Profile};
use crate::load::timetable::ActionKind;
use crate::sampling::random::uniform;

const PREFILL_ROWS: usize = 256;
const PIECES: u64 = 8;

/// A block whose chunk takes `prefill` and `decode` us under its graphs, both as large as `bytes`.
fn block(load: u64, prefill: u64, decode: u64, bytes: u64) -> BlockCost {
    BlockCost {
        prefill: GraphCost { load_us: load, compute_us: prefill, num_bytes: bytes },
        decode: GraphCost { load_us: load, compute_us: decode / PIECES, num_bytes: bytes },
    }
}

fn profile(blocks: Vec<BlockCost>) -> Profile {
    Profile::new(blocks, PREFILL_ROWS, PREFILL_ROWS / PIECES as usize).unwrap()
}

/// One graph a block in memory, all of them `start`.
fn problem(profile: &Profile, num_chunks: usize, start: ResidentGraphs) -> Problem<'_> {
    let start = vec![start; profile.blocks().len()];
    let one_graph = profile.blocks().iter().map(|block| block.prefill.num_bytes).sum();
    let num_tokens = num_chunks * PREFILL_ROWS;
    Problem { profile, num_tokens, start, memory_budget: Some(one_graph) }
}

fn replayed(problem: &Problem<'_>, strategy: Strategy) -> Plan {
    let plan = plan(strategy, problem).unwrap();
    let replay = simulate(&plan.timetable, problem)
        .unwrap_or_else(|violation| panic!("{strategy:?} on {problem:?}: {violation:?}"));
    assert_eq!(plan.makespan_us, replay.makespan_us, "{strategy:?} on {problem:?}");
    assert_eq!(plan.prefill_us, replay.prefill_us);
    assert_eq!(plan.exposed_load_us, replay.exposed_load_us);
    assert_eq!(plan.peak_bytes, replay.peak_bytes);
    assert!(plan.lower_bound_us <= plan.makespan_us);
    plan
}

/// Number of chunks that each block computes under G1.
fn chunks_under_prefill(plan: &Plan) -> Vec<usize> {
    let mut chunks = vec![0; plan.timetable.num_blocks];
    for run in plan.timetable.runs.iter().filter(|run| run.graph == Graph::Prefill) {
        chunks[run.block.index()] += 1;
    }
    chunks
}

fn num_loads(plan: &Plan) -> usize {
    plan.timetable.actions.iter().filter(|action| action.kind == ActionKind::Load).count()
}

#[test]
fn figure_8_hides_every_load_behind_two_blocks() {
    let profile = profile(vec![block(2_000, 1_000, 1_000, 1); 6]);
    let problem = problem(&profile, 2, ResidentGraphs::PREFILL);
    let greedy = replayed(&problem, Strategy::Greedy);
    let order: Vec<_> = (greedy.timetable.actions.iter())
        .filter(|action| action.kind == ActionKind::Load)
        .map(|action| (action.block.0, action.after_runs))
        .collect();
    assert_eq!(order, [(5, 0), (4, 2), (3, 4), (2, 6), (1, 8), (0, 10)]);
    assert_eq!(chunks_under_prefill(&greedy), [2, 2, 1, 1, 0, 0]);
    assert_eq!((greedy.makespan_us, greedy.exposed_load_us), (12_000, 0));
    assert_eq!(replayed(&problem, Strategy::JustInTime).makespan_us, 12_000);
    assert_eq!(replayed(&problem, Strategy::Sync).makespan_us, 24_000);
    // Loads of blocks 0, 1, .. from the ends of their last runs on, one after another.
    assert_eq!(replayed(&problem, Strategy::Async).makespan_us, 6_000 + 1_000 + 12_000);
}

/// The scheduling instance of Appendix A: short blocks whose loads are the integers, then a long
/// one.
fn partition_instance(integers: &[u64]) -> Profile {
    let half: u64 = integers.iter().sum::<u64>() / 2;
    let mut blocks: Vec<_> = integers.iter().map(|&a| block(a * 1_000, 1, 8, 1)).collect();
    blocks.push(BlockCost { ..block(0, half * 1_000, half * 1_000 + 8, 1) });
    profile(blocks)
}

#[test]
fn appendix_a_is_hidden_whole_just_where_the_integers_can_be_halved() {
    for (integers, halved) in [
        (vec![3, 1, 1, 2, 2, 1], true),
        (vec![5, 4, 3, 2], true),
        (vec![3, 3, 3, 1], false),
        (vec![8, 3, 3], false),
    ] {
        let profile = partition_instance(&integers);
        let problem = problem(&profile, 2, ResidentGraphs::PREFILL);
        let optimum = optimum(&problem).unwrap();
        let total: u64 = integers.iter().sum::<u64>() * 1_000;
        let short_runs = 2 * 8 * integers.len() as u64;
        assert_eq!(optimum.makespan_us <= total + short_runs, halved, "{integers:?}");
        let plan = replayed(&problem, Strategy::JustInTime);
        assert_eq!(plan.makespan_us, optimum.makespan_us, "{integers:?}");
    }
}

/// The numbers of one test, the same each time: a seed, and how many were drawn.
struct Random(u64, u64);

impl Random {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.1 += 1;
        low + (uniform(self.0, self.1) * (high - low + 1) as f64) as u64
    }
}

/// Up to `max_blocks`, alike in one case of four, and up to 4 chunks, the last partly filled; loads of
/// about 0.5, 1.5, 3 or 6 times a chunk, G2 up to 2 times as slow.
fn random_instance(random: &mut Random, max_blocks: u64) -> (Profile, usize) {
    let num_blocks = random.between(1, max_blocks);
    let num_chunks = random.between(1, 4) as usize;
    let alike = random.between(0, 3) == 0;
    let load_percent = [50, 150, 300, 600][random.between(0, 3) as usize];
    let mut one = || {
        let prefill = random.between(400, 1_200);
        let load = prefill * load_percent / 100 * random.between(30, 170) / 100;
        block(load, prefill, prefill * random.between(95, 200) / 100, 1)
    };
    let first = one();
    let blocks = (0..num_blocks).map(|_| if alike { first } else { one() }).collect();
    let filled = random.between(1, PREFILL_ROWS as u64) as usize;
    (profile(blocks), (num_chunks - 1) * PREFILL_ROWS + filled)
}

#[test]
fn just_in_time_is_near_the_optimum_on_500_random_instances() {
    let mut random = Random(4, 0);
    let (mut sum, mut worst) = (0.0, 1.0_f64);
    for _ in 0..500 {
        let (profile, num_tokens) = random_instance(&mut random, 6);
        let problem = Problem { num_tokens, ..problem(&profile, 1, ResidentGraphs::PREFILL) };
        let optimum = optimum(&problem).unwrap().makespan_us;
        let plan = replayed(&problem, Strategy::JustInTime);
        assert!(plan.lower_bound_us <= optimum && optimum <= plan.makespan_us);
        for other in [Strategy::Greedy, Strategy::Async, Strategy::Sync, Strategy::Single] {
            assert!(plan.makespan_us <= replayed(&problem, other).makespan_us, "{other:?}");
        }
        let ratio = plan.makespan_us as f64 / optimum as f64;
        (sum, worst) = (sum + ratio, worst.max(ratio));
    }
    println!("just_in_time / optimum: mean {:.5}, worst {worst:.4}", sum / 500.0);
    assert!(sum / 500.0 <= 1.01 && worst <= 1.05);
}

#[test]
fn just_in_time_is_near_the_optimum_where_blocks_are_alike() {
    for num_chunks in [1, 2, 4, 8] {
        for (load, decode) in [500, 1_500, 3_000, 6_000]
            .into_iter()
            .flat_map(|load| [1_000, 1_304, 2_000].map(|decode| (load, decode)))
        {
            let profile = profile(vec![block(load, 1_000, decode, 1); 6]);
            let problem = problem(&profile, num_chunks, ResidentGraphs::PREFILL);
            let optimum = optimum(&problem).unwrap().makespan_us as f64;
            let plan = replayed(&problem, Strategy::JustInTime);
            assert!(plan.makespan_us as f64 <= 1.02 * optimum, "{num_chunks} {load} {decode}");
        }
    }
}

/// The least makespan of all release-first routes, by trying each.
fn best_of_all_routes(problem: &Problem<'_>) -> u64 {
    let costs = problem.costs().unwrap();
    let (num_blocks, num_chunks) = (costs.num_blocks(), costs.num_chunks);
    let options = |block: usize| -> Vec<Route> {
        let enters = |from: usize| (from + 1..=num_chunks).map(move |until| (from, until));
        let later = costs.blocks[block].start == ResidentGraphs::DECODE;
        let entries = if later { 0..num_chunks } else { 0..1 };
        let windows = entries.flat_map(enters).chain([(0, 0)]);
        windows.map(|(from, until)| Route::release_first(&costs, block, from, until)).collect()
    };
    let options: Vec<_> = (0..num_blocks).map(options).collect();
    let mut clock = Evaluator::new(&costs);
    let num_choices = options.iter().map(Vec::len).product();
    let chosen = |choice: usize| {
        let mut left = choice;
        let pick = |options: &Vec<Route>| {
            let route = options[left % options.len()];
            left /= options.len();
            route
        };
        options.iter().map(pick).collect::<Vec<_>>()
    };
    (0..num_choices).map(|choice| clock.finish(&chosen(choice)).makespan_us).min().unwrap()
}

#[test]
fn just_in_time_is_near_the_best_of_all_routes_from_every_start() {
    let mut random = Random(6, 0);
    for start in [ResidentGraphs::PREFILL, ResidentGraphs::DECODE, ResidentGraphs::NOTHING] {
        for _ in 0..60 {
            let (profile, num_tokens) = random_instance(&mut random, 3);
            let problem = Problem { num_tokens, ..problem(&profile, 1, start) };
            let best = best_of_all_routes(&problem);
            let plan = replayed(&problem, Strategy::JustInTime);
            let ratio = plan.makespan_us as f64 / best as f64;
            assert!((1.0..=1.02).contains(&ratio), "{ratio} on {problem:?}");
        }
    }
}

fn held() -> impl Generator<Value = ResidentGraphs> {
    prop_oneof![
        Just(ResidentGraphs::NOTHING),
        Just(ResidentGraphs::PREFILL),
        Just(ResidentGraphs::DECODE),
        Just(ResidentGraphs::BOTH)
    ]
}

fn costs() -> impl Generator<Value = BlockCost> {
    let graph = (0_u64..4_000, 0_u64..1_000, 0_u64..9)
        .prop_map(|(load_us, compute_us, num_bytes)| GraphCost { load_us, compute_us, num_bytes });
    [graph.clone(), graph].prop_map(|[prefill, decode]| BlockCost { prefill, decode })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_plan_replays_to_its_own_figures_within_its_budget(
        blocks in prop::collection::vec((costs(), held()), 1..7),
        num_tokens in 1_usize..1_500,
        decode_rows in 1_usize..=256,
        budget in prop::option::of(0_u64..120),
    ) {
        let (blocks, start): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        let profile = Profile::new(blocks, PREFILL_ROWS, decode_rows).unwrap();
        let problem = Problem { profile: &profile, num_tokens, start, memory_budget: budget };
        for strategy in Strategy::ALL {
            match plan(strategy, &problem) {
                Err(Error::BudgetTooSmall { budget, least }) => {
                    prop_assert!(budget < least);
                    let enough = Problem { memory_budget: Some(least), ..problem.clone() };
                    prop_assert!(replayed(&enough, strategy).peak_bytes <= least);
                }
                Err(error) => prop_assert!(false, "{error}"),
                Ok(plan) => {
                    prop_assert!(budget.is_none_or(|budget| plan.peak_bytes <= budget));
                    replayed(&problem, strategy);
                }
            }
        }
    }
}

#[test]
fn auto_is_the_quickest_and_of_equals_the_smallest() {
    let mut random = Random(5, 0);
    for budget in [None, Some(7), Some(100)] {
        for start in [
            ResidentGraphs::NOTHING,
            ResidentGraphs::PREFILL,
            ResidentGraphs::DECODE,
            ResidentGraphs::BOTH,
        ] {
            let (profile, num_tokens) = random_instance(&mut random, 6);
            let problem = problem(&profile, 1, start);
            let problem = Problem { num_tokens, memory_budget: budget, ..problem };
            let key = |plan: Plan| (plan.makespan_us, plan.peak_bytes);
            let others = CANDIDATES.into_iter().filter_map(|other| plan(other, &problem).ok());
            assert_eq!(plan(Strategy::Auto, &problem).ok().map(key), others.map(key).min());
        }
    }
}

#[test]
fn with_memory_for_both_graphs_nothing_waits() {
    let profile = profile(vec![block(3_000, 1_000, 1_300, 1); 6]);
    let problem = Problem { memory_budget: None, ..problem(&profile, 4, ResidentGraphs::PREFILL) };
    let plan = replayed(&problem, Strategy::JustInTime);
    assert_eq!((plan.makespan_us, plan.exposed_load_us), (plan.lower_bound_us, 0));
    assert!(plan.peak_bytes < 12, "not all blocks need both graphs at once");
    let resident = replayed(&problem, Strategy::Resident);
    assert_eq!((resident.makespan_us, resident.peak_bytes), (plan.makespan_us, 12));
    assert_eq!(super::plan(Strategy::Auto, &problem).unwrap().strategy, Strategy::JustInTime);
}

#[test]
fn memory_for_one_more_block_shortens_the_plan() {
    let profile = profile(vec![block(3_000, 1_000, 2_000, 1); 6]);
    let tight = problem(&profile, 4, ResidentGraphs::PREFILL);
    let makespan = |budget| {
        let problem = Problem { memory_budget: Some(budget), ..tight.clone() };
        replayed(&problem, Strategy::JustInTime).makespan_us
    };
    assert!(makespan(7) < makespan(6));
    assert!(makespan(9) < makespan(7));
}

#[test]
fn blocks_that_hold_both_graphs_load_nothing() {
    let profile = profile(vec![block(3_000, 1_000, 1_300, 1); 6]);
    let problem = Problem { memory_budget: None, ..problem(&profile, 3, ResidentGraphs::BOTH) };
    let auto = replayed(&problem, Strategy::Auto);
    assert_eq!((auto.strategy, num_loads(&auto)), (Strategy::Resident, 0));
    assert!(auto.timetable.actions.is_empty(), "both stay");
    assert_eq!(auto.makespan_us, auto.lower_bound_us);
}

#[test]
fn of_resident_blocks_those_stay_whose_loads_are_longest_for_their_size() {
    let loads = [3_000, 5_000, 1_000, 2_000, 4_000, 1_000];
    let profile = profile(loads.map(|load| block(load, 1_000, 1_300, 1)).to_vec());
    let problem = Problem { memory_budget: Some(8), ..problem(&profile, 8, ResidentGraphs::BOTH) };
    for strategy in [Strategy::Sync, Strategy::Async, Strategy::Greedy, Strategy::JustInTime] {
        let plan = replayed(&problem, strategy);
        let mut loaded: Vec<_> = (plan.timetable.actions.iter())
            .filter(|action| action.kind == ActionKind::Load)
            .map(|action| action.block.0)
            .collect();
        loaded.sort_unstable();
        assert_eq!(loaded, [0, 2, 3, 5]);
        assert!(plan.peak_bytes <= 8);
    }
}

#[test]
fn on_the_way_back_a_short_prompt_stays_on_the_decode_graph() {
    let profile = profile(vec![block(3_000, 1_000, 1_300, 1); 6]);
    let auto = replayed(&problem(&profile, 1, ResidentGraphs::DECODE), Strategy::Auto);
    assert_eq!((num_loads(&auto), auto.makespan_us), (0, 6 * (1_300 / PIECES) * PIECES));
}

#[test]
fn on_the_way_back_a_long_prompt_returns_to_the_prefill_graph_beside_the_first_chunks() {
    let profile = profile(vec![block(3_000, 1_000, 2_000, 1); 6]);
    let problem = problem(&profile, 16, ResidentGraphs::DECODE);
    let plan = replayed(&problem, Strategy::JustInTime);
    let single = replayed(&problem, Strategy::Single);
    assert_eq!(num_loads(&plan), 12, "there and back");
    assert!((plan.makespan_us as f64) < 0.75 * single.makespan_us as f64);
    assert!(plan.exposed_load_us * 20 < plan.makespan_us);
    assert_eq!(plan.peak_bytes, 6);
}

#[test]
fn cold_start_computes_while_the_next_block_loads() {
    let profile = profile(vec![block(2_000, 1_000, 1_000, 1); 6]);
    let plan = replayed(&problem(&profile, 1, ResidentGraphs::NOTHING), Strategy::Auto);
    assert_eq!(plan.makespan_us, 6 * 2_000 + 1_000, "the last block computes after its load");
    assert_eq!(num_loads(&plan), 6, "G2 serves the one chunk");
}

#[test]
fn cold_start_with_a_long_prompt_loads_both_graphs() {
    let profile = profile(vec![block(2_000, 1_000, 2_000, 1); 6]);
    let plan = replayed(&problem(&profile, 12, ResidentGraphs::NOTHING), Strategy::Auto);
    assert_eq!(num_loads(&plan), 12);
    assert!(
        plan.makespan_us
            < replayed(&problem(&profile, 12, ResidentGraphs::NOTHING), Strategy::Single)
                .makespan_us
    );
}

#[test]
fn a_block_left_behind_on_the_other_graph_is_planned_with_the_rest() {
    let profile = profile(vec![block(2_000, 1_000, 1_300, 1); 6]);
    let mut problem = problem(&profile, 4, ResidentGraphs::DECODE);
    problem.start[3] = ResidentGraphs::PREFILL;
    for strategy in Strategy::ALL.into_iter().filter(|&strategy| strategy != Strategy::Resident) {
        replayed(&problem, strategy);
    }
}

#[test]
fn too_small_a_budget_tells_the_least() {
    let profile = profile(vec![block(2_000, 1_000, 1_300, 10); 6]);
    let problem =
        Problem { memory_budget: Some(59), ..problem(&profile, 4, ResidentGraphs::PREFILL) };
    let refused = plan(Strategy::Auto, &problem).unwrap_err();
    assert_eq!(refused, Error::BudgetTooSmall { budget: 59, least: 60 });
    let refused = plan(Strategy::Resident, &problem).unwrap_err();
    assert_eq!(refused, Error::BudgetTooSmall { budget: 59, least: 120 });
}

#[test]
fn what_is_no_problem_is_refused() {
    let small = profile(vec![block(2_000, 1_000, 1_300, 10); 2]);
    let good = problem(&small, 1, ResidentGraphs::PREFILL);
    let refused = |problem: Problem<'_>| plan(Strategy::Auto, &problem).unwrap_err();
    assert!(matches!(
        refused(Problem { num_tokens: 0, ..good.clone() }),
        Error::BadOption { what: "the number of prompt tokens", .. }
    ));
    assert!(matches!(
        refused(Problem { num_tokens: usize::MAX, ..good.clone() }),
        Error::BadOption { what: "the number of prompt tokens", .. }
    ));
    assert!(matches!(
        refused(Problem { start: vec![ResidentGraphs::BOTH], ..good.clone() }),
        Error::WrongLength { what: "start", got: 1, expected: 2 }
    ));
    for load_us in [u64::MAX, 1 << 61] {
        let endless = profile(vec![block(load_us, 1_000, 1_300, 10)]);
        assert!(matches!(
            refused(problem(&endless, 1, ResidentGraphs::PREFILL)),
            Error::BadOption { what: "the time of a plan", .. }
        ));
    }
}

#[test]
fn strategies_are_found_by_their_names_alone() {
    for strategy in Strategy::ALL {
        assert_eq!(Strategy::named(strategy.name()), Ok(strategy));
        let Err(Error::BadOption { must, .. }) = Strategy::named("none") else { panic!() };
        assert!(must.contains(strategy.name()));
    }
    for (name, held) in ResidentGraphs::ALL {
        assert_eq!(ResidentGraphs::named(name), Ok(held));
        let Err(Error::BadOption { must, .. }) = ResidentGraphs::named("none") else { panic!() };
        assert!(must.contains(name));
    }
    assert!(ResidentGraphs::named("Both").is_err());
}
