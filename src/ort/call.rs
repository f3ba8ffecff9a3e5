//! What ONNX Runtime gives an operator: a node's attributes when its kernel is made, and in a call its
//! tensors as slices, its threads.
//!
//! In: ONNX Runtime's info of a node, its context of a call. Out: attributes, inputs and outputs, checked
//! for their sizes, or a status that says what is wrong; work done by ONNX Runtime's threads.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};
use std::{ptr, slice};

use ort_sys::{OrtApi, OrtErrorCode, OrtKernelContext, OrtKernelInfo, OrtStatusPtr, OrtValue};

use crate::kernels::Workspace;

/// What a call of ONNX Runtime gives back.
pub type Outcome<T> = Result<T, OrtStatusPtr>;

/// `Err` where a status is one.
pub fn check(status: OrtStatusPtr) -> Outcome<()> {
    if status.0.is_null() { Ok(()) } else { Err(status) }
}

/// A status that says what is wrong.
pub fn status(api: &OrtApi, what: &str) -> OrtStatusPtr {
    let message = CString::new(what).unwrap_or_default();
    // SAFETY: ONNX Runtime copies the message.
    unsafe { (api.CreateStatus)(OrtErrorCode::ORT_INVALID_ARGUMENT, message.as_ptr()) }
}

thread_local! {
    /// What a thread's tasks use: as large as the largest so far.
    static ROOM: RefCell<Workspace> = RefCell::default();
}

/// Does something with the thread's room.
pub fn with_workspace(work: impl FnOnce(&mut Workspace)) {
    ROOM.with_borrow_mut(work);
}

/// A call in progress.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub api: &'a OrtApi,
    pub context: *mut OrtKernelContext,
}

/// Most dimensions of a tensor that an operator reads.
const MOST_DIMS: usize = 8;

/// An input.
#[derive(Clone, Copy)]
pub struct Input<'a, T> {
    dims: [usize; MOST_DIMS],
    rank: usize,
    pub data: &'a [T],
}

impl<T> Input<'_, T> {
    /// Sizes of all dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The same, but of the last.
    pub fn dims_of(&self, last: usize) -> Vec<usize> {
        let before = self.rank.saturating_sub(1);
        self.dims[..before].iter().copied().chain([last]).collect()
    }
}

impl<'a> Call<'a> {
    /// A status that says what is wrong.
    pub fn wrong(self, what: &str) -> OrtStatusPtr {
        status(self.api, what)
    }

    /// A status that says that sizes differ.
    pub fn wrong_inputs(self) -> OrtStatusPtr {
        self.wrong("the inputs' sizes do not fit each other")
    }

    /// Number of inputs, those that are absent included.
    pub fn num_inputs(self) -> Outcome<usize> {
        let mut count = 0;
        // SAFETY: the context is of this call.
        check(unsafe { (self.api.KernelContext_GetInputCount)(self.context, &mut count) })?;
        Ok(count)
    }

    /// Input `index`; `None` where it is absent.
    ///
    /// # Safety
    ///
    /// The operator declares such an input, of type `T`.
    pub unsafe fn optional<T>(self, index: usize) -> Outcome<Option<Input<'a, T>>> {
        let (api, mut value, mut shape) = (self.api, ptr::null(), ptr::null_mut());
        let (mut sizes, mut rank, mut data) = ([0_i64; MOST_DIMS], 0, ptr::null_mut());
        // SAFETY: the context is of this call; the tensor lives as long as it.
        unsafe {
            check((api.KernelContext_GetInput)(self.context, index, &mut value))?;
            if value.is_null() {
                return Ok(None);
            }
            check((api.GetTensorTypeAndShape)(value, &mut shape))?;
            let read = check((api.GetDimensionsCount)(shape, &mut rank)).and_then(|()| {
                if rank > MOST_DIMS {
                    return Err(
                        self.wrong(&format!("an input has more than {MOST_DIMS} dimensions"))
                    );
                }
                check((api.GetDimensions)(shape, sizes.as_mut_ptr(), rank))
            });
            (api.ReleaseTensorTypeAndShapeInfo)(shape);
            read?;
            check((api.GetTensorMutableData)(value.cast_mut(), &mut data))?;
        }
        let dims = sizes.map(|size| size as usize);
        let len: usize = dims[..rank].iter().product();
        let data: *const T = data.cast_const().cast();
        if len == 0 {
            return Ok(Some(Input { dims, rank, data: &[] }));
        }
        if !data.is_aligned() {
            return Err(self.wrong("an input's memory is not aligned to its type"));
        }
        // SAFETY: a tensor of this many `T`, by the operator's declared types.
        Ok(Some(Input { dims, rank, data: unsafe { slice::from_raw_parts(data, len) } }))
    }

    /// Input `index`, which must be there.
    ///
    /// # Safety
    ///
    /// As [`optional`](Self::optional).
    pub unsafe fn input<T>(self, index: usize) -> Outcome<Input<'a, T>> {
        // SAFETY: by contract.
        unsafe { self.optional(index) }?.ok_or_else(|| self.wrong("an input is absent"))
    }

    /// Does `work` for each number below `tasks`, on all threads, and returns when all is done.
    pub fn in_parallel(self, tasks: usize, work: &(dyn Fn(usize) + Sync)) -> Outcome<()> {
        if tasks <= 1 {
            (0..tasks).for_each(work);
            return Ok(());
        }
        unsafe extern "system" fn task(work: *mut c_void, index: usize) {
            // SAFETY: from below, where it is waited for.
            unsafe { (*work.cast::<&(dyn Fn(usize) + Sync)>())(index) }
        }
        let data = ptr::from_ref(&work).cast_mut().cast();
        // SAFETY: it returns when all tasks are done, and `work` outlives it.
        check(unsafe { (self.api.KernelContext_ParallelFor)(self.context, task, tasks, 0, data) })
    }

    /// Output `index` of these sizes, which must be there.
    ///
    /// # Safety
    ///
    /// The operator has such an output, of type `T`.
    pub unsafe fn output<T>(self, index: usize, dims: &[usize]) -> Outcome<*mut T> {
        // SAFETY: by contract.
        let output = unsafe { self.optional_output(index, dims) }?;
        output.ok_or_else(|| self.wrong("an output is absent"))
    }

    /// Output `index` of these sizes; `None` where nobody wants it.
    ///
    /// # Safety
    ///
    /// As [`output`](Self::output).
    pub unsafe fn optional_output<T>(
        self,
        index: usize,
        dims: &[usize],
    ) -> Outcome<Option<*mut T>> {
        let (mut value, mut data) = (ptr::null_mut::<OrtValue>(), ptr::null_mut());
        let dims: Vec<i64> = dims.iter().map(|size| *size as i64).collect();
        let get = self.api.KernelContext_GetOutput;
        // SAFETY: as for inputs.
        unsafe {
            check(get(self.context, index, dims.as_ptr(), dims.len(), &mut value))?;
            if value.is_null() {
                return Ok(None);
            }
            check((self.api.GetTensorMutableData)(value, &mut data))?;
        }
        let data: *mut T = data.cast();
        if !data.is_aligned() {
            return Err(self.wrong("an output's memory is not aligned to its type"));
        }
        Ok(Some(data))
    }
}

/// A node that is being created.
#[derive(Clone, Copy)]
pub struct Attributes {
    pub api: &'static OrtApi,
    info: *const OrtKernelInfo,
}

impl Attributes {
    /// # Safety
    ///
    /// `info` is of the node that is being created, and outlives this.
    pub unsafe fn new(api: &'static OrtApi, info: *const OrtKernelInfo) -> Self {
        Self { api, info }
    }

    /// A status that says what is wrong with the node.
    pub fn wrong(self, what: &str) -> OrtStatusPtr {
        status(self.api, what)
    }

    pub fn float(self, name: &CStr) -> Outcome<f32> {
        let mut value = 0.0;
        // SAFETY: `info` is valid by contract of `new`, here and below.
        check(unsafe {
            (self.api.KernelInfoGetAttribute_float)(self.info, name.as_ptr(), &mut value)
        })?;
        Ok(value)
    }

    /// A number that is not negative.
    pub fn count(self, name: &CStr) -> Outcome<usize> {
        let mut value = 0;
        check(unsafe {
            (self.api.KernelInfoGetAttribute_int64)(self.info, name.as_ptr(), &mut value)
        })?;
        usize::try_from(value).map_err(|_| self.wrong("a count is negative"))
    }

    pub fn counts(self, name: &CStr) -> Outcome<Vec<usize>> {
        let mut len = 0;
        let read = self.api.KernelInfoGetAttributeArray_int64;
        let mut values = unsafe {
            check(read(self.info, name.as_ptr(), ptr::null_mut(), &mut len))?;
            vec![0; len]
        };
        check(unsafe { read(self.info, name.as_ptr(), values.as_mut_ptr(), &mut len) })?;
        let counts = values.into_iter().map(usize::try_from);
        counts.collect::<Result<_, _>>().map_err(|_| self.wrong("a count is negative"))
    }

    pub fn text(self, name: &CStr) -> Outcome<String> {
        let mut len = 0;
        let read = self.api.KernelInfoGetAttribute_string;
        let mut bytes: Vec<u8> = unsafe {
            check(read(self.info, name.as_ptr(), ptr::null_mut(), &mut len))?;
            vec![0; len]
        };
        check(unsafe { read(self.info, name.as_ptr(), bytes.as_mut_ptr().cast(), &mut len) })?;
        bytes.truncate(len.saturating_sub(1)); // the last is a zero
        String::from_utf8(bytes).map_err(|_| self.wrong("a text is no UTF-8"))
    }
}
