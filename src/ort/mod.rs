//! The crate's kernels as operators of ONNX Runtime, for `register_custom_ops_library`.
//!
//! In: the options of a session. Out: the operators of the domain `ai.coordgen`, which take the
//! place of the functions of those names in a model. What they compute is in `crate::kernels`.
//!
//! Unsafe: ONNX Runtime's interface is of C. It keeps to this: a table of functions for each
//! operator, static; a kernel for each node, created and destroyed by ONNX Runtime; tensors that
//! live as long as a call.
#![allow(unsafe_code)]

mod kernel;
mod kind;
mod operator;
mod tensors;

use std::ptr;
use std::sync::OnceLock;

use ort_sys::{OrtApi, OrtApiBase, OrtCustomOpDomain, OrtSessionOptions, OrtStatusPtr};

/// The version of ONNX Runtime's interface that is asked for: of release 1.18.
const API_VERSION: u32 = 18;

/// The domain with its operators: one for the process, as ONNX Runtime wants it to outlive all
/// sessions.
struct Domain(*mut OrtCustomOpDomain);

// SAFETY: it is only read once it is made.
unsafe impl Send for Domain {}
unsafe impl Sync for Domain {}

static DOMAIN: OnceLock<Domain> = OnceLock::new();

/// Adds the operators to the options of a session; ONNX Runtime finds it by its name.
///
/// # Safety
///
/// Both pointers are ONNX Runtime's own.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: `base` is valid by contract; what it gives lives as long as the process.
    let api = unsafe { ((*base).GetApi)(API_VERSION).as_ref() };
    let Some(api) = api else {
        return OrtStatusPtr(ptr::null_mut());
    };
    // SAFETY: `api` is valid, and so are `options` by contract.
    let added = unsafe {
        domain(api).and_then(|domain| tensors::check((api.AddCustomOpDomain)(options, domain)))
    };
    added.err().unwrap_or(OrtStatusPtr(ptr::null_mut()))
}

/// The domain, made when first asked for.
///
/// # Safety
///
/// `api` is ONNX Runtime's.
unsafe fn domain(api: &OrtApi) -> Result<*mut OrtCustomOpDomain, OrtStatusPtr> {
    if let Some(domain) = DOMAIN.get() {
        return Ok(domain.0);
    }
    let mut made = ptr::null_mut();
    // SAFETY: the name and the operators are static.
    unsafe {
        tensors::check((api.CreateCustomOpDomain)(c"ai.coordgen".as_ptr(), &mut made))?;
        for operator in &operator::OPERATORS {
            tensors::check((api.CustomOpDomain_Add)(made, operator.table()))?;
        }
    }
    Ok(DOMAIN.get_or_init(|| Domain(made)).0)
}
