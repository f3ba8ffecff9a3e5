//! How each block goes through the prefill, and the timetable that follows from it. In: a route a
//! block. Out: the makespan, quickly, for a search; or the whole timetable with the memory that it
//! holds. It chooses no route.
//!
//! The loader works in the order in which its actions become possible. Where every block is
//! switched release-first that order is optimal: the blocks' idle windows open and close in the
//! same order, so that swapping two loads which stand the other way round delays nothing.

use super::problem::Costs;
use crate::ids::{BlockId, Graph};
use crate::load::timetable::{Action, ActionKind, Run, Timetable};

const G1: usize = Graph::Prefill as usize;
const G2: usize = Graph::Decode as usize;

/// One block's way: G1 in the chunks `from..until`, G2 in all others and at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// First chunk under G1.
    pub from: usize,
    /// First chunk that is under G2 again.
    pub until: usize,
    /// Runs that are over before its G1 is loaded, where it has to be.
    pub enter: usize,
    /// Runs that are over before its G2 is loaded, where it has to be. Before the last run under
    /// G1 it is make-before-break: G1 stays until that run is over.
    pub switch: usize,
    /// G1 stays for good.
    pub keep_prefill: bool,
    /// G2 stays while there is G1.
    pub keep_decode: bool,
}

impl Route {
    /// Each graph released before the other is loaded, in the chunks before `from` and `until`.
    pub fn release_first(costs: &Costs, block: usize, from: usize, until: usize) -> Self {
        Self {
            from,
            until,
            enter: costs.runs_before(block, from),
            switch: costs.runs_before(block, until),
            keep_prefill: false,
            keep_decode: false,
        }
    }

    pub fn graph(&self, chunk: usize) -> Graph {
        if self.from <= chunk && chunk < self.until { Graph::Prefill } else { Graph::Decode }
    }

    fn loads_prefill(&self, costs: &Costs, block: usize) -> bool {
        !costs.blocks[block].start.prefill && self.from < self.until
    }

    fn loads_decode(&self, costs: &Costs, block: usize) -> bool {
        let dropped = self.loads_prefill(costs, block) && !self.keep_decode;
        !costs.blocks[block].start.decode || dropped
    }

    /// Runs that are over when G1 is used no more.
    fn last_use(&self, costs: &Costs, block: usize) -> usize {
        if self.from < self.until { costs.runs_before(block, self.until) } else { 0 }
    }

    /// Runs that are over when G1 is released; None where it is never there, or stays.
    fn release_prefill(&self, costs: &Costs, block: usize) -> Option<usize> {
        let there = costs.blocks[block].start.prefill || self.from < self.until;
        if !there || self.keep_prefill {
            return None;
        }
        let last_use = self.last_use(costs, block);
        let waits = self.loads_decode(costs, block) && self.switch > last_use;
        Some(if waits { self.switch } else { last_use })
    }
}

/// A load that a route asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    after_runs: usize,
    /// The run that waits for it; past the last where none does.
    due: usize,
    block: usize,
    graph: usize,
}

/// When all is over; ordered by what is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finish {
    /// Microseconds until the prefill and the last load are over.
    pub makespan_us: u64,
    /// Sum of the two.
    pub both_us: u64,
}

/// Reckons makespans; keeps its buffers from one question to the next.
#[derive(Debug)]
pub(super) struct Evaluator<'a> {
    costs: &'a Costs,
    loads: Vec<Load>,
    ready: Vec<[u64; 2]>,
}

impl<'a> Evaluator<'a> {
    pub fn new(costs: &'a Costs) -> Self {
        Self { costs, loads: Vec::new(), ready: Vec::new() }
    }

    /// When the prefill and the last load are over. Costs a pass over the runs from the first load
    /// on.
    pub fn finish(&mut self, routes: &[Route]) -> Finish {
        let costs = self.costs;
        collect_loads(costs, routes, &mut self.loads);
        self.ready.clear();
        self.ready.resize(costs.num_blocks(), [0; 2]);
        let mut loads = self.loads.iter().peekable();
        let first = loads.peek().map_or(costs.num_runs(), |load| load.after_runs);
        let first_chunk = (first / costs.num_blocks()).min(costs.num_chunks - 1);
        let (mut loader, mut position) = (0, first_chunk * costs.num_blocks());
        let mut compute = chunks_before_loads(costs, routes, first_chunk);
        for chunk in first_chunk..costs.num_chunks {
            for (block, route) in routes.iter().enumerate() {
                while let Some(load) = loads.next_if(|load| load.after_runs <= position) {
                    loader = compute.max(loader) + costs.blocks[load.block].load[load.graph];
                    self.ready[load.block][load.graph] = loader;
                }
                let graph = route.graph(chunk);
                let ready = self.ready[block][graph as usize];
                compute = compute.max(ready) + costs.compute_us(block, chunk, graph);
                position += 1;
            }
        }
        for load in loads {
            loader = compute.max(loader) + costs.blocks[load.block].load[load.graph];
        }
        Finish { makespan_us: compute.max(loader), both_us: compute + loader }
    }
}

/// Microseconds of the first `chunks` chunks, during which nothing is loaded and no graph changes.
fn chunks_before_loads(costs: &Costs, routes: &[Route], chunks: usize) -> u64 {
    let each = |(block, route): (usize, &Route)| {
        let of_chunk = |chunk| costs.compute_us(block, chunk, route.graph(chunk));
        // A graph that is there anyway may be left without a load: then chunks differ.
        if route.from == 0 && route.until >= chunks || route.from >= chunks {
            if chunks == 0 { 0 } else { of_chunk(0) * chunks as u64 }
        } else {
            (0..chunks).map(of_chunk).sum()
        }
    };
    routes.iter().enumerate().map(each).sum()
}

fn collect_loads(costs: &Costs, routes: &[Route], loads: &mut Vec<Load>) {
    loads.clear();
    for (block, route) in routes.iter().enumerate() {
        let due = |chunk| chunk * costs.num_blocks() + block;
        if route.loads_prefill(costs, block) {
            loads.push(Load { after_runs: route.enter, due: due(route.from), block, graph: G1 });
        }
        if route.loads_decode(costs, block) {
            loads.push(Load { after_runs: route.switch, due: due(route.until), block, graph: G2 });
        }
    }
    loads.sort_unstable();
}

/// What is known of a plan, beside its timetable.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub timetable: Timetable,
    pub prefill_us: u64,
    pub makespan_us: u64,
    pub peak_bytes: u64,
}

/// The timetable that follows from `routes`.
pub(super) fn schedule(costs: &Costs, routes: &[Route]) -> Schedule {
    let mut actions = collect_actions(costs, routes);
    let mut runs = Vec::with_capacity(costs.num_runs());
    let mut ready = vec![[0; 2]; costs.num_blocks()];
    let (mut compute, mut loader, mut next) = (0, 0, 0);
    for chunk in 0..costs.num_chunks {
        for (block, route) in routes.iter().enumerate() {
            while let Some(action) =
                actions.get_mut(next).filter(|action| action.after_runs <= runs.len())
            {
                loader = begin(costs, action, compute.max(loader));
                ready[action.block.index()][action.graph as usize] = loader;
                next += 1;
            }
            let graph = route.graph(chunk);
            let start_us = compute.max(ready[block][graph as usize]);
            compute = start_us + costs.compute_us(block, chunk, graph);
            let block = BlockId(block as u32);
            runs.push(Run { block, chunk, graph, start_us, end_us: compute });
        }
    }
    for action in &mut actions[next..] {
        loader = begin(costs, action, compute.max(loader));
    }
    let makespan_us = compute.max(loader);
    let peak_bytes = peak_bytes(costs, &actions);
    let timetable = Timetable { num_blocks: costs.num_blocks(), runs, actions };
    Schedule { timetable, prefill_us: compute, makespan_us, peak_bytes }
}

/// Sets the times of an action that can start at `start_us`; returns its end.
fn begin(costs: &Costs, action: &mut Action, start_us: u64) -> u64 {
    let load = costs.blocks[action.block.index()].load[action.graph as usize];
    action.start_us = start_us;
    action.end_us = start_us + if action.kind == ActionKind::Load { load } else { 0 };
    action.end_us
}

/// Loads and releases in the loader's order, without times.
fn collect_actions(costs: &Costs, routes: &[Route]) -> Vec<Action> {
    let mut loads = Vec::new();
    collect_loads(costs, routes, &mut loads);
    let mut actions: Vec<_> = (loads.iter())
        .map(|load| ((load.after_runs, 1, load.due), action(ActionKind::Load, load)))
        .collect();
    let mut release = |block, graph, after_runs| {
        let load = Load { after_runs, due: block, block, graph };
        actions.push(((after_runs, 0, block), action(ActionKind::Release, &load)));
    };
    for &block in &costs.dropped {
        release(block, G2, 0);
    }
    for (block, route) in routes.iter().enumerate() {
        if let Some(after_runs) = route.release_prefill(costs, block) {
            release(block, G1, after_runs);
        }
        if costs.blocks[block].start.decode && route.loads_decode(costs, block) {
            release(block, G2, route.enter);
        }
    }
    actions.sort_by_key(|(key, _)| *key);
    actions.into_iter().map(|(_, action)| action).collect()
}

fn action(kind: ActionKind, load: &Load) -> Action {
    let (block, graph) = (BlockId(load.block as u32), Graph::BOTH[load.graph]);
    Action { kind, block, graph, after_runs: load.after_runs, start_us: 0, end_us: 0 }
}

/// Most bytes that `routes` hold at once.
pub(super) fn routes_peak_bytes(costs: &Costs, routes: &[Route]) -> u64 {
    peak_bytes(costs, &collect_actions(costs, routes))
}

/// Most bytes held at once; a graph counts from the start of its load, and what is released before
/// anything else happens does not count.
fn peak_bytes(costs: &Costs, actions: &[Action]) -> u64 {
    let dropped = costs.dropped.iter().map(|&block| costs.blocks[block].num_bytes[G2]);
    let mut held = costs.start_bytes() + dropped.sum::<u64>();
    let mut peak = 0;
    let mut begun = false;
    for action in actions {
        let bytes = costs.blocks[action.block.index()].num_bytes[action.graph as usize];
        begun |= action.kind == ActionKind::Load || action.after_runs > 0;
        if begun {
            peak = peak.max(held);
        }
        match action.kind {
            ActionKind::Load => held += bytes,
            ActionKind::Release => held -= bytes,
        }
    }
    peak.max(held)
}
