//! The best plan there is, by trying all that could be: for small cases, to judge strategies by.
//! In: a problem whose blocks all stand on G1, release-first. Out: its least makespan. It shares no
//! code with the planner.
//!
//! # What is searched
//!
//! Every plan of the release-first form is a window a block (before its first run, between two of
//! its runs, or after its last) and an order of the loads. For given windows one order is best:
//! that in which the windows open. They also close in that order, as each is open for all runs but
//! the block's own. So if load `a` stands right before load `b` whose window opens earlier, then
//! swapped the two take the same time on the loader or less, `b` is over earlier than before, and
//! `a` is over when `b` was at the latest, which its run, later than that of `b`, had to wait for
//! anyway. Nor does waiting help: no load and no run is the later for an earlier start of another.
//! That leaves `(C + 1)^N` choices of windows, a yes or no each time a block becomes idle. They are
//! walked in order of time, and left where what remains is too long even if it never waits.

use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::load::plan::{Problem, ResidentGraphs};

/// Most choices of windows.
const MAX_CHOICES: u64 = 1 << 32;

/// A best plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Optimum {
    /// Its makespan in microseconds.
    pub makespan_us: u64,
    /// For each block the number of chunks that it computes under G1.
    pub until: Vec<usize>,
}

/// The least makespan of all release-first plans.
///
/// Costs up to `(C + 1)^N` steps for `N` blocks and `C` chunks. Fails with `BadOption` where that
/// is above 2^32, there is no token, or a block does not start with just its G1.
pub fn optimum(problem: &Problem<'_>) -> Result<Optimum> {
    let profile = problem.profile;
    let (num_blocks, num_chunks) = (profile.blocks().len(), profile.num_chunks(problem.num_tokens));
    let choices = (num_chunks as u64 + 1).checked_pow(num_blocks as u32);
    if num_chunks == 0 || choices.is_none_or(|choices| choices > MAX_CHOICES) {
        let got = format!("{num_chunks} chunks of {num_blocks} blocks");
        let must = "at least one chunk and at most 2^32 choices of windows";
        return Err(Error::BadOption { what: "the size of the problem", got, must });
    }
    if let Some(block) = problem.start.iter().position(|&held| held != ResidentGraphs::PREFILL) {
        let got = format!("{:?} for block {block}", problem.start[block]);
        return Err(Error::BadOption { what: "start", got, must: "G1 only for all blocks" });
    }
    let last = problem.num_tokens - (num_chunks - 1) * profile.prefill_rows();
    let full = profile.prefill_rows().min(problem.num_tokens);
    let blocks = (0..num_blocks as u32).map(BlockId).map(|block| {
        let of = |tokens| Graph::BOTH.map(|graph| profile.compute_us(block, graph, tokens));
        Block { load: profile.block(block).decode.load_us, full: of(full), last: of(last) }
    });
    let mut search = Search {
        blocks: blocks.collect(),
        num_chunks,
        switched: vec![None; num_blocks],
        best: Optimum { makespan_us: u64::MAX, until: Vec::new() },
    };
    search.walk(0, search.start());
    Ok(search.best)
}

struct Block {
    load: u64,
    full: [u64; 2],
    last: [u64; 2],
}

/// Microseconds so far, and the least that is still to come.
#[derive(Clone, Copy)]
struct State {
    compute: u64,
    loader: u64,
    runs_left: u64,
    loads_left: u64,
}

impl State {
    /// The makespan, if from here on nothing waits.
    fn least(&self) -> u64 {
        (self.compute + self.runs_left).max(self.compute.max(self.loader) + self.loads_left)
    }
}

struct Search {
    blocks: Vec<Block>,
    num_chunks: usize,
    /// Window in which each block is switched, and when its G2 is there.
    switched: Vec<Option<(usize, u64)>>,
    best: Optimum,
}

impl Search {
    fn start(&self) -> State {
        let runs = |block| (0..self.num_chunks).map(move |chunk| self.quickest(block, chunk));
        State {
            compute: 0,
            loader: 0,
            runs_left: (0..self.blocks.len()).flat_map(runs).sum(),
            loads_left: self.blocks.iter().map(|block| block.load).sum(),
        }
    }

    fn compute_us(&self, block: usize, chunk: usize, graph: Graph) -> u64 {
        let block = &self.blocks[block];
        let times = if chunk + 1 == self.num_chunks { block.last } else { block.full };
        times[graph as usize]
    }

    fn quickest(&self, block: usize, chunk: usize) -> u64 {
        let [prefill, decode] = Graph::BOTH.map(|graph| self.compute_us(block, chunk, graph));
        prefill.min(decode)
    }

    /// Step `s` is about block `s % N`: the run that ends before its window number `s / N`, and
    /// then its switch, in that window or later.
    fn walk(&mut self, step: usize, mut state: State) {
        let (window, block) = (step / self.blocks.len(), step % self.blocks.len());
        if state.least() >= self.best.makespan_us {
            return;
        }
        if window > self.num_chunks {
            let until = self.switched.iter().flatten().map(|&(window, _)| window).collect();
            self.best = Optimum { makespan_us: state.least(), until };
            return;
        }
        if let Some(chunk) = window.checked_sub(1) {
            state = self.run(state, block, chunk);
        }
        if self.switched[block].is_some() {
            return self.walk(step + 1, state);
        }
        if window < self.num_chunks {
            self.walk(step + 1, state);
        }
        let load = self.blocks[block].load;
        state.loader = state.compute.max(state.loader) + load;
        state.loads_left -= load;
        for chunk in window..self.num_chunks {
            let slow = self.compute_us(block, chunk, Graph::Decode);
            state.runs_left += slow - self.quickest(block, chunk);
        }
        self.switched[block] = Some((window, state.loader));
        self.walk(step + 1, state);
        self.switched[block] = None;
    }

    fn run(&self, state: State, block: usize, chunk: usize) -> State {
        let (graph, ready, foreseen) = match self.switched[block] {
            Some((_, ready)) => {
                (Graph::Decode, ready, self.compute_us(block, chunk, Graph::Decode))
            }
            None => (Graph::Prefill, 0, self.quickest(block, chunk)),
        };
        let compute = state.compute.max(ready) + self.compute_us(block, chunk, graph);
        State { compute, runs_left: state.runs_left - foreseen, ..state }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::profile::{BlockCost, GraphCost, Profile};

    /// Makespan with block `i` under G1 for `until[i]` chunks, loaded in that order; None where a
    /// load would wait for a run that waits for a later load.
    fn makespan_us(problem: &Problem<'_>, until: &[usize], order: &[usize]) -> Option<u64> {
        let (num_blocks, rows) = (until.len(), problem.profile.prefill_rows());
        let (mut run_ends, mut ready) = (Vec::<u64>::new(), vec![None; num_blocks]);
        let mut loader = 0;
        let mut waiting = order.iter();
        let mut load = |run_ends: &[u64], ready: &mut [Option<u64>]| -> Option<()> {
            let block = *waiting.next()?;
            let idle = match until[block] {
                0 => 0,
                runs => *run_ends.get((runs - 1) * num_blocks + block)?,
            };
            loader = idle.max(loader) + problem.profile.blocks()[block].decode.load_us;
            ready[block] = Some(loader);
            Some(())
        };
        let mut end = 0;
        for chunk in 0..problem.profile.num_chunks(problem.num_tokens) {
            let tokens = rows.min(problem.num_tokens - chunk * rows);
            for (block, &until) in until.iter().enumerate() {
                let graph = if chunk < until { Graph::Prefill } else { Graph::Decode };
                while graph == Graph::Decode && ready[block].is_none() {
                    load(&run_ends, &mut ready)?;
                }
                if graph == Graph::Decode {
                    end = end.max(ready[block]?);
                }
                end += problem.profile.compute_us(BlockId(block as u32), graph, tokens);
                run_ends.push(end);
            }
        }
        while ready.contains(&None) {
            load(&run_ends, &mut ready)?;
        }
        ready.into_iter().flatten().max().map(|loaded| loaded.max(end))
    }

    fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
        if items.is_empty() {
            return vec![vec![]];
        }
        let with_first = |&first: &usize| {
            let rest: Vec<_> = items.iter().copied().filter(|&item| item != first).collect();
            let before = move |order: Vec<usize>| [vec![first], order].concat();
            permutations(&rest).into_iter().map(before).collect::<Vec<_>>()
        };
        items.iter().flat_map(with_first).collect()
    }

    fn costs() -> impl Strategy<Value = BlockCost> {
        let graph = (0_u64..30, 0_u64..12).prop_map(|(load_us, compute_us)| GraphCost {
            load_us,
            compute_us,
            num_bytes: 1,
        });
        [graph.clone(), graph].prop_map(|[prefill, decode]| BlockCost { prefill, decode })
    }

    proptest! {
        #[test]
        fn no_windows_in_any_order_are_better(
            blocks in prop::collection::vec(costs(), 1..5),
            num_tokens in 1_usize..12,
        ) {
            let num_blocks = blocks.len();
            let profile = Profile::new(blocks, 4, 2).unwrap();
            let start = vec![ResidentGraphs::PREFILL; num_blocks];
            let problem = Problem { profile: &profile, num_tokens, start, memory_budget: None };
            let optimum = optimum(&problem).unwrap();
            let num_windows = profile.num_chunks(num_tokens) + 1;
            let all_blocks: Vec<_> = (0..num_blocks).collect();
            let orders = permutations(&all_blocks);
            let mut least = u64::MAX;
            for choice in 0..num_windows.pow(num_blocks as u32) {
                let window = |&block: &usize| choice / num_windows.pow(block as u32) % num_windows;
                let until: Vec<_> = all_blocks.iter().map(window).collect();
                let of_order = |order: &Vec<usize>| makespan_us(&problem, &until, order);
                let best = orders.iter().filter_map(of_order).min();
                if until == optimum.until {
                    prop_assert_eq!(best, Some(optimum.makespan_us));
                }
                least = least.min(best.unwrap_or(u64::MAX));
            }
            prop_assert_eq!(optimum.makespan_us, least);
        }
    }

    #[test]
    fn only_small_problems_that_start_under_the_prefill_graph_are_taken() {
        let graph = GraphCost { load_us: 1, compute_us: 1, num_bytes: 1 };
        let profile = Profile::new(vec![BlockCost { prefill: graph, decode: graph }; 24], 4, 2);
        let profile = profile.unwrap();
        let of = |num_tokens, held| {
            let start = vec![held; 24];
            optimum(&Problem { profile: &profile, num_tokens, start, memory_budget: None })
        };
        let option =
            |what| move |error| matches!(error, Error::BadOption { what: it, .. } if it == what);
        assert!(of(8, ResidentGraphs::PREFILL).is_err_and(option("the size of the problem")));
        assert!(of(0, ResidentGraphs::PREFILL).is_err_and(option("the size of the problem")));
        assert!(of(4, ResidentGraphs::DECODE).is_err_and(option("start")));
    }
}
