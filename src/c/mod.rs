//! The crate for programs in other languages: `extern "C"` functions over
//! [`HostDrafter`](crate::draft::host::HostDrafter) and
//! [`PersistentHistory`](crate::draft::sources::history::persistent::PersistentHistory).
//!
//! In: handles, and arrays by address and length. Out: a [`Status`] of every call, a message where it
//! failed. It converts, calls and converts, and decides nothing. `include/coordgen.h` is made of these
//! files by cbindgen, so their comments are C's documentation, too: a test compares the two, and with
//! `COORDGEN_WRITE_HEADER=1` writes it.
//!
//! Handles are numbers of a table and not addresses: stale, foreign and invented ones are found out.
//! Arrays cannot be: whoever tells a wrong length has it read. No panic leaves a call; where the crate is
//! built with `panic = "abort"`, it ends the process.
//!
//! Unsafe: memory of the caller's. What is read is checked for null, alignment and the most that a request may
//! have ([`MAX_TOKENS`]), and borrowed for the call alone; what is written goes through the address, an
//! element at a time, so that arrays of the caller's may overlap.
#![allow(unsafe_code)]

mod arguments;
mod drafter;
mod failure;
mod handles;
mod history;
mod options;
#[cfg(test)]
mod tests;

pub use self::arguments::MAX_TOKENS;
pub use self::drafter::{
    Statistics, coordgen_drafter_accept, coordgen_drafter_begin, coordgen_drafter_end,
    coordgen_drafter_follow, coordgen_drafter_free, coordgen_drafter_new,
    coordgen_drafter_propose_chain, coordgen_drafter_propose_tree, coordgen_drafter_rewind,
    coordgen_drafter_statistics,
};
pub use self::failure::{Status, coordgen_last_error, coordgen_status_name, coordgen_version};
pub use self::history::{
    HistoryStatistics, coordgen_history_append, coordgen_history_clear, coordgen_history_close,
    coordgen_history_index, coordgen_history_open, coordgen_history_statistics,
};
pub use self::options::{Commit, MAX_ROWS, Options};
