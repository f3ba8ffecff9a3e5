//! The tensors of one call of an operator, as slices.
//!
//! In: ONNX Runtime's context of a call. Out: inputs and outputs of two dimensions, checked for
//! their sizes, or a status that says what is wrong.

use std::ptr;
use std::slice;

use ort_sys::{OrtApi, OrtErrorCode, OrtKernelContext, OrtStatusPtr, OrtValue};

/// What a call of ONNX Runtime gives back.
pub type Outcome<T> = Result<T, OrtStatusPtr>;

/// `Err` where a status is one.
pub fn check(status: OrtStatusPtr) -> Outcome<()> {
    if status.0.is_null() { Ok(()) } else { Err(status) }
}

/// A call in progress.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub api: &'a OrtApi,
    pub context: *mut OrtKernelContext,
}

impl<'a> Call<'a> {
    /// A status that says what is wrong with the inputs.
    pub fn wrong_inputs(self) -> OrtStatusPtr {
        let message = c"the inputs' sizes do not fit each other";
        // SAFETY: the message is static.
        unsafe { (self.api.CreateStatus)(OrtErrorCode::ORT_INVALID_ARGUMENT, message.as_ptr()) }
    }

    /// Input `index`, float32, with its number of rows where it has two dimensions, else 1.
    ///
    /// # Safety
    ///
    /// The operator has such an input.
    pub unsafe fn input(self, index: usize) -> Outcome<(usize, &'a [f32])> {
        let (api, mut value, mut shape) = (self.api, ptr::null(), ptr::null_mut());
        let (mut dims, mut rank, mut data) = ([0_i64; 2], 0, ptr::null_mut());
        // SAFETY: the context is of this call; the tensor lives as long as it.
        unsafe {
            check((api.KernelContext_GetInput)(self.context, index, &mut value))?;
            check((api.GetTensorTypeAndShape)(value, &mut shape))?;
            let read = check((api.GetDimensionsCount)(shape, &mut rank)).and_then(|()| {
                let rank = if rank <= 2 { rank } else { return Err(self.wrong_inputs()) };
                check((api.GetDimensions)(shape, dims.as_mut_ptr(), rank))
            });
            (api.ReleaseTensorTypeAndShapeInfo)(shape);
            read?;
            check((api.GetTensorMutableData)(value.cast_mut(), &mut data))?;
        }
        let sizes = if rank == 2 { dims } else { [1, if rank == 1 { dims[0] } else { 1 }] };
        let [rows, columns] = sizes.map(|size| size as usize);
        if rows * columns == 0 {
            return Ok((rows, &[]));
        }
        // SAFETY: a float32 tensor of this many numbers, by the operator's declared types.
        Ok((rows, unsafe { slice::from_raw_parts(data.cast(), rows * columns) }))
    }

    /// Output `index` of `rows` times `columns`, to be written by row.
    ///
    /// # Safety
    ///
    /// The operator has such an output, of type `T`.
    pub unsafe fn output<T>(self, index: usize, rows: usize, columns: usize) -> Outcome<Output<T>> {
        let (mut value, mut data) = (ptr::null_mut::<OrtValue>(), ptr::null_mut());
        let dims = [rows as i64, columns as i64];
        // SAFETY: as for inputs.
        unsafe {
            let dims = dims.as_ptr();
            check((self.api.KernelContext_GetOutput)(self.context, index, dims, 2, &mut value))?;
            check((self.api.GetTensorMutableData)(value, &mut data))?;
        }
        Ok(Output { data: data.cast(), columns })
    }
}

/// An output whose rows are written by several threads, each by one.
#[derive(Clone, Copy)]
pub struct Output<T> {
    data: *mut T,
    columns: usize,
}

// SAFETY: a row is written by one thread, see `row`.
unsafe impl<T> Send for Output<T> {}
unsafe impl<T> Sync for Output<T> {}

impl<T> Output<T> {
    /// A row.
    ///
    /// # Safety
    ///
    /// There is such a row, and no other slice of it.
    pub unsafe fn row<'a>(self, index: usize) -> &'a mut [T] {
        // SAFETY: by contract.
        unsafe { slice::from_raw_parts_mut(self.data.add(index * self.columns), self.columns) }
    }
}
