//! What to do about a prompt: plan its loads, or stream the blocks. In: what the blocks cost, the
//! strategy, the memory budget, what is in memory, and what each prompt really took. Out: a plan or
//! a way of streaming. No thread and no store: it loads nothing.

use crate::error::{Error, Result};
use crate::ids::Graph;
use crate::load::loader::LoadReport;
use crate::load::plan::{Plan, Problem, ResidentGraphs, Strategy, plan};
use crate::load::profile::Profile;
use crate::load::stream::Streaming;
use crate::load::timetable::{ActionKind, Run};

/// How a prompt and its answer get their graphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadMode {
    /// Loaded and released by a plan while the prompt is read.
    Planned(Plan),
    /// Loaded anew in every pass, because not all blocks fit.
    Streamed(Streaming),
}

/// What decides about loads: costs, strategy and memory budget.
#[derive(Clone, Debug)]
pub struct Policy {
    profile: Profile,
    is_shared: bool,
    strategy: Strategy,
    memory_budget: Option<u64>,
}

impl Policy {
    /// Decides by the costs of `profile`, measured or guessed: an unfit figure makes plans worse,
    /// never results, and is mended prompt by prompt. `is_shared` says that a block's second graph
    /// costs nothing where the first is loaded. Begins with `Auto` and no limit of memory.
    pub fn new(profile: Profile, is_shared: bool) -> Self {
        Self { profile, is_shared, strategy: Strategy::Auto, memory_budget: None }
    }

    /// From now on plans are made by `strategy`, and graphs hold at most `memory_budget` bytes.
    pub fn settle(&mut self, strategy: Strategy, memory_budget: Option<u64>) {
        (self.strategy, self.memory_budget) = (strategy, memory_budget);
    }

    /// What the blocks cost, as far as is known.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Most bytes that graphs may hold; none for no limit.
    pub fn memory_budget(&self) -> Option<u64> {
        self.memory_budget
    }

    /// Whether both graphs of all blocks simply stay in memory: they cost no more than one, there
    /// is no limit, and nothing else was asked for.
    pub fn keeps_both(&self) -> bool {
        self.is_shared && self.strategy == Strategy::Auto && self.memory_budget.is_none()
    }

    /// How a prompt of `num_tokens` gets its graphs, from what is in memory now.
    ///
    /// `Auto` streams where no plan fits into the budget, or where both graphs of a block are one
    /// and only the number of blocks in memory counts. Fails with `BudgetTooSmall` where nothing
    /// fits, and with `BadOption` where there is no token or too many.
    pub fn decide(&self, num_tokens: usize, resident: &[[bool; 2]]) -> Result<LoadMode> {
        let budget = match (self.strategy, self.memory_budget) {
            (Strategy::Auto, Some(budget)) => budget,
            _ => return self.planned(num_tokens, resident).map(LoadMode::Planned),
        };
        if !self.is_shared {
            match self.planned(num_tokens, resident) {
                Err(Error::BudgetTooSmall { .. }) => {}
                planned => return planned.map(LoadMode::Planned),
            }
        }
        Streaming::within(budget, &self.profile).map(LoadMode::Streamed)
    }

    /// No margin for loads that may be late: it saves half a percent where they all are by some
    /// 15 %, costs one where they are not, and takes from `greedy` and `just_in_time` the plan that
    /// hides all loads of Figure 8. What loads really take is learned.
    fn planned(&self, num_tokens: usize, resident: &[[bool; 2]]) -> Result<Plan> {
        let problem = Problem {
            profile: &self.profile,
            num_tokens,
            start: resident.iter().copied().map(ResidentGraphs::of).collect(),
            memory_budget: self.memory_budget,
        };
        plan(self.strategy, &problem)
    }

    /// Moves what blocks cost half of the way to what they cost in a prompt.
    ///
    /// Runs of a prompt's last chunk do not count: it may be partly filled, and then takes fewer
    /// pieces of G2 than a full one.
    pub fn learn(&mut self, report: &LoadReport) {
        let num_pieces = self.profile.prefill_rows().div_ceil(self.profile.decode_rows()) as u64;
        let blocks = self.profile.blocks_mut();
        for load in report.actual.actions.iter().filter(|action| action.kind == ActionKind::Load) {
            let cost = blocks[load.block.index()].under_mut(load.graph);
            cost.load_us = half_way(cost.load_us, load.duration_us());
        }
        let runs = &report.actual.runs;
        let last_chunk = runs.iter().map(|run| run.chunk).max().unwrap_or(0);
        let tells = |run: &&Run| run.graph == Graph::Prefill || run.chunk < last_chunk;
        for run in runs.iter().filter(tells) {
            let num_runs = if run.graph == Graph::Prefill { 1 } else { num_pieces };
            let cost = blocks[run.block.index()].under_mut(run.graph);
            cost.compute_us = half_way(cost.compute_us, run.duration_us() / num_runs);
        }
    }
}

fn half_way(known_us: u64, seen_us: u64) -> u64 {
    known_us.midpoint(seen_us)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::Strategy as Generator;

    use super::*;
    use crate::ids::BlockId;
    use crate::load::plan::Strategy;
    use crate::load::profile::{BlockCost, GraphCost};
    use crate::load::timetable::{Action, Timetable};

    const PREFILL_ROWS: usize = 8;
    const PIECES: u64 = 4;

    fn policy(blocks: Vec<BlockCost>, is_shared: bool) -> Policy {
        let decode_rows = PREFILL_ROWS / PIECES as usize;
        Policy::new(Profile::new(blocks, PREFILL_ROWS, decode_rows).unwrap(), is_shared)
    }

    fn costs(num_blocks: std::ops::Range<usize>) -> impl Generator<Value = Vec<BlockCost>> {
        let graph =
            (0..1000u64, 0..1000u64, 1..50u64).prop_map(|(load_us, compute_us, num_bytes)| {
                GraphCost { load_us, compute_us, num_bytes }
            });
        let block =
            (graph.clone(), graph).prop_map(|(prefill, decode)| BlockCost { prefill, decode });
        prop::collection::vec(block, num_blocks)
    }

    /// A report on loads and runs of these blocks that took `took_us`.
    fn report(loads: &[(u32, Graph)], runs: &[(u32, usize, Graph)], took_us: u64) -> LoadReport {
        let action = |&(block, graph)| Action {
            kind: ActionKind::Load,
            block: BlockId(block),
            graph,
            after_runs: 0,
            start_us: 7,
            end_us: 7 + took_us,
        };
        let run = |&(block, chunk, graph)| Run {
            block: BlockId(block),
            chunk,
            graph,
            start_us: 5,
            end_us: 5 + took_us,
        };
        LoadReport {
            actual: Timetable {
                num_blocks: 2,
                runs: runs.iter().map(run).collect(),
                actions: loads.iter().map(action).collect(),
            },
            exposed_us: 0,
            busy_us: 0,
            overlap_us: 0,
            peak_bytes: 0,
            num_under_other_graph: 0,
            failures: vec![],
            is_cancelled: false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn plans_are_made_and_told_by_what_blocks_cost(
            blocks in costs(1..5),
            strategy in prop::sample::select(&Strategy::ALL[..]),
            num_tokens in 1..40usize,
        ) {
            let mut policy = policy(blocks.clone(), false);
            policy.settle(strategy, None);
            let mode = policy.decide(num_tokens, &vec![[false; 2]; blocks.len()]).unwrap();
            let LoadMode::Planned(plan) = mode else { panic!("there is no limit to stream within") };
            for action in plan.timetable.actions.iter().filter(|it| it.kind == ActionKind::Load) {
                let load_us = blocks[action.block.index()].under(action.graph).load_us;
                prop_assert_eq!(action.duration_us(), load_us);
            }
        }

        #[test]
        fn a_budget_is_kept_to_by_plan_else_by_streaming_else_refused(
            blocks in costs(1..6),
            strategy in prop::sample::select(&Strategy::ALL[..]),
            is_shared: bool,
            share in 0.0..1.2f64,
        ) {
            let all: u64 = blocks.iter().map(|cost| cost.prefill.num_bytes + cost.decode.num_bytes).sum();
            let budget = (all as f64 * share) as u64;
            let resident = vec![[false; 2]; blocks.len()];
            let mut policy = policy(blocks, is_shared);
            policy.settle(strategy, Some(budget));
            let planned = policy.planned(20, &resident);
            let may_stream = strategy == Strategy::Auto;
            match policy.decide(20, &resident) {
                Ok(LoadMode::Planned(plan)) => {
                    prop_assert!(plan.peak_bytes <= budget && !(may_stream && is_shared));
                    prop_assert_eq!(Ok(plan), planned);
                }
                Ok(LoadMode::Streamed(streaming)) => {
                    prop_assert!(streaming.peak_bytes() <= budget);
                    prop_assert!(may_stream && (is_shared || planned.is_err()));
                }
                Err(Error::BudgetTooSmall { least, .. }) => {
                    prop_assert!(budget < least);
                    prop_assert!(planned.is_err() || (may_stream && is_shared));
                    let streamed = Streaming::within(budget, policy.profile());
                    prop_assert!(!may_stream || streamed.is_err());
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn what_a_prompt_took_halves_the_distance(
            blocks in costs(2..3),
            took_us in 0..5000u64,
        ) {
            let mut policy = policy(blocks.clone(), false);
            policy.learn(&report(&[(1, Graph::Decode)], &[(0, 0, Graph::Prefill)], took_us));
            let learned = policy.profile().blocks();
            let half_way = |known_us: u64| (known_us + took_us) / 2;
            prop_assert_eq!(learned[1].decode.load_us, half_way(blocks[1].decode.load_us));
            prop_assert_eq!(learned[0].prefill.compute_us, half_way(blocks[0].prefill.compute_us));
            let mut expected = blocks;
            expected[1].decode.load_us = learned[1].decode.load_us;
            expected[0].prefill.compute_us = learned[0].prefill.compute_us;
            prop_assert_eq!(learned, &expected[..]); // nothing else has changed
        }
    }

    #[test]
    fn pieces_of_a_chunk_count_each_but_not_those_of_the_last_chunk() {
        let graph = GraphCost { load_us: 0, compute_us: 100, num_bytes: 1 };
        let mut policy = policy(vec![BlockCost { prefill: graph, decode: graph }; 2], false);
        let runs = [(0, 0, Graph::Decode), (1, 1, Graph::Decode), (1, 2, Graph::Prefill)];
        policy.learn(&report(&[], &runs, 80));
        let of = |block: usize, graph| policy.profile().blocks()[block].under(graph).compute_us;
        assert_eq!((of(0, Graph::Decode), of(1, Graph::Decode)), (60, 60)); // 80 us are 4 pieces
        policy.learn(&report(&[], &runs[..2], 80));
        let of = |block: usize, graph| policy.profile().blocks()[block].under(graph).compute_us;
        assert_eq!((of(0, Graph::Decode), of(1, Graph::Decode)), (40, 60)); // chunk 1 is the last
        assert_eq!(of(1, Graph::Prefill), 90);
    }

    #[test]
    fn both_graphs_stay_only_where_nothing_is_to_be_gained() {
        let graph = GraphCost { load_us: 1, compute_us: 1, num_bytes: 1 };
        let blocks = vec![BlockCost { prefill: graph, decode: graph }];
        assert!(!policy(blocks.clone(), false).keeps_both());
        let mut policy = policy(blocks, true);
        assert!(policy.keeps_both());
        for (strategy, budget) in [(Strategy::Sync, None), (Strategy::Auto, Some(1 << 40))] {
            policy.settle(strategy, budget);
            assert!(!policy.keeps_both());
        }
    }
}
