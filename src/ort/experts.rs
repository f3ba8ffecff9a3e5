//! The operator `Experts`; see the parent.
//!
//! In: rows, a router's scores, panels of all experts. Out: rows, and which experts each took. Attributes and
//! inputs are read here; `kernels/experts` says what is computed.

use std::cell::RefCell;

use super::attributes::Attributes;
use super::call::{Call, Input, Outcome};
use super::operator::{BYTE, FLOAT, INTEGER, Kernel, MAYBE, ONE, Operator};
use crate::kernels::Processor;
use crate::kernels::experts::{Experts, Inputs, Router, Scoring, Scratch, Step};
use crate::kernels::product::{Gate, WeightType};

pub static OPERATOR: Operator = Operator::new(
    c"Experts",
    &[
        (FLOAT, ONE),
        (FLOAT, MAYBE),
        (FLOAT, ONE),
        (FLOAT, MAYBE),
        (FLOAT, MAYBE),
        (FLOAT, MAYBE),
        (FLOAT, MAYBE),
        (FLOAT, MAYBE),
        (FLOAT, MAYBE),
        (BYTE, ONE),
    ],
    &[(FLOAT, ONE), (INTEGER, MAYBE)],
    |node| Ok(Box::new(Mixture::new(node)?)),
);

thread_local! {
    /// Of the call in progress: as large as the largest so far.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A mixture in a node of a graph.
struct Mixture {
    processor: Processor,
    layer: Experts,
}

impl Mixture {
    fn new(node: Attributes) -> Outcome<Self> {
        let types = node.text(c"types")?;
        let kinds: Option<Vec<WeightType>> = types.split(',').map(WeightType::named).collect();
        let kinds = kinds.ok_or_else(|| node.wrong("a type of weights is unknown"))?;
        let types = kinds.try_into();
        let types = types.map_err(|_| node.wrong("there are types of gate, up and down"))?;
        let gate = Gate::named(&node.text(c"gate")?);
        let scoring = Scoring::named(&node.text(c"scoring")?);
        let epsilon = node.float(c"share_epsilon")?;
        let router = Router {
            experts: node.count(c"experts")?,
            chosen: node.count(c"chosen")?,
            scoring: scoring.ok_or_else(|| node.wrong("the scoring is unknown"))?,
            normed: (node.count(c"normed")? != 0).then_some(epsilon),
            share_scale: node.float(c"share_scale")?,
        };
        let layer = Experts {
            columns: node.count(c"columns")?,
            size: node.count(c"size")?,
            router,
            types,
            gate: gate.ok_or_else(|| node.wrong("the gate's activation is unknown"))?,
            epsilon: node.float(c"epsilon")?,
            residual_scale: node.float(c"residual_scale")?,
        };
        layer.check().map_err(|wrong| node.wrong(&wrong.to_string()))?;
        Ok(Self { processor: Processor::best(), layer })
    }
}

impl Kernel for Mixture {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Experts { columns, router: Router { experts, chosen, .. }, .. } = self.layer;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (rows, scores, weights): (Input<'_, f32>, Input<'_, f32>, Input<'_, u8>) =
            unsafe { (call.input(0)?, call.input(2)?, call.input(9)?) };
        if rows.dims().last() != Some(&columns) || scores.dims().last() != Some(&experts) {
            return Err(call.wrong_inputs());
        }
        // SAFETY: as above.
        let floats = |index| unsafe { Ok(call.optional::<f32>(index)?.map(|input| input.data)) };
        let inputs = Inputs {
            rows: rows.data,
            norm: floats(1)?,
            scores: scores.data,
            choice_bias: floats(3)?,
            up_bias: floats(4)?,
            down_bias: floats(5)?,
            residual: floats(6)?,
            beside: floats(7)?,
            beside_gate: floats(8)?,
            weights: weights.data,
        };
        let num_rows = rows.data.len() / columns;
        let step = Step::new(self.processor, &self.layer, inputs, num_rows);
        let step = step.map_err(|wrong| call.wrong(&wrong.to_string()))?;
        SCRATCH.with_borrow_mut(|scratch| {
            // SAFETY: as above; each output is as large as what is written to it.
            unsafe {
                let to = call.output(0, rows.dims())?;
                let all =
                    step.compute(scratch, to, &|tasks, work| call.in_parallel(tasks, work))?;
                if let Some(to) = call.optional_output::<i32>(1, &[num_rows, chosen])? {
                    to.copy_from_nonoverlapping(all.as_ptr(), all.len());
                }
            }
            Ok(())
        })
    }
}
