//! Drafters for C: drafts for one request after the other, by a handle.

use super::arguments::{Output, check_len, tokens};
use super::failure::{Failure, Status, guarded};
use super::handles::Handles;
use super::history::shared_history;
use super::options::{Options, options};
use crate::draft::host::HostDrafter;
use crate::ids::TokenId;

static DRAFTERS: Handles<HostDrafter> = Handles::new(1, "drafter");

/// What came of the proposals of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Tokens of the request, prompt and committed ones.
    pub num_tokens: usize,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Proposals that the engine has answered.
    pub num_steps: usize,
    /// Draft tokens in them.
    pub num_drafted: usize,
    /// Draft tokens that the engine agreed with.
    pub num_accepted: usize,
    /// Bytes that the drafter holds, what it shares with others included.
    pub memory_bytes: usize,
}

/// Makes a drafter, and writes its handle to `drafter`.
///
/// # Safety
/// `options` is NULL, or its arrays have the lengths that it tells; `drafter` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_new(
    options: *const Options,
    drafter: *mut u64,
) -> Status {
    guarded(|| {
        let handle = Output::new("drafter", drafter)?;
        // SAFETY: as promised.
        let (method, options, history) = unsafe { self::options(options) }?;
        let history = (history != 0).then(|| shared_history(history)).transpose()?;
        let made = HostDrafter::new(method, history.as_ref(), options)?;
        // SAFETY: as promised.
        unsafe { handle.write([DRAFTERS.add(made)?]) };
        Ok(())
    })
}

/// Starts a request, in place of the one before: `prompt`, at least one token, of which the last is the first
/// root of a draft, and the caller's own prediction of the answer, which may be empty. What was learned of how
/// far its sources can be trusted stays. Cost: about 0.2 us a token.
///
/// Where it fails, the request before goes on.
///
/// # Safety
/// The arrays have the lengths that are told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_begin(
    drafter: u64,
    prompt: *const i32,
    num_prompt: usize,
    prediction: *const i32,
    num_prediction: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as promised.
        let (prompt, prediction) = unsafe {
            let prediction = tokens("prediction", prediction, num_prediction)?;
            (tokens("prompt", prompt, num_prompt)?, prediction)
        };
        DRAFTERS.with(drafter, |drafter| Ok(drafter.begin(prompt, prediction)?))
    })
}

/// Drafts a tree of at most `capacity` nodes, and fewer where no more pays or nothing more is known. Node 0 is the
/// root, the last committed token; every parent stands before its children, and `parents[0]` is 0.
/// Asking again replaces the proposal.
///
/// # Safety
/// `tokens` and `parents` have room for `capacity` elements, `num_nodes` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_propose_tree(
    drafter: u64,
    tokens: *mut i32,
    parents: *mut u32,
    capacity: usize,
    num_nodes: *mut usize,
) -> Status {
    guarded(|| {
        let token_ids = Output::new("tokens", tokens)?;
        let (parents, num) =
            (Output::new("parents", parents)?, Output::new("num_nodes", num_nodes)?);
        let max_tokens = max_tokens(capacity)?;
        DRAFTERS.with(drafter, |drafter| {
            let tree = drafter.propose_tree(max_tokens)?;
            // SAFETY: a tree has at most one node more than `max_tokens`, so `capacity`.
            unsafe {
                token_ids.write(tree.token_ids().iter().copied().map(signed));
                parents.write(tree.parents().iter().map(|parent| parent.0));
                num.write([tree.token_ids().len()]);
            }
            Ok(())
        })
    })
}

/// The same without branches: `tokens[0]` is the last committed token, and each of the others follows the one
/// before it.
///
/// # Safety
/// `tokens` has room for `capacity` elements, `num_tokens` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_propose_chain(
    drafter: u64,
    tokens: *mut i32,
    capacity: usize,
    num_tokens: *mut usize,
) -> Status {
    guarded(|| {
        let (token_ids, num) =
            (Output::new("tokens", tokens)?, Output::new("num_tokens", num_tokens)?);
        let max_tokens = max_tokens(capacity)?;
        DRAFTERS.with(drafter, |drafter| {
            let root = drafter.text().last().copied();
            let chain = drafter.propose_chain(max_tokens)?;
            // SAFETY: a chain has at most `max_tokens` tokens behind the root.
            unsafe {
                token_ids.write(root.into_iter().chain(chain.iter().copied()).map(signed));
                num.write([1 + chain.len()]);
            }
            Ok(())
        })
    })
}

/// Learns what the engine has committed since the last call: the draft tokens that it agreed with and its own next
/// one, or any others. The last of them is the next root.
///
/// # Safety
/// `tokens` has `num_tokens` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_accept(
    drafter: u64,
    tokens: *const i32,
    num_tokens: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as promised.
        let tokens = unsafe { self::tokens("tokens", tokens, num_tokens) }?;
        DRAFTERS.with(drafter, |drafter| {
            check_len(drafter.text().len(), tokens.len())?;
            Ok(drafter.observe(tokens)?)
        })
    })
}

/// Forgets all but the first `num_tokens` tokens of the request, at least one, and what was learned from the others.
/// Cost: as much as beginning anew, and a proposal for each that was answered.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_drafter_rewind(drafter: u64, num_tokens: usize) -> Status {
    guarded(|| DRAFTERS.with(drafter, |drafter| Ok(drafter.rewind(num_tokens)?)))
}

/// For engines that tell their whole text each time: begins, accepts and rewinds as the text asks for.
///
/// # Safety
/// `text` has `num_tokens` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_follow(
    drafter: u64,
    text: *const i32,
    num_tokens: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as promised.
        let text = unsafe { tokens("text", text, num_tokens) }?;
        DRAFTERS.with(drafter, |drafter| {
            drafter.follow(text)?;
            Ok(())
        })
    })
}

/// Gives up the request, if there is one, and what of a history it holds. What was learned of the sources stays.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_drafter_end(drafter: u64) -> Status {
    guarded(|| {
        DRAFTERS.with(drafter, |drafter| {
            drafter.end();
            Ok(())
        })
    })
}

/// Writes what came of the proposals of the request to `statistics`; after its end, of the last one, but for
/// `num_tokens` and `prompt_len`, which are 0 then.
///
/// # Safety
/// `statistics` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_drafter_statistics(
    drafter: u64,
    statistics: *mut Statistics,
) -> Status {
    guarded(|| {
        let out = Output::new("statistics", statistics)?;
        let counted = DRAFTERS.with(drafter, |drafter| Ok(counted(drafter)))?;
        // SAFETY: as promised.
        unsafe { out.write([counted]) };
        Ok(())
    })
}

fn counted(drafter: &HostDrafter) -> Statistics {
    let statistics = drafter.statistics();
    let by_len = statistics.accept_histogram.iter().enumerate();
    Statistics {
        num_tokens: drafter.text().len(),
        prompt_len: drafter.prompt_len(),
        num_steps: statistics.accept_histogram.iter().sum(),
        num_drafted: statistics.sources.iter().map(|source| source.proposed).sum(),
        num_accepted: by_len.map(|(accept_len, num_steps)| accept_len * num_steps).sum(),
        memory_bytes: drafter.memory_bytes(),
    }
}

/// Ends a drafter. A call that another thread has begun comes to its end.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_drafter_free(drafter: u64) -> Status {
    guarded(|| DRAFTERS.remove(drafter).map(drop))
}

fn max_tokens(capacity: usize) -> Result<usize, Failure> {
    let message = "there is room for no token: a draft holds its root, too";
    capacity.checked_sub(1).ok_or_else(|| Failure::new(Status::BadLength, message))
}

fn signed(token: TokenId) -> i32 {
    token.0.cast_signed()
}
