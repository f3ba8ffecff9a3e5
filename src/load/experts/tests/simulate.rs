//! Runs a schedule by the pure core, as the store would, with one disk. In: a schedule and a forecast.
//! Out: microseconds that compute waited, and the core's counts.

use std::ops::Range;

use super::informed::Informed;
use super::oracle;
use super::routings::{Kind, Schedule};
use crate::load::experts::expectation::Expectation;
use crate::load::experts::residency::{Action, Counts, Forecast, ReadAhead, Residency};
use crate::load::experts::shape::Shape;

/// Pieces of an expert.
const PIECES: u64 = 4;
const NOTHING_AHEAD: ReadAhead =
    ReadAhead { turns: 0, least_due: 1.0, margin: 0.0, most_pieces: 0 };

struct Machine<F> {
    core: Residency<F>,
    now_us: u64,
    free_at_us: u64,
    reading: Option<(usize, Range<u64>)>,
    piece_us: u64,
}

/// Microseconds of waiting, and counts.
fn run<F: Forecast>(
    schedule: &Schedule,
    forecast: F,
    read_ahead: Option<ReadAhead>,
) -> (u64, Counts) {
    let (shape, budget) = (schedule.shape.clone(), schedule.budget);
    let piece_bytes = shape.num_bytes(0) / PIECES;
    let mut core = Residency::new(shape, budget, piece_bytes, forecast).unwrap();
    if let Some(read_ahead) = read_ahead {
        core.set_read_ahead(read_ahead);
    }
    let piece_us = schedule.read_us / PIECES;
    let mut machine = Machine { core, now_us: 0, free_at_us: 0, reading: None, piece_us };
    let mut waited_us = 0;
    for step in &schedule.steps {
        for (layer, chosen) in step.chosen.iter().enumerate() {
            let paced = |us: u64| us * step.pace[layer] / 100;
            machine.compute(paced(schedule.before_us));
            let asked = machine.core.ask(layer, chosen, schedule.per_row);
            waited_us += machine.wait(&asked);
            machine.compute(paced(schedule.after_us));
            machine.core.let_go(&asked);
            assert!(machine.core.held_bytes() <= budget);
        }
    }
    (waited_us, machine.core.counts())
}

impl<F: Forecast> Machine<F> {
    /// Whether the disk has or gets something to do.
    fn begin(&mut self) -> bool {
        while self.reading.is_none() {
            match self.core.next_action() {
                Some(Action::Drop(expert)) => self.core.drop_over(expert),
                Some(Action::Read(expert, bytes)) => {
                    self.free_at_us = self.free_at_us.max(self.now_us) + self.piece_us;
                    self.reading = Some((expert, bytes));
                }
                None => return false,
            }
        }
        true
    }

    fn end(&mut self) {
        let (expert, bytes) = self.reading.take().expect("the disk reads");
        self.core.read_over(expert, &bytes, true);
    }

    fn compute(&mut self, us: u64) {
        let until_us = self.now_us + us;
        while self.begin() && self.free_at_us <= until_us {
            self.now_us = self.now_us.max(self.free_at_us);
            self.end();
        }
        self.now_us = until_us;
    }

    fn wait(&mut self, asked: &[usize]) -> u64 {
        let start_us = self.now_us;
        while !asked.iter().all(|&expert| self.core.is_resident(expert)) {
            assert!(self.begin(), "compute waits for what nobody reads");
            self.now_us = self.now_us.max(self.free_at_us);
            self.end();
        }
        self.now_us - start_us
    }
}

/// Goes by the last use of an expert, or by how often it was used, which fades.
struct ByUse {
    first: Vec<usize>,
    used: Vec<f32>,
    turn: f32,
    keep: f32,
}

impl ByUse {
    fn recency(shape: &Shape) -> Self {
        Self::new(shape, 0.0)
    }

    fn frequency(shape: &Shape) -> Self {
        Self::new(shape, 0.9)
    }

    fn new(shape: &Shape, keep: f32) -> Self {
        let first = (0..shape.layers().len()).map(|layer| shape.of_layer(layer).start).collect();
        Self { first, used: vec![0.0; shape.num_experts()], turn: 0.0, keep }
    }
}

impl Forecast for ByUse {
    fn observe(&mut self, layer: usize, chosen: &[u16], _: usize) {
        self.turn += 1.0;
        let first = self.first[layer];
        if self.keep > 0.0 {
            let end = self.first.get(layer + 1).copied().unwrap_or(self.used.len());
            self.used[first..end].iter_mut().for_each(|count| *count *= self.keep);
            chosen.iter().for_each(|&expert| self.used[first + usize::from(expert)] += 1.0);
        } else {
            chosen.iter().for_each(|&expert| self.used[first + usize::from(expert)] = self.turn);
        }
    }

    fn due(&self, _: usize) -> f32 {
        0.0
    }

    fn turns_until_use(&self, expert: usize, _: usize) -> f32 {
        -self.used[expert]
    }
}

fn expected(schedule: &Schedule, read_ahead: Option<ReadAhead>) -> u64 {
    run(schedule, Expectation::new(schedule.shape.clone()), read_ahead).0
}

/// Mean waiting of each, in times of what compute takes, over schedules of seeds.
fn mean<const N: usize>(
    seeds: Range<u64>,
    kind: Kind,
    each: impl Fn(&Schedule) -> [u64; N],
) -> [f64; N] {
    let mut sums = [0.0; N];
    let count = (seeds.end - seeds.start) as f64;
    for seed in seeds {
        let schedule = Schedule::random(seed, kind);
        let compute_us = schedule.compute_us() as f64;
        let waited = each(&schedule);
        sums.iter_mut().zip(waited).for_each(|(sum, us)| *sum += us as f64 / compute_us / count);
    }
    sums
}

#[test]
fn two_thousand_schedules_wait_hardly_longer_than_if_the_future_were_known() {
    let [waited, least] = mean(0..2000, Kind::default(), |schedule| {
        [expected(schedule, None), oracle::stall_us(schedule)]
    });
    println!("waiting: {waited:.3} of compute, with the future known {least:.3}");
    assert!(waited <= 1.3 * least, "{:.3}", waited / least);
}

#[test]
fn nobody_waits_less_than_the_oracle() {
    for seed in 0..200 {
        let kind = Kind { read_power: (-1.0, 1.6), ..Kind::default() };
        let schedule = Schedule::random(seed, kind);
        let least = oracle::stall_us(&schedule);
        assert!(least <= expected(&schedule, None), "seed {seed}");
    }
}

#[test]
fn it_waits_less_than_by_recency_or_frequency_or_without_reading_ahead() {
    let [ours, no_ahead, recency, frequency] = mean(0..300, Kind::default(), |schedule| {
        let nothing = Some(NOTHING_AHEAD);
        [
            expected(schedule, None),
            expected(schedule, nothing),
            run(schedule, ByUse::recency(&schedule.shape), nothing).0,
            run(schedule, ByUse::frequency(&schedule.shape), nothing).0,
        ]
    });
    println!(
        "{ours:.3}, nothing ahead {no_ahead:.3}, recency {recency:.3}, frequency {frequency:.3}"
    );
    assert!(ours < no_ahead && no_ahead < frequency && frequency < recency);
}

/// The rest of the way to the oracle is what nobody can know who has not seen the future.
#[test]
fn who_knows_the_routers_themselves_waits_hardly_less() {
    let [ours, informed] = mean(0..60, Kind::default(), |schedule| {
        [expected(schedule, None), run(schedule, Informed::new(schedule), None).0]
    });
    println!("{ours:.3}, knowing the routers {informed:.3}");
    assert!(ours <= 1.15 * informed, "{:.3}", ours / informed);
}

/// What the table in `docs/switching-and-streaming.md` shows.
#[test]
#[ignore = "a table, by `cargo test --release --lib experts_beside -- --ignored --nocapture`"]
fn experts_beside_the_oracle_in_other_schedules() {
    let usual = Kind::default();
    let long = Kind { num_steps: (200, 200), ..usual };
    let fast = Kind { read_power: (-0.5, 0.5), ..usual };
    let uniform = Kind { is_skewed: false, ..usual };
    for (name, kind) in [("usual", usual), ("long", long), ("fast", fast), ("uniform", uniform)] {
        let [oracle, ours, informed, recency, frequency] = mean(0..100, kind, |schedule| {
            let nothing = Some(NOTHING_AHEAD);
            [
                oracle::stall_us(schedule),
                expected(schedule, None),
                run(schedule, Informed::new(schedule), None).0,
                run(schedule, ByUse::recency(&schedule.shape), nothing).0,
                run(schedule, ByUse::frequency(&schedule.shape), nothing).0,
            ]
        });
        let others = [ours, informed, recency, frequency].map(|it| format!("x{:.2}", it / oracle));
        println!("{name}: oracle {oracle:.3} of compute; ours, informed, LRU, LFU {others:?}");
    }
}
