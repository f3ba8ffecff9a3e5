//! The steps of a session for Python: their shapes from its inputs, and what they cost.

use pyo3::prelude::*;

use crate::draft::choose::step_choice::{StepChoice, StepCost, StepShape};
use crate::error::Result;
use crate::py::step_inputs::PyStepInputs;

/// What a step costs: a number, or a pair of what it costs behind no committed token and for every
/// committed token more.
#[derive(FromPyObject)]
pub enum CostOption {
    Growing(f32, f32),
    Constant(f32),
}

impl From<CostOption> for StepCost {
    fn from(cost: CostOption) -> Self {
        match cost {
            CostOption::Growing(base, per_token) => Self { base, per_token },
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
    let costs = costs.map(|costs| costs.into_iter().map(StepCost::from).collect());
    StepChoice::new(step_inputs.iter().map(shape).collect(), costs)
}
