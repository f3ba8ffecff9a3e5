//! A strategy under a memory budget: what it gives up for it, and where it has no plan. In: costs, a
//! budget. Out: a plan that keeps within it, or the least that the strategy needs.

use super::problem::Costs;
use super::{Plan, Strategy, planned};
use crate::error::{Error, Result};

/// The plan within the budget. Where what is in memory at the start leaves no room, some blocks or,
/// if that does not do, all of them go without their G2; `Resident` needs both, and `Single` gives
/// up G1 anyway.
pub(super) fn within(strategy: Strategy, costs: &Costs, budget: Option<u64>) -> Result<Plan> {
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
