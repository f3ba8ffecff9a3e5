//! The strategies that follow one fixed rule and search nothing: all loads at the end, both graphs
//! resident, one graph only, and k*, the paper's greedy rule. In: the costs. Out: a route a block.
//!
//! By k* (CoordGen, section 3.2, Eq. 2) the last block `P_j` that is not switched loads its G2 beside the
//! next `k*` runs, the fewest that take as long as the load; compute stands at block `P_i`, and each run
//! is under the graph `G^x` that its block has then:
//!
//! ```text
//! k* = min { k >= 1 | T_load(P_j; G2) <= sum of T_compute(P_(i+l); G^x_(i+l)) over l in 0..k }
//! ```

use super::problem::{Costs, ResidentGraphs};
use super::route::Route;
use crate::ids::Graph;

const G1: usize = Graph::Prefill as usize;
const G2: usize = Graph::Decode as usize;

/// For each block what `route` says of its number.
fn each(costs: &Costs, route: impl FnMut(usize) -> Route) -> Vec<Route> {
    (0..costs.num_blocks()).map(route).collect()
}

/// All of G1 first where it is not there, the prefill under it, then all of G2 (CoordGen, section
/// 3.2 and Figure 8b, 1).
pub(super) fn sync(costs: &Costs) -> Vec<Route> {
    let (num_chunks, switch) = (costs.num_chunks, costs.num_runs());
    each(costs, |block| Route {
        enter: 0,
        switch,
        ..Route::release_first(costs, block, 0, num_chunks)
    })
}

/// The prefill under G1; each block's G2 after its run in the last chunk (Figure 8b, 2).
pub(super) fn asynchronous(costs: &Costs) -> Vec<Route> {
    each(costs, |block| Route::release_first(costs, block, 0, costs.num_chunks))
}

/// G2 only: no block is ever brought to G1, and one that stands on G1 leaves it first.
pub(super) fn single(costs: &Costs) -> Vec<Route> {
    each(costs, |block| Route::release_first(costs, block, 0, 0))
}

/// Both graphs stay: loads begin at once, G1 before G2, and no run waits for a graph as long as the
/// block has the other one.
pub(super) fn resident(costs: &Costs) -> Vec<Route> {
    let ready = resident_loads(costs);
    let mut routes = each(costs, |block| Route {
        enter: 0,
        switch: 0,
        keep_prefill: true,
        keep_decode: true,
        ..Route::release_first(costs, block, 0, costs.best_until(block))
    });
    let mut compute = 0;
    for chunk in 0..costs.num_chunks {
        for (block, route) in routes.iter_mut().enumerate() {
            let start = costs.blocks[block].start;
            if start == ResidentGraphs::DECODE && route.from == chunk && ready[block][G1] > compute
            {
                route.from = (chunk + 1).min(route.until);
            }
            if start == ResidentGraphs::PREFILL
                && route.until == chunk
                && ready[block][G2] > compute
            {
                route.until = chunk + 1;
            }
            let graph = route.graph(chunk);
            compute = compute.max(ready[block][graph as usize]);
            compute += costs.compute_us(block, chunk, graph);
        }
    }
    routes
}

/// When each graph is there, if all that are missing are loaded from the start: G1, then G2.
fn resident_loads(costs: &Costs) -> Vec<[u64; 2]> {
    let mut loader = 0;
    let mut ready = vec![[0; 2]; costs.num_blocks()];
    for graph in Graph::BOTH {
        for (block, block_costs) in costs.blocks.iter().enumerate() {
            let useless = graph == Graph::Prefill && costs.best_until(block) == 0;
            if !block_costs.start.holds(graph) && !useless {
                loader += block_costs.load[graph as usize];
                ready[block][graph as usize] = loader;
            }
        }
    }
    ready
}

/// From the first chunk on, the last block that is not switched loads beside the next `k*` runs;
/// what is left after the prefill follows at once.
///
/// A block that is among those runs itself waits there for its load: the rule does not look at
/// that. The paper starts with all blocks under G1. Where a G1 is missing, it is loaded and waited
/// for, and the rule starts with the second chunk.
pub(super) fn greedy(costs: &Costs) -> Vec<Route> {
    let mut routes = asynchronous(costs);
    let all_there = costs.blocks.iter().all(|block| block.start.prefill);
    let mut position = if all_there { 0 } else { costs.num_blocks() };
    for block in (0..costs.num_blocks()).rev() {
        if costs.blocks[block].start == ResidentGraphs::BOTH {
            continue;
        }
        let (chunks, next) = (position / costs.num_blocks(), position % costs.num_blocks());
        routes[block].until = chunks + usize::from(block < next);
        routes[block].switch = position;
        let load_us = costs.blocks[block].load[Graph::Decode as usize];
        position += k_star(costs, &routes, position, load_us);
    }
    routes
}

/// The fewest runs from `position` on that take `load_us` or more, at least one; all that are left
/// where none do.
fn k_star(costs: &Costs, routes: &[Route], position: usize, load_us: u64) -> usize {
    let mut covered_us = 0;
    for run in position..costs.num_runs() {
        if covered_us >= load_us && run > position {
            return run - position;
        }
        let (chunk, block) = (run / costs.num_blocks(), run % costs.num_blocks());
        covered_us += costs.compute_us(block, chunk, routes[block].graph(chunk));
    }
    costs.num_runs() - position
}
