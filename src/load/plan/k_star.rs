//! k*, the paper's greedy rule (CoordGen, section 3.2, Eq. 2). In: the costs. Out: a route a block.
//!
//! The last block `P_j` that is not switched loads its G2 beside the next `k*` runs, the fewest
//! that take as long as the load; compute stands at block `P_i`, and each run is under the graph
//! `G^x` that its block has then:
//!
//! ```text
//! k* = min { k >= 1 | T_load(P_j; G2) <= sum of T_compute(P_(i+l); G^x_(i+l)) over l in 0..k }
//! ```

use super::fixed::asynchronous;
use super::problem::{Costs, Held};
use super::route::Route;
use crate::ids::Graph;

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
        if costs.blocks[block].start == Held::BOTH {
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
