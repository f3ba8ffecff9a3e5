//! The operators as ONNX Runtime sees them: a table of functions for each.
//!
//! In: what ONNX Runtime asks of an operator. Out: its name, inputs and outputs, and a kernel for
//! each node. The functions of the same names are in `tools/export/cpu/w8a8.py`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use ort_sys::ONNXTensorElementDataType as ElementType;
use ort_sys::{
    OrtApi, OrtCustomOp, OrtCustomOpInputOutputCharacteristic, OrtKernelContext, OrtKernelInfo,
    OrtMemType, OrtStatusPtr,
};

use super::kernel::Kernel;
use super::kind::{FLOAT, Kind};

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

unsafe extern "system" fn create(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: see `operator`; ONNX Runtime's interface lives as long as the process.
    let (operator, api) = unsafe { (operator(table), &*api) };
    // SAFETY: `info` is of the node that is being created.
    match unsafe { Kernel::new(operator.kind, api, info) } {
        Ok(made) => {
            // SAFETY: `kernel` is where ONNX Runtime wants it; `destroy` takes it back.
            unsafe { *kernel = Box::into_raw(Box::new(made)).cast() };
            OrtStatusPtr(ptr::null_mut())
        }
        Err(status) => status,
    }
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
    let done = unsafe { kernel.compute(context) };
    done.err().unwrap_or(OrtStatusPtr(ptr::null_mut()))
}
