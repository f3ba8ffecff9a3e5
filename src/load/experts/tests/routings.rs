//! Routings that look like a model's, at random. In: a seed. Out: how many layers and experts there
//! are, what they cost, and what each row of each step chooses.
//!
//! A router's logits are an expert's own popularity, what a topic that drifts from row to row makes
//! of it, and noise; the topic is one for all layers. So some experts are asked for more often than
//! others, a row asks for some of what the row before it did, and what a layer chooses tells of the
//! next one. How much of each is drawn anew for each schedule, hardly any at all included.
//!
//! A schedule starts with nothing in memory, reads a prompt in chunks, and answers in steps of a
//! draft's rows. A row's experts are read in 3 to 40 times the time that a row's layer computes: both
//! read the same bytes, so that is how much faster memory is than a disk.

use crate::load::experts::shape::{LayerShape, Shape};

/// Rows of a step, one of which a schedule's widest is.
const WIDTHS: [usize; 4] = [1, 4, 8, 16];
/// Rows of a prompt's chunk.
const CHUNK: usize = 32;
/// What a row more takes of a layer's time, in percent.
const ROW_PERCENT: u64 = 13;
/// Microseconds of a row's layer.
const LAYER_US: u64 = 1000;
/// Numbers of a topic.
pub const TOPIC: usize = 4;

/// What a target does, from its first prompt on.
#[derive(Debug)]
pub struct Schedule {
    pub shape: Shape,
    pub per_row: usize,
    pub steps: Vec<Step>,
    /// Microseconds of a row's layer before it has chosen, and from then on.
    pub before_us: u64,
    pub after_us: u64,
    /// Microseconds in which an expert is read.
    pub read_us: u64,
    pub budget: u64,
    pub router: Router,
}

/// A chunk of a prompt, or a step of the answer.
#[derive(Debug)]
pub struct Step {
    /// By layer, the experts of all rows.
    pub chosen: Vec<Vec<u16>>,
    /// What a row's time is multiplied by, by layer, in percent.
    pub pace: Vec<u64>,
    /// The topic of each row.
    pub topics: Vec<[f32; TOPIC]>,
}

/// What logits are made of.
#[derive(Debug)]
pub struct Router {
    pub popularity: Vec<f32>,
    pub of_topic: Vec<[f32; TOPIC]>,
    pub noise: f32,
    /// Of a row's topic, how much is left in the next one.
    pub keep: f32,
}

/// What a schedule is drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Read time of a row's experts, as a power of ten of the row's layer, from and to.
    pub read_power: (f64, f64),
    /// Number of steps, from and to.
    pub num_steps: (usize, usize),
    /// Number of chunks of the prompt, from and to.
    pub num_chunks: (usize, usize),
    /// Whether some experts are likelier than others at all.
    pub is_skewed: bool,
}

impl Default for Kind {
    fn default() -> Self {
        let (read_power, num_steps, num_chunks) = ((0.5, 1.6), (12, 20), (1, 4));
        Self { read_power, num_steps, num_chunks, is_skewed: true }
    }
}

impl Schedule {
    /// The schedule of a seed.
    pub fn random(seed: u64, kind: Kind) -> Self {
        let mut draws = Draws::new(seed);
        let skew = if kind.is_skewed { 1.0 } else { 0.0 };
        let popularity = skew * draws.between(0.0, 1.5);
        let topic = skew * draws.between(0.0, 2.0);
        let (noise, keep) = (draws.between(0.2, 1.0), draws.between(0.3, 0.98));
        let num_layers = draws.count(3, 4);
        let num_experts = 8 << draws.count(0, 1);
        let per_row = draws.count(1, num_experts / 8 + 1);
        let layers = vec![LayerShape { num_experts, num_bytes: 1000 }; num_layers];
        let shape = Shape::new(layers).unwrap();
        let share = draws.between(1.2 / num_layers as f64, 0.95);
        let budget = (shape.all_bytes() as f64 * share) as u64;
        let before_us = (LAYER_US as f64 * draws.between(0.2, 0.8)) as u64;
        let power = draws.between(kind.read_power.0, kind.read_power.1);
        let read_us = (LAYER_US as f64 * 10.0f64.powf(power) / per_row as f64) as u64;
        let widest = draws.count(0, WIDTHS.len() - 1);
        let num_steps = draws.count(kind.num_steps.0, kind.num_steps.1);
        let num_chunks = draws.count(kind.num_chunks.0, kind.num_chunks.1);
        let widths = (0..num_steps).map(|_| WIDTHS[draws.count(0, widest)]);
        let rows: Vec<_> = std::iter::repeat_n(CHUNK, num_chunks).chain(widths).collect();
        let router = Router::random(
            shape.num_experts(),
            [popularity, topic, noise, keep].map(|it| it as f32),
            &mut draws,
        );
        let steps = router.steps(&mut draws, &shape, per_row, &rows);
        let (read_us, after_us) = (read_us.max(4).next_multiple_of(4), LAYER_US - before_us);
        Self { shape, per_row, steps, before_us, after_us, read_us, budget, router }
    }

    /// Microseconds that compute takes without any wait.
    pub fn compute_us(&self) -> u64 {
        let paces = self.steps.iter().flat_map(|step| &step.pace);
        paces.map(|pace| LAYER_US * pace / 100).sum()
    }
}

impl Router {
    fn random(num_experts: usize, parts: [f32; 4], draws: &mut Draws) -> Self {
        let [popularity, topic, noise, keep] = parts;
        let topic = topic / (TOPIC as f32).sqrt();
        let mut all =
            |part: f32| (0..num_experts).map(|_| part * draws.normal()).collect::<Vec<_>>();
        let popularity = all(popularity);
        let columns: [Vec<f32>; TOPIC] = std::array::from_fn(|_| all(topic));
        let of_topic =
            (0..num_experts).map(|expert| std::array::from_fn(|at| columns[at][expert])).collect();
        Self { popularity, of_topic, noise, keep }
    }

    /// The topic some rows later.
    pub fn drift(&self, topic: &mut [f32; TOPIC], rows: i32, draws: &mut Draws) {
        let keep = self.keep.powi(rows);
        let fresh = (1.0 - keep * keep).sqrt();
        topic.iter_mut().for_each(|it| *it = keep * *it + fresh * draws.normal());
    }

    /// What a row of a topic chooses among a layer's experts, in any order.
    pub fn choose(
        &self,
        of_layer: std::ops::Range<usize>,
        topic: &[f32; TOPIC],
        per_row: usize,
        draws: &mut Draws,
    ) -> impl Iterator<Item = u16> {
        let first = of_layer.start;
        let mut logits = Vec::with_capacity(of_layer.len());
        for expert in of_layer {
            let [a, b, c, d] = self.of_topic[expert];
            let of_topic = a * topic[0] + b * topic[1] + c * topic[2] + d * topic[3];
            let logit = self.popularity[expert] + of_topic + self.noise * draws.normal();
            logits.push((logit, (expert - first) as u16));
        }
        let by_logit = |one: &(f32, u16), other: &(f32, u16)| other.0.total_cmp(&one.0);
        if per_row < logits.len() {
            logits.select_nth_unstable_by(per_row - 1, by_logit);
        }
        logits.into_iter().take(per_row).map(|(_, expert)| expert)
    }

    fn steps(&self, draws: &mut Draws, shape: &Shape, per_row: usize, rows: &[usize]) -> Vec<Step> {
        let num_layers = shape.layers().len();
        let mut topic: [f32; TOPIC] = std::array::from_fn(|_| draws.normal());
        let mut step = |&num_rows: &usize| {
            let mut step =
                Step { chosen: vec![Vec::new(); num_layers], pace: vec![], topics: vec![] };
            for _ in 0..num_rows {
                self.drift(&mut topic, 1, draws);
                step.topics.push(topic);
                for (layer, chosen) in step.chosen.iter_mut().enumerate() {
                    chosen.extend(self.choose(shape.of_layer(layer), &topic, per_row, draws));
                }
            }
            let percent = 100 + ROW_PERCENT * (num_rows as u64 - 1);
            let pace = |_| percent * draws.count(60, 140) as u64 / 100;
            step.pace = (0..num_layers).map(pace).collect();
            step
        };
        rows.iter().map(&mut step).collect()
    }
}

/// Numbers of a seed, one after the other: cheaper than [`uniform`](crate::sampling::random::uniform), which
/// needs none before them.
pub struct Draws {
    state: u64,
}

impl Draws {
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    /// xorshift64* (Vigna, 2016).
    fn bits(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// In [low, high).
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Both ends included.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        self.between(low as f64, high as f64 + 1.0) as usize
    }

    /// About normal, of mean 0 and variance 1: a sum of three uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum = ((bits >> 43) + (bits >> 22 & 0x1F_FFFF) + (bits >> 1 & 0x1F_FFFF)) as f32;
        2.0 * (sum / (1 << 21) as f32 - 1.5)
    }
}
