//! What is to be planned: one prompt on one device, from the graphs that are in memory now. In: a
//! profile and a request's figures, checked once. Out: a table of costs that all strategies read,
//! and a bound below which no plan can come. It decides nothing.

use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::load::profile::{BlockCost, Profile};

/// Most runs of a plan; a prompt that needs more is refused.
const MAX_RUNS: usize = 1 << 17;

/// The graphs of a block that are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResidentGraphs {
    /// Its G1 is.
    pub prefill: bool,
    /// Its G2 is.
    pub decode: bool,
}

impl ResidentGraphs {
    /// Neither: a cold start.
    pub const NOTHING: Self = Self { prefill: false, decode: false };
    /// G1 only: ready for a prompt.
    pub const PREFILL: Self = Self { prefill: true, decode: false };
    /// G2 only: as an answer leaves it.
    pub const DECODE: Self = Self { prefill: false, decode: true };
    /// Both: resident.
    pub const BOTH: Self = Self { prefill: true, decode: true };

    /// Every state under its name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("prefill", Self::PREFILL),
        ("decode", Self::DECODE),
        ("nothing", Self::NOTHING),
        ("both", Self::BOTH),
    ];

    /// The state of that name.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|&(_, held)| held).ok_or_else(|| Error::BadOption {
            what: "start",
            got: format!("{name:?}"),
            must: "one of prefill, decode, nothing, both",
        })
    }

    /// Of a loader's residents: whether G1 is in memory, and whether G2 is.
    pub fn of([prefill, decode]: [bool; 2]) -> Self {
        Self { prefill, decode }
    }

    /// Whether `graph` is in memory.
    pub fn holds(self, graph: Graph) -> bool {
        match graph {
            Graph::Prefill => self.prefill,
            Graph::Decode => self.decode,
        }
    }

    /// Bytes of what is in memory of a block of that cost.
    pub fn num_bytes(self, cost: &BlockCost) -> u64 {
        let of = |graph: Graph| if self.holds(graph) { cost.under(graph).num_bytes } else { 0 };
        of(Graph::Prefill) + of(Graph::Decode)
    }
}

/// One prompt, and what is in memory when it comes.
#[derive(Clone, Debug)]
pub struct Problem<'a> {
    /// What the blocks cost.
    pub profile: &'a Profile,
    /// Tokens of the prompt that are computed, at least 1.
    pub num_tokens: usize,
    /// What each block holds at the start.
    pub start: Vec<ResidentGraphs>,
    /// Most bytes that the graphs may hold; None for no limit.
    pub memory_budget: Option<u64>,
}

impl Problem<'_> {
    /// The costs of every run and load, as tables. Fails where there is no token, a block has no
    /// start, or the sums do not fit into 63 bits.
    pub(super) fn costs(&self) -> Result<Costs> {
        let blocks = self.profile.blocks();
        if self.start.len() != blocks.len() {
            return Err(Error::WrongLength {
                what: "start",
                got: self.start.len(),
                expected: blocks.len(),
            });
        }
        let num_runs = self.profile.num_chunks(self.num_tokens).saturating_mul(blocks.len());
        if self.num_tokens == 0 || num_runs > MAX_RUNS {
            return Err(Error::BadOption {
                what: "the number of prompt tokens",
                got: self.num_tokens.to_string(),
                must: "at least 1, and at most 131,072 runs of a block",
            });
        }
        self.profile.check_sums(num_runs)?;
        Ok(Costs::new(self))
    }
}

/// One block of a problem: its costs over the chunks of one prompt, and what it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptBlock {
    /// Microseconds to load G1 and G2.
    pub load: [u64; 2],
    /// Microseconds of a full chunk under G1 and G2.
    pub chunk: [u64; 2],
    /// Microseconds of the last chunk, which may be partly filled.
    pub last_chunk: [u64; 2],
    /// Bytes of G1 and G2.
    pub num_bytes: [u64; 2],
    /// What is in memory at the start.
    pub start: ResidentGraphs,
}

impl PromptBlock {
    fn start_bytes(&self) -> u64 {
        let [prefill, decode] = self.num_bytes;
        let of = |is_held: bool, bytes: u64| if is_held { bytes } else { 0 };
        of(self.start.prefill, prefill) + of(self.start.decode, decode)
    }
}

/// Costs of all runs and loads of one problem.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub blocks: Vec<PromptBlock>,
    pub num_chunks: usize,
    /// Blocks that give up their G2 before anything else; `start` tells what is left of them.
    pub dropped: Vec<usize>,
}

impl Costs {
    fn new(problem: &Problem<'_>) -> Self {
        let profile = problem.profile;
        let num_chunks = profile.num_chunks(problem.num_tokens);
        let full = profile.prefill_rows();
        let last = problem.num_tokens - (num_chunks - 1) * full;
        let of_block = |(index, &start): (usize, &ResidentGraphs)| {
            let block = BlockId(index as u32);
            let cost = profile.block(block);
            let chunk = |tokens| Graph::BOTH.map(|graph| profile.compute_us(block, graph, tokens));
            PromptBlock {
                load: Graph::BOTH.map(|graph| cost.under(graph).load_us),
                chunk: chunk(full.min(problem.num_tokens)),
                last_chunk: chunk(last),
                num_bytes: Graph::BOTH.map(|graph| cost.under(graph).num_bytes),
                start,
            }
        };
        let blocks = problem.start.iter().enumerate().map(of_block).collect();
        Self { blocks, num_chunks, dropped: Vec::new() }
    }

    /// Bytes that are in memory at the start.
    pub fn start_bytes(&self) -> u64 {
        self.blocks.iter().map(PromptBlock::start_bytes).sum()
    }

    /// The same with fewer blocks that start with both graphs: those whose load takes longest a
    /// byte keep both, as far as `budget` goes.
    pub fn trimmed(&self, budget: u64) -> Self {
        let mut trimmed = self.clone();
        let decode = Graph::Decode as usize;
        let mut both: Vec<_> = (0..self.blocks.len())
            .filter(|&block| self.blocks[block].start == ResidentGraphs::BOTH)
            .collect();
        let load_per_byte = |&block: &usize| {
            let costs = &self.blocks[block];
            costs.load[decode] as f64 / costs.num_bytes[decode].max(1) as f64
        };
        both.sort_by(|one, other| load_per_byte(one).total_cmp(&load_per_byte(other)));
        for block in both {
            if trimmed.start_bytes() <= budget {
                break;
            }
            trimmed.blocks[block].start = ResidentGraphs::PREFILL;
            trimmed.dropped.push(block);
        }
        trimmed
    }

    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    pub fn num_runs(&self) -> usize {
        self.blocks.len() * self.num_chunks
    }

    /// Microseconds of a run of `block` over chunk number `chunk`.
    pub fn compute_us(&self, block: usize, chunk: usize, graph: Graph) -> u64 {
        let costs = &self.blocks[block];
        let is_last = chunk + 1 == self.num_chunks;
        if is_last { costs.last_chunk[graph as usize] } else { costs.chunk[graph as usize] }
    }

    /// Runs that are over once `block` has computed `chunks` chunks; 0 before its first.
    pub fn runs_before(&self, block: usize, chunks: usize) -> usize {
        if chunks == 0 { 0 } else { (chunks - 1) * self.num_blocks() + block + 1 }
    }

    /// Number of chunks that `block` has computed once `runs` runs are over.
    pub fn window_of(&self, block: usize, runs: usize) -> usize {
        (runs + self.num_blocks() - 1 - block) / self.num_blocks()
    }

    /// Number of chunks, from the first, that are quicker under G1.
    pub fn best_until(&self, block: usize) -> usize {
        let quicker = |times: [u64; 2]| times[0] <= times[1];
        let costs = &self.blocks[block];
        match (quicker(costs.chunk), quicker(costs.last_chunk)) {
            (true, true) => self.num_chunks,
            (true, false) => self.num_chunks - 1,
            (false, _) => 0,
        }
    }

    /// Makespan below which no plan comes: all runs under their faster graphs, after the first
    /// block's load where nothing is in memory; or all loads of G2 that is not there.
    pub fn lower_bound_us(&self) -> u64 {
        let num_full = self.num_chunks as u64 - 1;
        let fastest = |times: [u64; 2]| times[0].min(times[1]);
        let compute: u64 = (self.blocks.iter())
            .map(|block| fastest(block.chunk) * num_full + fastest(block.last_chunk))
            .sum();
        let missing = self.blocks.iter().filter(|block| !block.start.decode);
        let loads: u64 = missing.map(|block| block.load[Graph::Decode as usize]).sum();
        let first = &self.blocks[0];
        let entry = if first.start == ResidentGraphs::NOTHING { fastest(first.load) } else { 0 };
        loads.max(entry + compute)
    }
}
