//! The steps of a session for Python: their shapes from its inputs, and what they cost.

use pyo3::prelude::*;

use crate::draft::choose::expert_reads::ExpertReads;
use crate::draft::choose::step_choice::{StepChoice, StepCost, StepShape};
use crate::error::Result;
use crate::py::convert::Argument;
use crate::py::step_inputs::PyStepInputs;

/// What a step costs: a number, or what it costs behind no committed token and for every committed
/// token more, perhaps with the experts that it reads and what each of them costs.
#[derive(FromPyObject)]
pub enum CostOption {
    WithExperts(f32, f32, f32, f32),
    Growing(f32, f32),
    Constant(f32),
}

impl Argument for Vec<CostOption> {
    const MUST: &'static str = "numbers, or two or four in place of one, for each step";
}

impl CostOption {
    /// The experts that the step reads, and what each costs.
    fn experts(&self) -> (f32, f32) {
        match *self {
            Self::WithExperts(.., count, cost) => (count, cost),
            Self::Growing(..) | Self::Constant(_) => (0.0, 0.0),
        }
    }
}

impl From<CostOption> for StepCost {
    fn from(cost: CostOption) -> Self {
        match cost {
            CostOption::WithExperts(base, per_token, ..) | CostOption::Growing(base, per_token) => {
                Self { base, per_token }
            }
            CostOption::Constant(base) => base.into(),
        }
    }
}

/// The steps that `step_inputs` are for, with one cost each, or free.
pub fn step_choice(
    py: Python<'_>,
    step_inputs: &[Py<PyStepInputs>],
    costs: Option<Vec<CostOption>>,
) -> Result<StepChoice> {
    let shape = |inputs: &Py<PyStepInputs>| {
        let inputs = &inputs.borrow(py).core;
        StepShape { rows: inputs.rows(), attended: inputs.attended() }
    };
    let experts = costs.as_ref().and_then(|costs| {
        let cost = costs.iter().map(|cost| cost.experts().1).fold(0.0, f32::max);
        (cost > 0.0).then(|| (cost, costs.iter().map(|cost| cost.experts().0).collect()))
    });
    let costs = costs.map(|costs| costs.into_iter().map(StepCost::from).collect());
    let choice = StepChoice::new(step_inputs.iter().map(shape).collect(), costs)?;
    match experts {
        Some((cost, counts)) => choice.with_experts(ExpertReads::new(cost, counts)?),
        None => Ok(choice),
    }
}
