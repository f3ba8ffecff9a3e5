//! The operators of recurrent layers; see the parent.
//!
//! In: a call, of which the last eight inputs are the same for all of them. Out: the run that it is,
//! with states and updates where the outputs are, and padding.

mod causal_convolution;
mod gated_delta;
mod selective_update;

use std::ffi::CStr;

use super::call::{Attributes, Call, Input, Outcome, with_workspace};
use super::operator::Operator;
use crate::kernels::Processor;
use crate::kernels::recurrent::{
    Heads, HeadsStep, RecurrentError, Rows, Rule, Run, Sizes, States, Tree, Updates, compute_head,
};

pub static OPERATORS: [&Operator; 3] =
    [&causal_convolution::OPERATOR, &gated_delta::OPERATOR, &selective_update::OPERATOR];

/// A status that says what is wrong.
fn refused(call: Call<'_>) -> impl Fn(RecurrentError) -> ort_sys::OrtStatusPtr {
    move |wrong| call.wrong(&wrong.to_string())
}

/// An input as rows, `(.., M, width)`, and how many they are.
fn rows<'a>(call: Call<'_>, input: &Input<'a, f32>) -> Outcome<(Rows<'a>, usize)> {
    let width = input.dims().last().copied().filter(|width| *width > 0);
    let width = width.ok_or_else(|| call.wrong_inputs())?;
    Ok((Rows { numbers: input.data, width }, input.data.len() / width))
}

/// The run of a call whose inputs from `first` on are states, updates and its tree, and whose outputs
/// behind the first are states and updates: copied where they are elsewhere.
///
/// # Safety
///
/// The operator declares such inputs and outputs.
unsafe fn run(call: Call<'_>, first: usize, sizes: Sizes, rows: usize) -> Outcome<Run> {
    // SAFETY: by contract, here and below.
    let (state, updates, [parents, sequences, lengths, span, reads, pending]) = unsafe {
        let integers = |index| Ok(call.input::<i32>(first + 2 + index)?.data);
        let tree =
            [integers(0)?, integers(1)?, integers(2)?, integers(3)?, integers(4)?, integers(5)?];
        (call.input::<u8>(first)?, call.input::<u8>(first + 1)?, tree)
    };
    let (&[of, 2, half_bytes], &[2, updates_bytes], &[node, real]) =
        (state.dims(), updates.dims(), span)
    else {
        return Err(call.wrong_inputs());
    };
    let span = [node, real];
    let tree = Tree { parents, sequences, lengths, span, reads, pending };
    // SAFETY: as large as the inputs.
    let (states, updates) = unsafe {
        let (state, updates) = (in_place(call, 1, &state)?, in_place(call, 2, &updates)?);
        (States::new(state, of, half_bytes), Updates::new(updates, updates_bytes))
    };
    Run::new(tree, rows, sizes, states, updates).map_err(refused(call))
}

/// An output that begins as an input does, aligned to numbers of 64 bits.
///
/// # Safety
///
/// There is such an output, of bytes.
unsafe fn in_place(call: Call<'_>, output: usize, input: &Input<'_, u8>) -> Outcome<*mut u8> {
    // SAFETY: by contract; the output is as large.
    let to: *mut u8 = unsafe { call.output(output, input.dims())? };
    let from = input.data.as_ptr();
    if !to.cast::<i64>().is_aligned() {
        return Err(call.wrong("states and updates are not aligned to 8 bytes"));
    }
    if !std::ptr::eq(from, to) {
        unsafe { to.copy_from(from, input.data.len()) };
    }
    Ok(to)
}

/// An output of rows, zero behind the `real` ones.
///
/// # Safety
///
/// The first output is of float32.
unsafe fn given(
    call: Call<'_>,
    input: &Input<'_, f32>,
    width: usize,
    real: usize,
) -> Outcome<*mut f32> {
    let dims = input.dims_of(width);
    let count: usize = dims.iter().product();
    // SAFETY: by contract; zeros are a float's.
    unsafe {
        let given: *mut f32 = call.output(0, &dims)?;
        given.add(real * width).write_bytes(0, count - real * width);
        Ok(given)
    }
}

/// The heads of a node, by its attributes' names: of keys, of the state, and a head's rows and columns.
fn heads(node: Attributes, [key_heads, heads, keys, values]: [&CStr; 4]) -> Outcome<Heads> {
    let heads = Heads {
        key_heads: node.count(key_heads)?,
        heads: node.count(heads)?,
        keys: node.count(keys)?,
        values: node.count(values)?,
    };
    if !heads.is_right() {
        return Err(node.wrong("the heads' numbers or their sizes are out of range"));
    }
    Ok(heads)
}

/// Computes all heads of a step whose inputs from `state` on are those of a run, then does `last` with
/// the number of rows that are no padding.
///
/// # Safety
///
/// The operator declares such inputs, and the outputs of a recurrent layer.
unsafe fn compute<R: Rule>(
    (call, processor): (Call<'_>, Processor),
    layer: R,
    (input, num_rows): (&Input<'_, f32>, usize),
    state: usize,
    last: impl FnOnce(&HeadsStep<'_, R>, usize) -> Outcome<()>,
) -> Outcome<()> {
    let heads = layer.heads();
    // SAFETY: by contract.
    let (run, given) = unsafe {
        let run = run(call, state, heads.sizes(), num_rows)?;
        let given = given(call, input, heads.heads * heads.values, run.num_rows())?;
        (run, given)
    };
    let step = HeadsStep::new(layer, &run, num_rows, given).map_err(refused(call))?;
    call.in_parallel(step.num_tasks(), &|task| {
        // SAFETY: the output has the rows; a task's head is its own.
        with_workspace(|workspace| unsafe { compute_head(processor, &step, task, workspace) });
    })?;
    last(&step, run.num_rows())?;
    // SAFETY: there are no tasks any more.
    unsafe { run.finish() };
    Ok(())
}
