//! What may come next: the sources, and the drafter that asks them all.

pub mod acceptance;
mod automaton_source;
pub mod calibration;
pub mod drafter;
pub mod dynamic_tree;
pub mod earlier_requests;
mod edge_table;
mod edges;
pub mod escape;
pub mod grow;
pub mod history;
pub mod lookup_table;
pub mod model;
pub mod model_choice;
mod other_text;
pub mod prediction;
pub mod prompt_lookup;
pub mod ranked_tree;
pub mod reuse;
pub mod sam_decoding;
#[cfg(test)]
mod scripted;
pub mod shared;
pub mod source;
pub mod static_tree;
pub mod step_choice;
pub mod suffix_automaton;
pub mod tree_shape;

use crate::error::{Error, Result};
use calibration::Calibration;
use earlier_requests::EarlierRequests;
use lookup_table::SharedTable;
use lookup_table::source::TableSource;
use model::source::ModelSource;
use prompt_lookup::PromptLookup;
use reuse::DraftReuse;
use sam_decoding::SamDecoding;
use source::DraftSource;
use suffix_automaton::SuffixAutomaton;

/// The names of [`source_named`].
const SOURCES: &str = "automaton, session, lookup, sam, sam-session, calibration, reuse, \
    lookup-table, token-recycling, draft-model";

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
        TableSource::NAME => Ok(Box::new(TableSource::new(SharedTable::default()))),
        TableSource::TOKEN_RECYCLING => Ok(Box::new(TableSource::token_recycling()?)),
        ModelSource::NAME => Err(Error::BadOption {
            what: "sources",
            got: format!("{name:?} without a draft model"),
            must: "given what they draw on",
        }),
        _ => Err(Error::UnknownSource { name: name.into(), known: SOURCES }),
    }
}
