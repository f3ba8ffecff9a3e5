//! What a memory budget leaves to whom. In: the budget, the bytes of the blocks' graphs, the experts.
//! Out: bytes for the graphs and bytes for the experts.

use super::shape::Shape;
use crate::error::{Error, Result};

/// How a budget is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// For the blocks' graphs: less than all of them where some are to be streamed; more where
    /// experts leave some, as a plan may hold both graphs of a block.
    pub graphs: u64,
    /// For experts: at least those of the largest layer, at most all.
    pub experts: u64,
}

impl Shares {
    /// Graphs come first: every step reads all of them, but of the experts some. Where they leave
    /// less than a layer's experts, those get just that, and graphs are streamed within the rest.
    ///
    /// Fails where not even one block fits beside a layer's experts; the least that would do is
    /// named.
    pub fn of(budget: u64, graph_bytes: &[u64], experts: &Shape) -> Result<Self> {
        let all = graph_bytes.iter().fold(0, |all: u64, bytes| all.saturating_add(*bytes));
        let least_graphs = graph_bytes.iter().copied().max().unwrap_or(0);
        let least = experts.least_bytes();
        if budget.checked_sub(least).is_none_or(|left| left < least_graphs) {
            let least = least_graphs.saturating_add(least);
            return Err(Error::BudgetTooSmall { budget, least });
        }
        let experts = (budget - all.min(budget - least)).min(experts.all_bytes());
        Ok(Self { graphs: budget - experts, experts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::experts::shape::LayerShape;

    #[test]
    fn graphs_come_first_and_experts_get_what_is_left() {
        let layer = |num_experts| LayerShape { num_experts, num_bytes: 10 };
        let shape = Shape::new(vec![layer(4), layer(6)]).unwrap();
        let of = |budget| Shares::of(budget, &[30, 20], &shape);
        let shares = |graphs, experts| Ok(Shares { graphs, experts });
        assert_eq!(of(1000), shares(900, 100));
        assert_eq!(of(130), shares(50, 80));
        assert_eq!(of(110), shares(50, 60));
        assert_eq!(of(95), shares(35, 60)); // blocks are streamed
        assert_eq!(of(89), Err(Error::BudgetTooSmall { budget: 89, least: 90 }));
    }

    #[test]
    fn sizes_that_no_machine_has_are_divided_or_refused_without_overflow() {
        let of = |budget, graph_bytes: &[u64], num_experts, num_bytes| {
            Shares::of(
                budget,
                graph_bytes,
                &Shape::new(vec![LayerShape { num_experts, num_bytes }])?,
            )
        };
        for (num_experts, num_bytes) in [(1 << 62, 1), (1 << 44, 1), (2, 1 << 63), (usize::MAX, 2)]
        {
            let refused = of(10_u64.pow(18), &[1], num_experts, num_bytes);
            assert!(matches!(refused, Err(Error::BadOption { .. })), "{refused:?}");
        }
        let refused = of(u64::MAX, &[u64::MAX], 1, 1);
        assert_eq!(refused, Err(Error::BudgetTooSmall { budget: u64::MAX, least: u64::MAX }));
        let shares = Shares { graphs: u64::MAX - 1, experts: 1 };
        assert_eq!(of(u64::MAX, &[u64::MAX - 1, 7], 1, 1), Ok(shares));
    }
}
