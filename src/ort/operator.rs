//! The operators as ONNX Runtime sees them: a table of functions for each.
//!
//! In: what ONNX Runtime asks of an operator. Out: its name, inputs and outputs, and a kernel for
//! each node.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use ort_sys::{
    ONNXTensorElementDataType as ElementType, OrtApi, OrtCustomOp,
    OrtCustomOpInputOutputCharacteristic as Arity, OrtKernelContext, OrtKernelInfo, OrtMemType,
    OrtStatusPtr,
};

use super::call::{Attributes, Call, Outcome};

/// Float32.
pub const FLOAT: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
/// Uint8.
pub const BYTE: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
/// Int32.
pub const INTEGER: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;

/// There is one.
pub const ONE: Arity = Arity::INPUT_OUTPUT_REQUIRED;
/// It may be absent.
pub const MAYBE: Arity = Arity::INPUT_OUTPUT_OPTIONAL;
/// The last input: there may be several.
pub const SOME: Arity = Arity::INPUT_OUTPUT_VARIADIC;

/// What an input or output is.
pub type Declared = (ElementType, Arity);

/// Names an operator's inputs, in their order: `$table` says what they are, and each name is the
/// number of its input. `..run` stands for what recurrent layers share, their last eight: states, updates
/// and the tree, from `STATE` on.
macro_rules! inputs {
    ($table:ident: $($name:ident: $kind:ident $arity:ident,)* ..run) => {
        inputs! {
            $table: $($name: $kind $arity,)* STATE: BYTE ONE, UPDATES: BYTE ONE, PARENTS: INTEGER ONE,
            SEQUENCES: INTEGER ONE, LENGTHS: INTEGER ONE, SPAN: INTEGER ONE, READS: INTEGER ONE,
            PENDING: INTEGER ONE
        }
    };
    ($table:ident: $($name:ident: $kind:ident $arity:ident),* $(,)?) => {
        const $table: &[$crate::ort::operator::Declared] = &[$(($kind, $arity)),*];
        inputs!(@number 0; $($name)*);
    };
    (@number $number:expr; $name:ident $($rest:ident)*) => {
        #[allow(dead_code)] // some are read together, from the first on
        const $name: usize = $number;
        inputs!(@number $number + 1; $($rest)*);
    };
    (@number $number:expr;) => {};
}
pub(super) use inputs;

/// An operator in a node of a graph.
pub trait Kernel: Send + Sync {
    /// Computes all outputs; several threads may, each in its own call.
    ///
    /// # Safety
    ///
    /// The call is of a node of this kernel's operator.
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()>;
}

/// Makes a node's kernel.
pub type Create = fn(Attributes) -> Outcome<Box<dyn Kernel>>;

/// An operator; ONNX Runtime sees its table alone, which is why that comes first.
#[repr(C)]
pub struct Operator {
    table: OrtCustomOp,
    name: &'static CStr,
    inputs: &'static [Declared],
    outputs: &'static [Declared],
    create: Create,
}

// SAFETY: nothing in it changes.
unsafe impl Sync for Operator {}

impl Operator {
    pub const fn new(
        name: &'static CStr,
        inputs: &'static [Declared],
        outputs: &'static [Declared],
        create: Create,
    ) -> Self {
        let table = OrtCustomOp {
            version: super::API_VERSION,
            CreateKernel: None,
            GetName: Some(name_of),
            GetExecutionProviderType: Some(provider),
            GetInputType: Some(input_type),
            GetInputTypeCount: Some(num_inputs),
            GetOutputType: Some(output_type),
            GetOutputTypeCount: Some(num_outputs),
            KernelCompute: None,
            KernelDestroy: Some(destroy),
            GetInputCharacteristic: Some(input_arity),
            GetOutputCharacteristic: Some(output_arity),
            GetInputMemoryType: Some(memory),
            GetVariadicInputMinArity: Some(one),
            GetVariadicInputHomogeneity: Some(one),
            GetVariadicOutputMinArity: Some(one),
            GetVariadicOutputHomogeneity: Some(one),
            CreateKernelV2: Some(create_kernel),
            KernelComputeV2: Some(compute),
            InferOutputShapeFn: None,
            GetStartVersion: Some(first_version),
            GetEndVersion: Some(last_version),
            GetMayInplace: None,
            ReleaseMayInplace: None,
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        Self { table, name, inputs, outputs, create }
    }

    /// What ONNX Runtime sees.
    pub fn table(&'static self) -> *const OrtCustomOp {
        ptr::from_ref(self).cast()
    }
}

/// A node's kernel, as ONNX Runtime keeps it.
struct KernelInstance {
    api: &'static OrtApi,
    kernel: Box<dyn Kernel>,
}

/// The operator of a table.
///
/// # Safety
///
/// The table is one of an `Operator`: ONNX Runtime is given no other.
unsafe fn operator<'a>(table: *const OrtCustomOp) -> &'a Operator {
    // SAFETY: by contract; the table is its operator's first field.
    unsafe { &*table.cast() }
}

unsafe extern "system" fn name_of(table: *const OrtCustomOp) -> *const c_char {
    // SAFETY: see `operator`, here and below.
    unsafe { operator(table) }.name.as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null() // the CPU
}

unsafe extern "system" fn input_type(table: *const OrtCustomOp, index: usize) -> ElementType {
    unsafe { operator(table) }.inputs[index].0
}

unsafe extern "system" fn num_inputs(table: *const OrtCustomOp) -> usize {
    unsafe { operator(table) }.inputs.len()
}

unsafe extern "system" fn input_arity(table: *const OrtCustomOp, index: usize) -> Arity {
    unsafe { operator(table) }.inputs[index].1
}

unsafe extern "system" fn output_type(table: *const OrtCustomOp, index: usize) -> ElementType {
    unsafe { operator(table) }.outputs[index].0
}

unsafe extern "system" fn num_outputs(table: *const OrtCustomOp) -> usize {
    unsafe { operator(table) }.outputs.len()
}

unsafe extern "system" fn output_arity(table: *const OrtCustomOp, index: usize) -> Arity {
    unsafe { operator(table) }.outputs[index].1
}

unsafe extern "system" fn memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn first_version(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

unsafe extern "system" fn create_kernel(
    table: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime's interface lives as long as the process; `info` is of the node that is
    // being created.
    let (operator, api, attributes) = unsafe {
        let api: &'static OrtApi = &*api;
        (operator(table), api, Attributes::new(api, info))
    };
    match (operator.create)(attributes) {
        Ok(made) => {
            let made = KernelInstance { api, kernel: made };
            // SAFETY: `kernel` is where ONNX Runtime wants it; `destroy` takes it back.
            unsafe { *kernel = Box::into_raw(Box::new(made)).cast() };
            OrtStatusPtr(ptr::null_mut())
        }
        Err(status) => status,
    }
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: from `create_kernel`, and destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<KernelInstance>()) });
}

unsafe extern "system" fn compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: from `create_kernel`; several threads may read it.
    let made = unsafe { &*kernel.cast::<KernelInstance>() };
    // SAFETY: the context is of this call.
    let done = unsafe { made.kernel.compute(Call { api: made.api, context }) };
    done.err().unwrap_or(OrtStatusPtr(ptr::null_mut()))
}
