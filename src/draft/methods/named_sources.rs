//! The sources by name. In: a name, and what the sources draw on. Out: what it proposes and needs, or a
//! new source of that name.

use std::sync::Arc;

use crate::draft::setting::{self, Settings};
use crate::draft::source::DraftSource;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::calibration::{Calibration, CalibrationOptions};
use crate::draft::sources::common_phrases::{CommonPhrases, PhraseTable};
use crate::draft::sources::earlier_requests::{EarlierRequests, SharedRequests};
use crate::draft::sources::history::History;
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::model::source::{ModelSource, SharedModelDraft};
use crate::draft::sources::prediction::Prediction;
use crate::draft::sources::prompt_lookup::PromptLookup;
use crate::draft::sources::respelling::Respelling;
use crate::draft::sources::resumed_copy::ResumedCopy;
use crate::draft::sources::reuse::{DraftReuse, ReuseOptions};
use crate::draft::sources::sam_decoding::SamDecoding;
use crate::draft::token_variants::TokenVariants;
use crate::error::{Error, Result};

/// What a method is to be used on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodContext {
    /// Rows cost nothing: the steps have no costs.
    pub free_rows: bool,
    /// There is a draft model.
    pub draft_model: bool,
    /// There is a table of what is common in most texts, and of spellings: the target's tokens are known
    /// by their texts.
    pub common_phrases: bool,
    /// Earlier requests may be drawn on.
    pub earlier_requests: bool,
    /// A recorded answer plays the target: there are no logits.
    pub recorded: bool,
}

/// What a source cannot draft without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The request's own tokens do.
    Nothing,
    /// What the target expects in the prompt.
    PrefillLogits,
    /// What the target says after every node of a step, rejected ones too.
    StepLogits,
    /// A draft model that is run between the steps.
    DraftModel,
    /// A table of what is common in most texts, in the target's tokens.
    PhraseTable,
    /// Which tokens of the target stand for nearly the same text.
    TokenVariants,
    /// Finished requests, which bring the source along.
    History,
    /// The caller's own prediction, which brings the source along.
    Prediction,
}

impl Needs {
    /// The words for it in messages and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::PrefillLogits => "logits of the prompt",
            Self::StepLogits => "logits of every row",
            Self::DraftModel => "a draft model",
            Self::PhraseTable => "a table of phrases",
            Self::TokenVariants => "a table of spellings",
            Self::History => "a history",
            Self::Prediction => "a prediction",
        }
    }

    /// Whether there is any of it. A recorded answer has no logits: of it the target's own tokens
    /// are known, but not what it holds likely elsewhere.
    pub(super) fn is_met(self, context: MethodContext) -> bool {
        match self {
            Self::Nothing => true,
            Self::PrefillLogits | Self::StepLogits => !context.recorded,
            Self::DraftModel => context.draft_model,
            Self::PhraseTable | Self::TokenVariants => context.common_phrases,
            Self::History | Self::Prediction => false,
        }
    }
}

/// A source as it stands in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name in options and statistics.
    pub name: &'static str,
    /// What it proposes, in a line.
    pub about: &'static str,
    /// What it cannot draft without.
    pub needs: Needs,
}

impl Source {
    /// The one of that name. Fails when there is none.
    pub fn named(name: &str) -> Result<&'static Self> {
        let found = SOURCES.iter().find(|source| source.name == name);
        let known = || SOURCES.iter().map(|source| source.name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| Error::UnknownSource { name: name.into(), known: known() })
    }

    /// Whether its name may be given to a drafter: others come with a history or a prediction.
    pub fn can_be_asked_for(&self) -> bool {
        !matches!(self.needs, Needs::History | Needs::Prediction)
    }
}

const fn source(name: &'static str, needs: Needs, about: &'static str) -> Source {
    Source { name, about, needs }
}

/// All sources.
pub const SOURCES: &[Source] = &[
    source(
        SuffixAutomaton::NAME,
        Needs::Nothing,
        "what followed the longest matches in the request so far",
    ),
    source(
        ResumedCopy::NAME,
        Needs::Nothing,
        "how a copied passage goes on after a token that differs from it",
    ),
    source(
        Calibration::NAME,
        Needs::PrefillLogits,
        "what the target expected at similar places of the prompt",
    ),
    source(
        DraftReuse::NAME,
        Needs::StepLogits,
        "parts of rejected drafts that the target would have said",
    ),
    source(
        TableSource::NAME,
        Needs::StepLogits,
        "what the target held likely after each token, kept across requests",
    ),
    source(
        TableSource::PUBLISHED,
        Needs::StepLogits,
        "the same table, which learns one verified pair a row, as DIAA has it",
    ),
    source(
        ModelSource::NAME,
        Needs::DraftModel,
        "what a smaller model says, or the target's own head for further tokens (MTP)",
    ),
    source(
        CommonPhrases::NAME,
        Needs::PhraseTable,
        "which words come after which in most English texts and code",
    ),
    source(
        Respelling::NAME,
        Needs::TokenVariants,
        "what the others say in other tokens: a line without its break, a word without its space",
    ),
    source(
        EarlierRequests::NAME,
        Needs::Nothing,
        "what followed the longest match in earlier requests of the same drafter, or of those beside it",
    ),
    source(
        PromptLookup::NAME,
        Needs::Nothing,
        "what followed the first occurrence of the last three tokens, or fewer",
    ),
    source(
        SamDecoding::NAME,
        Needs::Nothing,
        "SAM-Decoding: what followed the first occurrence of the longest match",
    ),
    source(
        SamDecoding::WITH_EARLIER_REQUESTS,
        Needs::Nothing,
        "SAM-Decoding over earlier requests too",
    ),
    source(
        TableSource::TOKEN_RECYCLING,
        Needs::StepLogits,
        "Token Recycling: the target's last expectation after each token",
    ),
    source(History::INDEX, Needs::History, "finished requests that the index on disk covers"),
    source(History::RECENT, Needs::History, "finished requests that the index does not cover yet"),
    source(History::FLEET, Needs::History, "an index of many machines' requests"),
    source(History::CORPUS, Needs::History, "documents that were added to draft from"),
    source(Prediction::NAME, Needs::Prediction, "the caller's own prediction of the answer"),
];

/// What sources draw on that live longer than a drafter, or are fed by its caller.
#[derive(Clone, Debug, Default)]
pub struct SourceInputs {
    /// For "lookup-table" and "diaa-table".
    pub lookup_table: SharedTable,
    /// For "earlier-requests".
    pub earlier_requests: SharedRequests,
    /// For "draft-model".
    pub draft_model: Option<SharedModelDraft>,
    /// For "common-phrases".
    pub phrases: Option<Arc<PhraseTable>>,
    /// For "respelling".
    pub token_variants: Option<Arc<TokenVariants>>,
}

/// A new source by its name, with nothing to draw on but the requests. Fails as
/// [`source_from`] does.
pub fn source_named(name: &str) -> Result<Box<dyn DraftSource>> {
    source_from(name, &SourceInputs::default())
}

/// A new source by its name, and with the options that may follow it: `calibration:k=4`. Fails when
/// there is none of that name or no such option, when the value is out of its range, when it is "draft-model",
/// "common-phrases" or "respelling" and there is none to draw on, and when it is one that a history or a prediction
/// brings along.
pub fn source_from(spelling: &str, on: &SourceInputs) -> Result<Box<dyn DraftSource>> {
    let (mut calibration, mut reuse) = (CalibrationOptions::OURS, ReuseOptions::OURS);
    let (name, options) = setting::split(spelling);
    let mut settings = match name {
        Calibration::NAME => calibration.settings(),
        DraftReuse::NAME => reuse.settings(),
        _ => Settings::new(),
    };
    setting::set(&mut settings, options)?;
    Ok(match name {
        SuffixAutomaton::NAME => Box::new(SuffixAutomaton::new()),
        ResumedCopy::NAME => Box::new(ResumedCopy::new()),
        Calibration::NAME => Box::new(Calibration::new(calibration)),
        DraftReuse::NAME => Box::new(DraftReuse::new(reuse)),
        TableSource::NAME => Box::new(TableSource::new(on.lookup_table.clone())),
        TableSource::PUBLISHED => Box::new(TableSource::published(on.lookup_table.clone())),
        ModelSource::NAME => match &on.draft_model {
            Some(model) => Box::new(ModelSource::new(model.clone())),
            None => return Err(nothing_to_draw_on(name, "a draft model")),
        },
        CommonPhrases::NAME => match &on.phrases {
            Some(table) => Box::new(CommonPhrases::new(table.clone())),
            None => return Err(nothing_to_draw_on(name, "a table of phrases")),
        },
        Respelling::NAME => match &on.token_variants {
            Some(token_variants) => Box::new(Respelling::new(token_variants.clone())),
            None => return Err(nothing_to_draw_on(name, "a table of spellings")),
        },
        EarlierRequests::NAME => Box::new(EarlierRequests::new(on.earlier_requests.clone())),
        PromptLookup::NAME => Box::new(PromptLookup::new()),
        SamDecoding::NAME => Box::new(SamDecoding::new()),
        SamDecoding::WITH_EARLIER_REQUESTS => Box::new(SamDecoding::with_earlier_requests()),
        TableSource::TOKEN_RECYCLING => Box::new(TableSource::token_recycling()?),
        _ => return Err(Error::UnknownSource { name: name.into(), known: names_to_ask_for() }),
    })
}

fn nothing_to_draw_on(name: &str, missing: &str) -> Error {
    let got = format!("{name:?} without {missing}");
    Error::BadOption { what: "sources", got, must: "given what they draw on" }
}

/// The names of the sources that can be asked for.
pub(super) fn names_to_ask_for() -> String {
    let asked_for = SOURCES.iter().filter(|source| source.can_be_asked_for());
    asked_for.map(|source| source.name).collect::<Vec<_>>().join(", ")
}

/// What a source of the registry needs.
pub(super) fn needs(name: &str) -> Needs {
    let source = SOURCES.iter().find(|source| source.name == name);
    source.expect("methods name sources of the registry").needs
}
