//! What may come next: the sources, and the drafter that asks them all.

pub mod choose;
pub mod source;
pub mod sources;

use crate::error::{Error, Result};
use source::DraftSource;
use sources::automaton::suffix_automaton::SuffixAutomaton;
use sources::calibration::Calibration;
use sources::earlier_requests::EarlierRequests;
use sources::lookup_table::SharedTable;
use sources::lookup_table::source::TableSource;
use sources::model::source::ModelSource;
use sources::prompt_lookup::PromptLookup;
use sources::reuse::DraftReuse;
use sources::sam_decoding::SamDecoding;

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
