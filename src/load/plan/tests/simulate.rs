//! Replays a timetable and says what it comes to, or which rule it breaks. In: a timetable, what
//! the blocks cost and what is in memory at the start. Out: figures to hold against the plan's own.
//! It shares no code with the planner.

use coordgen_rs::load::plan::Problem;
use coordgen_rs::load::timetable::{Action, ActionKind, Run, Timetable};
use coordgen_rs::{BlockId, Graph};

/// What a timetable comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Microseconds until the last run and the last action are over.
    pub makespan_us: u64,
    /// Microseconds until the last run is over.
    pub prefill_us: u64,
    /// Microseconds of the makespan in which nothing computes.
    pub exposed_load_us: u64,
    /// Most bytes held at once, from the first load, run or wait on; a graph counts from the start
    /// of its load.
    pub peak_bytes: u64,
}

/// The rule that a timetable breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The runs are not chunk after chunk, in each of them block after block.
    WrongRun(usize),
    /// A run or action takes another time than the profile says.
    WrongTime(&'static str, usize),
    /// A lane does two things at once.
    Overlap(&'static str, usize),
    /// An action names a block that there is not.
    UnknownBlock(usize, BlockId),
    /// An action starts before the runs that it waits for are over.
    TooEarly(usize, usize),
    /// A run's graph is not in memory from its start to its end.
    NotLoaded(usize),
    /// What is loaded is there already, or what is released is not.
    NothingToDo(usize),
    /// A block ends without its G2.
    NotSwitched(BlockId),
}

/// From when to when a graph is in memory, and how many runs may rely on it.
struct Stay {
    block: BlockId,
    graph: Graph,
    from_us: u64,
    to_us: u64,
    before_run: usize,
}

/// Replays `timetable` as a plan for `problem`.
pub fn simulate(timetable: &Timetable, problem: &Problem<'_>) -> Result<Replayed, Violation> {
    check_runs(&timetable.runs, problem)?;
    check_actions(timetable, problem)?;
    let stays = stays(timetable, problem)?;
    for (number, run) in timetable.runs.iter().enumerate() {
        let holds = |stay: &Stay| {
            (stay.block, stay.graph) == (run.block, run.graph)
                && (stay.from_us <= run.start_us && run.end_us <= stay.to_us)
                && number < stay.before_run
        };
        if !stays.iter().any(holds) {
            return Err(Violation::NotLoaded(number));
        }
    }
    for block in (0..problem.profile.blocks().len() as u32).map(BlockId) {
        let is_last = |stay: &&Stay| (stay.block, stay.graph) == (block, Graph::Decode);
        if stays.iter().rfind(is_last).is_none_or(|stay| stay.to_us != u64::MAX) {
            return Err(Violation::NotSwitched(block));
        }
    }
    let prefill_us = timetable.runs.last().map_or(0, |run| run.end_us);
    let makespan_us = timetable.actions.last().map_or(0, |action| action.end_us).max(prefill_us);
    let computing: u64 = timetable.runs.iter().map(|run| run.end_us - run.start_us).sum();
    Ok(Replayed {
        makespan_us,
        prefill_us,
        exposed_load_us: makespan_us - computing,
        peak_bytes: peak_bytes(timetable, problem),
    })
}

fn check_runs(runs: &[Run], problem: &Problem<'_>) -> Result<(), Violation> {
    let profile = problem.profile;
    let (num_blocks, rows) = (profile.blocks().len(), profile.prefill_rows());
    let mut end = 0;
    for (number, run) in runs.iter().enumerate() {
        let (chunk, block) = (number / num_blocks, BlockId((number % num_blocks) as u32));
        if (run.chunk, run.block) != (chunk, block) || chunk * rows >= problem.num_tokens {
            return Err(Violation::WrongRun(number));
        }
        let tokens = rows.min(problem.num_tokens - chunk * rows);
        if run.end_us.checked_sub(run.start_us)
            != Some(profile.compute_us(block, run.graph, tokens))
        {
            return Err(Violation::WrongTime("run", number));
        }
        if run.start_us < end {
            return Err(Violation::Overlap("run", number));
        }
        end = run.end_us;
    }
    match runs.len() == num_blocks * problem.num_tokens.div_ceil(rows) {
        true => Ok(()),
        false => Err(Violation::WrongRun(runs.len())),
    }
}

fn check_actions(timetable: &Timetable, problem: &Problem<'_>) -> Result<(), Violation> {
    let mut end = 0;
    for (number, action) in timetable.actions.iter().enumerate() {
        if action.block.index() >= problem.profile.blocks().len() {
            return Err(Violation::UnknownBlock(number, action.block));
        }
        let load_us = problem.profile.block(action.block).under(action.graph).load_us;
        let time = if action.kind == ActionKind::Load { load_us } else { 0 };
        if action.end_us.checked_sub(action.start_us) != Some(time) {
            return Err(Violation::WrongTime("action", number));
        }
        if action.start_us < end {
            return Err(Violation::Overlap("action", number));
        }
        let waits_for = action.after_runs.checked_sub(1).map(|run| timetable.runs.get(run));
        if waits_for.is_some_and(|run| run.is_none_or(|run| action.start_us < run.end_us)) {
            return Err(Violation::TooEarly(number, action.after_runs));
        }
        end = action.end_us;
    }
    Ok(())
}

fn stays(timetable: &Timetable, problem: &Problem<'_>) -> Result<Vec<Stay>, Violation> {
    let forever = |block, graph, from_us| Stay {
        block,
        graph,
        from_us,
        to_us: u64::MAX,
        before_run: usize::MAX,
    };
    let mut stays = Vec::new();
    for (block, held) in (0..).map(BlockId).zip(&problem.start) {
        let there = Graph::BOTH.into_iter().filter(|&graph| held.holds(graph));
        stays.extend(there.map(|graph| forever(block, graph, 0)));
    }
    for (number, action) in timetable.actions.iter().enumerate() {
        let Action { block, graph, .. } = *action;
        let is_it = |stay: &&mut Stay| (stay.block, stay.graph) == (block, graph);
        let last = stays.iter_mut().rfind(is_it).filter(|stay| stay.to_us == u64::MAX);
        match (action.kind, last) {
            (ActionKind::Load, None) => stays.push(forever(block, graph, action.end_us)),
            (ActionKind::Release, Some(stay)) => {
                (stay.to_us, stay.before_run) = (action.start_us, action.after_runs);
            }
            _ => return Err(Violation::NothingToDo(number)),
        }
    }
    Ok(stays)
}

fn peak_bytes(timetable: &Timetable, problem: &Problem<'_>) -> u64 {
    let of = |block, graph| problem.profile.block(block).under(graph).num_bytes;
    let start = (0..).map(BlockId).zip(&problem.start);
    let mut held: u64 =
        start.map(|(block, held)| held.num_bytes(problem.profile.block(block))).sum();
    let is_first = |action: &&Action| action.kind == ActionKind::Release && action.after_runs == 0;
    let first = timetable.actions.iter().take_while(is_first).count();
    let mut peak = 0;
    for (number, action) in timetable.actions.iter().enumerate() {
        if number >= first {
            peak = peak.max(held);
        }
        match action.kind {
            ActionKind::Load => held += of(action.block, action.graph),
            ActionKind::Release => held -= of(action.block, action.graph),
        }
    }
    peak.max(held)
}
