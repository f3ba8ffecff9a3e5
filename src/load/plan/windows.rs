//! Walks through the runs that give each block an idle window in which its load is hidden whole:
//! backwards for G2, the latest window; forwards for G1, the earliest. In: the costs. Out: routes
//! from which the search starts.

use super::problem::{Costs, ResidentGraphs};
use super::route::Route;
use crate::ids::Graph;

const G1: usize = Graph::Prefill as usize;
const G2: usize = Graph::Decode as usize;

/// Times counted back from the end of the prefill, microseconds; negative after it.
#[derive(Clone, Copy)]
struct BackwardTimes {
    /// Start of the run that the walk has come to.
    compute: i64,
    /// Start of the first load placed so far, or the latest end of one.
    loader: i64,
}

impl BackwardTimes {
    /// Places a load of `load` us that ends at `end` or later before it, if it starts no earlier
    /// than the walk has come.
    fn place(&mut self, load: i64, end: i64) -> bool {
        let start = self.loader.max(end) + load;
        let fits = start <= self.compute;
        if fits {
            self.loader = start;
        }
        fits
    }
}

/// `entry` with each block's G2 in the last window that takes its load whole.
///
/// `overhang` eighths of all loads may end after the prefill. A block that fits nowhere is switched
/// in its first window if `early`, else in its last.
pub(super) fn backwards(costs: &Costs, entry: &[Route], overhang: u64, early: bool) -> Vec<Route> {
    let all: u64 = costs.blocks.iter().map(|block| block.load[G2]).sum();
    // Times may reach 2^63, and eight times that does not fit 64 bits.
    let tail = (u128::from(all) * u128::from(overhang) / 8) as i64;
    let mut walk = BackwardTimes { compute: 0, loader: -tail };
    let first_window =
        |block: usize| if costs.blocks[block].start.prefill { 0 } else { entry[block].from + 1 };
    let switched = |block, until| Route::release_first(costs, block, entry[block].from, until);
    let mut open: Vec<bool> =
        (0..costs.num_blocks()).map(|block| is_switched(costs, entry, block)).collect();
    let mut routes = entry.to_vec();
    for block in (0..costs.num_blocks()).filter(|&block| open[block]) {
        routes[block] = switched(block, first_window(block));
    }
    let mut due = vec![-tail; costs.num_blocks()];
    for window in (0..=costs.num_chunks).rev() {
        for block in (0..costs.num_blocks()).rev() {
            let load = costs.blocks[block].load[G2] as i64;
            let is_open = open[block] && window >= first_window(block);
            if is_open && walk.place(load, due[block]) {
                routes[block] = switched(block, window);
                open[block] = false;
            }
            if let Some(chunk) = window.checked_sub(1) {
                let graph = routes[block].graph(chunk);
                walk.compute += costs.compute_us(block, chunk, graph) as i64;
                due[block] = walk.compute;
            }
        }
    }
    for block in (0..costs.num_blocks()).filter(|&block| open[block] && !early) {
        routes[block] = switched(block, costs.num_chunks);
    }
    routes
}

/// Whether `block` goes from G1 to G2 on its way.
fn is_switched(costs: &Costs, entry: &[Route], block: usize) -> bool {
    match costs.blocks[block].start {
        ResidentGraphs { prefill: true, decode } => !decode,
        ResidentGraphs { prefill: false, .. } => entry[block].from < entry[block].until,
    }
}

/// Blocks that stand on G2 brought to G1 in the first window that takes the load whole, left on G2
/// where none does; the others under G1 from the start.
pub(super) fn forwards(costs: &Costs) -> Vec<Route> {
    let stays = |block: usize| costs.blocks[block].start == ResidentGraphs::DECODE;
    let route = |block, from| Route::release_first(costs, block, from, costs.num_chunks);
    let mut routes: Vec<_> = (0..costs.num_blocks())
        .map(|block| route(block, if stays(block) { costs.num_chunks } else { 0 }))
        .collect();
    let run_us = |block: usize, route: &Route| costs.compute_us(block, 0, route.graph(0));
    let mut round: u64 = routes.iter().enumerate().map(|(block, route)| run_us(block, route)).sum();
    let (mut compute, mut loader) = (0, 0);
    for run in 0..(costs.num_chunks - 1) * costs.num_blocks() {
        let (chunk, block) = (run / costs.num_blocks(), run % costs.num_blocks());
        let own = costs.compute_us(block, chunk, routes[block].graph(chunk));
        compute += own;
        let load_end = costs.blocks[block].load[G1] + compute.max(loader);
        let stays_for_good = stays(block) && routes[block].from == costs.num_chunks;
        if stays_for_good && load_end <= compute + round - own {
            loader = load_end;
            routes[block] = route(block, chunk + 1);
            round = round - own + costs.compute_us(block, chunk, Graph::Prefill);
        }
    }
    routes
}

/// Blocks under G1 that load G2 beside it: after their last run where that hides the load whole,
/// the others back to back before those, each as late as it can.
pub(super) fn stacked(costs: &Costs) -> Vec<Route> {
    let best = |block| Route::release_first(costs, block, 0, costs.best_until(block));
    let mut routes: Vec<_> = (0..costs.num_blocks()).map(best).collect();
    let load = |block: usize| costs.blocks[block].load[G2] as i64;
    let run_us = |run: usize, routes: &[Route]| {
        let (chunk, block) = (run / costs.num_blocks(), run % costs.num_blocks());
        costs.compute_us(block, chunk, routes[block].graph(chunk)) as i64
    };
    let computing: i64 = (0..costs.num_runs()).map(|run| run_us(run, &routes)).sum();
    let loading: i64 = (0..costs.num_blocks()).map(load).sum();
    let tail = (loading - computing).max(0);
    let mut walk = BackwardTimes { compute: 0, loader: -tail };
    let mut waiting = Vec::new();
    for block in (0..costs.num_blocks()).rev() {
        if !walk.place(load(block), -tail) {
            waiting.push(block);
        }
        walk.compute += run_us(costs.num_runs() - costs.num_blocks() + block, &routes);
    }
    let mut waiting = waiting.into_iter().peekable();
    walk.compute = 0;
    for run in (0..costs.num_runs()).rev() {
        walk.compute += run_us(run, &routes);
        while let Some(block) = waiting.next_if(|&block| walk.place(load(block), -tail)) {
            routes[block].switch = run.min(routes[block].switch);
        }
    }
    for block in waiting {
        routes[block].switch = 0;
    }
    routes
}
