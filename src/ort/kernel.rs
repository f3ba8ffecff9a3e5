//! The kernel of each node: what a call of an operator computes.
//!
//! In: a call of ONNX Runtime. Out: every row computed by `crate::kernels`, in parallel where
//! there is much.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use ort_sys::{OrtApi, OrtKernelContext, OrtKernelInfo};

use super::kind::{BYTE, Kind};
use super::tensors::{Call, Outcome, Output, check};
use crate::kernels::{self, Vectors};

/// Numbers that one thread computes before another is worth waking: some ten microseconds.
const NUMBERS_PER_TASK: usize = 1 << 15;

/// An operator in a node of a graph.
pub struct Kernel {
    api: &'static OrtApi,
    kind: Kind,
    vectors: Vectors,
    epsilon: f32,
}

/// The widest vectors of this processor; finding out takes longer than a row.
fn vectors() -> Vectors {
    static WIDEST: OnceLock<Vectors> = OnceLock::new();
    *WIDEST.get_or_init(|| *Vectors::all().last().expect("each processor has some"))
}

impl Kernel {
    /// The kernel of a node, with the node's attributes.
    ///
    /// # Safety
    ///
    /// `info` is of the node that is being created.
    pub unsafe fn new(
        kind: Kind,
        api: &'static OrtApi,
        info: *const OrtKernelInfo,
    ) -> Outcome<Self> {
        let mut epsilon = 0.0;
        if kind.is_normed() {
            // SAFETY: by contract; the name is static.
            check(unsafe {
                (api.KernelInfoGetAttribute_float)(info, c"epsilon".as_ptr(), &mut epsilon)
            })?;
        }
        Ok(Self { api, kind, vectors: vectors(), epsilon })
    }

    /// Computes all rows.
    ///
    /// # Safety
    ///
    /// The context is of a call of a node of this kernel's operator.
    pub unsafe fn compute(&self, context: *mut OrtKernelContext) -> Outcome<()> {
        let call = Call { api: self.api, context };
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATORS` declares them.
        let (all_rows, first) = unsafe { call.input(0) }?;
        let columns = first.len() / all_rows.max(1);
        let kind = self.kind;
        let is_odd = match kind {
            Kind::FineGateRows => columns % 2 != 0,
            Kind::Joined => all_rows % 2 != 0,
            _ => false,
        };
        // Steps have a row or more.
        if first.is_empty() || is_odd {
            return Err(call.wrong_inputs());
        }
        let size = if kind == Kind::FineGateRows { columns / 2 } else { columns };
        let num_rows = if kind == Kind::Joined { all_rows / 2 } else { all_rows };
        let mut inputs = [first, &[], &[], &[]];
        let lengths: &[usize] = match kind {
            Kind::FineRows => &[],
            Kind::NormRows | Kind::FineNormRows => &[size],
            Kind::JoinNormRows => &[2 * num_rows * size, num_rows, size],
            Kind::FineGateRows | Kind::Joined => &[num_rows],
        };
        for (index, &length) in lengths.iter().enumerate() {
            // SAFETY: as above.
            inputs[index + 1] = unsafe { call.input(index + 1) }?.1;
            if inputs[index + 1].len() != length {
                return Err(call.wrong_inputs());
            }
        }
        let outputs = kind.outputs();
        let is_rounded = outputs.contains(&BYTE);
        let byte_rows = if kind.is_fine() { 2 * num_rows } else { num_rows };
        // SAFETY: as above; rows and their scale are the last outputs.
        let run = unsafe {
            let last = outputs.len() - 1;
            Run {
                kernel: self,
                inputs,
                columns,
                size,
                num_rows,
                rows_per_task: (NUMBERS_PER_TASK / columns).max(1),
                floats: match kind {
                    Kind::JoinNormRows | Kind::Joined => Some(call.output(0, num_rows, size)?),
                    _ => None,
                },
                rounded: if is_rounded {
                    let rows = call.output(last - 1, byte_rows, size)?;
                    Some((rows, call.output(last, num_rows, 1)?))
                } else {
                    None
                },
            }
        };
        let num_tasks = num_rows.div_ceil(run.rows_per_task);
        if num_tasks <= 1 {
            run.task(0);
            return Ok(());
        }
        let data = ptr::from_ref(&run).cast_mut().cast();
        // SAFETY: it returns when all tasks are done, and `run` outlives it.
        check(unsafe {
            (call.api.KernelContext_ParallelFor)(call.context, task, num_tasks, 0, data)
        })
    }
}

/// One call: what is read, and where the rows are written.
struct Run<'a> {
    kernel: &'a Kernel,
    inputs: [&'a [f32]; 4],
    columns: usize,
    size: usize,
    num_rows: usize,
    rows_per_task: usize,
    floats: Option<Output<f32>>,
    rounded: Option<(Output<u8>, Output<f32>)>,
}

unsafe extern "system" fn task(run: *mut c_void, index: usize) {
    // SAFETY: from `Kernel::compute`, which waits for all tasks.
    unsafe { &*run.cast::<Run>() }.task(index);
}

impl Run<'_> {
    /// Computes the rows of a task, which no other one does.
    fn task(&self, index: usize) {
        let mut room = vec![0.0; if self.rounded.is_some() { self.size } else { 0 }];
        let first = index * self.rows_per_task;
        for row in first..(first + self.rows_per_task).min(self.num_rows) {
            let x = self.numbers(row, &mut room);
            self.round(row, x);
        }
    }

    /// What is to be rounded of a row, in `room` unless it is an input; joined products are
    /// written.
    fn numbers<'a>(&'a self, row: usize, room: &'a mut [f32]) -> &'a [f32] {
        let Kernel { kind, vectors, epsilon, .. } = *self.kernel;
        let [first, second, third, fourth] = self.inputs;
        let x = &first[row * self.columns..(row + 1) * self.columns];
        match (kind, self.floats) {
            (Kind::NormRows | Kind::FineNormRows, _) => {
                kernels::norm(vectors, x, second, epsilon, room);
            }
            (Kind::FineGateRows, _) => kernels::gate(vectors, x, second[row], room),
            (Kind::Joined, Some(floats)) => {
                // SAFETY: the row exists, and is of this task alone.
                self.join(row, first, second, unsafe { floats.row(row) });
            }
            (Kind::JoinNormRows, Some(floats)) => {
                // SAFETY: as above.
                let stream = unsafe { floats.row(row) };
                self.join(row, second, third, stream);
                kernels::add(vectors, x, stream);
                kernels::norm(vectors, stream, fourth, epsilon, room);
            }
            _ => return x,
        }
        room
    }

    /// Writes a row's products with those of its rests.
    fn join(&self, row: usize, products: &[f32], scales: &[f32], joined: &mut [f32]) {
        let of = |row: usize| &products[row * self.size..(row + 1) * self.size];
        let (product, of_rests) = (of(row), of(self.num_rows + row));
        kernels::join(self.kernel.vectors, product, of_rests, scales[row], joined);
    }

    /// Writes a row rounded, where the operator rounds.
    fn round(&self, row: usize, x: &[f32]) {
        let Some((rows, scales)) = self.rounded else { return };
        let Kernel { kind, vectors, .. } = *self.kernel;
        // SAFETY: the row exists, and is of this task alone; the rests of all rows follow all rows.
        let (rounded, scale) = unsafe { (rows.row(row), &mut scales.row(row)[0]) };
        *scale = if kind.is_fine() {
            // SAFETY: as above.
            let rests = unsafe { rows.row(self.num_rows + row) };
            kernels::round_fine(vectors, x, rounded, rests)
        } else {
            kernels::round(vectors, x, rounded)
        };
    }
}
