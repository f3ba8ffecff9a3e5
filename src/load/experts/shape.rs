//! How many experts layers have, how long they are, and what a memory budget leaves them. In: layers; a
//! budget, and the bytes of the blocks' graphs. Out: numbers of experts that run through all layers, and
//! the bytes of each; bytes for the graphs and bytes for the experts.

use crate::error::{Error, Result};

/// Most experts of all layers together.
const MOST_EXPERTS: usize = 1 << 24;

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// How many there are, at least 1.
    pub num_experts: usize,
    /// Bytes of each, at least 1.
    pub num_bytes: u64,
}

/// The experts of all layers, numbered layer by layer.
#[derive(Clone, Debug)]
pub struct Shape {
    layers: Vec<LayerShape>,
    /// The number of each layer's first expert, and how many there are in all.
    first: Vec<usize>,
    layer_of: Vec<u32>,
}

impl Shape {
    /// The experts of `layers`, in the order in which these run. Fails where they are more than 2^24, or
    /// have 2^64 bytes together.
    pub fn new(layers: Vec<LayerShape>) -> Result<Self> {
        let (mut first, mut layer_of) = (vec![0], Vec::new());
        let mut all_bytes = Some(0_u64);
        for (index, layer) in layers.iter().enumerate() {
            let end: usize = layer.num_experts.saturating_add(first[index]);
            all_bytes = layer
                .num_bytes
                .checked_mul(layer.num_experts as u64)
                .and_then(|num_bytes| num_bytes.checked_add(all_bytes?));
            if end > MOST_EXPERTS || all_bytes.is_none() {
                let must = "at most 16777216 in all, of fewer than 2^64 bytes";
                let got = format!("{} of {} bytes", layer.num_experts, layer.num_bytes);
                return Err(Error::BadOption { what: "a layer's experts", got, must });
            }
            first.push(end);
            layer_of.resize(end, index as u32);
        }
        Ok(Self { layers, first, layer_of })
    }

    /// All layers.
    pub fn layers(&self) -> &[LayerShape] {
        &self.layers
    }

    /// Number of experts of all layers.
    pub fn num_experts(&self) -> usize {
        self.layer_of.len()
    }

    /// The numbers of a layer's experts.
    pub fn of_layer(&self, layer: usize) -> std::ops::Range<usize> {
        self.first[layer]..self.first[layer + 1]
    }

    /// The layer of an expert.
    pub fn layer(&self, expert: usize) -> usize {
        self.layer_of[expert] as usize
    }

    /// Bytes of an expert.
    pub fn num_bytes(&self, expert: usize) -> u64 {
        self.layers[self.layer(expert)].num_bytes
    }

    /// Bytes of all experts.
    pub fn all_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.num_bytes * layer.num_experts as u64).sum()
    }

    /// The least bytes within which any step runs: all experts of the largest layer, which are held
    /// while a wide step or a prompt's rows ask for all of them.
    pub fn least_bytes(&self) -> u64 {
        let all = |layer: &LayerShape| layer.num_bytes * layer.num_experts as u64;
        self.layers.iter().map(all).max().unwrap_or(0)
    }
}

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
