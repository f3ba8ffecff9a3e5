//! A server of many requests by the pure core, on a clock that counts costs. In: a seed. Out: what
//! became of each request, and the laws that held in every step.

use crate::batch::*;
use crate::draft::choose::step_choice::StepCost;
use crate::sampling::random::uniform;

/// Requests that can be served at a time.
const PLACES: usize = 12;
const MOST_ROWS: usize = 256;
/// Prompts up to here are short.
const SHORT: usize = 64;

/// Numbers of a seed, one after the other.
struct Draws {
    seed: u64,
    num_drawn: u64,
}

impl Draws {
    fn uniform(&mut self) -> f64 {
        self.num_drawn += 1;
        uniform(self.seed, self.num_drawn)
    }

    /// From 1 to `most`, each order of magnitude as often as the others.
    fn magnitude(&mut self, most: usize) -> usize {
        (most as f64).powf(self.uniform()).round() as usize
    }
}

#[derive(Clone, Debug)]
struct Request {
    arrives: f64,
    prompt: usize,
    num_read: usize,
    answer: usize,
    num_given: usize,
    /// How sure its candidates are.
    sureness: f64,
    /// Steps that it was in, until its caller gives it up.
    patience: usize,
    num_steps: usize,
}

impl Request {
    fn random(arrives: f64, draws: &mut Draws) -> Self {
        let gives_up = draws.uniform() < 0.1;
        Self {
            arrives,
            prompt: draws.magnitude(4_000),
            num_read: 0,
            answer: draws.magnitude(200),
            num_given: 0,
            sureness: draws.uniform(),
            patience: if gives_up { draws.magnitude(100) } else { usize::MAX },
            num_steps: 0,
        }
    }

    fn is_reading(&self) -> bool {
        self.num_read < self.prompt
    }

    fn length(&self) -> usize {
        self.num_read + self.num_given
    }

    fn worths(&self, draws: &mut Draws) -> Vec<f32> {
        let num_nodes = 1 + (draws.uniform() * 16.0) as i32;
        (0..num_nodes).map(|depth| self.sureness.powi(depth) as f32).collect()
    }
}

struct Server {
    batcher: Batcher,
    costs: RowCosts,
    draws: Draws,
    clock: f64,
    served: Vec<Request>,
    num_ended: usize,
    num_given_up: usize,
    num_steps: usize,
    /// Tokens that the oldest prompt has read, and all have, since it is the oldest.
    of_oldest: (usize, usize),
    /// What the steps cost in which some read and others decode, and what they would without reading.
    beside: (f64, f64),
}

impl Server {
    fn new(seed: u64) -> Self {
        let at = |base, per_token| StepCost { base, per_token };
        let points =
            [(1, at(1.0, 4e-5)), (8, at(1.3, 1e-4)), (32, at(2.4, 3e-4)), (256, at(12.0, 2e-3))];
        let costs = RowCosts::new(&points).unwrap();
        Self {
            batcher: Batcher::new(Some(costs.clone()), MOST_ROWS).unwrap(),
            costs,
            draws: Draws { seed, num_drawn: 0 },
            clock: 0.0,
            served: Vec::new(),
            num_ended: 0,
            num_given_up: 0,
            num_steps: 0,
            of_oldest: (0, 0),
            beside: (0.0, 0.0),
        }
    }

    /// One step of all that are served.
    fn step(&mut self) {
        let worths: Vec<Vec<f32>> =
            self.served.iter().map(|request| request.worths(&mut self.draws)).collect();
        let (read, decode): (Vec<usize>, Vec<usize>) =
            (0..self.served.len()).partition(|&index| self.served[index].is_reading());
        let decoding = |&index: &usize| Decoding {
            worths: &worths[index],
            least: 1,
            length: self.served[index].length(),
        };
        let reading = |&index: &usize| {
            let Request { prompt, num_read, .. } = self.served[index];
            Prefilling { remaining: prompt - num_read, length: num_read }
        };
        let (decoding, reading): (Vec<_>, Vec<_>) =
            (decode.iter().map(decoding).collect(), read.iter().map(reading).collect());
        let shares = self.batcher.share(&decoding, &reading).unwrap();
        self.check(&shares, &decoding, &reading);
        self.clock += f64::from(shares.cost);
        self.num_steps += 1;
        for (&index, &tokens) in read.iter().zip(&shares.tokens) {
            self.served[index].num_read += tokens;
        }
        let mut gained = 0;
        for (&index, &nodes) in decode.iter().zip(&shares.nodes) {
            let request = &mut self.served[index];
            let mut tokens = 1;
            while tokens < nodes && self.draws.uniform() < request.sureness {
                tokens += 1;
            }
            request.num_given = (request.num_given + tokens).min(request.answer);
            gained += tokens;
        }
        if !decode.is_empty() {
            self.batcher.took(gained, shares.costs.iter().sum()).unwrap();
        }
        self.served.iter_mut().for_each(|request| request.num_steps += 1);
        self.follow_oldest(read.first().copied(), &shares.tokens);
        self.leave();
    }

    /// What holds in every step.
    fn check(&mut self, shares: &Shares, decoding: &[Decoding<'_>], reading: &[Prefilling]) {
        assert!(shares.nodes.iter().all(|&nodes| nodes >= 1), "each request that decodes advances");
        let (nodes, tokens) =
            (shares.nodes.iter().sum::<usize>(), shares.tokens.iter().sum::<usize>());
        assert!(nodes + tokens <= MOST_ROWS);
        let attention =
            |(&nodes, it): (&usize, &Decoding<'_>)| self.costs.attention(nodes, it.length);
        let attention: f32 = shares.nodes.iter().zip(decoding).map(attention).sum();
        let without = self.costs.base(nodes) + attention;
        if reading.is_empty() || decoding.is_empty() {
            self.beside = (0.0, 0.0);
        } else {
            let (cost, alone) = &mut self.beside;
            (*cost, *alone) = (*cost + f64::from(shares.cost), *alone + f64::from(without));
            assert!(*cost <= 2.0 * *alone * 1.0001, "others keep half of their speed");
        }
    }

    /// The oldest prompt has a quarter of all that is read while it is the oldest, but for what one step's
    /// fourth token is waited for.
    fn follow_oldest(&mut self, oldest: Option<usize>, tokens: &[usize]) {
        let Some(oldest) = oldest else { return };
        self.of_oldest.0 += tokens[0];
        self.of_oldest.1 += tokens.iter().sum::<usize>();
        if self.served[oldest].is_reading() {
            assert!(self.of_oldest.0 >= self.of_oldest.1 / 4, "{:?}", self.of_oldest);
        } else {
            self.of_oldest = (0, 0);
        }
    }

    /// Requests that have ended, or are given up, leave.
    fn leave(&mut self) {
        let oldest = |served: &[Request]| {
            served.iter().find(|it| it.is_reading()).map(|it| it.arrives.to_bits())
        };
        let before = oldest(&self.served);
        let served = std::mem::take(&mut self.served);
        for request in served {
            if request.num_given == request.answer {
                self.num_ended += 1;
            } else if request.num_steps >= request.patience {
                self.num_given_up += 1;
            } else {
                self.served.push(request);
            }
        }
        if oldest(&self.served) != before {
            self.of_oldest = (0, 0);
        }
    }
}

#[test]
fn every_request_ends_whatever_comes_beside_it() {
    const NUM_REQUESTS: usize = 10_000;
    let mut server = Server::new(7);
    let mut arrives = 0.0;
    let mut waiting = std::collections::VecDeque::new();
    let mut arrivals = Draws { seed: 8, num_drawn: 0 };
    for _ in 0..NUM_REQUESTS {
        arrives += -40.0 * (1.0 - arrivals.uniform()).ln();
        waiting.push_back(Request::random(arrives, &mut arrivals));
    }
    let (mut num_full, mut num_together) = (0, 0);
    while !(waiting.is_empty() && server.served.is_empty()) {
        let has_come = |clock| move |next: &Request| next.arrives <= clock;
        while server.served.len() < PLACES && waiting.front().is_some_and(has_come(server.clock)) {
            server.served.extend(waiting.pop_front());
        }
        match waiting.front() {
            Some(next) if server.served.is_empty() => server.clock = next.arrives,
            _ => server.step(),
        }
        num_full += usize::from(server.served.len() == PLACES);
        num_together += server.served.len();
    }
    assert_eq!(server.num_ended + server.num_given_up, NUM_REQUESTS);
    assert!(server.num_given_up > 300, "{} were given up", server.num_given_up);
    let share_full = num_full as f64 / server.num_steps as f64;
    assert!((0.02..0.95).contains(&share_full), "neither idle nor hopeless: {share_full}");
    assert!(num_together > 3 * server.num_steps, "requests share steps");
}

/// What a prompt takes to be read, in cost, from its coming until it is read; beside a long one, while
/// so many others decode.
fn cost_to_read(prompt: usize, beside: bool, num_decoding: usize) -> (f64, f64) {
    let mut server = Server::new(3);
    let one = |prompt, answer| Request {
        arrives: 0.0,
        prompt,
        num_read: 0,
        answer,
        num_given: 0,
        sureness: 0.5,
        patience: usize::MAX,
        num_steps: 0,
    };
    let decoding = Request { num_read: 100, ..one(100, 1_000_000) };
    server.served.extend(vec![decoding; num_decoding]);
    let mut dearest = 0.0f64;
    if beside {
        server.served.push(one(4_000, 1));
        (0..3).for_each(|_| server.step());
    }
    server.served.push(one(prompt, 2));
    let (index, started) = (server.served.len() - 1, server.clock);
    while server.served.get(index).is_some_and(Request::is_reading) {
        let before = server.clock;
        server.step();
        dearest = dearest.max(server.clock - before);
    }
    (server.clock - started, dearest)
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    for num_decoding in [0, 1, 4, 10] {
        for prompt in 1..=SHORT {
            let (alone, _) = cost_to_read(prompt, false, num_decoding);
            let (beside, a_piece) = cost_to_read(prompt, true, num_decoding);
            let what = format!("{prompt} tokens beside {num_decoding}: {beside}, alone {alone}");
            assert!(beside <= 2.0 * alone + a_piece, "{what}, a piece {a_piece}");
        }
    }
}
