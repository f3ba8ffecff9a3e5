//! Profiles and timetables: whatever a profile says, a plan is refused or holds what it promises;
//! whatever a timetable says, a simulator and a loader come to an end.

#![no_main]

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use coordgen_fuzz::{wide, within_memory};
use coordgen_rs::load::BlockStore;
use coordgen_rs::load::loader::Loader;
use coordgen_rs::load::plan::{ResidentGraphs, Problem, Strategy, plan};
use coordgen_rs::load::profile::{BlockCost, GraphCost, Profile};
use coordgen_rs::load::stream::Streaming;
use coordgen_rs::load::timetable::{ActionKind, Timetable};
use coordgen_rs::{BlockId, Error, Graph};
use libfuzzer_sys::fuzz_target;

#[path = "../../src/load/plan/tests/simulate.rs"]
mod simulate;

use simulate::simulate;

fuzz_target!(|data: &[u8]| {
    // Plans hold a few words for each run, and a short prompt of short chunks has thousands.
    within_memory(data.len() + (1 << 16), || {
        let _ = plans(&mut Unstructured::new(data));
    });
});

fn plans(input: &mut Unstructured<'_>) -> Result<()> {
    let figure =
        |input: &mut Unstructured<'_>| Ok(wide(u16::arbitrary(input)?, u8::arbitrary(input)?));
    let graph = |input: &mut Unstructured<'_>| {
        let (load_us, compute_us, num_bytes) = (figure(input)?, figure(input)?, figure(input)?);
        Ok(GraphCost { load_us, compute_us, num_bytes })
    };
    let num_blocks = input.int_in_range(0..=5usize)?;
    let mut blocks = Vec::new();
    let mut start = Vec::new();
    for _ in 0..num_blocks {
        blocks.push(BlockCost { prefill: graph(input)?, decode: graph(input)? });
        start.push(ResidentGraphs { prefill: bool::arbitrary(input)?, decode: bool::arbitrary(input)? });
    }
    let (prefill_rows, decode_rows) = (u8::arbitrary(input)?.into(), u8::arbitrary(input)?.into());
    let Ok(profile) = Profile::new(blocks, prefill_rows, decode_rows) else { return Ok(()) };
    let num_tokens = match u8::arbitrary(input)? {
        255 => usize::MAX,
        // At most ten chunks, so that an input is done in a fraction of a millisecond.
        tokens => (usize::from(tokens) * (1 + prefill_rows / 4)).min(10 * prefill_rows),
    };
    let budget = Option::<u8>::arbitrary(input)?;
    let memory_budget = budget.map(|_| figure(input)).transpose()?;
    let problem = Problem { profile: &profile, num_tokens, start, memory_budget };
    let strategy = Strategy::ALL[usize::from(u8::arbitrary(input)?) % Strategy::ALL.len()];
    if let Some(budget) = memory_budget {
        stream(budget, &profile);
    }
    let planned = match plan(strategy, &problem) {
        Ok(planned) => planned,
        Err(Error::BudgetTooSmall { budget, least }) => return Ok(assert!(least > budget)),
        Err(Error::BadOption { .. }) => return Ok(()),
        Err(error) => panic!("a plan is refused as another thing: {error}"),
    };
    let replayed = simulate(&planned.timetable, &problem).expect("a plan breaks no rule");
    assert_eq!(replayed.makespan_us, planned.makespan_us);
    assert_eq!(replayed.prefill_us, planned.prefill_us);
    assert_eq!(replayed.exposed_load_us, planned.exposed_load_us);
    assert_eq!(replayed.peak_bytes, planned.peak_bytes);
    assert!(planned.lower_bound_us <= planned.makespan_us);
    assert!(memory_budget.is_none_or(|budget| planned.peak_bytes <= budget));

    let mut changed = planned.timetable;
    let (is_carried_out, failing) = (u8::arbitrary(input)? % 16 == 0, u8::arbitrary(input)?);
    while !input.is_empty() {
        change(&mut changed, input)?;
    }
    let _ = simulate(&changed, &problem);
    // On a thread, which takes longer than all the rest.
    if is_carried_out {
        carry_out(changed, &problem, Arc::new(Failing(failing)));
    }
    Ok(())
}

fn stream(budget: u64, profile: &Profile) {
    match Streaming::within(budget, profile) {
        Ok(streaming) => assert!(streaming.peak_bytes() <= budget),
        Err(Error::BudgetTooSmall { least, .. }) => assert!(least > budget),
        Err(Error::BadOption { .. }) => {}
        Err(error) => panic!("streaming is refused as another thing: {error}"),
    }
}

/// Changes a number of the timetable, or drops or doubles a line of it.
fn change(timetable: &mut Timetable, input: &mut Unstructured<'_>) -> Result<()> {
    let (what, value) = (u8::arbitrary(input)?, u16::arbitrary(input)?);
    let (run, action) = (timetable.runs.len(), timetable.actions.len());
    let (run, action) = (usize::from(what) % run.max(1), usize::from(what) % action.max(1));
    let time = wide(value, u8::arbitrary(input)?);
    match (input.int_in_range(0..=9u8)?, timetable) {
        (0, it) => it.num_blocks = value.into(),
        (1, it) if run < it.runs.len() => it.runs[run].block = BlockId(value.into()),
        (2, it) if run < it.runs.len() => it.runs[run].end_us = time,
        (3, it) if run < it.runs.len() => it.runs[run].graph = Graph::Decode,
        (4, it) if run < it.runs.len() => drop(it.runs.remove(run)),
        (5, it) if action < it.actions.len() => it.actions[action].block = BlockId(value.into()),
        (6, it) if action < it.actions.len() => it.actions[action].start_us = time,
        (7, it) if action < it.actions.len() => it.actions[action].after_runs = value.into(),
        (8, it) if action < it.actions.len() => it.actions[action].kind = ActionKind::Release,
        (9, it) if action < it.actions.len() => it.actions.push(it.actions[action]),
        _ => {}
    }
    Ok(())
}

/// A store whose every so manieth graph cannot be loaded; 0 for none.
struct Failing(u8);

impl BlockStore for Failing {
    fn load(&self, block: BlockId, graph: Graph) -> std::result::Result<(), String> {
        let number = 2 * block.index() + graph.index();
        match self.0 {
            0 => Ok(()),
            every => {
                if number % usize::from(every) == 0 {
                    Err("it is torn".into())
                } else {
                    Ok(())
                }
            }
        }
    }

    fn release(&self, _: BlockId, _: Graph) {}
}

/// Carries a timetable out on a loader's thread; every call ends, and where nothing fails all blocks
/// are as the plan leaves them.
fn carry_out(timetable: Timetable, problem: &Problem<'_>, store: Arc<Failing>) {
    let num_blocks = problem.profile.blocks().len();
    let never_fails = store.0 == 0;
    let loader = Loader::new(store, vec![[0, 0]; num_blocks]).expect("there is a thread");
    let there = |(block, held): (usize, &ResidentGraphs)| {
        let graphs = Graph::BOTH.into_iter().filter(|&graph| held.holds(graph));
        graphs.map(|graph| (BlockId(block as u32), graph)).collect::<Vec<_>>()
    };
    let there: Vec<_> = problem.start.iter().enumerate().flat_map(there).collect();
    let begun = loader.begin(Timetable::immediate(num_blocks, ActionKind::Load, &there));
    begun.expect("a loader that does nothing begins");
    loader.finish().expect("nothing runs");
    let runs = timetable.runs.clone();
    if loader.begin(timetable).is_err() {
        return;
    }
    for run in &runs {
        match loader.enter(run.block) {
            Ok(_) => loader.leave().expect("a block was entered"),
            Err(_) => break,
        }
    }
    match loader.finish() {
        Ok(report) if never_fails => assert!(report.failures.is_empty()),
        Ok(_) => {}
        Err(Error::RunsLeft { .. }) => {
            loader.cancel();
            loader.finish().expect("what was cancelled is over");
        }
        Err(error) => panic!("a loader ends as another thing: {error}"),
    }
}
