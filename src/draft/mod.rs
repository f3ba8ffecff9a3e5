//! What may come next: the sources, and the drafter that asks them all.

pub mod acceptance;
mod automaton_source;
pub mod drafter;
mod edge_table;
mod edges;
pub mod grow;
pub mod prompt_lookup;
#[cfg(test)]
mod scripted;
pub mod source;
pub mod step_choice;
pub mod suffix_automaton;

use crate::error::{Error, Result};
use prompt_lookup::PromptLookup;
use source::DraftSource;
use suffix_automaton::SuffixAutomaton;

/// A new source by its name in options and statistics. Fails when there is none of that name.
pub fn source_named(name: &str) -> Result<Box<dyn DraftSource>> {
    match name {
        "automaton" => Ok(Box::new(SuffixAutomaton::new())),
        "lookup" => Ok(Box::new(PromptLookup::new())),
        _ => Err(Error::UnknownSource { name: name.into(), known: "automaton, lookup" }),
    }
}
