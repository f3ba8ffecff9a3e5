//! Local search over routes: one block's windows are moved at a time, then two, then some at
//! random. In: the costs, a budget, routes to start from. Out: better ones. It knows nothing of
//! what makes a good start.

use super::problem::{Costs, ResidentGraphs};
use super::route::{Evaluator, Finish, Route, routes_peak_bytes};
use crate::sampling::random::uniform;

/// Runs that one improvement may reckon with, over all routes that it tries: this bounds its time.
const SEARCH_RUNS: usize = 100_000;
/// The same for a pass that tries something with each block once: all of some hundred blocks and
/// chunks, and the first few blocks of a thousand.
const PASS_RUNS: usize = 1 << 20;
/// What trying routes costs beside its runs, as a number of runs.
const RUNS_A_TRIAL: usize = 8;

/// Routes, and what they come to.
#[derive(Clone, Debug)]
struct Candidate {
    routes: Vec<Route>,
    finish: Finish,
    peak_bytes: u64,
}

/// Writes down the routes that a block at that route may take instead, chunks moved by a distance.
pub(super) type Neighbours = fn(&Costs, usize, &Route, usize, &mut Vec<Route>);

/// The best routes so far, within a memory budget.
pub(super) struct Search<'a> {
    costs: &'a Costs,
    lower_bound_us: u64,
    clock: Evaluator<'a>,
    budget: Option<u64>,
    best: Candidate,
    runs_left: usize,
    #[cfg(test)]
    pub runs_spent: usize,
}

impl<'a> Search<'a> {
    pub fn new(costs: &'a Costs, budget: Option<u64>, routes: Vec<Route>) -> Self {
        let mut clock = Evaluator::new(costs);
        let finish = clock.finish(&routes);
        let peak_bytes = routes_peak_bytes(costs, &routes);
        let best = Candidate { routes, finish, peak_bytes };
        let lower_bound_us = costs.lower_bound_us();
        Self {
            costs,
            lower_bound_us,
            clock,
            budget,
            best,
            runs_left: 0,
            #[cfg(test)]
            runs_spent: 0,
        }
    }

    pub fn into_routes(self) -> Vec<Route> {
        self.best.routes
    }

    fn makespan_us(&self) -> u64 {
        self.best.finish.makespan_us
    }

    /// Whether there is something to win, and memory to win it with.
    pub fn has_room(&self) -> bool {
        self.makespan_us() > self.lower_bound_us
            && self.budget.is_none_or(|budget| budget > self.best.peak_bytes)
    }

    /// Takes `routes` where they are better than the best, or the first to fit into the budget.
    pub fn consider(&mut self, routes: &[Route]) {
        let finish = self.clock.finish(routes);
        if let Some(peak_bytes) = self.accepts(routes, finish) {
            self.best = Candidate { routes: routes.to_vec(), finish, peak_bytes };
        }
    }

    /// The memory of `routes` that finish then, if they are to be taken.
    fn accepts(&self, routes: &[Route], finish: Finish) -> Option<u64> {
        let fits = |bytes| self.budget.is_none_or(|budget| bytes <= budget);
        let best_fits = fits(self.best.peak_bytes);
        if best_fits && finish >= self.best.finish {
            return None;
        }
        let peak_bytes = routes_peak_bytes(self.costs, routes);
        let better = fits(peak_bytes) || !best_fits && peak_bytes < self.best.peak_bytes;
        better.then_some(peak_bytes)
    }

    /// Whether there is no time left, or nothing left to win.
    fn is_over(&self) -> bool {
        self.runs_left == 0 || self.makespan_us() <= self.lower_bound_us
    }

    fn spend(&mut self) {
        let cost = self.costs.num_runs() + RUNS_A_TRIAL;
        self.runs_left = self.runs_left.saturating_sub(cost);
        #[cfg(test)]
        {
            self.runs_spent += cost;
        }
    }

    /// Gives some blocks other routes, if that is better.
    fn try_with<const N: usize>(&mut self, changes: [(usize, Route); N]) -> bool {
        self.spend();
        let before = changes.map(|(block, _)| self.best.routes[block]);
        for (block, route) in changes {
            self.best.routes[block] = route;
        }
        let finish = self.clock.finish(&self.best.routes);
        if let Some(peak_bytes) = self.accepts(&self.best.routes, finish) {
            (self.best.finish, self.best.peak_bytes) = (finish, peak_bytes);
            return true;
        }
        for ((block, _), route) in changes.into_iter().zip(before) {
            self.best.routes[block] = route;
        }
        false
    }

    /// One block at a time, ever further; then two at a time; then from somewhere near; until the
    /// time is over.
    pub fn improve(&mut self, neighbours: Neighbours) {
        self.runs_left = SEARCH_RUNS;
        self.descend(neighbours);
        let mut choices = SeededRandom(0);
        while !self.is_over() {
            let best = self.best.clone();
            self.disturb(neighbours, &mut choices);
            self.descend(neighbours);
            if self.best.finish >= best.finish {
                self.best = best;
            }
        }
    }

    fn descend(&mut self, neighbours: Neighbours) {
        while self.improve_one(neighbours) || self.improve_two(neighbours) {}
    }

    fn improve_one(&mut self, neighbours: Neighbours) -> bool {
        let mut options = Vec::new();
        for distance in 1..=self.costs.num_chunks {
            let mut improved = false;
            for block in 0..self.costs.num_blocks() {
                options.clear();
                neighbours(self.costs, block, &self.best.routes[block], distance, &mut options);
                for &option in &options {
                    if self.is_over() {
                        return false;
                    }
                    improved |= self.try_with([(block, option)]);
                }
            }
            if improved {
                return true;
            }
        }
        false
    }

    fn improve_two(&mut self, neighbours: Neighbours) -> bool {
        let near = |search: &Self, block: usize, options: &mut Vec<Route>| {
            options.clear();
            for distance in 1..=search.costs.num_chunks {
                let route = &search.best.routes[block];
                neighbours(search.costs, block, route, distance, options);
            }
        };
        let (mut options, mut others) = (Vec::new(), Vec::new());
        for first in 0..self.costs.num_blocks() {
            for second in first + 1..self.costs.num_blocks() {
                if self.is_over() {
                    return false;
                }
                near(self, first, &mut options);
                near(self, second, &mut others);
                if options.is_empty() || others.is_empty() {
                    self.runs_left = self.runs_left.saturating_sub(self.costs.num_chunks);
                }
                for &option in &options {
                    for &other in &others {
                        if self.is_over() {
                            return false;
                        }
                        if self.try_with([(first, option), (second, other)]) {
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    /// Moves three blocks at random, for better or worse.
    fn disturb(&mut self, neighbours: Neighbours, choices: &mut SeededRandom) {
        let mut routes = self.best.routes.clone();
        let mut options = Vec::new();
        for _ in 0..3 {
            let block = choices.below(routes.len());
            let distance = 1 + choices.below(self.costs.num_chunks);
            options.clear();
            neighbours(self.costs, block, &routes[block], distance, &mut options);
            if !options.is_empty() {
                routes[block] = options[choices.below(options.len())];
            }
        }
        let peak_bytes = routes_peak_bytes(self.costs, &routes);
        self.spend();
        if self.budget.is_none_or(|budget| peak_bytes <= budget) {
            let finish = self.clock.finish(&routes);
            self.best = Candidate { routes, finish, peak_bytes };
        }
    }

    /// Lets blocks keep their old graph while the new one loads, those that gain most a byte first;
    /// until the time is over.
    pub fn keep_while_loading(&mut self) {
        self.runs_left = PASS_RUNS;
        let gain = |block: usize, route: &Route| {
            let costs = &self.costs.blocks[block];
            let chunks = self.costs.best_until(block).saturating_sub(route.until) as u64;
            let saved = costs.chunk[1].saturating_sub(costs.chunk[0]) * chunks;
            let bytes = if costs.start.decode { costs.num_bytes[0] } else { costs.num_bytes[1] };
            (saved + costs.load[1]) as f64 / bytes.max(1) as f64
        };
        let mut order: Vec<_> = (self.best.routes.iter().enumerate())
            .map(|(block, route)| (gain(block, route), block))
            .collect();
        order.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (_, block) in order {
            if self.runs_left == 0 {
                return;
            }
            let route = self.best.routes[block];
            let until = route.until.max(self.costs.best_until(block));
            self.try_with([(block, Route { until, keep_decode: true, ..route })]);
        }
    }

    /// Gives memory back where it brings nothing: release-first again if the makespan stays; until
    /// the time is over.
    pub fn economise(&mut self) {
        self.runs_left = PASS_RUNS;
        for block in 0..self.costs.num_blocks() {
            for until in [self.costs.num_chunks, self.best.routes[block].until] {
                let route = self.best.routes[block];
                let option = Route::release_first(self.costs, block, route.from.min(until), until);
                if option == route {
                    continue;
                }
                if self.runs_left == 0 {
                    return;
                }
                self.spend();
                self.best.routes[block] = option;
                let finish = self.clock.finish(&self.best.routes);
                let peak_bytes = routes_peak_bytes(self.costs, &self.best.routes);
                if finish.makespan_us <= self.best.finish.makespan_us
                    && peak_bytes < self.best.peak_bytes
                {
                    (self.best.finish, self.best.peak_bytes) = (finish, peak_bytes);
                } else {
                    self.best.routes[block] = route;
                }
            }
        }
    }
}

/// The choices of one search, the same each time.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 += 1;
        (uniform(0, self.0) * limit as f64) as usize
    }
}

/// Release-first routes at that distance.
pub(super) fn release_first(
    costs: &Costs,
    block: usize,
    route: &Route,
    distance: usize,
    options: &mut Vec<Route>,
) {
    let start = costs.blocks[block].start;
    let (from, until, last) = (route.from, route.until, costs.num_chunks);
    let mut push = |from, until| options.push(Route::release_first(costs, block, from, until));
    let moved = |chunk: usize| [chunk.checked_sub(distance), Some(chunk + distance)];
    for until in moved(until).into_iter().flatten().filter(|&until| until <= last) {
        if from < until || until == 0 {
            push(from.min(until), until);
        }
    }
    if start == ResidentGraphs::DECODE {
        for from in moved(from).into_iter().flatten().filter(|&from| from < until) {
            push(from, until);
        }
        if from == until && distance <= last {
            push(last - distance, last);
        } else if distance == 1 {
            push(0, 0);
        }
    }
}

/// Routes in either form at that distance: with make-before-break, G1 stays for all chunks that it
/// is good for, or for one chunk longer than release-first.
pub(super) fn any_form(
    costs: &Costs,
    block: usize,
    route: &Route,
    distance: usize,
    options: &mut Vec<Route>,
) {
    release_first(costs, block, route, distance, options);
    let best_until = costs.best_until(block);
    let both = |from, until, window| Route {
        switch: costs.runs_before(block, window),
        keep_decode: true,
        ..Route::release_first(costs, block, from, until)
    };
    if costs.blocks[block].start == ResidentGraphs::DECODE {
        if distance <= best_until {
            options.push(both(best_until - distance, best_until, best_until));
        }
        return;
    }
    let window = costs.window_of(block, route.switch);
    let here = (distance == 1).then_some(window);
    let windows = [here, window.checked_sub(distance), Some(window + distance)];
    for window in windows.into_iter().flatten().filter(|&window| window < costs.num_chunks) {
        for until in [best_until, window + 1] {
            if window < until {
                options.push(both(0, until, window));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixed::asynchronous;
    use super::super::problem::Problem;
    use super::*;
    use crate::load::profile::{BlockCost, GraphCost, Profile};

    #[test]
    fn every_pass_over_a_huge_plan_ends_after_a_bounded_number_of_runs() {
        let num_blocks = 300;
        let graph = |compute_us| GraphCost { load_us: 5_000, compute_us, num_bytes: 1 };
        let block = BlockCost { prefill: graph(1_000), decode: graph(200) };
        let profile = Profile::new(vec![block; num_blocks], 256, 32).unwrap();
        let start = vec![ResidentGraphs::PREFILL; num_blocks];
        let problem =
            Problem { profile: &profile, num_tokens: 50 * 256, start, memory_budget: None };
        let costs = problem.costs().unwrap();
        let mut search = Search::new(&costs, None, asynchronous(&costs));
        let trial = costs.num_runs() + RUNS_A_TRIAL;
        type Pass = for<'a, 'b> fn(&'a mut Search<'b>);
        let passes: [Pass; 3] = [
            |search| search.keep_while_loading(),
            |search| search.economise(),
            |search| search.improve(any_form),
        ];
        for pass in passes {
            let before = search.runs_spent;
            pass(&mut search);
            assert!(search.runs_spent - before < PASS_RUNS + trial);
        }
    }
}
