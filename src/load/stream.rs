//! A target larger than its memory (EdgeLLM, section III-D): which blocks stay, and in what order
//! the others come and go in each pass. In: a profile and a memory budget. Out: the timetable of a
//! pass, the same for every pass. Only G2 is used, for chunks too.
//!
//! The streamed blocks take turns in one or two places. With two, the next of them is loaded while
//! one runs; with one, while the blocks that stay run between them. A pass ends by loading for the
//! next one, so drafting hides loading too.

use crate::error::{Error, Result};
use crate::ids::{BlockId, Graph};
use crate::load::profile::Profile;
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

/// Passes that are laid end to end to see how long one of many takes.
const NUM_PASSES: usize = 2;

/// Which blocks are streamed, and how far ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// The streamed blocks, in the order in which they run; none where all of them fit.
    streamed: Vec<BlockId>,
    /// Places that they share.
    num_places: usize,
    /// Most bytes held at once.
    peak_bytes: u64,
    /// One pass.
    pass: Timetable,
}

impl Streaming {
    /// The quickest way to keep within `budget` bytes, by the profile's times.
    ///
    /// Streamed blocks are spread evenly, so that those that stay run while the next one loads.
    /// Cost: a few passes over the blocks for each of their numbers. Fails where not even one block fits
    /// at a time; the least that would do is named. Fails, too, where the sums do not fit into 63
    /// bits.
    pub fn within(budget: u64, profile: &Profile) -> Result<Self> {
        profile.check_sums(NUM_PASSES)?;
        let num_blocks = profile.blocks().len();
        let ways = (0..=num_blocks).flat_map(|num_streamed| {
            let places = if num_streamed == 0 { 0..=0 } else { 1..=num_streamed.min(2) };
            places.map(move |num_places| Self::of(profile, num_streamed, num_places))
        });
        let fitting = ways.clone().filter(|way| way.peak_bytes <= budget);
        let quickest = fitting.min_by_key(Self::steady_us);
        quickest.ok_or_else(|| {
            let least = ways.map(|way| way.peak_bytes).min().unwrap_or(0);
            Error::BudgetTooSmall { budget, least }
        })
    }

    fn of(profile: &Profile, num_streamed: usize, num_places: usize) -> Self {
        let num_blocks = profile.blocks().len();
        let spread =
            |index: usize| BlockId(((2 * index + 1) * num_blocks / (2 * num_streamed)) as u32);
        let streamed: Vec<_> = (0..num_streamed).map(spread).collect();
        let bytes = |block: &BlockId| profile.block(*block).decode.num_bytes;
        let all: u64 = profile.blocks().iter().map(|cost| cost.decode.num_bytes).sum();
        let staying = all - streamed.iter().map(bytes).sum::<u64>();
        let turns = streamed.iter().cycle();
        let held = |first| turns.clone().skip(first).take(num_places).map(bytes).sum::<u64>();
        let peak_bytes = staying + (0..num_streamed).map(held).max().unwrap_or(0);
        let pass = pass(profile, &streamed, num_places);
        Self { streamed, num_places, peak_bytes, pass }
    }

    /// Whether there is anything to stream.
    pub fn is_needed(&self) -> bool {
        !self.streamed.is_empty()
    }

    /// The streamed blocks, in the order in which they run.
    pub fn streamed(&self) -> &[BlockId] {
        &self.streamed
    }

    /// Most bytes that the graphs hold at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// What must be loaded before the first pass: the blocks that stay, and the first streamed ones.
    pub fn at_start(&self) -> Vec<BlockId> {
        let late = self.streamed.get(self.num_places..).unwrap_or(&[]);
        let blocks = (0..self.pass.num_blocks).map(|block| BlockId(block as u32));
        blocks.filter(|block| !late.contains(block)).collect()
    }

    /// Each block runs once, under G2. Loads that are left over at its end are for the next pass.
    pub fn pass(&self) -> &Timetable {
        &self.pass
    }

    /// Microseconds that one of many passes takes: two are laid end to end, and the second counts.
    fn steady_us(&self) -> u64 {
        let num_blocks = self.pass.num_blocks;
        let (mut compute_us, mut loader_us, mut first_end_us) = (0, 0, 0);
        let mut ready_us = vec![0; num_blocks];
        for pass in 0..NUM_PASSES {
            let mut ended_us = Vec::with_capacity(num_blocks);
            let mut actions = self.pass.actions.iter().peekable();
            for run in &self.pass.runs {
                compute_us = ready_us[run.block.index()].max(compute_us) + run.duration_us();
                ended_us.push(compute_us);
                while let Some(action) = actions.next_if(|next| next.after_runs <= ended_us.len()) {
                    loader_us =
                        loader_us.max(ended_us[action.after_runs - 1]) + action.duration_us();
                    if action.kind == ActionKind::Load {
                        ready_us[action.block.index()] = loader_us;
                    }
                }
            }
            if pass == 0 {
                first_end_us = compute_us;
            }
        }
        compute_us - first_end_us
    }
}

/// All blocks once; a streamed block makes place when it has run, and the next one without a place
/// takes it.
fn pass(profile: &Profile, streamed: &[BlockId], num_places: usize) -> Timetable {
    let num_blocks = profile.blocks().len();
    let (mut runs, mut actions, mut now_us, mut loaded_us) = (Vec::new(), Vec::new(), 0, 0);
    let mut turns = streamed.iter().enumerate().peekable();
    for (index, cost) in profile.blocks().iter().enumerate() {
        let (block, graph, start_us) = (BlockId(index as u32), Graph::Decode, now_us);
        now_us += cost.decode.compute_us;
        runs.push(Run { block, chunk: 0, graph, start_us, end_us: now_us });
        let Some((turn, _)) = turns.next_if(|(_, streamed)| **streamed == block) else { continue };
        let next = streamed[(turn + num_places) % streamed.len()];
        for (kind, block) in [(ActionKind::Release, block), (ActionKind::Load, next)] {
            let start_us = now_us.max(loaded_us);
            let load_us = profile.block(block).decode.load_us;
            loaded_us = start_us + if kind == ActionKind::Load { load_us } else { 0 };
            let (after_runs, end_us) = (index + 1, loaded_us);
            actions.push(Action { kind, block, graph, after_runs, start_us, end_us });
        }
    }
    Timetable { num_blocks, runs, actions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::profile::{BlockCost, GraphCost};
    use proptest::prelude::*;

    fn profile(blocks: &[(u64, u64, u64)]) -> Profile {
        let cost = |&(load_us, compute_us, num_bytes)| {
            let decode = GraphCost { load_us, compute_us, num_bytes };
            BlockCost { prefill: decode, decode }
        };
        Profile::new(blocks.iter().map(cost).collect(), 4, 2).unwrap()
    }

    /// Holds what is loaded, pass after pass; returns the most bytes.
    fn replay(streaming: &Streaming, profile: &Profile, num_passes: usize) -> u64 {
        let mut held = vec![false; profile.blocks().len()];
        for block in streaming.at_start() {
            held[block.index()] = true;
        }
        let bytes = |held: &[bool]| {
            let costs = profile.blocks().iter().zip(held);
            costs.map(|(cost, held)| if *held { cost.decode.num_bytes } else { 0 }).sum::<u64>()
        };
        let mut peak = bytes(&held);
        for _ in 0..num_passes {
            let mut actions = streaming.pass().actions.iter().peekable();
            for (index, run) in streaming.pass().runs.iter().enumerate() {
                assert!(held[run.block.index()], "{:?} runs without being loaded", run.block);
                while let Some(action) = actions.next_if(|action| action.after_runs <= index + 1) {
                    held[action.block.index()] = action.kind == ActionKind::Load;
                    peak = peak.max(bytes(&held));
                }
            }
            assert_eq!(actions.next(), None);
        }
        peak
    }

    proptest! {
        #[test]
        fn every_run_finds_its_block_and_the_budget_holds(
            blocks in prop::collection::vec((1..50u64, 1..50u64, 1..20u64), 1..9),
            share in 0.0..1.1f64,
        ) {
            let profile = profile(&blocks);
            let all: u64 = blocks.iter().map(|block| block.2).sum();
            let budget = (all as f64 * share) as u64;
            match Streaming::within(budget, &profile) {
                Ok(streaming) => {
                    prop_assert_eq!(replay(&streaming, &profile, 3), streaming.peak_bytes());
                    prop_assert!(streaming.peak_bytes() <= budget);
                    prop_assert_eq!(streaming.is_needed(), budget < all);
                }
                Err(Error::BudgetTooSmall { least, .. }) => {
                    prop_assert!(budget < least);
                    prop_assert!(Streaming::within(least, &profile).is_ok());
                    prop_assert_eq!(least, blocks.iter().map(|block| block.2).max().unwrap());
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn half_the_memory_keeps_what_fits_and_loads_one_ahead() {
        let slow_compute = profile(&[(10, 30, 1); 6]);
        let streaming = Streaming::within(3, &slow_compute).unwrap();
        assert_eq!(streaming.peak_bytes(), 3);
        assert_eq!(streaming.steady_us(), 180); // all loads are hidden
        let slow_loads = profile(&[(100, 1, 1); 6]);
        let streaming = Streaming::within(3, &slow_loads).unwrap();
        assert_eq!(streaming.streamed().len(), 4); // two stay, the others share one place
    }
}
