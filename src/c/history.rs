//! Histories for C: finished requests in a file or in memory, by a handle.

use std::ffi::c_char;
use std::path::PathBuf;

use super::arguments::{Output, text, tokens};
use super::failure::{Failure, Status, guarded};
use super::handles::Handles;
use crate::draft::sources::history::History;
use crate::draft::sources::history::persistent::{DEFAULT_MAX_TOKENS, PersistentHistory};
use crate::sampling::check_vocab_size;

const MAX_PATH_BYTES: usize = 1 << 15;

static HISTORIES: Handles<PersistentHistory> = Handles::new(2, "history");

/// What a history holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryStatistics {
    /// Tokens that are stored.
    pub num_tokens: usize,
    /// How many of them the index covers.
    pub num_indexed_tokens: usize,
    /// Bytes of the file that were damaged or cut off when it was opened, and are dropped.
    pub num_dropped_bytes: u64,
}

/// Opens the history at `path` (in UTF-8 on Windows), or makes an empty one, and writes its handle to `history`.
/// NULL is a history in memory, of about the last two million tokens. The file has an index beside it,
/// `PATH.index`. One handle at a time may have it open, of all processes. Its tokens are below
/// `vocab_size`. Where it holds more than `max_tokens` (0 for ten million) as it is opened or indexed, the
/// oldest requests are dropped; appending drops none. Of requests that no index covers, the last one to two
/// million tokens are drafted from: a program that runs long calls `coordgen_history_index` now and then.
///
/// # Safety
/// `path` is NULL or ends with a zero; `history` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_history_open(
    path: *const c_char,
    vocab_size: u32,
    max_tokens: u64,
    history: *mut u64,
) -> Status {
    guarded(|| {
        let handle = Output::new("history", history)?;
        check_vocab_size(vocab_size as usize)?;
        // SAFETY: as promised.
        let path = unsafe { text("path", path, MAX_PATH_BYTES) }?;
        let max_tokens = match usize::try_from(max_tokens) {
            Ok(0) => DEFAULT_MAX_TOKENS,
            other => other.unwrap_or(usize::MAX),
        };
        let opened = match path {
            None => PersistentHistory::in_memory(vocab_size),
            Some(path) => PersistentHistory::open(&to_path(path)?, vocab_size, max_tokens)?,
        };
        // SAFETY: as promised.
        unsafe { handle.write([HISTORIES.add(opened)?]) };
        Ok(())
    })
}

/// Stores a finished request, prompt and answer together. Requests that begin later draft from it.
///
/// # Safety
/// `tokens` has `num_tokens` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_history_append(
    history: u64,
    tokens: *const i32,
    num_tokens: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as promised.
        let tokens = unsafe { self::tokens("tokens", tokens, num_tokens) }?;
        HISTORIES.with(history, |history| Ok(history.add(tokens)?))
    })
}

/// Indexes what is stored; closing does it where that pays. Drafters go on meanwhile, other calls on the history
/// wait. Cost: 0.1 to 0.3 us and 16 bytes of memory a token.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_history_index(history: u64) -> Status {
    guarded(|| HISTORIES.with(history, |history| Ok(history.index()?)))
}

/// Writes what the history holds to `statistics`.
///
/// # Safety
/// `statistics` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coordgen_history_statistics(
    history: u64,
    statistics: *mut HistoryStatistics,
) -> Status {
    guarded(|| {
        let out = Output::new("statistics", statistics)?;
        let counted = HISTORIES.with(history, |history| {
            Ok(HistoryStatistics {
                num_tokens: history.num_tokens(),
                num_indexed_tokens: history.shared().num_indexed_tokens(),
                num_dropped_bytes: history.num_dropped_bytes(),
            })
        })?;
        // SAFETY: as promised.
        unsafe { out.write([counted]) };
        Ok(())
    })
}

/// Forgets all requests, in the file, too.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_history_clear(history: u64) -> Status {
    guarded(|| HISTORIES.with(history, |history| Ok(history.clear()?)))
}

/// Closes a history. Drafters that use it draft on from what it held. Where the index cannot be written, this says
/// so, but the handle is gone and no request is lost.
#[unsafe(no_mangle)]
pub extern "C" fn coordgen_history_close(history: u64) -> Status {
    guarded(|| {
        let closed = HISTORIES.remove(history)?.with(PersistentHistory::close);
        Ok(closed.unwrap_or(Ok(()))?)
    })
}

/// What drafters read from.
pub(super) fn shared_history(history: u64) -> Result<History, Failure> {
    HISTORIES.with(history, |history| Ok(history.shared().clone()))
}

#[cfg(unix)]
fn to_path(bytes: &[u8]) -> Result<PathBuf, Failure> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::OsStr::from_bytes(bytes).into())
}

#[cfg(not(unix))]
fn to_path(bytes: &[u8]) -> Result<PathBuf, Failure> {
    Ok(super::arguments::utf8("path", bytes)?.into())
}
