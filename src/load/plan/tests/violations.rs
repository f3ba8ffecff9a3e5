//! What a simulator finds in timetables that break a rule.

use super::simulate::*;
use crate::ids::{BlockId, Graph};
use crate::load::plan::Problem;
use crate::load::plan::{ResidentGraphs, Strategy, plan};
use crate::load::profile::{BlockCost, GraphCost, Profile};
use crate::load::timetable::Timetable;

/// Two blocks, one chunk; loads of 30 us after runs of 20 us.
fn profile() -> Profile {
    let graph = GraphCost { load_us: 30, compute_us: 20, num_bytes: 5 };
    Profile::new(vec![BlockCost { prefill: graph, decode: graph }; 2], 8, 8).unwrap()
}

fn with(change: impl FnOnce(&mut Timetable)) -> Result<Replayed, Violation> {
    let profile = profile();
    let start = vec![ResidentGraphs::PREFILL; 2];
    let problem = Problem { profile: &profile, num_tokens: 8, start, memory_budget: None };
    let mut timetable = plan(Strategy::Async, &problem).unwrap().timetable;
    change(&mut timetable);
    simulate(&timetable, &problem)
}

#[test]
fn figures_are_those_of_the_clock() {
    let replayed = with(|_| {}).unwrap();
    assert_eq!((replayed.prefill_us, replayed.makespan_us), (40, 20 + 30 + 30));
    assert_eq!((replayed.exposed_load_us, replayed.peak_bytes), (40, 10));
}

#[test]
fn every_broken_rule_is_named() {
    use Violation::*;
    let broken = |change: fn(&mut Timetable)| with(change).unwrap_err();
    assert_eq!(broken(|it| it.runs.swap(0, 1)), WrongRun(0));
    assert_eq!(broken(|it| it.runs.truncate(1)), WrongRun(1));
    assert_eq!(broken(|it| it.runs[1].end_us += 1), WrongTime("run", 1));
    assert_eq!(broken(|it| it.runs[0].end_us = 0), WrongTime("run", 0));
    assert_eq!(broken(|it| it.actions[1].end_us -= 1), WrongTime("action", 1));
    let early = |it: &mut Timetable| (it.runs[1].start_us, it.runs[1].end_us) = (10, 30);
    assert_eq!(broken(early), Overlap("run", 1));
    assert_eq!(broken(|it| it.actions.swap(1, 3)), Overlap("action", 2));
    assert_eq!(broken(|it| it.actions[0].after_runs = 2), TooEarly(0, 2));
    assert_eq!(broken(|it| it.actions[0].after_runs = 9), TooEarly(0, 9));
    assert_eq!(broken(|it| it.actions[3].graph = Graph::Prefill), NotSwitched(BlockId(1)));
    assert_eq!(broken(|it| it.runs[0].graph = Graph::Decode), NotLoaded(0));
    assert_eq!(broken(|it| it.actions[2].after_runs = 1), NotLoaded(1));
    assert_eq!(broken(|it| it.actions[2].block = BlockId(0)), NothingToDo(2));
    let unknown = UnknownBlock(2, BlockId(2));
    assert_eq!(broken(|it| it.actions[2].block = BlockId(2)), unknown);
    assert_eq!(broken(|it| it.actions.truncate(3)), NotSwitched(BlockId(1)));
}
