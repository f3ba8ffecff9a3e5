//! When to load which graph of which block (CoordGen, section 3.2). In: a [`Problem`]. Out: a
//! [`Plan`] by one of seven [`Strategy`]s. It loads nothing.
//!
//! # The problem
//!
//! `N` blocks run in order for each of `C` chunks, one after another; one loader works beside them.
//! A block's run takes as long as the graph that it is under needs for the chunk. Under a graph
//! that is not there yet it waits. Loads go one after another. At the end all blocks have G2. What
//! counts is the makespan, the end of the last run or the last load, and under equal ones the
//! memory.
//!
//! *Release-first*, the paper's form: a switch drops the old graph before it loads the new one, so
//! that memory holds one graph a block, and happens between two runs of the block.
//! *Make-before-break*: the old graph stays until its last run is over, and the load may stand
//! anywhere before that; it needs memory for both, and is used where the budget has it.

mod fixed;
mod just_in_time;
mod problem;
mod route;
mod search;
mod strategy;
#[cfg(test)]
mod tests;
mod windows;

use just_in_time::just_in_time;
use problem::Costs;
pub use problem::{Problem, ResidentGraphs};
use route::{Route, schedule};
pub use strategy::Strategy;

use crate::error::{Error, Result};
use crate::load::timetable::Timetable;

/// What is loaded and released when, and what it comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Every run, load and release.
    pub timetable: Timetable,
    /// Microseconds until the prefill and the last load are over.
    pub makespan_us: u64,
    /// Microseconds until the prefill is over.
    pub prefill_us: u64,
    /// Microseconds of the makespan in which nothing computes.
    pub exposed_load_us: u64,
    /// Most bytes of graphs held at once; a graph counts from the start of its load.
    pub peak_bytes: u64,
    /// Makespan below which no plan comes, whatever memory it may use.
    pub lower_bound_us: u64,
    /// What made it; where `Auto` was asked for, the one that it chose.
    pub strategy: Strategy,
}

/// The plan that `strategy` makes.
///
/// Costs a few passes over the runs; `JustInTime` and `Auto` some dozen of them, and a search that
/// ends after a bounded number of runs.
///
/// Fails with `BudgetTooSmall` where the strategy has no plan within the budget, and with
/// `BadOption` or `WrongLength` where the problem is none.
pub fn plan(strategy: Strategy, problem: &Problem<'_>) -> Result<Plan> {
    let costs = problem.costs()?;
    match strategy {
        Strategy::Auto => quickest(&costs, problem.memory_budget),
        _ => within(strategy, &costs, problem.memory_budget),
    }
}

/// In the order of preference among equals.
const CANDIDATES: [Strategy; 6] = [
    Strategy::Resident,
    Strategy::JustInTime,
    Strategy::Single,
    Strategy::Async,
    Strategy::Greedy,
    Strategy::Sync,
];

fn quickest(costs: &Costs, budget: Option<u64>) -> Result<Plan> {
    let mut best: Option<Plan> = None;
    let mut least_of_all = u64::MAX;
    for strategy in CANDIDATES {
        match within(strategy, costs, budget) {
            Err(Error::BudgetTooSmall { least, .. }) => least_of_all = least_of_all.min(least),
            Err(error) => return Err(error),
            Ok(plan) => {
                let key = |plan: &Plan| (plan.makespan_us, plan.peak_bytes);
                if best.as_ref().is_none_or(|best| key(&plan) < key(best)) {
                    best = Some(plan);
                }
            }
        }
    }
    best.ok_or(Error::BudgetTooSmall { budget: budget.unwrap_or(0), least: least_of_all })
}

/// The plan that a strategy makes, which may take more memory than the budget has.
fn planned(strategy: Strategy, costs: &Costs, budget: Option<u64>) -> Plan {
    let routes = match strategy {
        Strategy::Resident => fixed::resident(costs),
        Strategy::Sync => fixed::sync(costs),
        Strategy::Async => fixed::asynchronous(costs),
        Strategy::Greedy => fixed::greedy(costs),
        Strategy::JustInTime | Strategy::Auto => just_in_time(costs, budget),
        Strategy::Single => fixed::single(costs),
    };
    written_out(strategy, costs, &routes)
}

fn written_out(strategy: Strategy, costs: &Costs, routes: &[Route]) -> Plan {
    let laid_out = schedule(costs, routes);
    let computing: u64 = laid_out.timetable.runs.iter().map(|run| run.end_us - run.start_us).sum();
    Plan {
        makespan_us: laid_out.makespan_us,
        prefill_us: laid_out.prefill_us,
        exposed_load_us: laid_out.makespan_us - computing,
        peak_bytes: laid_out.peak_bytes,
        lower_bound_us: costs.lower_bound_us(),
        timetable: laid_out.timetable,
        strategy,
    }
}

/// The plan within the budget. Where what is in memory at the start leaves no room, some blocks or,
/// if that does not do, all of them go without their G2; `Resident` needs both, and `Single` gives
/// up G1 anyway.
fn within(strategy: Strategy, costs: &Costs, budget: Option<u64>) -> Result<Plan> {
    let Some(budget) = budget else { return Ok(planned(strategy, costs, None)) };
    match strategy {
        Strategy::Resident | Strategy::Single => checked(strategy, costs, budget),
        _ => checked(strategy, &costs.trimmed(budget), budget)
            .or_else(|_| checked(strategy, &costs.trimmed(0), budget))
            .map(|plan| Plan { lower_bound_us: costs.lower_bound_us(), ..plan }),
    }
}

/// The plan, unless it takes more than the budget.
fn checked(strategy: Strategy, costs: &Costs, budget: u64) -> Result<Plan> {
    let plan = planned(strategy, costs, Some(budget));
    if plan.peak_bytes > budget {
        return Err(Error::BudgetTooSmall { budget, least: plan.peak_bytes });
    }
    Ok(plan)
}
