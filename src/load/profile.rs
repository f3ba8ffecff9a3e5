//! What the blocks of a target cost on one device, under both graphs. In: measured figures. Out:
//! the times and bytes that a plan reckons with. It measures nothing itself.

use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};

/// Most blocks of a target: ten times as many as models have layers. What is planned costs up to the
/// square of their number.
pub const MAX_BLOCKS: usize = 2_048;

/// What one block costs under one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphCost {
    /// Microseconds from the call to load it until it can run.
    pub load_us: u64,
    /// Microseconds of one run of all its rows, however many of them are used.
    pub compute_us: u64,
    /// Bytes that it holds while loaded.
    pub num_bytes: u64,
}

/// What one block costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCost {
    /// Under G1.
    pub prefill: GraphCost,
    /// Under G2.
    pub decode: GraphCost,
}

impl BlockCost {
    /// A guess at what a block costs, from the bytes of its weights, where it was not measured. Of
    /// experts a row reads `expert_bytes`, which are neither loaded nor held with the block.
    ///
    /// A gigabyte a second to load, and ten microseconds a row for a megabyte of weights: within a
    /// factor of three of what a CPU of two cores took for fp32, int8 and int4 weights of
    /// Qwen2.5-0.5B's shape. Only plans depend on it, and a plan survives late loads.
    pub fn guessed(
        num_bytes: u64,
        expert_bytes: u64,
        prefill_rows: usize,
        decode_rows: usize,
    ) -> Self {
        let of_row = num_bytes as f64 + expert_bytes as f64;
        let compute_us = |rows: usize| (of_row / 1e5 * rows as f64).round().max(1.0) as u64;
        let graph = |rows| GraphCost {
            load_us: (num_bytes / 1000).max(1),
            compute_us: compute_us(rows),
            num_bytes,
        };
        Self { prefill: graph(prefill_rows), decode: graph(decode_rows) }
    }

    /// The same with `delay_us` added to each load.
    pub fn with_load_delay(self, delay_us: u64) -> Self {
        let delayed =
            |cost: GraphCost| GraphCost { load_us: cost.load_us.saturating_add(delay_us), ..cost };
        Self { prefill: delayed(self.prefill), decode: delayed(self.decode) }
    }

    /// Under `graph`.
    pub fn under(&self, graph: Graph) -> &GraphCost {
        match graph {
            Graph::Prefill => &self.prefill,
            Graph::Decode => &self.decode,
        }
    }

    /// Under `graph`, to be changed.
    pub fn under_mut(&mut self, graph: Graph) -> &mut GraphCost {
        match graph {
            Graph::Prefill => &mut self.prefill,
            Graph::Decode => &mut self.decode,
        }
    }
}

/// What the blocks of a target cost on one device, in the order in which they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    blocks: Vec<BlockCost>,
    prefill_rows: usize,
    decode_rows: usize,
}

impl Profile {
    /// A profile of at least one block. Fails where there is none or there are more than
    /// [`MAX_BLOCKS`], and where a number of rows is 0 or a chunk has fewer rows than a piece.
    pub fn new(blocks: Vec<BlockCost>, prefill_rows: usize, decode_rows: usize) -> Result<Self> {
        let bad =
            |what, got: usize, must| Err(Error::BadOption { what, got: got.to_string(), must });
        if blocks.is_empty() || blocks.len() > MAX_BLOCKS {
            return bad("the number of blocks", blocks.len(), "1 to 2,048");
        }
        if decode_rows == 0 {
            return bad("decode_rows", 0, "at least 1");
        }
        if prefill_rows < decode_rows {
            return bad("prefill_rows", prefill_rows, "at least decode_rows");
        }
        Ok(Self { blocks, prefill_rows, decode_rows })
    }

    /// The blocks' costs, in the order in which they run.
    pub fn blocks(&self) -> &[BlockCost] {
        &self.blocks
    }

    /// The blocks' costs, to be changed; their number stays.
    pub fn blocks_mut(&mut self) -> &mut [BlockCost] {
        &mut self.blocks
    }

    /// Cost of one block.
    pub fn block(&self, block: BlockId) -> &BlockCost {
        &self.blocks[block.index()]
    }

    /// Tokens of a full chunk.
    pub fn prefill_rows(&self) -> usize {
        self.prefill_rows
    }

    /// Tokens of a piece, as a chunk is run under G2.
    pub fn decode_rows(&self) -> usize {
        self.decode_rows
    }

    /// Chunks of a prompt of which `num_tokens` are computed; the last may be partly filled.
    pub fn num_chunks(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.prefill_rows)
    }

    /// Microseconds of `block` over a chunk of `num_tokens` tokens: one run of G1, or as many
    /// pieces of G2 as the tokens fill.
    pub fn compute_us(&self, block: BlockId, graph: Graph, num_tokens: usize) -> u64 {
        let cost = self.block(block).under(graph);
        match graph {
            Graph::Prefill => cost.compute_us,
            Graph::Decode => cost.compute_us * num_tokens.div_ceil(self.decode_rows) as u64,
        }
    }

    /// Checks that the times of as many runs and loads of all blocks, and the bytes of all graphs,
    /// come to less than 2^63 each: then two such sums can be added.
    pub(super) fn check_sums(&self, num_runs: usize) -> Result<()> {
        let pieces = self.prefill_rows.div_ceil(self.decode_rows) as u128;
        let (mut time, mut bytes) = (0u128, 0u128);
        for cost in &self.blocks {
            for cost in Graph::BOTH.map(|graph| cost.under(graph)) {
                let run = u128::from(cost.compute_us).saturating_mul(pieces);
                time = time.saturating_add(2 * u128::from(cost.load_us)).saturating_add(run);
                bytes += u128::from(cost.num_bytes);
            }
        }
        time = time.saturating_mul(num_runs as u128);
        for (what, sum) in [("the time of a plan", time), ("the memory of all graphs", bytes)] {
            if sum >= 1 << 63 {
                let got = sum.to_string();
                return Err(Error::BadOption { what, got, must: "below 2^63" });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_blocks_than_can_be_planned_are_refused() {
        let graph = GraphCost { load_us: 1, compute_us: 1, num_bytes: 1 };
        let block = BlockCost { prefill: graph, decode: graph };
        assert!(Profile::new(vec![block; MAX_BLOCKS], 4, 2).is_ok());
        for (num_blocks, got) in [(0, "0"), (MAX_BLOCKS + 1, "2049")] {
            let (what, must) = ("the number of blocks", "1 to 2,048");
            let refused = Error::BadOption { what, got: got.into(), must };
            assert_eq!(Profile::new(vec![block; num_blocks], 4, 2), Err(refused));
        }
    }
}
