//! Which experts will be asked for, and when. In: the experts that rows have chosen, layer after
//! layer. Out: for each expert how likely its layer's next turn asks for it, and how many turns of
//! layers pass until it is used.
//!
//! Three things tell: what a layer's rows chose over hundreds of rows (popularity), over the last few
//! (recency), and what rows chose next that had chosen the same in the layer before (company). Their
//! log-odds are weighed by weights that follow the model's own routing, as in logistic regression
//! with one small step a turn; where a model's choices repeat, recency gains, where layers agree,
//! company does. What an expert is expected to be is kept, not what it was: it is a look-up for
//! whoever decides.

use super::residency::Forecast;
use super::shape::{LayerShape, Shape};

/// Rows over which popularity is a plain mean; from then on older ones fade.
const SLOW_ROWS: f32 = 256.0;
/// What is left of recency after a row.
const FAST_KEEP: f32 = 0.7;
/// Rows of a step that count for recency.
const FAST_ROWS: i32 = 8;
/// Rows of a step whose company is counted.
const COMPANY_ROWS: usize = 16;
/// Counts of company are halved where one of an expert comes so far.
const MOST_COUNTED: u16 = 512;
/// Rows' worth of popularity in company, which is little known at first.
const COMPANY_PRIOR: f32 = 4.0;
/// A step of the weights.
const RATE: f32 = 0.01;
/// Log-odds beyond which nothing is believed.
const MOST_LOG_ODDS: f32 = 7.0;
/// Weights of one, popularity, recency and company at first.
const WEIGHTS: [f32; 4] = [0.0, 0.4, 0.4, 0.4];

/// What the next turns of all layers are expected to ask for.
#[derive(Clone, Debug)]
pub struct Expectation {
    shape: Shape,
    /// Shares of a layer's rows that choose an expert, by expert.
    slow: Vec<f32>,
    fast: Vec<f32>,
    company: CoOccurrence,
    /// Log-odds of company for a layer's next turn; none where the layer before has not had its own.
    by_company: Vec<f32>,
    weights: [f32; 4],
    /// Rows seen, by layer.
    num_rows: Vec<f32>,
    /// Rows of the step in progress, and of a step to come.
    rows: f32,
    due: Vec<f32>,
    passes: Vec<f32>,
}

impl Expectation {
    /// Nothing is known yet: all experts of a layer are alike.
    pub fn new(shape: Shape) -> Self {
        let even = |layer: &LayerShape| 1.0 / (layer.num_experts as f32).max(1.0);
        let shares: Vec<f32> = (0..shape.num_experts())
            .map(|expert| even(&shape.layers()[shape.layer(expert)]))
            .collect();
        let mut new = Self {
            company: CoOccurrence::new(&shape),
            by_company: shares.iter().map(|&share| log_odds(share)).collect(),
            slow: shares.clone(),
            fast: shares.clone(),
            weights: WEIGHTS,
            num_rows: vec![0.0; shape.layers().len()],
            rows: 1.0,
            due: shares.clone(),
            passes: shares,
            shape,
        };
        (0..new.shape.layers().len()).for_each(|layer| new.expect(layer));
        new
    }

    /// Moves the weights towards what would have told better what a layer's rows chose.
    fn learn(&mut self, layer: usize, shares: &[f32]) {
        let mut step = [0.0; 4];
        for (expert, &share) in self.shape.of_layer(layer).zip(shares) {
            let told = self.told(expert);
            let wrong = share.min(1.0) - odds_share(weigh(&self.weights, &told));
            step.iter_mut().zip(told).for_each(|(step, told)| *step += wrong * told);
        }
        // Of about as much weight as those chosen, not as all experts of the layer.
        let scale = RATE / shares.iter().sum::<f32>().max(1.0);
        for (weight, step) in self.weights.iter_mut().zip(step) {
            *weight += (scale * step).clamp(-0.1, 0.1);
        }
    }

    fn told(&self, expert: usize) -> [f32; 4] {
        let (slow, fast) = (log_odds(self.slow[expert]), log_odds(self.fast[expert]));
        [1.0, slow, fast, self.by_company[expert]]
    }

    /// Brings up to date what a layer's experts are expected to be.
    fn expect(&mut self, layer: usize) {
        let (num_layers, rows) = (self.shape.layers().len() as f32, self.rows as i32);
        let of_rows = |share: f32| 1.0 - (1.0 - share).powi(rows);
        for expert in self.shape.of_layer(layer) {
            let told = self.told(expert);
            let later = [1.0, told[1], told[2], told[1]];

            self.due[expert] = of_rows(odds_share(weigh(&self.weights, &told)));
            let later = of_rows(odds_share(weigh(&self.weights, &later)));
            self.passes[expert] = (1.0 - self.due[expert]) * num_layers / later.max(1e-6);
        }
    }
}

impl Forecast for Expectation {
    fn due(&self, expert: usize) -> f32 {
        self.due[expert]
    }

    fn turns_until_use(&self, expert: usize, turns: usize) -> f32 {
        turns as f32 + self.passes[expert]
    }

    fn observe(&mut self, layer: usize, chosen: &[u16], per_row: usize) {
        let of_layer = self.shape.of_layer(layer);
        let num_rows = chosen.len() / per_row.max(1);
        if num_rows == 0 {
            return;
        }
        let mut shares = vec![0.0; of_layer.len()];
        for &expert in chosen {
            shares[usize::from(expert)] += 1.0 / num_rows as f32;
        }
        self.learn(layer, &shares);
        let (rows, is_first) = (num_rows as f32, self.num_rows[layer] == 0.0);
        self.num_rows[layer] = (self.num_rows[layer] + rows).min(SLOW_ROWS);
        let prior = per_row as f32 / of_layer.len() as f32;
        let slow = rows / (self.num_rows[layer] + 2.0);
        let fast = 1.0 - FAST_KEEP.powi(FAST_ROWS.min(num_rows as i32));
        for (expert, share) in of_layer.clone().zip(&shares) {
            if is_first {
                (self.slow[expert], self.fast[expert]) = (prior, prior);
            }
            self.slow[expert] += slow.min(1.0) * (share - self.slow[expert]);
            self.fast[expert] += fast * (share - self.fast[expert]);
            self.by_company[expert] = log_odds(self.slow[expert]);
        }
        self.rows = rows;
        self.company.count(layer, chosen, per_row);
        self.expect(layer);
        let next = (layer + 1) % self.shape.layers().len();
        if next != layer {
            let first = self.shape.of_layer(next);
            let slow = &self.slow[first.clone()];
            self.company.expect(layer, &shares, per_row, slow, &mut self.by_company[first]);
            self.expect(next);
        }
    }
}

fn weigh(weights: &[f32; 4], told: &[f32; 4]) -> f32 {
    weights.iter().zip(told).map(|(weight, told)| weight * told).sum()
}

fn log_odds(share: f32) -> f32 {
    let share = share.clamp(1e-3, 1.0 - 1e-3);
    (share / (1.0 - share)).ln()
}

fn odds_share(log_odds: f32) -> f32 {
    1.0 / (1.0 + (-log_odds.clamp(-MOST_LOG_ODDS, MOST_LOG_ODDS)).exp())
}

/// How often rows that chose an expert chose each expert of the layer behind it; behind the last
/// layer stands the first, of the next row.
#[derive(Clone, Debug)]
struct CoOccurrence {
    /// By layer: experts of the layer times experts of the next.
    counts: Vec<Vec<u16>>,
    num_next: Vec<usize>,
    /// What the rows of the layer before chose, and which layer that was.
    before: Option<(usize, Vec<u16>)>,
}

impl CoOccurrence {
    fn new(shape: &Shape) -> Self {
        let layers = shape.layers();
        let next = layers.iter().cycle().skip(1).take(layers.len());
        let num_next: Vec<_> = next.map(|layer| layer.num_experts).collect();
        let sizes = layers.iter().zip(&num_next);
        let counts = sizes.map(|(layer, next)| vec![0; layer.num_experts * next]).collect();
        Self { counts, num_next, before: None }
    }

    fn count(&mut self, layer: usize, chosen: &[u16], per_row: usize) {
        let before = self.before.take();
        if let Some((of, before)) = before.filter(|(_, before)| before.len() == chosen.len())
            && (of + 1) % self.counts.len() == layer
        {
            let next = self.num_next[of];
            let rows = before.chunks(per_row).zip(chosen.chunks(per_row));
            let step = (chosen.len() / per_row).div_ceil(COMPANY_ROWS);
            for (ones, others) in rows.step_by(step) {
                for &one in ones {
                    let start = usize::from(one) * next;
                    let counts = &mut self.counts[of][start..start + next];
                    let mut most = 0;
                    for &other in others {
                        let count = &mut counts[usize::from(other)];
                        *count += 1;
                        most = most.max(*count);
                    }
                    if most >= MOST_COUNTED {
                        counts.iter_mut().for_each(|count| *count /= 2);
                    }
                }
            }
        }
        self.before = Some((layer, chosen.to_vec()));
    }

    /// Log-odds of each expert behind `layer`, whose rows chose `shares`.
    fn expect(
        &self,
        layer: usize,
        shares: &[f32],
        per_row: usize,
        slow: &[f32],
        log_odds_out: &mut [f32],
    ) {
        let next = self.num_next[layer];
        let mut expected = vec![0.0; next];
        for (one, &share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            let counts = &self.counts[layer][one * next..(one + 1) * next];
            let counted = counts.iter().map(|&count| f32::from(count)).sum::<f32>();
            let rows = counted / per_row as f32 + COMPANY_PRIOR;
            for ((to, &count), slow) in expected.iter_mut().zip(counts).zip(slow) {
                *to += share * (f32::from(count) + COMPANY_PRIOR * slow) / rows;
            }
        }
        let all: f32 = shares.iter().sum();
        for (to, expected) in log_odds_out.iter_mut().zip(expected) {
            *to = log_odds(expected / all);
        }
    }
}
