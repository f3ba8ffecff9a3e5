//! What may come next: the sources, and the drafter that asks them all.

pub mod acceptance;
mod automaton_source;
pub mod calibration;
pub mod drafter;
pub mod earlier_requests;
mod edge_table;
mod edges;
pub mod escape;
pub mod grow;
pub mod history;
mod other_text;
pub mod prediction;
pub mod prompt_lookup;
pub mod reuse;
pub mod sam_decoding;
#[cfg(test)]
mod scripted;
pub mod source;
pub mod step_choice;
pub mod suffix_automaton;

use crate::error::{Error, Result};
use calibration::Calibration;
use earlier_requests::EarlierRequests;
use prompt_lookup::PromptLookup;
use reuse::DraftReuse;
use sam_decoding::SamDecoding;
use source::DraftSource;
use suffix_automaton::SuffixAutomaton;

/// The names of [`source_named`].
const SOURCES: &str = "automaton, session, lookup, sam, sam-session, calibration, reuse";

/// A new source by its name in options and statistics. Fails when there is none of that name.
pub fn source_named(name: &str) -> Result<Box<dyn DraftSource>> {
    match name {
        "automaton" => Ok(Box::new(SuffixAutomaton::new())),
        "session" => Ok(Box::new(EarlierRequests::new())),
        "sam" => Ok(Box::new(SamDecoding::new())),
        "sam-session" => Ok(Box::new(SamDecoding::with_earlier_requests())),
        "lookup" => Ok(Box::new(PromptLookup::new())),
        "calibration" => Ok(Box::new(Calibration::default())),
        "reuse" => Ok(Box::new(DraftReuse::default())),
        _ => Err(Error::UnknownSource { name: name.into(), known: SOURCES }),
    }
}
