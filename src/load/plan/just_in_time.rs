//! Our strategy: each switch as late as still hides its load, then a short local search. In: the
//! costs and the memory budget. Out: a route a block, never worse than those of the paper's rules.
//!
//! A block that is switched early runs slowly ever after, so loads belong at the end of the
//! prefill. Walks through the runs give each block the window that hides its load whole; what no
//! window takes is tried in several places. The search improves on the best of that. Where the
//! budget has room, a block may keep its old graph while the new one loads.

use super::fixed;
use super::problem::{Costs, ResidentGraphs};
use super::route::Route;
use super::search::{Search, any_form, release_first};
use super::windows::{backwards, forwards, stacked};

/// Eighths of all loads that the walk backwards leaves for after the prefill.
const OVERHANGS: [u64; 6] = [0, 1, 2, 3, 4, 6];

/// The routes of the best plan found within `budget` bytes; where none fits, those of least memory.
pub(super) fn just_in_time(costs: &Costs, budget: Option<u64>) -> Vec<Route> {
    let mut search = Search::new(costs, budget, fixed::sync(costs));
    search.consider(&fixed::asynchronous(costs));
    search.consider(&at_once(costs, &fixed::greedy(costs)));
    for entry in entries(costs) {
        search.consider(&entry);
        for overhang in OVERHANGS {
            for early in [false, true] {
                search.consider(&backwards(costs, &entry, overhang, early));
            }
        }
    }
    search.improve(release_first);
    if search.has_room() {
        search.consider(&from_the_start(costs));
        search.consider(&stacked(costs));
        search.keep_while_loading();
        search.improve(any_form);
        search.economise();
    }
    search.into_routes()
}

/// Ways to G1: at once, hidden, or not at all; where no block has to choose, the first stands for
/// all.
fn entries(costs: &Costs) -> Vec<Vec<Route>> {
    let at_once = fixed::asynchronous(costs);
    if costs.blocks.iter().any(|block| block.start == ResidentGraphs::DECODE) {
        vec![at_once, forwards(costs), fixed::single(costs)]
    } else {
        vec![at_once, fixed::single(costs)]
    }
}

/// `routes` with every load as soon as its window opens: at most as long.
fn at_once(costs: &Costs, routes: &[Route]) -> Vec<Route> {
    let sooner = |(block, route): (usize, &Route)| {
        Route::release_first(costs, block, route.from, route.until)
    };
    routes.iter().enumerate().map(sooner).collect()
}

/// All loads from the start on, beside the old graphs, which go when they are used no more.
fn from_the_start(costs: &Costs) -> Vec<Route> {
    let let_go = |route| Route { keep_prefill: false, ..route };
    fixed::resident(costs).into_iter().map(let_go).collect()
}
