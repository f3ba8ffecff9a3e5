//! The operators: their names, their inputs and outputs, and the kernel of each node.
//!
//! In: a call of ONNX Runtime. Out: every row computed by `crate::kernels`, in parallel where
//! there is much. The functions of the same names are in `tools/export/cpu/w8a8.py`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use ort_sys::ONNXTensorElementDataType as ElementType;
use ort_sys::{
    OrtApi, OrtCustomOp, OrtCustomOpInputOutputCharacteristic, OrtKernelContext, OrtKernelInfo,
    OrtMemType, OrtStatusPtr,
};

use super::tensors::{Call, Outcome, Output, check};
use crate::kernels::{self, Vectors};

const FLOAT: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
const BYTE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;

/// Numbers that one thread computes before another is worth waking: some ten microseconds.
const NUMBERS_PER_TASK: usize = 1 << 15;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    FineRows,
    NormRows,
    FineNormRows,
    JoinNormRows,
    FineGateRows,
    Joined,
}

impl Kind {
    const fn num_inputs(self) -> usize {
        match self {
            Self::FineRows => 1,
            Self::JoinNormRows => 4,
            _ => 2,
        }
    }

    /// Rows, and the scale of each; before them what is not rounded, or that alone.
    const fn outputs(self) -> &'static [ElementType] {
        match self {
            Self::JoinNormRows => &[FLOAT, BYTE, FLOAT],
            Self::Joined => &[FLOAT],
            _ => &[BYTE, FLOAT],
        }
    }

    const fn is_normed(self) -> bool {
        matches!(self, Self::NormRows | Self::FineNormRows | Self::JoinNormRows)
    }

    /// Whether its rows are followed by the rests of all.
    const fn is_fine(self) -> bool {
        matches!(self, Self::FineRows | Self::FineNormRows | Self::FineGateRows)
    }
}

/// An operator; ONNX Runtime sees its table alone, which is why that comes first.
#[repr(C)]
pub struct Operator {
    table: OrtCustomOp,
    name: &'static CStr,
    kind: Kind,
}

// SAFETY: nothing in it changes.
unsafe impl Sync for Operator {}

/// All operators.
pub static OPERATORS: [Operator; 6] = [
    Operator::new(c"FineRows", Kind::FineRows),
    Operator::new(c"NormRows", Kind::NormRows),
    Operator::new(c"FineNormRows", Kind::FineNormRows),
    Operator::new(c"JoinNormRows", Kind::JoinNormRows),
    Operator::new(c"FineGateRows", Kind::FineGateRows),
    Operator::new(c"Joined", Kind::Joined),
];

impl Operator {
    const fn new(name: &'static CStr, kind: Kind) -> Self {
        let table = OrtCustomOp {
            version: super::API_VERSION,
            CreateKernel: None,
            GetName: Some(name_of),
            GetExecutionProviderType: Some(provider),
            GetInputType: Some(input_type),
            GetInputTypeCount: Some(num_inputs_of),
            GetOutputType: Some(output_type),
            GetOutputTypeCount: Some(num_outputs_of),
            KernelCompute: None,
            KernelDestroy: Some(destroy),
            GetInputCharacteristic: Some(required),
            GetOutputCharacteristic: Some(required),
            GetInputMemoryType: Some(memory),
            GetVariadicInputMinArity: Some(none),
            GetVariadicInputHomogeneity: Some(none),
            GetVariadicOutputMinArity: Some(none),
            GetVariadicOutputHomogeneity: Some(none),
            CreateKernelV2: Some(create),
            KernelComputeV2: Some(compute),
            InferOutputShapeFn: None,
            GetStartVersion: Some(first_version),
            GetEndVersion: Some(last_version),
            GetMayInplace: None,
            ReleaseMayInplace: None,
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        Self { table, name, kind }
    }

    /// What ONNX Runtime sees.
    pub fn table(&'static self) -> *const OrtCustomOp {
        ptr::from_ref(self).cast()
    }
}

/// The operator of a table.
///
/// # Safety
///
/// The table is one of `OPERATORS`: ONNX Runtime is given no other.
unsafe fn operator<'a>(table: *const OrtCustomOp) -> &'a Operator {
    // SAFETY: by contract; the table is its operator's first field.
    unsafe { &*table.cast() }
}

unsafe extern "system" fn name_of(table: *const OrtCustomOp) -> *const c_char {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.name.as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null() // the CPU
}

unsafe extern "system" fn input_type(_: *const OrtCustomOp, _: usize) -> ElementType {
    FLOAT
}

unsafe extern "system" fn num_inputs_of(table: *const OrtCustomOp) -> usize {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.kind.num_inputs()
}

unsafe extern "system" fn output_type(table: *const OrtCustomOp, index: usize) -> ElementType {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.kind.outputs()[index]
}

unsafe extern "system" fn num_outputs_of(table: *const OrtCustomOp) -> usize {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.kind.outputs().len()
}

unsafe extern "system" fn required(
    _: *const OrtCustomOp,
    _: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn none(_: *const OrtCustomOp) -> c_int {
    0
}

unsafe extern "system" fn first_version(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

/// An operator in a node of a graph.
struct Kernel {
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

unsafe extern "system" fn create(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: see `operator`; ONNX Runtime's interface lives as long as the process.
    let (operator, api) = unsafe { (operator(table), &*api) };
    let mut epsilon = 0.0;
    if operator.kind.is_normed() {
        // SAFETY: `info` is of the node that is being created.
        let status =
            unsafe { (api.KernelInfoGetAttribute_float)(info, c"epsilon".as_ptr(), &mut epsilon) };
        if let Err(status) = check(status) {
            return status;
        }
    }
    let made = Kernel { api, kind: operator.kind, vectors: vectors(), epsilon };
    // SAFETY: `kernel` is where ONNX Runtime wants it; `destroy` takes it back.
    unsafe { *kernel = Box::into_raw(Box::new(made)).cast() };
    OrtStatusPtr(ptr::null_mut())
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: from `create`, and destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
}

unsafe extern "system" fn compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: from `create`; several threads may read it.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: the context is of this call.
    let done = unsafe { kernel.compute(Call { api: kernel.api, context }) };
    done.err().unwrap_or(OrtStatusPtr(ptr::null_mut()))
}

impl Kernel {
    /// Computes all rows.
    ///
    /// # Safety
    ///
    /// The call is of a node of this kernel's operator.
    unsafe fn compute(&self, call: Call) -> Outcome<()> {
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
