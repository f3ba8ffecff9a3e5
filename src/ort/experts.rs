//! The operator `Experts`; see the parent.
//!
//! In: rows, a router's scores, panels of all experts. Out: rows, and which experts each took. Attributes and
//! inputs are read here; `kernels/experts` says what is computed.

#[cfg(unix)]
use std::cell::Cell;
use std::cell::RefCell;

use super::call::{Attributes, Call, Input, Outcome};
use super::operator::{BYTE, FLOAT, INTEGER, Kernel, MAYBE, ONE, Operator, inputs};
use crate::kernels::Processor;
use crate::kernels::experts::{Experts, Inputs, Router, Scoring, Scratch, Step};
use crate::kernels::product::{Gate, WeightType};
#[cfg(unix)]
use crate::load::experts::store::store_of;

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    NORM: FLOAT MAYBE,
    SCORES: FLOAT ONE,
    CHOICE_BIAS: FLOAT MAYBE,
    UP_BIAS: FLOAT MAYBE,
    DOWN_BIAS: FLOAT MAYBE,
    RESIDUAL: FLOAT MAYBE,
    BESIDE: FLOAT MAYBE,
    BESIDE_GATE: FLOAT MAYBE,
    WEIGHTS: BYTE ONE,
    SPAN: INTEGER MAYBE,
}

pub static OPERATOR: Operator =
    Operator::new(c"Experts", INPUTS, &[(FLOAT, ONE), (INTEGER, MAYBE)], |node| {
        Ok(Box::new(MixtureOfExperts::new(node)?))
    });

thread_local! {
    /// Of the call in progress: as large as the largest so far.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A mixture in a node of a graph.
struct MixtureOfExperts {
    processor: Processor,
    layer: Experts,
}

impl MixtureOfExperts {
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

impl Kernel for MixtureOfExperts {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Experts { columns, router: Router { experts, chosen, .. }, .. } = self.layer;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (rows, scores, weights): (Input<'_, f32>, Input<'_, f32>, Input<'_, u8>) =
            unsafe { (call.input(ROWS)?, call.input(SCORES)?, call.input(WEIGHTS)?) };
        if rows.dims().last() != Some(&columns) || scores.dims().last() != Some(&experts) {
            return Err(call.wrong_inputs());
        }
        let all_rows = rows.data.len() / columns;
        // SAFETY: as above.
        let num_rows = match unsafe { call.optional::<i32>(SPAN)? }.map(|span| span.data) {
            None => all_rows,
            Some(&[_, real]) => usize::try_from(real).unwrap_or(0).min(all_rows),
            Some(_) => return Err(call.wrong_inputs()),
        };
        if num_rows == 0 && all_rows > 0 {
            // SAFETY: as above.
            unsafe {
                call.output::<f32>(0, rows.dims())?.write_bytes(0, rows.data.len());
                if let Some(to) = call.optional_output::<i32>(1, &[all_rows, chosen])? {
                    to.write_bytes(0, all_rows * chosen);
                }
            }
            return Ok(());
        }
        // SAFETY: as above.
        let floats = |index| unsafe { Ok(call.optional::<f32>(index)?.map(|input| input.data)) };
        // Padding reads no experts. An input of another size is refused with the others.
        let real = |data, width| real_rows(data, width, all_rows, num_rows);
        let inputs = Inputs {
            rows: real(rows.data, columns),
            norm: floats(NORM)?,
            scores: real(scores.data, experts),
            choice_bias: floats(CHOICE_BIAS)?,
            up_bias: floats(UP_BIAS)?,
            down_bias: floats(DOWN_BIAS)?,
            residual: floats(RESIDUAL)?.map(|it| real(it, columns)),
            beside: floats(BESIDE)?.map(|it| real(it, columns)),
            beside_gate: floats(BESIDE_GATE)?.map(|it| real(it, 1)),
            weights: weights.data,
        };
        let step = Step::new(self.processor, &self.layer, inputs, num_rows);
        let step = step.map_err(|wrong| call.wrong(&wrong.to_string()))?;
        // What is read of a store is in memory from then on, and until all is computed.
        #[cfg(unix)]
        let (store_of, held) = (store_of(weights.data), Cell::new(None));
        let bring = |_all: &[i32], _num_distinct: usize| {
            #[cfg(unix)]
            if let Some((store, layer)) = &store_of {
                store.count_read(chosen, _num_distinct);
                let brought = store.hold(*layer, _all, chosen);
                held.set(Some(brought.map_err(|error| call.wrong(&error.to_string()))?));
            }
            Ok(())
        };
        SCRATCH.with_borrow_mut(|scratch| {
            // SAFETY: as above; each output is as large as what is written to it.
            unsafe {
                let to = call.output(0, rows.dims())?;
                let in_parallel =
                    |tasks, work: &(dyn Fn(usize) + Sync)| call.in_parallel(tasks, work);
                let all = step.compute(scratch, to, &bring, &in_parallel)?;
                to.add(num_rows * columns).write_bytes(0, (all_rows - num_rows) * columns);
                if let Some(to) = call.optional_output::<i32>(1, &[all_rows, chosen])? {
                    to.copy_from_nonoverlapping(all.as_ptr(), all.len());
                    to.add(all.len()).write_bytes(0, (all_rows - num_rows) * chosen);
                }
            }
            Ok(())
        })
    }
}

/// The numbers of the first rows of all; or all numbers, where they are not as many as the rows'.
fn real_rows(numbers: &[f32], width: usize, all_rows: usize, num_rows: usize) -> &[f32] {
    let is_whole = numbers.len() == all_rows * width;
    if is_whole { &numbers[..num_rows * width] } else { numbers }
}
