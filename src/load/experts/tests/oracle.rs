//! How long compute would wait for experts if all of the future were known: what to judge a policy by.
//! In: a schedule. Out: microseconds of waiting. It shares no code with what it judges.
//!
//! The disk reads what is missing in the order of its use, from the start, and drops what is used
//! last, as long as that is later than what is read ("aggressive" prefetching of Cao, Felten, Karlin
//! and Li, 1995). Or it makes the replacements of Belady's rule, each as early as it can be made
//! ("conservative"). The better of both counts.

use std::collections::VecDeque;

use super::routings::Schedule;

const NEVER: usize = usize::MAX;

/// Microseconds of waiting in all of a schedule.
pub fn stall_us(schedule: &Schedule) -> u64 {
    aggressive_us(schedule).min(conservative_us(schedule))
}

struct Future {
    /// Distinct experts, by turn.
    turns: Vec<Vec<usize>>,
    /// Turns, by expert.
    uses: Vec<Vec<usize>>,
    most: usize,
}

impl Future {
    fn of(schedule: &Schedule) -> Self {
        let shape = &schedule.shape;
        let (mut turns, mut uses) = (Vec::new(), vec![Vec::new(); shape.num_experts()]);
        for step in &schedule.steps {
            for (layer, chosen) in step.chosen.iter().enumerate() {
                let first = shape.of_layer(layer).start;
                let mut asked: Vec<_> = chosen.iter().map(|&it| first + usize::from(it)).collect();
                asked.sort_unstable();
                asked.dedup();
                asked.iter().for_each(|&expert| uses[expert].push(turns.len()));
                turns.push(asked);
            }
        }
        let most = (schedule.budget / shape.num_bytes(0)) as usize;
        Self { turns, uses, most }
    }

    fn next_use(&self, expert: usize, from: usize) -> usize {
        let uses = &self.uses[expert];
        uses.get(uses.partition_point(|&turn| turn < from)).copied().unwrap_or(NEVER)
    }
}

/// Microseconds of waiting where the disk reads so.
fn run(schedule: &Schedule, mut disk: impl Disk) -> u64 {
    let (mut now, mut stall, mut free_at) = (0, 0, 0);
    let mut reading: Option<usize> = None;
    let num_layers = schedule.shape.layers().len();
    for turn in 0..schedule.steps.len() * num_layers {
        let pace = schedule.steps[turn / num_layers].pace[turn % num_layers];
        let phases = [schedule.before_us, 0, schedule.after_us];
        for (phase, length) in phases.into_iter().enumerate() {
            let end = now + length * pace / 100;
            let in_use = phase == 2;
            loop {
                if phase == 1 && disk.is_ready(turn) {
                    break;
                }
                if let Some(expert) = reading {
                    if phase != 1 && free_at > end {
                        break;
                    }
                    if phase == 1 && free_at > now {
                        stall += free_at - now;
                        now = free_at;
                    }
                    disk.is_read(expert);
                    reading = None;
                } else if let Some(expert) = disk.next(turn, in_use) {
                    reading = Some(expert);
                    free_at = free_at.max(now) + schedule.read_us;
                } else {
                    assert!(phase != 1, "the oracle waits for ever");
                    free_at = end;
                    break;
                }
            }
            now = now.max(end);
        }
    }
    stall
}

trait Disk {
    fn is_ready(&self, turn: usize) -> bool;
    /// What it begins to read in a turn, whose own experts are in use from some time on.
    fn next(&mut self, turn: usize, in_use: bool) -> Option<usize>;
    fn is_read(&mut self, expert: usize);
}

struct Aggressive {
    future: Future,
    resident: Vec<bool>,
    held: usize,
    /// All that is used before is there, or being read.
    ahead: usize,
    being_read: Option<usize>,
}

fn aggressive_us(schedule: &Schedule) -> u64 {
    let future = Future::of(schedule);
    let resident = vec![false; future.uses.len()];
    run(schedule, Aggressive { future, resident, held: 0, ahead: 0, being_read: None })
}

impl Disk for Aggressive {
    fn is_ready(&self, turn: usize) -> bool {
        self.future.turns[turn].iter().all(|&expert| self.resident[expert])
    }

    fn next(&mut self, turn: usize, in_use: bool) -> Option<usize> {
        self.ahead = self.ahead.max(turn);
        let is_missing = |expert: &&usize| !self.resident[**expert];
        let missing = loop {
            let turns = self.future.turns.get(self.ahead)?;
            match turns.iter().find(is_missing) {
                Some(&expert) => break expert,
                None => self.ahead += 1,
            }
        };
        if self.held == self.future.most {
            let from = turn + usize::from(in_use);
            let in_use = |expert: usize| in_use && self.future.turns[turn].contains(&expert);
            let resident = (0..self.resident.len()).filter(|&it| self.resident[it] && !in_use(it));
            let last = resident.max_by_key(|&expert| self.future.next_use(expert, from))?;
            if self.future.next_use(last, from) <= self.ahead {
                return None;
            }
            self.resident[last] = false;
            self.held -= 1;
        }
        self.held += 1;
        self.being_read = Some(missing);
        Some(missing)
    }

    fn is_read(&mut self, expert: usize) {
        self.being_read = None;
        self.resident[expert] = true;
    }
}

/// A replacement of Belady's rule: what is read, what goes for it, and the turn from which on that
/// is not used any more.
struct Replacement {
    read: usize,
    dropped: Option<usize>,
    not_before: usize,
}

struct Conservative {
    future: Future,
    resident: Vec<bool>,
    planned: VecDeque<Replacement>,
}

fn conservative_us(schedule: &Schedule) -> u64 {
    let future = Future::of(schedule);
    let mut held: Vec<usize> = Vec::new();
    let mut planned = VecDeque::new();
    for (turn, asked) in future.turns.iter().enumerate() {
        for &read in asked {
            if held.contains(&read) {
                continue;
            }
            let mut replacement = Replacement { read, dropped: None, not_before: 0 };
            if held.len() == future.most {
                let of_this_turn = |expert: &usize| asked.contains(expert);
                let others = (0..held.len()).filter(|&at| !of_this_turn(&held[at]));
                let last = others.max_by_key(|&at| future.next_use(held[at], turn));
                let dropped = held.swap_remove(last.expect("a turn fits into the budget"));
                let uses = &future.uses[dropped];
                let before = uses[..uses.partition_point(|&it| it < turn)].last();
                replacement.dropped = Some(dropped);
                replacement.not_before = before.map_or(0, |last| last + 1);
            }
            held.push(read);
            planned.push_back(replacement);
        }
    }
    let resident = vec![false; future.uses.len()];
    run(schedule, Conservative { future, resident, planned })
}

impl Disk for Conservative {
    fn is_ready(&self, turn: usize) -> bool {
        self.future.turns[turn].iter().all(|&expert| self.resident[expert])
    }

    fn next(&mut self, turn: usize, _in_use: bool) -> Option<usize> {
        let next = self.planned.front().filter(|next| next.not_before <= turn)?;
        let read = next.read;
        if let Some(dropped) = next.dropped {
            self.resident[dropped] = false;
        }
        self.planned.pop_front();
        Some(read)
    }

    fn is_read(&mut self, expert: usize) {
        self.resident[expert] = true;
    }
}
