//! The operator `Attention`; see the parent.
//!
//! In: rows, the nodes that they are of, a cache. Out: the cache with the rows' keys and values, and
//! what each row attends to. All keys are written first, then each task reads some heads' for some
//! rows.

use super::call::{Attributes, Call, Input, Outcome, with_workspace};
use super::operator::{BYTE, FLOAT, INTEGER, Kernel, MAYBE, ONE, Operator, inputs};
use crate::kernels::attention::{self, Cache, CacheType, Inputs, Layer, Step};
use crate::kernels::{Nodes, Processor, soft_cap};

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    COS: FLOAT MAYBE,
    SIN: FLOAT MAYBE,
    KEY: BYTE ONE,
    VALUE: BYTE ONE,
    PARENTS: INTEGER ONE,
    SEQUENCES: INTEGER ONE,
    LENGTHS: INTEGER ONE,
    SPAN: INTEGER ONE,
    QUERY_NORM: FLOAT MAYBE,
    KEY_NORM: FLOAT MAYBE,
    SINKS: FLOAT MAYBE,
    VALUE_NORM: FLOAT MAYBE,
}

pub static OPERATOR: Operator =
    Operator::new(c"Attention", INPUTS, &[(FLOAT, ONE), (BYTE, MAYBE), (BYTE, MAYBE)], |node| {
        Ok(Box::new(Attention::new(node)?))
    });

/// Numbers that a task should write to the cache: some microseconds.
const NUMBERS_PER_WRITE: usize = 1 << 15;

/// Attention in a node of a graph.
struct Attention {
    processor: Processor,
    layer: Layer,
}

impl Attention {
    fn new(node: Attributes) -> Outcome<Self> {
        let layer = Layer {
            heads: node.count(c"heads")?,
            kv_heads: node.count(c"kv_heads")?,
            head_dim: node.count(c"head_dim")?,
            scale: node.float(c"scale")?,
            softcap: node.float(c"softcap")?,
            window: node.count(c"window")?,
            interleaved: node.count(c"interleaved")? != 0,
            epsilon: node.float(c"epsilon")?,
            shares_keys: node.count(c"shares_keys")? != 0,
            has_values: true,
        };
        if !layer.is_right() {
            return Err(node.wrong("the heads' numbers or their size are out of range"));
        }
        if layer.softcap != 0.0 && !soft_cap::is_cap(layer.softcap) {
            return Err(node.wrong("the cap is no positive number, or too small a one"));
        }
        Ok(Self { processor: Processor::best(), layer })
    }

    /// The cache of a call, whose inputs are copied where the outputs are elsewhere.
    ///
    /// # Safety
    ///
    /// As [`Kernel::compute`].
    unsafe fn cache(&self, call: Call<'_>, sequences: usize) -> Outcome<Cache> {
        let Layer { kv_heads, head_dim, shares_keys, .. } = self.layer;
        // SAFETY: by contract, here and below.
        let (key, value): (Input<'_, u8>, Input<'_, u8>) =
            unsafe { (call.input(KEY)?, call.input(VALUE)?) };
        let &[of, heads, slots, row_bytes] = key.dims() else { return Err(call.wrong_inputs()) };
        if [of, heads] != [sequences, kv_heads] || value.dims() != key.dims() {
            return Err(call.wrong_inputs());
        }
        let cache_type = CacheType::of(row_bytes, head_dim).ok_or_else(|| {
            call.wrong(&format!(
                "a cache's rows have {row_bytes} bytes, which no form has for {head_dim} numbers"
            ))
        })?;
        let mut pointers = [key, value].map(|input| input.data.as_ptr().cast_mut());
        if !shares_keys {
            for (index, at) in pointers.iter_mut().enumerate() {
                let out = unsafe { call.output(1 + index, key.dims())? };
                if out != *at {
                    unsafe { out.copy_from(*at, key.data.len()) };
                }
                *at = out;
            }
        }
        let [key, value] = pointers;
        Ok(Cache { key, value, slots, cache_type })
    }
}

impl Kernel for Attention {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Self { processor, mut layer } = *self;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (rows, [cos, sin], [query_norm, key_norm, sinks, value_norm], integers) = unsafe {
            let rows: Input<'_, f32> = call.input(ROWS)?;
            let floats = |index| Ok(call.optional::<f32>(index)?.map(|input| input.data));
            let integers = |index| Ok(call.input::<i32>(index)?.data);
            (
                rows,
                [floats(COS)?, floats(SIN)?],
                [floats(QUERY_NORM)?, floats(KEY_NORM)?, floats(SINKS)?, floats(VALUE_NORM)?],
                [integers(PARENTS)?, integers(SEQUENCES)?, integers(LENGTHS)?, integers(SPAN)?],
            )
        };
        let [parents, sequences, lengths, span] = integers;
        let &[first, real] = span else { return Err(call.wrong_inputs()) };
        let columns = rows.dims().last().copied();
        layer.has_values = columns == Some(layer.columns());
        if columns != Some(layer.columns()) {
            return Err(call.wrong_inputs());
        }
        let num_rows = rows.data.len() / layer.columns();
        // SAFETY: as above.
        let cache = unsafe { self.cache(call, lengths.len())? };
        let nodes = Nodes::new(parents, sequences, lengths, [first, real], num_rows, cache.slots)
            .map_err(|wrong| call.wrong(&wrong.to_string()))?;
        let inputs = Inputs {
            rows: rows.data,
            cos: cos.unwrap_or_default(),
            sin: sin.unwrap_or_default(),
            query_norm,
            key_norm,
            value_norm,
            sinks,
        };
        let width = layer.heads * layer.head_dim;
        // SAFETY: as above.
        let attended: *mut f32 = unsafe { call.output(0, &rows.dims_of(width))? };
        let units = attention::units(layer, &nodes);
        let step = Step::new(layer, inputs, &nodes, num_rows, cache, attended, units)
            .ok_or_else(|| call.wrong_inputs())?;
        let real = nodes.num_rows();
        if !layer.shares_keys {
            let per_task = (NUMBERS_PER_WRITE / layer.columns()).max(1);
            call.in_parallel(real.div_ceil(per_task), &|task| {
                let rows = task * per_task..real.min((task + 1) * per_task);
                // SAFETY: the cache has the sequences, and the nodes' slots, each of one row.
                unsafe { attention::write_keys(processor, &step, rows) };
            })?;
        }
        call.in_parallel(step.num_tasks(), &|task| {
            // SAFETY: all keys are written; a task's rows and heads are its own.
            with_workspace(|workspace| unsafe {
                attention::attend_task(processor, &step, task, workspace)
            });
        })?;
        // SAFETY: the rows exist, and there are no tasks any more; zeros are a float's.
        unsafe { attended.add(real * width).write_bytes(0, (num_rows - real) * width) };
        Ok(())
    }
}
