//! Small timetables, and a twin that carries them out one action after another.

use crate::ids::BlockId;
use crate::ids::Graph::{self, Decode, Prefill};
use crate::load::timetable::ActionKind::{self, Load, Release};
use crate::load::timetable::{Action, Run, Timetable};

pub(super) type ResidentGraphs = Vec<[bool; 2]>;

/// Chunks of all blocks in turn, under the graph that each is planned to have.
pub(in crate::load::loader) fn timetable(
    num_blocks: usize,
    runs: &[Graph],
    actions: &[(ActionKind, u32, Graph, usize)],
) -> Timetable {
    let run = |(index, &graph): (usize, &Graph)| Run {
        block: BlockId((index % num_blocks) as u32),
        chunk: index / num_blocks,
        graph,
        start_us: 0,
        end_us: 0,
    };
    let action = |&(kind, block, graph, after_runs): &(ActionKind, u32, Graph, usize)| Action {
        kind,
        block: BlockId(block),
        graph,
        after_runs,
        start_us: 0,
        end_us: 0,
    };
    Timetable {
        num_blocks,
        runs: runs.iter().enumerate().map(run).collect(),
        actions: actions.iter().map(action).collect(),
    }
}

/// The naive twin: all actions one after another, the runs left out. Returns what is held in the end
/// and the calls that the store got; load number `n` fails where `fails(n)`.
pub(super) fn in_turn(
    start: &ResidentGraphs,
    actions: &[Action],
    fails: impl Fn(usize) -> bool,
) -> (ResidentGraphs, Vec<(ActionKind, BlockId, Graph)>) {
    let (mut held, mut calls, mut num_loads) = (start.clone(), Vec::new(), 0);
    let (mut released, mut failed) = (vec![None; held.len()], vec![false; held.len()]);
    let mut todo: std::collections::VecDeque<_> =
        actions.iter().map(|action| (action.kind, action.block, action.graph)).collect();
    while let Some((kind, block, graph)) = todo.pop_front() {
        let (own, other) = (block.index(), graph.other());
        let is_held = held[own][graph.index()];
        let is_last = failed[own] && !held[own][other.index()];
        match kind {
            Load if !is_held => {
                calls.push((kind, block, graph));
                held[own][graph.index()] = !fails(num_loads);
                failed[own] = fails(num_loads);
                if fails(num_loads) && released[own] == Some(other) {
                    todo.push_front((Load, block, other));
                }
                released[own] = None;
                num_loads += 1;
            }
            Release if is_held && !is_last => {
                calls.push((kind, block, graph));
                held[own][graph.index()] = false;
                released[own] = Some(graph);
            }
            _ => {}
        }
    }
    (held, calls)
}

pub(super) const ON_G1: [bool; 2] = [true, false];
pub(super) const ON_G2: [bool; 2] = [false, true];

pub(super) fn small_timetables() -> Vec<(ResidentGraphs, Timetable)> {
    let release_first = timetable(
        2,
        &[Prefill, Prefill, Prefill, Decode],
        &[
            (Release, 1, Prefill, 2),
            (Load, 1, Decode, 2),
            (Release, 0, Prefill, 3),
            (Load, 0, Decode, 3),
        ],
    );
    let make_before_break = timetable(
        2,
        &[Prefill, Prefill, Prefill, Decode],
        &[
            (Load, 1, Decode, 0),
            (Release, 1, Prefill, 2),
            (Load, 0, Decode, 0),
            (Release, 0, Prefill, 3),
        ],
    );
    let cold = timetable(
        2,
        &[Prefill, Prefill],
        &[
            (Load, 0, Prefill, 0),
            (Load, 1, Prefill, 0),
            (Release, 0, Prefill, 1),
            (Load, 0, Decode, 1),
        ],
    );
    let way_back = timetable(
        2,
        &[Decode, Prefill, Prefill, Decode],
        &[
            (Release, 1, Decode, 0),
            (Load, 1, Prefill, 0),
            (Release, 1, Prefill, 2),
            (Load, 1, Decode, 2),
        ],
    );
    let streaming = timetable(
        2,
        &[Decode, Decode, Decode],
        &[
            (Load, 1, Decode, 0),
            (Release, 0, Decode, 1),
            (Load, 0, Decode, 1),
            (Release, 1, Decode, 2),
        ],
    );
    vec![
        (vec![ON_G1; 2], release_first),
        (vec![ON_G1; 2], make_before_break),
        (vec![[false; 2]; 2], cold),
        (vec![ON_G2; 2], way_back),
        (vec![ON_G2, [false; 2]], streaming),
    ]
}

/// A switch of block 0 that is put off where compute is ahead of the plan, with one of block 1
/// around it: block 1 loses its graph first, and gets the other last.
pub(super) fn late_switches() -> (ResidentGraphs, Timetable) {
    let mut late = timetable(
        2,
        &[Prefill, Prefill, Decode, Decode, Decode, Decode, Decode],
        &[
            (Release, 1, Prefill, 2),
            (Release, 0, Prefill, 1),
            (Load, 0, Decode, 1),
            (Load, 1, Decode, 2),
        ],
    );
    for (index, run) in late.runs.iter_mut().enumerate() {
        (run.start_us, run.end_us) = (100 * index as u64, 100 * (index as u64 + 1));
    }
    for action in &mut late.actions {
        (action.start_us, action.end_us) = (100, if action.kind == Load { 200 } else { 100 });
    }
    (vec![ON_G1; 2], late)
}
