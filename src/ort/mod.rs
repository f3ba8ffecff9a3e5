//! The crate's kernels as operators of ONNX Runtime, for `register_custom_ops_library`.
//!
//! In: the options of a session. Out: the operators of the domain `ai.coordgen`. What they compute
//! is in `crate::kernels`. Without this library models that have them cannot be loaded.
//!
//! # Product
//!
//! Rows times one matrix, whose outputs are segments of different types: `(.., M, columns)` to
//! `(.., M, sum of outputs)`. The bits of a row depend on the row alone.
//!
//! | input | type and shape | |
//! |---|---|---|
//! | `rows` | float32 `(.., M, columns)`; `(.., M, 2 * columns)` with a gate | |
//! | `norm` | float32 `(columns,)`, may be absent | the weight of an RMS norm that rows get first |
//! | `residual` | float32 `(.., M, outputs)`, may be absent | added to the products |
//! | `bias` | float32 `(outputs,)`, may be absent | added before it |
//! | `weights` | uint8 `(bytes,)`, one for each segment | panels, as in `kernels/product/panels.rs` |
//!
//! Attributes: `columns`; `sizes`, the outputs of each segment; `types`, of each segment, joined by commas
//! (`Q4_0,Q4_0,Q8_0`); `epsilon` of the norm; `gate`, empty or what is multiplied in place of a row whose
//! halves are `x` and `y`:
//!
//! | `gate` | |
//! |---|---|
//! | `silu` | `x * sigmoid(x) * y` |
//! | `gelu_tanh` | `gelu(x) * y`, by its formula with `tanh` |
//! | `sigmoid` | `sigmoid(x) * y` |
//! | `clamped_swiglu` | `x * sigmoid(1.702 x) * (y + 1)`, of `x` up to 7 and `y` from -7 to 7 |
//!
//! # Experts
//!
//! The feed-forward of a mixture of experts: each row takes the experts of its best scores, and gives the sum of
//! what they give by their shares. Rows that share an expert read its weights once; the bits of a row depend on
//! the row alone. An expert is `down(gate(row) gated with up(row))`, each a matrix times rows as of `Product`.
//!
//! | input | type and shape | |
//! |---|---|---|
//! | `rows` | float32 `(.., M, columns)` | |
//! | `norm` | float32 `(columns,)`, may be absent | the weight of an RMS norm that rows get first |
//! | `scores` | float32 `(.., M, experts)` | of a router |
//! | `choice_bias` | float32 `(experts,)`, may be absent | added to scores for choosing alone |
//! | `up_bias` | float32 `(experts, 2 * size)`, may be absent | of gate, then of up |
//! | `down_bias` | float32 `(experts, columns)`, may be absent | |
//! | `residual` | float32 `(.., M, columns)`, may be absent | added last |
//! | `beside` | float32 `(.., M, columns)`, may be absent | what a shared expert gives, added to the experts' sum |
//! | `beside_gate` | float32 `(.., M, 1)`, may be absent | `beside` is multiplied with its sigmoid |
//! | `weights` | uint8 `(bytes,)` | expert after expert, each filled up to a multiple of 4,096 bytes: panels of gate `(size, columns)`, of up `(size, columns)`, of down `(columns, size)` |
//! | `span` | int32 `(2,)`, may be absent | as of attention: of it only how many rows are real |
//!
//! Outputs: `out`, float32 `(.., M, columns)`, zero in padding, which reads no experts; elsewhere
//! `residual + residual_scale * (share * expert, summed by rank + sigmoid(beside_gate) * beside)`; `chosen`, int32
//! `(M, chosen)`, may be absent: the experts of each row, the best first, and 0 in padding.
//!
//! Attributes: `columns`; `size`, of an expert's feed-forward; `experts`; `chosen`, how many a row takes;
//! `types` of gate, up and down, joined by commas; `gate`, as of `Product`, not empty; `epsilon` of the norm;
//! `scoring`, see below; `normed`, 1 where a row's shares are divided by their sum and `share_epsilon`, or 0;
//! `share_scale`, what they are multiplied by then; `residual_scale`.
//!
//! | `scoring` | chosen by | share |
//! |---|---|---|
//! | `softmax` | `score + choice_bias` | that of the softmax of all scores |
//! | `sigmoid` | `sigmoid(score) + choice_bias` | `sigmoid(score)` |
//!
//! Of equal experts the first is chosen, and what is no number before any number.
//!
//! # Attention
//!
//! Attention of the nodes of draft trees along their paths, behind tokens in a cache. What a row
//! computes depends on the tokens of its path alone, not on slots, siblings or the number of rows.
//!
//! | input | type and shape | |
//! |---|---|---|
//! | `rows` | float32 `(.., M, (heads + 2 * kv_heads) * head_dim)` | queries, keys, values, before norms and rotation; queries and keys, `(heads + kv_heads) * head_dim`, where keys, as they come, are values, too; queries alone with `shares_keys` |
//! | `cos`, `sin` | float32 `(.., M, rotated / 2)`, may be absent | by row; what is not rotated stays |
//! | `key`, `value` | uint8 `(sequences, kv_heads, slots, row_bytes)` | the cache: node `i` of a sequence is written to slot `length + i` |
//! | `parents` | int32 `(nodes,)` | the number of each node's parent, or -1 where it follows the committed tokens |
//! | `sequences` | int32 `(nodes,)` | of each node; a parent is of the same one |
//! | `lengths` | int32 `(sequences,)` | committed tokens of each |
//! | `span` | int32 `(2,)` | the node of the first row, and how many rows are real: the rest is padding |
//! | `query_norm`, `key_norm` | float32 `(head_dim,)`, may be absent | RMS norms before rotation |
//! | `sinks` | float32 `(heads,)`, may be absent | a score of each head that no value stands behind |
//! | `value_norm` | float32 `(head_dim,)`, may be absent | the RMS norm of values |
//!
//! Outputs: `attended`, float32 `(.., M, heads * head_dim)`, zero in padding; `key_out` and `value_out`,
//! the caches: bound to the same memory as `key` and `value` they are updated in place, else copied.
//! With `shares_keys` there are no such outputs, and the caches are those of another layer, which
//! has written this step's rows.
//!
//! The bytes of a cache's row tell in which form it holds a head: `4 * head_dim` in float32,
//! `2 * head_dim` in float16, `head_dim + 4` as integers of 8 bits with a float32 scale behind them. Each
//! run may have another.
//!
//! Attributes: `heads`, `kv_heads`, `head_dim`, `scale`; `softcap` and `window`, 0 for none;
//! `interleaved`, 1 where pairs that are rotated stand side by side; `epsilon` of norms;
//! `shares_keys`, 0 or 1.
//!
//! Nodes before the first row were rows of earlier runs that nobody has committed: a tree may be read
//! in parts. A committed token's slot is its position.
//!
//! # SoftCap
//!
//! Numbers, float32 of any shape of at most eight dimensions, kept below a cap: `cap * tanh(x / cap)`, each
//! from its own alone. Attribute: `cap`, positive, at least 1.2e-38.
//!
//! # Recurrent layers
//!
//! `CausalConvolution`, `GatedDelta` and `SelectiveUpdate` compute rows along the paths of draft
//! trees, each from the state behind its parent; `kernels/recurrent` says how a state follows the
//! tokens. Their last eight inputs are the same:
//!
//! | input | type and shape | |
//! |---|---|---|
//! | `state` | uint8 `(sequences, 2, bytes)` | zeros before the first token; the first half is saved and restored, the second is the state before the last read |
//! | `updates` | uint8 `(2, bytes)` | zeros at first; of the last tree's nodes |
//! | `parents`, `sequences`, `lengths`, `span` | as of attention | with each sequence's committed tokens, the pending ones included |
//! | `reads` | int32 `(sequences,)` | not 0 where a sequence's rows are a chain that is committed whole: they are applied to its state, and need no update |
//! | `pending` | int32 `(any,)` | the nodes of the last run's tree that were committed since, those of a sequence in their order; what is negative is no node |
//!
//! Outputs: rows of float32, zero in padding; `state_out` and `updates_out`: bound to the same memory
//! as the inputs they are updated in place, else copied.
//!
//! A half of a state has `64 + 4 * numbers` bytes, one of updates `64 + nodes * (64 + 4 * numbers)`, with
//! room for so many nodes; memory is aligned to 8 bytes. The numbers, each count rounded up to a multiple
//! of 16 where `16(..)` says so:
//!
//! | operator | of a state | of a node |
//! |---|---|---|
//! | `CausalConvolution` | `(taps - 1) * 16(channels)` | `16(channels)` |
//! | `GatedDelta` | `value_heads * key_dim * 16(value_dim)` | `16(key_heads * key_dim + value_heads * (16(value_dim) + 1))` |
//! | `SelectiveUpdate` | `heads * state_dim * 16(head_dim)` | `16(groups * state_dim + heads * (16(head_dim) + 1))` |
//!
//! A half of a state begins with the number of tokens that it stands for, an int64. Where that is the
//! length, pending nodes are there already and are not applied again; else it must be the length less
//! the sequence's pending nodes. So a run that failed in some layer can be repeated.
//!
//! `CausalConvolution` comes after `rows`, float32 `(.., M, any)`, `weights`, float32 `(taps, channels)`, the
//! oldest token's first, and `bias`, float32 `(channels,)`, which may be absent. It gives
//! `(.., M, channels)`. Attributes: `channels`; `taps`, 2 to 8; `first`, the column where channels begin;
//! `activation`, empty or `silu`; `gated`, 0 or 1: of three times `channels` columns the first part
//! times the third is convolved, and the second times the sum is given.
//!
//! `GatedDelta` comes after `rows`, float32 `(.., M, 2 * key_heads * key_dim + value_heads * value_dim)`:
//! queries, keys and values, before they are normed; `projected`, float32 `(.., M, any)`; `a`, float32
//! `(value_heads,)`, that is `-exp(A_log)`; `dt_bias`, float32 `(value_heads,)`; `norm`, float32
//! `(value_dim,)`. It gives `(.., M, value_heads * value_dim)`. Attributes: `key_heads`, `value_heads`,
//! `key_dim`, `value_dim`; `columns`, where in `projected` gates (z), betas (b) and decays (a) begin;
//! `epsilon` of the norm.
//!
//! `SelectiveUpdate` comes after `rows`, float32 `(.., M, heads * head_dim + 2 * groups * state_dim)`: inputs, B and
//! C; `projected`, float32 `(.., M, any)`; `a`, `dt_bias` and `d`, float32 `(heads,)`, the first `-exp(A_log)`;
//! `norm`, float32 `(heads * head_dim,)`. It gives `(.., M, heads * head_dim)`. Attributes: `heads`, `head_dim`,
//! `groups`, of heads with one B, C and norm; `state_dim`; `columns`, where in `projected` gates and
//! steps (dt) begin; `least_step` and `most_step`; `epsilon` of the norm.
//!
//! Unsafe: ONNX Runtime's interface is of C. It keeps to this: a table of functions for each
//! operator, static; a kernel for each node, created and destroyed by ONNX Runtime; tensors that
//! live as long as a call.
#![allow(unsafe_code)]

mod attention;
mod call;
mod experts;
mod operator;
mod product;
mod recurrent;
mod soft_cap;

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
    let epilogue = unsafe {
        domain(api).and_then(|domain| call::check((api.AddCustomOpDomain)(options, domain)))
    };
    epilogue.err().unwrap_or(OrtStatusPtr(ptr::null_mut()))
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
        call::check((api.CreateCustomOpDomain)(c"ai.coordgen".as_ptr(), &mut made))?;
        let operators =
            [&product::OPERATOR, &experts::OPERATOR, &attention::OPERATOR, &soft_cap::OPERATOR];
        for operator in operators.into_iter().chain(recurrent::OPERATORS) {
            call::check((api.CustomOpDomain_Add)(made, operator.table()))?;
        }
    }
    Ok(DOMAIN.get_or_init(|| Domain(made)).0)
}
