//! What proposes: one file or folder a source. None of them knows the others' guesses, or which
//! guesses are drafted.

pub mod automaton;
pub mod calibration;
pub mod common_phrases;
pub mod earlier_requests;
pub mod history;
pub mod lookup_table;
pub mod model;
pub mod prediction;
pub mod prompt_lookup;
pub mod respelling;
pub mod resumed_copy;
pub mod reuse;
pub mod sam_decoding;
