//! The options of a drafter. In: C's record. Out: the core's.

use std::ffi::c_char;

use super::arguments::{array, record, text, tokens, utf8};
use super::failure::{Failure, Status};
use crate::commit::CommitPolicy;
use crate::draft::choose::step_choice::StepCost;
use crate::draft::host::HostOptions;
use crate::draft::methods::Method;
use crate::error::Error;
use crate::sampling::check_vocab_size;

/// Most rows of a step.
pub const MAX_ROWS: usize = 4096;

const MAX_METHOD_BYTES: usize = 64;

/// How the engine keeps what it accepts of a tree; of chains both keep the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It keeps an accepted path on any branch.
    Compact = 0,
    /// It keeps what lies on the first path alone (nodes 0, 1, 2, ..): for engines in which a token that
    /// was computed on a side branch has other bits than the same token in a chain.
    Canonical = 1,
}

/// Options of a drafter. Set all of it to zero, then `size` and `vocab_size`: a zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(coordgen_options)`, by which a library of another version is found out.
    pub size: usize,
    /// Number of ids in the engine's vocabulary, 1 to 2^24.
    pub vocab_size: u32,
    /// A `coordgen_commit`.
    pub commit: u32,
    /// Numbers of rows that a step of the engine may have, ascending: the last committed token, and
    /// draft tokens behind it. NULL for 1 to 17.
    pub rows: *const u32,
    /// Elements of `rows`; at most `COORDGEN_MAX_ROWS`, which no row is above either.
    pub num_rows: usize,
    /// What a step of each costs, in any unit, `num_rows` elements: then drafts are only as long as pays.
    /// NULL where rows are free. With `rows` NULL, of 1 to 17 rows.
    pub costs: *const f32,
    /// What each costs more for every committed token, `num_rows` elements; NULL for nothing.
    pub costs_per_token: *const f32,
    /// Tokens that end an answer: nothing is drafted behind them.
    pub end_tokens: *const i32,
    /// Elements of `end_tokens`.
    pub num_end_tokens: usize,
    /// The name of a method, "auto", "automaton" or "prompt-lookup" say; NULL for "auto".
    pub method: *const c_char,
    /// A history to draft from as well, which may be closed while the drafter lives; 0 for none.
    pub history: u64,
}

/// The method and options of a drafter, and the handle of its history.
///
/// # Safety
/// `address` is NULL or of an [`Options`] whose arrays and text can be read.
pub(super) unsafe fn options(
    address: *const Options,
) -> Result<(Method, HostOptions, u64), Failure> {
    // SAFETY: as promised; it begins with its size, and no more is read where that is another one.
    let size = unsafe { record("options", address.cast::<usize>()) }?;
    if size != size_of::<Options>() {
        let (what, must) = ("size of the options", "that of this library: they differ in version");
        return Err(Error::BadOption { what, got: size.to_string(), must }.into());
    }
    // SAFETY: as promised.
    let given = unsafe { record("options", address) }?;
    let vocab_size = given.vocab_size as usize;
    check_vocab_size(vocab_size)?;
    // SAFETY: as promised.
    let (rows, costs, end_tokens, method) = unsafe {
        let rows = rows(&given)?;
        let costs = costs(&given, rows.len())?;
        let end_tokens = tokens("end_tokens", given.end_tokens, given.num_end_tokens)?;
        (rows, costs, end_tokens, text("method", given.method, MAX_METHOD_BYTES)?)
    };
    if let Some(&token) = end_tokens.iter().find(|token| token.0 >= given.vocab_size) {
        return Err(Error::TokenOutOfRange { token, vocab_size }.into());
    }
    let commit = match given.commit {
        commit if commit == Commit::Compact as u32 => CommitPolicy::Compact,
        commit if commit == Commit::Canonical as u32 => CommitPolicy::Canonical,
        other => {
            let (what, must) = ("commit", "a coordgen_commit");
            return Err(Error::BadOption { what, got: other.to_string(), must }.into());
        }
    };
    let method = method.map_or(Ok("auto"), |name| utf8("method", name))?;
    let options = HostOptions { vocab_size, rows, costs, commit, end_tokens: end_tokens.to_vec() };
    Ok((Method::named(method)?, options, given.history))
}

/// # Safety
/// As for [`options`].
unsafe fn rows(given: &Options) -> Result<Vec<usize>, Failure> {
    if given.rows.is_null() && given.num_rows == 0 {
        return Ok(HostOptions::ROWS.collect());
    }
    // SAFETY: as promised.
    let rows = unsafe { array("rows", given.rows, given.num_rows, MAX_ROWS) }?;
    match rows.iter().find(|&&rows| rows as usize > MAX_ROWS) {
        Some(rows) => {
            let message = format!("a step of {rows} rows: it may have {MAX_ROWS}");
            Err(Failure::new(Status::BadOption, message))
        }
        None => Ok(rows.iter().map(|&rows| rows as usize).collect()),
    }
}

/// # Safety
/// As for [`options`].
unsafe fn costs(given: &Options, num_rows: usize) -> Result<Option<Vec<StepCost>>, Failure> {
    if given.costs.is_null() {
        if !given.costs_per_token.is_null() {
            return Err(Failure::new(Status::BadOption, "costs_per_token without costs"));
        }
        return Ok(None);
    }
    // SAFETY: as promised.
    let bases = unsafe { array("costs", given.costs, num_rows, MAX_ROWS) }?;
    let mut costs: Vec<StepCost> = bases.iter().map(|&base| StepCost::from(base)).collect();
    if !given.costs_per_token.is_null() {
        // SAFETY: as promised.
        let further =
            unsafe { array("costs_per_token", given.costs_per_token, num_rows, MAX_ROWS) }?;
        for (cost, &per_token) in costs.iter_mut().zip(further) {
            cost.per_token = per_token;
        }
    }
    Ok(Some(costs))
}
