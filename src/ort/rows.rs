//! Operators of rows alone, each with a function of its name in `tools/export/cpu/w8a8.py`.
//!
//! In: a call of ONNX Runtime. Out: every row computed by `crate::kernels`, in parallel where
//! there is much.

use ort_sys::ONNXTensorElementDataType as ElementType;
use ort_sys::OrtCustomOpInputOutputCharacteristic as Arity;

use super::attributes::Attributes;
use super::call::{Call, Outcome, Output};
use super::operator::{BYTE, FLOAT, Kernel, ONE, Operator};
use crate::kernels::{self, Vectors};

/// What an operator computes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    FineRows,
    NormRows,
    FineNormRows,
    JoinNormRows,
    FineGateRows,
    Joined,
}

const ROWS: (ElementType, Arity) = (FLOAT, ONE);
/// Rows, and the scale of each.
const ROUNDED: &[(ElementType, Arity)] = &[(BYTE, ONE), ROWS];

/// All of them.
pub static OPERATORS: [Operator; 6] = [
    Operator::new(c"FineRows", &[ROWS], ROUNDED, |node| made(Kind::FineRows, node)),
    Operator::new(c"NormRows", &[ROWS; 2], ROUNDED, |node| made(Kind::NormRows, node)),
    Operator::new(c"FineNormRows", &[ROWS; 2], ROUNDED, |node| made(Kind::FineNormRows, node)),
    Operator::new(c"JoinNormRows", &[ROWS; 4], &[ROWS, (BYTE, ONE), ROWS], |node| {
        made(Kind::JoinNormRows, node)
    }),
    Operator::new(c"FineGateRows", &[ROWS; 2], ROUNDED, |node| made(Kind::FineGateRows, node)),
    Operator::new(c"Joined", &[ROWS; 2], &[ROWS], |node| made(Kind::Joined, node)),
];

impl Kind {
    /// What is not rounded, or that alone.
    fn has_floats(self) -> bool {
        matches!(self, Self::JoinNormRows | Self::Joined)
    }

    fn is_rounded(self) -> bool {
        self != Self::Joined
    }

    fn is_normed(self) -> bool {
        matches!(self, Self::NormRows | Self::FineNormRows | Self::JoinNormRows)
    }

    /// Whether its rows are followed by the rests of all.
    fn is_fine(self) -> bool {
        matches!(self, Self::FineRows | Self::FineNormRows | Self::FineGateRows)
    }
}

/// Numbers that one thread computes before another is worth waking: some ten microseconds.
const NUMBERS_PER_TASK: usize = 1 << 15;

/// One of them in a node of a graph.
struct RowKernel {
    kind: Kind,
    vectors: Vectors,
    epsilon: f32,
}

fn made(kind: Kind, node: Attributes) -> Outcome<Box<dyn Kernel>> {
    let epsilon = if kind.is_normed() { node.float(c"epsilon")? } else { 0.0 };
    Ok(Box::new(RowKernel { kind, vectors: Vectors::widest(), epsilon }))
}

impl Kernel for RowKernel {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATORS` declares them.
        let first = unsafe { call.input::<f32>(0) }?;
        let all_rows = first.rows();
        let columns = first.data.len() / all_rows.max(1);
        let kind = self.kind;
        let is_odd = match kind {
            Kind::FineGateRows => columns % 2 != 0,
            Kind::Joined => all_rows % 2 != 0,
            _ => false,
        };
        // Steps have a row or more.
        if first.data.is_empty() || is_odd || first.dims().len() > 2 {
            return Err(call.wrong_inputs());
        }
        let size = if kind == Kind::FineGateRows { columns / 2 } else { columns };
        let num_rows = if kind == Kind::Joined { all_rows / 2 } else { all_rows };
        let mut inputs = [first.data, &[], &[], &[]];
        let lengths: &[usize] = match kind {
            Kind::FineRows => &[],
            Kind::NormRows | Kind::FineNormRows => &[size],
            Kind::JoinNormRows => &[2 * num_rows * size, num_rows, size],
            Kind::FineGateRows | Kind::Joined => &[num_rows],
        };
        for (index, &length) in lengths.iter().enumerate() {
            // SAFETY: as above.
            inputs[index + 1] = unsafe { call.input(index + 1) }?.data;
            if inputs[index + 1].len() != length {
                return Err(call.wrong_inputs());
            }
        }
        let byte_rows = if kind.is_fine() { 2 * num_rows } else { num_rows };
        let num_floats = usize::from(kind.has_floats());
        // SAFETY: as above; rows and their scale are the last outputs.
        let run = unsafe {
            Run {
                kernel: self,
                inputs,
                columns,
                size,
                num_rows,
                rows_per_task: (NUMBERS_PER_TASK / columns).max(1),
                floats: match num_floats {
                    0 => None,
                    _ => Some(call.output(0, num_rows, size)?),
                },
                rounded: if kind.is_rounded() {
                    let rows = call.output(num_floats, byte_rows, size)?;
                    Some((rows, call.output(num_floats + 1, num_rows, 1)?))
                } else {
                    None
                },
            }
        };
        call.in_parallel(num_rows.div_ceil(run.rows_per_task), &|index| run.task(index))
    }
}

/// One call: what is read, and where the rows are written.
struct Run<'a> {
    kernel: &'a RowKernel,
    inputs: [&'a [f32]; 4],
    columns: usize,
    size: usize,
    num_rows: usize,
    rows_per_task: usize,
    floats: Option<Output<f32>>,
    rounded: Option<(Output<u8>, Output<f32>)>,
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
        let RowKernel { kind, vectors, epsilon, .. } = *self.kernel;
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
        let RowKernel { kind, vectors, .. } = *self.kernel;
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
