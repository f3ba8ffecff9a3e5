//! What is to be expected by who knows the routers: popularity, what topics do, and the topic of the
//! rows so far, but neither its drift nor the noise. In: a schedule. Out: a forecast, by drawing.

use super::routings::{Draws, Schedule, TOPIC};
use crate::load::experts::residency::Forecast;

/// Draws for each chance.
const DRAWS: usize = 16;

/// A forecast that nobody has who has seen the past only.
pub struct Informed<'a> {
    schedule: &'a Schedule,
    step: usize,
    due: Vec<f32>,
    later: Vec<f32>,
    draws: Draws,
}

impl<'a> Informed<'a> {
    /// Before the first step.
    pub fn new(schedule: &'a Schedule) -> Self {
        let none = vec![0.1; schedule.shape.num_experts()];
        Self { schedule, step: 0, due: none.clone(), later: none, draws: Draws::new(1) }
    }

    /// Chances of a layer's experts in rows of these topics; of none, in `rows` rows that follow the
    /// last one after `gap` rows.
    fn chances(
        &mut self,
        layer: usize,
        topics: &[[f32; TOPIC]],
        ahead: Option<(i32, usize)>,
    ) -> Vec<f32> {
        let Self { schedule, draws, .. } = self;
        let of_layer = schedule.shape.of_layer(layer);
        let mut chances = vec![0.0; of_layer.len()];
        let num_rows = ahead.map_or(topics.len(), |(_, rows)| rows);
        for _ in 0..DRAWS {
            let mut is_asked = vec![false; of_layer.len()];
            let mut topic = topics[topics.len() - 1];
            for row in 0..num_rows {
                match (ahead, topics.get(row)) {
                    (None, Some(known)) => topic = *known,
                    (Some((gap, _)), _) if row == 0 => {
                        schedule.router.drift(&mut topic, gap, draws);
                    }
                    _ => schedule.router.drift(&mut topic, 1, draws),
                }
                let (layer, per_row) = (of_layer.clone(), schedule.per_row);
                for expert in schedule.router.choose(layer, &topic, per_row, draws) {
                    is_asked[usize::from(expert)] = true;
                }
            }
            let asked = chances.iter_mut().zip(is_asked);
            asked.for_each(|(chance, is_asked)| *chance += f32::from(is_asked) / DRAWS as f32);
        }
        chances
    }
}

impl Forecast for Informed<'_> {
    fn observe(&mut self, layer: usize, _: &[u16], _: usize) {
        let schedule = self.schedule;
        let topics = &schedule.steps[self.step].topics;
        let next = schedule.steps.get(self.step + 1).map_or(1, |step| step.topics.len());
        for other in 0..schedule.shape.layers().len() {
            let ahead = if other > layer { None } else { Some((1, next)) };
            let chances = self.chances(other, topics, ahead);
            self.due[schedule.shape.of_layer(other)].copy_from_slice(&chances);
        }
        let chances = self.chances(layer, topics, Some((3, next)));
        self.later[schedule.shape.of_layer(layer)].copy_from_slice(&chances);
        self.step += usize::from(layer + 1 == schedule.shape.layers().len());
    }

    fn due(&self, expert: usize) -> f32 {
        self.due[expert]
    }

    fn turns_until_use(&self, expert: usize, turns: usize) -> f32 {
        let num_layers = self.schedule.shape.layers().len() as f32;
        turns as f32 + (1.0 - self.due[expert]) * num_layers / self.later[expert].max(0.01)
    }
}
