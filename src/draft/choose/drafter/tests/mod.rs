//! Laws of the drafter: whatever is drafted, the tokens given out are those of plain decoding.

mod learning;
mod origins;
mod output;
mod refusals;
mod rows;

use super::ruled_target::{VOCAB_SIZE, plain, run_step, says};
use super::*;
use crate::draft::choose::scripted::Scripted;
use crate::draft::choose::step_choice::{StepCost, StepShape};
use crate::ids::NodeId;
use proptest::prelude::*;

const ATTENDED: usize = 64;

fn drafter(rules: &[u32], commit: CommitPolicy, costs: Option<Vec<f32>>, end: u32) -> Drafter {
    let shapes = [1, 3, 8].map(|rows| StepShape { rows, attended: ATTENDED });
    let costs = costs.map(|costs| costs.into_iter().map(StepCost::from).collect());
    let steps = StepChoice::new(shapes.to_vec(), costs).unwrap();
    let end_tokens = vec![TokenId(end)];
    let shape = TreeShape::BestFirst;
    let options = DrafterOptions { steps, vocab_size: VOCAB_SIZE, commit, end_tokens, shape };
    Drafter::new(Scripted::sources(rules), options).unwrap()
}
