//! The registry of sources and methods: the one place that knows them by name. In: a method and
//! the situation it is used in. Out: the sources to ask, in their order, and the shape of the tree.
//!
//! Options, help texts, benchmarks and tables of the documentation are read from here.

mod named_sources;
#[cfg(test)]
mod tests;

use self::named_sources::needs;
pub use self::named_sources::{
    MethodContext, Needs, SOURCES, Source, SourceInputs, source_from, source_named,
};
use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::choose::tree_shape::appended_tree::AppendedOptions;
use crate::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use crate::draft::setting::{self, Setting, Settings};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::calibration::{Calibration, CalibrationOptions};
use crate::draft::sources::common_phrases::CommonPhrases;
use crate::draft::sources::earlier_requests::EarlierRequests;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::model::shape::ModelShape;
use crate::draft::sources::model::source::ModelSource;
use crate::draft::sources::prompt_lookup::PromptLookup;
use crate::draft::sources::respelling::Respelling;
use crate::draft::sources::resumed_copy::ResumedCopy;
use crate::draft::sources::reuse::{DraftReuse, ReuseOptions};
use crate::draft::sources::sam_decoding::SamDecoding;
use crate::error::{Error, Result};

/// The name of plain decoding, the baseline that drafts nothing: no method, but named beside them.
pub const PLAIN: &str = "plain";

/// When a method has a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// Wherever the source has what it needs.
    Always,
    /// Where rows cost nothing.
    FreeRows,
    /// Where earlier requests may be drawn on.
    Earlier,
    /// Where they may not.
    NotEarlier,
}

/// A choice of sources, and what is done with what they say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// The name in options and results.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Where it is published, if it is as published: paper, section, equation.
    pub published: Option<&'static str>,
    /// Who decides on the shape of its trees.
    pub tree: TreeShape,
    /// How its draft model drafts.
    pub model: ModelShape,
    /// Whether its draft model goes on while the target waits for its blocks.
    pub in_gaps: bool,
    /// Whether its draft model is run only where that pays by measured costs, which the papers do not
    /// ask.
    pub weighs_model: bool,
    /// Whether the target's own head for further tokens (MTP) is its draft model, where there is no
    /// other.
    pub takes_mtp: bool,
    /// Most tokens that its draft model drafts a step; `None` for as many as a step verifies.
    pub most_drafted: Option<usize>,
    /// How it calibrates, if it does.
    pub calibration: CalibrationOptions,
    /// How it reuses drafts, if it does.
    pub reuse: ReuseOptions,
    sources: &'static [(&'static str, Condition)],
}

impl Method {
    const fn new(
        name: &'static str,
        sources: &'static [(&'static str, Condition)],
        about: &'static str,
    ) -> Self {
        let (tree, model) = (TreeShape::BestFirst, ModelShape::OURS);
        let (in_gaps, weighs_model, takes_mtp, most_drafted) = (true, true, false, None);
        let published = None;
        let (calibration, reuse) = (CalibrationOptions::OURS, ReuseOptions::OURS);
        Self {
            name,
            about,
            published,
            tree,
            model,
            in_gaps,
            weighs_model,
            takes_mtp,
            most_drafted,
            calibration,
            reuse,
            sources,
        }
    }

    /// The same, as it is published there.
    const fn published(self, place: &'static str) -> Self {
        Self { published: Some(place), ..self }
    }

    /// The same, with the target's own head as a draft model.
    const fn taking_mtp(self) -> Self {
        Self { takes_mtp: true, ..self }
    }

    /// A method of CoordGen's parts, as published.
    const fn coordgen(
        name: &'static str,
        sources: &'static [(&'static str, Condition)],
        about: &'static str,
        place: &'static str,
    ) -> Self {
        let tree = TreeShape::Appended(AppendedOptions::PUBLISHED);
        let (calibration, reuse) = (CalibrationOptions::PUBLISHED, ReuseOptions::PUBLISHED);
        Self { tree, calibration, reuse, ..Self::new(name, sources, about) }.published(place)
    }

    /// A method of EdgeLLM's parts.
    const fn edgellm(name: &'static str, model: ModelShape, about: &'static str) -> Self {
        let tree = if model.drafted_only { TreeShape::Drafted } else { TreeShape::BestFirst };
        Self { tree, model, weighs_model: false, ..Self::new(name, &[DRAFT_MODEL], about) }
    }

    /// The method of that name, and with the options that may follow it: `diaa:budget=60:threshold=0.01`.
    ///
    /// Fails when there is none of that name, for plain decoding, which drafts nothing, and when it
    /// has no such option or the value is out of its range.
    pub fn named(spelling: &str) -> Result<Self> {
        let (name, options) = setting::split(spelling);
        if name == PLAIN {
            let (what, must) = ("method", "one that drafts: plain decoding has no drafter");
            return Err(Error::BadOption { what, got: format!("{name:?}"), must });
        }
        let found = METHODS.iter().find(|method| method.name == name);
        let mut method = *found.ok_or_else(|| {
            let known = METHODS.iter().map(|method| method.name).chain([PLAIN]);
            let known = known.collect::<Vec<_>>().join(", ");
            Error::UnknownMethod { name: name.into(), known }
        })?;
        setting::set(&mut method.settings(), options)?;
        Ok(method)
    }

    /// What a user may set.
    fn settings(&mut self) -> Settings<'_> {
        let has = |source| self.sources.iter().any(|&(name, _)| name == source);
        let (calibrates, reuses) = (has(Calibration::NAME), has(DraftReuse::NAME));
        let mut settings = match &mut self.tree {
            TreeShape::Dynamic(options) => options.settings(),
            TreeShape::Drafted => {
                let gamma = Setting::Bound(&mut self.most_drafted, 1..=usize::MAX);
                self.model.settings().into_iter().chain([("gamma", gamma)]).collect()
            }
            TreeShape::Appended(options) if calibrates => options.settings(),
            _ => Settings::new(),
        };
        if calibrates {
            settings.extend(self.calibration.settings());
        }
        if reuses {
            settings.extend(self.reuse.settings());
        }
        settings
    }

    /// Whether it drafts from nothing but a draft model.
    pub fn needs_draft_model(&self) -> bool {
        self.sources.iter().all(|&(name, _)| needs(name) == Needs::DraftModel)
    }

    /// The names of its sources in `context`, in the order in which a drafter has them, with the options
    /// that differ from ours.
    ///
    /// Those that lack what they need there are left out. Fails when that leaves none, and for a
    /// method as published where one is lacking.
    ///
    /// ```
    /// use coordgen_rs::draft::methods::{Method, MethodContext};
    ///
    /// let auto = Method::named("auto")?;
    /// assert_eq!(auto.sources(MethodContext::default())?, ["automaton", "resumed-copy", "reuse"]);
    /// let replay = MethodContext { recorded: true, ..MethodContext::default() };
    /// assert_eq!(auto.sources(replay)?, ["automaton", "resumed-copy"]);
    /// # Ok::<(), coordgen_rs::Error>(())
    /// ```
    pub fn sources(&self, context: MethodContext) -> Result<Vec<String>> {
        let wanted = self.sources.iter().filter(|(_, when)| match when {
            Condition::Always => true,
            Condition::FreeRows => context.free_rows,
            Condition::Earlier => context.earlier_requests,
            Condition::NotEarlier => !context.earlier_requests,
        });
        let (met, unmet): (Vec<_>, Vec<_>) =
            wanted.map(|&(name, _)| name).partition(|name| needs(name).is_met(context));
        match (met.first(), unmet.first()) {
            (first, Some(name)) if first.is_none() || self.published.is_some() => {
                Err(Error::MethodNeeds { method: self.name, needs: needs(name).name() })
            }
            _ => Ok(met.into_iter().map(|name| self.spelled(name)).collect()),
        }
    }

    /// The name of a source, with what this method asks of it.
    fn spelled(&self, source: &str) -> String {
        let Self { mut calibration, mut reuse, .. } = *self;
        match source {
            Calibration::NAME if calibration != CalibrationOptions::OURS => {
                setting::spelled(source, &calibration.settings())
            }
            DraftReuse::NAME if reuse != ReuseOptions::OURS => {
                setting::spelled(source, &reuse.settings())
            }
            _ => source.into(),
        }
    }
}

/// gamma, tokens that are drafted in every step, where the paper has a fixed number and does not tell it.
const GAMMA: usize = 8;

const AUTOMATON: (&str, Condition) = (SuffixAutomaton::NAME, Condition::Always);
const RESUMED_COPY: (&str, Condition) = (ResumedCopy::NAME, Condition::Always);
const REUSE: (&str, Condition) = (DraftReuse::NAME, Condition::Always);
const CALIBRATION: (&str, Condition) = (Calibration::NAME, Condition::Always);
const LOOKUP_TABLE: (&str, Condition) = (TableSource::NAME, Condition::Always);
const DIAA_TABLE: (&str, Condition) = (TableSource::PUBLISHED, Condition::Always);
const DRAFT_MODEL: (&str, Condition) = (ModelSource::NAME, Condition::Always);
const COMMON_PHRASES: (&str, Condition) = (CommonPhrases::NAME, Condition::Always);
const RESPELLING: (&str, Condition) = (Respelling::NAME, Condition::Always);
const PROMPT_LOOKUP: (&str, Condition) = (PromptLookup::NAME, Condition::Always);
const SAM: (&str, Condition) = (SamDecoding::NAME, Condition::NotEarlier);
const SAM_EARLIER: (&str, Condition) = (SamDecoding::WITH_EARLIER_REQUESTS, Condition::Earlier);
const EARLIER: (&str, Condition) = (EarlierRequests::NAME, Condition::Earlier);

/// All methods: ours, then the papers'.
pub const METHODS: &[Method] = &[
    // Calibration and the table fill rows that cost nothing, where the table adds a tenth to the
    // tokens a step. Where rows cost time these guesses are too unsure to pay: with both, decoding
    // is 3 % slower, and whole answers are 7 %, since the head has to run over the prompt
    // (`coordgen bench --methods blend,auto`).
    Method::new(
        "auto",
        &[
            AUTOMATON,
            RESUMED_COPY,
            REUSE,
            (Calibration::NAME, Condition::FreeRows),
            (TableSource::NAME, Condition::FreeRows),
            DRAFT_MODEL,
            COMMON_PHRASES,
            RESPELLING,
            EARLIER,
        ],
        "the default: automaton, reuse, common phrases, earlier requests, and what else free rows pay for",
    )
    .taking_mtp(),
    Method::new(
        "blend",
        &[
            AUTOMATON,
            CALIBRATION,
            REUSE,
            LOOKUP_TABLE,
            DRAFT_MODEL,
            COMMON_PHRASES,
            RESPELLING,
            EARLIER,
        ],
        "automaton, calibration, reuse, the look-up table and common phrases, whether or not they pay",
    )
    .taking_mtp(),
    Method::new("automaton", &[AUTOMATON], "the suffix automaton over the request alone"),
    Method::coordgen(
        "coordgen",
        &[SAM, SAM_EARLIER, REUSE, CALIBRATION],
        "CoordGen: SAM-Decoding's chain, reused segments, the calibrated tree",
        "CoordGen, 3.1, 3.3 and 3.4, Table 4, SAM+Ours",
    ),
    Method::coordgen(
        "sam",
        &[SAM, SAM_EARLIER],
        "SAM-Decoding: a chain from the longest match",
        "CoordGen, Table 4, SAM",
    ),
    Method::coordgen(
        "sam-calibration",
        &[SAM, SAM_EARLIER, CALIBRATION],
        "CoordGen without draft reuse",
        "CoordGen, 3.3",
    ),
    Method::coordgen(
        "sam-reuse",
        &[SAM, SAM_EARLIER, REUSE],
        "CoordGen without calibration",
        "CoordGen, 3.4",
    ),
    Method::coordgen(
        "prompt-lookup",
        &[PROMPT_LOOKUP],
        "prompt lookup, as in transformers",
        "CoordGen, Table 4, PLD",
    ),
    Method::coordgen(
        "prompt-lookup-coordgen",
        &[PROMPT_LOOKUP, REUSE, CALIBRATION],
        "prompt lookup's chain, reused segments, the calibrated tree",
        "CoordGen, Table 4, PLD+Ours",
    ),
    Method::coordgen(
        "prompt-lookup-calibration",
        &[PROMPT_LOOKUP, CALIBRATION],
        "prompt lookup and the calibrated tree",
        "CoordGen, 3.3",
    ),
    Method::coordgen(
        "prompt-lookup-reuse",
        &[PROMPT_LOOKUP, REUSE],
        "prompt lookup and reused segments",
        "CoordGen, 3.4",
    ),
    // In a replay, which has no logits, the automaton is what is left of it.
    Method::new(
        "coordgen-ours",
        &[AUTOMATON, CALIBRATION, REUSE, EARLIER],
        "CoordGen changed: one tree from all sources, the likeliest first, with frequent tokens",
    ),
    Method {
        tree: TreeShape::Static,
        ..Method::new(
            "token-recycling",
            &[(TableSource::TOKEN_RECYCLING, Condition::Always)],
            "Token Recycling: its static tree over the last rows",
        )
    },
    Method {
        tree: TreeShape::Dynamic(DynamicTreeOptions::PUBLISHED),
        ..Method::new(
            "diaa",
            &[DIAA_TABLE],
            "DIAA: its dynamic tree over look-up tables of verified pairs",
        )
    }
    .published("DIAA, Eq. 1 and 2, Figures 6 and 7"),
    Method {
        tree: TreeShape::Static,
        ..Method::new(
            "diaa-static",
            &[DIAA_TABLE],
            "DIAA without the dynamic tree: Token Recycling's static one over its tables",
        )
    }
    .published("DIAA, Table 3, w/o DT"),
    Method {
        tree: TreeShape::Dynamic(DynamicTreeOptions::FIGURE_7),
        ..Method::new(
            "diaa-ours",
            &[LOOKUP_TABLE],
            "DIAA changed: as many nodes as rows, tables of whole rows that fade",
        )
    },
    // As engines run the heads that come with checkpoints: a short chain in every step.
    Method {
        in_gaps: false,
        most_drafted: Some(3),
        ..Method::edgellm(
            "mtp",
            ModelShape::CHAIN,
            "the target's own head for further tokens alone: a chain of three",
        )
        .taking_mtp()
    },
    // Its ablation (Figure 22): what is left of it, part by part.
    Method {
        in_gaps: false,
        most_drafted: Some(GAMMA),
        ..Method::edgellm(
            "speculative",
            ModelShape::SPECULATIVE,
            "speculative decoding: a chain of as many tokens in every step",
        )
    }
    .published("EdgeLLM, II-B and Figure 22, SP"),
    Method {
        in_gaps: false,
        most_drafted: Some(GAMMA),
        ..Method::edgellm(
            "edgellm-bnv",
            ModelShape { growth: ModelShape::EDGELLM.growth, ..ModelShape::SPECULATIVE },
            "EdgeLLM's branches alone: as many tokens in every step",
        )
    }
    .published("EdgeLLM, III-B, Eq. 1 and 2, Figure 22, BNV"),
    Method {
        in_gaps: false,
        ..Method::edgellm(
            "edgellm-bnv-sf",
            ModelShape::EDGELLM,
            "EdgeLLM without provisional generation while blocks load",
        )
    }
    .published("EdgeLLM, III-C, Eq. 3, Figure 22, BNV + SF"),
    Method {
        most_drafted: Some(GAMMA),
        ..Method::edgellm(
            "edgellm-bnv-pp",
            ModelShape { growth: ModelShape::EDGELLM.growth, ..ModelShape::SPECULATIVE },
            "EdgeLLM without its fallback: as many tokens in every step",
        )
    }
    .published("EdgeLLM, III-D, Figure 22, BNV + PP"),
    Method::edgellm(
        "edgellm",
        ModelShape::EDGELLM,
        "EdgeLLM: a draft model's branches, until none is sure, and on while blocks load",
    )
    .published("EdgeLLM, III-B to III-D, Eq. 1 to 3"),
    Method::new(
        "edgellm-ours",
        &[DRAFT_MODEL],
        "EdgeLLM changed: the surest token first, weighed by measured costs",
    ),
    Method {
        in_gaps: false,
        ..Method::edgellm(
            "chain",
            ModelShape::CHAIN,
            "a chain of a draft model's likeliest tokens",
        )
    },
];
