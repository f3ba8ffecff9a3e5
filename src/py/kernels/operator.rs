//! The operators: their names, their inputs and outputs, and the kernel of each node.
//!
//! In: a call of ONNX Runtime. Out: every row computed by `crate::kernels`, in parallel where
//! there is much. The functions of the same names are in `export/cpu/w8a8.py`.

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
    Rows,
    NormRows,
    AddNormRows,
    GateRows,
}

/// An operator; ONNX Runtime sees its table alone, which is why that comes first.
#[repr(C)]
pub struct Operator {
    table: OrtCustomOp,
    name: &'static CStr,
    kind: Kind,
    num_inputs: usize,
    outputs: &'static [ElementType],
}

// SAFETY: nothing in it changes.
unsafe impl Sync for Operator {}

/// All operators.
pub static OPERATORS: [Operator; 4] = [
    Operator::new(c"Rows", Kind::Rows, 1, &[BYTE, FLOAT]),
    Operator::new(c"NormRows", Kind::NormRows, 2, &[BYTE, FLOAT]),
    Operator::new(c"AddNormRows", Kind::AddNormRows, 4, &[FLOAT, BYTE, FLOAT]),
    Operator::new(c"GateRows", Kind::GateRows, 2, &[BYTE, FLOAT]),
];

impl Operator {
    const fn new(
        name: &'static CStr,
        kind: Kind,
        num_inputs: usize,
        outputs: &'static [ElementType],
    ) -> Self {
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
        Self { table, name, kind, num_inputs, outputs }
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
    unsafe { operator(table) }.num_inputs
}

unsafe extern "system" fn output_type(table: *const OrtCustomOp, index: usize) -> ElementType {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.outputs[index]
}

unsafe extern "system" fn num_outputs_of(table: *const OrtCustomOp) -> usize {
    // SAFETY: see `operator`.
    unsafe { operator(table) }.outputs.len()
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
    if matches!(operator.kind, Kind::NormRows | Kind::AddNormRows) {
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
        let (num_rows, first) = unsafe { call.input(0) }?;
        let columns = first.len() / num_rows.max(1);
        // Steps have a row or more; the halves of a gated row are as long as each other.
        if first.is_empty() || (self.kind == Kind::GateRows && columns % 2 != 0) {
            return Err(call.wrong_inputs());
        }
        let size = if self.kind == Kind::GateRows { columns / 2 } else { columns };
        let (mut inputs, outputs) =
            ([first, &[], &[], &[]], usize::from(self.kind == Kind::AddNormRows));
        let lengths: &[usize] = match self.kind {
            Kind::Rows => &[],
            Kind::NormRows => &[size],
            Kind::AddNormRows => &[num_rows * size, num_rows, size],
            Kind::GateRows => &[num_rows],
        };
        for (index, &length) in lengths.iter().enumerate() {
            // SAFETY: as above.
            inputs[index + 1] = unsafe { call.input(index + 1) }?.1;
            if inputs[index + 1].len() != length {
                return Err(call.wrong_inputs());
            }
        }
        // SAFETY: as above.
        let run = unsafe {
            Run {
                kernel: self,
                inputs,
                columns,
                size,
                num_rows,
                rows_per_task: (NUMBERS_PER_TASK / columns.max(1)).max(1),
                stream: if outputs == 1 { Some(call.output(0, num_rows, size)?) } else { None },
                rows: call.output(outputs, num_rows, size)?,
                scales: call.output(outputs + 1, num_rows, 1)?,
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
    stream: Option<Output<f32>>,
    rows: Output<u8>,
    scales: Output<f32>,
}

unsafe extern "system" fn task(run: *mut c_void, index: usize) {
    // SAFETY: from `Kernel::compute`, which waits for all tasks.
    unsafe { &*run.cast::<Run>() }.task(index);
}

impl Run<'_> {
    /// Computes the rows of a task, which no other one does.
    fn task(&self, index: usize) {
        let mut room = vec![0.0; self.size];
        let first = index * self.rows_per_task;
        for row in first..(first + self.rows_per_task).min(self.num_rows) {
            self.row(row, &mut room);
        }
    }

    fn row(&self, row: usize, room: &mut [f32]) {
        let Kernel { vectors, epsilon, .. } = *self.kernel;
        let [first, second, third, fourth] = self.inputs;
        let x = &first[row * self.columns..(row + 1) * self.columns];
        // SAFETY: the row exists, and is of this task alone.
        let (rows, scale) = unsafe { (self.rows.row(row), &mut self.scales.row(row)[0]) };
        *scale = match (self.kernel.kind, self.stream) {
            (Kind::NormRows, _) => kernels::norm(vectors, x, second, epsilon, room, rows),
            (Kind::GateRows, _) => kernels::gate(vectors, x, second[row], room, rows),
            (Kind::AddNormRows, Some(stream)) => {
                let product = &second[row * self.size..(row + 1) * self.size];
                // SAFETY: as above.
                let stream = unsafe { stream.row(row) };
                kernels::add(vectors, x, product, third[row], stream);
                kernels::norm(vectors, stream, fourth, epsilon, room, rows)
            }
            _ => kernels::round(vectors, x, rows),
        };
    }
}
