//! The registry of sources and methods: the one place that knows them by name. In: a method and
//! the situation it is used in. Out: the sources to ask, in their order, and the shape of the tree.
//!
//! Options, help texts, benchmarks and tables of the documentation are read from here.

use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use crate::draft::source::DraftSource;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::calibration::Calibration;
use crate::draft::sources::earlier_requests::EarlierRequests;
use crate::draft::sources::history::History;
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::model::shape::{Growth, ModelShape, Stop};
use crate::draft::sources::model::source::{ModelSource, SharedModelDraft};
use crate::draft::sources::prediction::Prediction;
use crate::draft::sources::prompt_lookup::PromptLookup;
use crate::draft::sources::resumed_copy::ResumedCopy;
use crate::draft::sources::reuse::DraftReuse;
use crate::draft::sources::sam_decoding::SamDecoding;
use crate::error::{Error, Result};

/// The name of plain decoding, the baseline that drafts nothing: no method, but named beside them.
pub const PLAIN: &str = "plain";

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
            Self::History => "a history",
            Self::Prediction => "a prediction",
        }
    }

    /// Whether there is any of it. A recorded answer has no logits: of it the target's own tokens
    /// are known, but not what it holds likely elsewhere.
    fn is_met(self, situation: Situation) -> bool {
        match self {
            Self::Nothing => true,
            Self::PrefillLogits | Self::StepLogits => !situation.recorded,
            Self::DraftModel => situation.draft_model,
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
        "what the text goes on with behind a token that broke a copy of it",
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
    source(ModelSource::NAME, Needs::DraftModel, "what a smaller model says"),
    source(
        EarlierRequests::NAME,
        Needs::Nothing,
        "what followed the longest match in earlier requests of the same drafter",
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
    source(Prediction::NAME, Needs::Prediction, "the caller's own prediction of the answer"),
];

/// What sources draw on that live longer than a drafter, or are fed by its caller.
#[derive(Clone, Debug, Default)]
pub struct DrawnOn {
    /// For "lookup-table".
    pub lookup_table: SharedTable,
    /// For "draft-model".
    pub draft_model: Option<SharedModelDraft>,
}

/// A new source by its name, with nothing to draw on but the requests. Fails as
/// [`source_drawing_on`] does.
pub fn source_named(name: &str) -> Result<Box<dyn DraftSource>> {
    source_drawing_on(name, &DrawnOn::default())
}

/// A new source by its name. Fails when there is none of that name, when it is "draft-model" and
/// there is none to draw on, and when it is one that a history or a prediction brings along.
pub fn source_drawing_on(name: &str, on: &DrawnOn) -> Result<Box<dyn DraftSource>> {
    Ok(match name {
        SuffixAutomaton::NAME => Box::new(SuffixAutomaton::new()),
        ResumedCopy::NAME => Box::new(ResumedCopy::new()),
        Calibration::NAME => Box::new(Calibration::default()),
        DraftReuse::NAME => Box::new(DraftReuse::default()),
        TableSource::NAME => Box::new(TableSource::new(on.lookup_table.clone())),
        ModelSource::NAME => match &on.draft_model {
            Some(model) => Box::new(ModelSource::new(model.clone())),
            None => return Err(without_a_model(name)),
        },
        EarlierRequests::NAME => Box::new(EarlierRequests::new()),
        PromptLookup::NAME => Box::new(PromptLookup::new()),
        SamDecoding::NAME => Box::new(SamDecoding::new()),
        SamDecoding::WITH_EARLIER_REQUESTS => Box::new(SamDecoding::with_earlier_requests()),
        TableSource::TOKEN_RECYCLING => Box::new(TableSource::token_recycling()?),
        _ => return Err(Error::UnknownSource { name: name.into(), known: names_to_ask_for() }),
    })
}

fn without_a_model(name: &str) -> Error {
    let got = format!("{name:?} without a draft model");
    Error::BadOption { what: "sources", got, must: "given what they draw on" }
}

/// The names of the sources that can be asked for.
fn names_to_ask_for() -> String {
    let asked_for = SOURCES.iter().filter(|source| source.can_be_asked_for());
    asked_for.map(|source| source.name).collect::<Vec<_>>().join(", ")
}

/// When a method has a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Wherever the source has what it needs.
    Always,
    /// Where rows cost nothing.
    FreeRows,
    /// Where earlier requests may be drawn on.
    Earlier,
    /// Where they may not.
    NotEarlier,
}

/// What a method is to be used on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// Rows cost nothing: the steps have no costs.
    pub free_rows: bool,
    /// There is a draft model.
    pub draft_model: bool,
    /// Earlier requests may be drawn on.
    pub earlier_requests: bool,
    /// A recorded answer plays the target: there are no logits.
    pub recorded: bool,
}

/// A choice of sources, and what is done with what they say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// The name in options and results.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Who decides on the shape of its trees.
    pub tree: TreeShape,
    /// How its draft model drafts.
    pub model: ModelShape,
    /// Whether its draft model goes on while the target waits for its blocks.
    pub in_gaps: bool,
    /// Whether its draft model is run only where that pays by measured costs, which the papers do not
    /// ask.
    pub weighs_model: bool,
    sources: &'static [(&'static str, When)],
}

impl Method {
    const fn new(
        name: &'static str,
        sources: &'static [(&'static str, When)],
        about: &'static str,
    ) -> Self {
        let (tree, model) = (TreeShape::BestFirst, ModelShape::OURS);
        Self { name, about, sources, tree, model, in_gaps: true, weighs_model: true }
    }

    /// A method of EdgeLLM's parts.
    const fn edgellm(name: &'static str, model: ModelShape, about: &'static str) -> Self {
        Self { model, weighs_model: false, ..Self::new(name, &[DRAFT_MODEL], about) }
    }

    /// The method of that name. Fails when there is none, and for plain decoding, which drafts nothing.
    pub fn named(name: &str) -> Result<&'static Self> {
        if name == PLAIN {
            let (what, must) = ("method", "one that drafts: plain decoding has no drafter");
            return Err(Error::BadOption { what, got: format!("{name:?}"), must });
        }
        METHODS.iter().find(|method| method.name == name).ok_or_else(|| {
            let known = METHODS.iter().map(|method| method.name).chain([PLAIN]);
            let known = known.collect::<Vec<_>>().join(", ");
            Error::UnknownMethod { name: name.into(), known }
        })
    }

    /// Whether it drafts from nothing but a draft model.
    pub fn needs_draft_model(&self) -> bool {
        self.sources.iter().all(|&(name, _)| needs(name) == Needs::DraftModel)
    }

    /// The names of its sources in `situation`, in the order in which a drafter has them.
    ///
    /// Those that lack what they need there are left out. Fails when that leaves none.
    ///
    /// ```
    /// use coordgen_rs::draft::methods::{Method, Situation};
    ///
    /// let auto = Method::named("auto")?;
    /// assert_eq!(auto.sources(Situation::default())?, ["automaton", "resumed-copy", "reuse"]);
    /// let replay = Situation { recorded: true, ..Situation::default() };
    /// assert_eq!(auto.sources(replay)?, ["automaton", "resumed-copy"]);
    /// # Ok::<(), coordgen_rs::Error>(())
    /// ```
    pub fn sources(&self, situation: Situation) -> Result<Vec<&'static str>> {
        let wanted = self.sources.iter().filter(|(_, when)| match when {
            When::Always => true,
            When::FreeRows => situation.free_rows,
            When::Earlier => situation.earlier_requests,
            When::NotEarlier => !situation.earlier_requests,
        });
        let (met, unmet): (Vec<_>, Vec<_>) =
            wanted.map(|&(name, _)| name).partition(|name| needs(name).is_met(situation));
        match (met.first(), unmet.first()) {
            (None, Some(name)) => {
                Err(Error::MethodNeeds { method: self.name, needs: needs(name).name() })
            }
            _ => Ok(met),
        }
    }
}

/// What a source of the registry needs.
fn needs(name: &str) -> Needs {
    let source = SOURCES.iter().find(|source| source.name == name);
    source.expect("methods name sources of the registry").needs
}

const AUTOMATON: (&str, When) = (SuffixAutomaton::NAME, When::Always);
const RESUMED_COPY: (&str, When) = (ResumedCopy::NAME, When::Always);
const REUSE: (&str, When) = (DraftReuse::NAME, When::Always);
const CALIBRATION: (&str, When) = (Calibration::NAME, When::Always);
const LOOKUP_TABLE: (&str, When) = (TableSource::NAME, When::Always);
const DRAFT_MODEL: (&str, When) = (ModelSource::NAME, When::Always);
const EARLIER: (&str, When) = (EarlierRequests::NAME, When::Earlier);

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
            (Calibration::NAME, When::FreeRows),
            (TableSource::NAME, When::FreeRows),
            DRAFT_MODEL,
            EARLIER,
        ],
        "the default: automaton, reuse and earlier requests, and what else pays where rows are free",
    ),
    Method::new(
        "blend",
        &[AUTOMATON, CALIBRATION, REUSE, LOOKUP_TABLE, DRAFT_MODEL, EARLIER],
        "automaton, calibration, reuse and the look-up table, whether or not they pay",
    ),
    Method::new("automaton", &[AUTOMATON], "the suffix automaton over the request alone"),
    // CoordGen 3.3 and 3.4, with the automaton as its retrieval. In a replay, which has no logits,
    // the automaton is what is left of it.
    Method::new(
        "coordgen",
        &[AUTOMATON, CALIBRATION, REUSE, EARLIER],
        "CoordGen: automaton, in-context calibration, draft reuse",
    ),
    Method::new(
        "prompt-lookup",
        &[(PromptLookup::NAME, When::Always)],
        "prompt lookup, as in transformers",
    ),
    Method::new(
        "sam",
        &[
            (SamDecoding::NAME, When::NotEarlier),
            (SamDecoding::WITH_EARLIER_REQUESTS, When::Earlier),
        ],
        "SAM-Decoding: a chain from the longest match",
    ),
    Method {
        tree: TreeShape::Static,
        ..Method::new(
            "token-recycling",
            &[(TableSource::TOKEN_RECYCLING, When::Always)],
            "Token Recycling: its static tree over the last rows",
        )
    },
    Method {
        tree: TreeShape::Dynamic(DynamicTreeOptions::FIGURE_7),
        ..Method::new("diaa", &[LOOKUP_TABLE], "DIAA: its dynamic tree over a look-up table")
    },
    Method::edgellm("edgellm", ModelShape::EDGELLM, "EdgeLLM: a draft model's branches"),
    Method::new(
        "edgellm-ours",
        &[DRAFT_MODEL],
        "EdgeLLM changed: the surest token first, weighed by measured costs",
    ),
    // EdgeLLM's own ablation (its Figure 22): one part left out, then all.
    Method::edgellm(
        "edgellm-unpaced",
        ModelShape { growth: Growth::Surest, ..ModelShape::EDGELLM },
        "EdgeLLM without the pacer: the surest token of any branch first",
    ),
    Method::edgellm(
        "edgellm-unbranched",
        ModelShape { growth: Growth::Chain, ..ModelShape::EDGELLM },
        "EdgeLLM without branches",
    ),
    Method::edgellm(
        "edgellm-fixed",
        ModelShape { stop: Stop::Fixed, ..ModelShape::EDGELLM },
        "EdgeLLM with a fallback threshold that stays",
    ),
    Method {
        in_gaps: false,
        ..Method::edgellm(
            "edgellm-waiting",
            ModelShape::EDGELLM,
            "EdgeLLM without provisional generation while blocks load",
        )
    },
    Method {
        in_gaps: false,
        ..Method::edgellm(
            "chain",
            ModelShape { growth: Growth::Chain, stop: Stop::Fixed },
            "a chain of a draft model's likeliest tokens",
        )
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::draft::choose::origins::Origin;
    use crate::draft::sources::model::ModelDraft;
    use proptest::prelude::*;

    fn situations() -> impl Strategy<Value = Situation> {
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(free_rows, draft_model, earlier_requests, recorded)| Situation {
                free_rows,
                draft_model,
                earlier_requests,
                recorded,
            },
        )
    }

    fn drawn_on() -> DrawnOn {
        let draft = ModelDraft::new(vec![], 0.0).unwrap();
        DrawnOn { draft_model: Some(SharedModelDraft::new(draft)), ..DrawnOn::default() }
    }

    proptest! {
        #[test]
        fn a_method_has_sources_that_exist_and_have_what_they_need_or_says_what_it_needs(
            index in 0..METHODS.len(),
            situation in situations(),
        ) {
            let method = &METHODS[index];
            match method.sources(situation) {
                Ok(names) => {
                    prop_assert!(!names.is_empty());
                    prop_assert!(names.iter().all(|name| needs(name).is_met(situation)));
                    let distinct: HashSet<_> = names.iter().collect();
                    prop_assert_eq!(distinct.len(), names.len());
                    for name in names {
                        prop_assert_eq!(source_drawing_on(name, &drawn_on()).unwrap().name(), name);
                    }
                }
                Err(Error::MethodNeeds { method: named, .. }) => {
                    prop_assert_eq!(named, method.name);
                    prop_assert!(situation.recorded || method.needs_draft_model());
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn names_are_unique_and_none_is_that_of_plain_decoding() {
        let sources: HashSet<_> = SOURCES.iter().map(|source| source.name).collect();
        assert_eq!(sources.len(), SOURCES.len());
        let methods: HashSet<_> = METHODS.iter().map(|method| method.name).collect();
        assert_eq!(methods.len(), METHODS.len());
        assert!(!methods.contains(PLAIN));
        assert!(
            [Origin::TARGET, Origin::GIVEN, Origin::GRAMMAR].iter().all(|it| !sources.contains(it))
        );
    }

    #[test]
    fn sources_are_built_by_name_unless_something_brings_them_along() {
        let asked_for = names_to_ask_for();
        for source in SOURCES {
            let built = source_drawing_on(source.name, &drawn_on());
            let known = asked_for.split(", ").any(|name| name == source.name);
            assert_eq!(built.map(|built| built.name()).ok(), known.then_some(source.name));
        }
    }

    #[test]
    fn what_is_unknown_is_told_what_is_known() {
        let error = source_named("telepathy").err().unwrap().to_string();
        assert!(
            error.contains("telepathy") && error.ends_with("sam-earlier-requests, token-recycling")
        );
        let error = Method::named("telepathy").err().unwrap().to_string();
        assert!(error.contains("telepathy") && error.contains("auto, blend, automaton, coordgen"));
        assert!(error.ends_with(", chain, plain"), "{error}");
        let error = Method::named(PLAIN).err().unwrap().to_string();
        assert_eq!(
            error,
            "method is \"plain\", but must be one that drafts: plain decoding has no drafter"
        );
        assert!(source_named("draft-model").is_err());
    }

    #[test]
    fn methods_have_the_sources_of_their_papers() {
        let sources = |name: &str, situation: Situation| {
            Method::named(name).unwrap().sources(situation).map(|names| names.join(" "))
        };
        let plainest = Situation::default();
        let all = Situation {
            free_rows: true,
            draft_model: true,
            earlier_requests: true,
            recorded: false,
        };
        let recorded = Situation { recorded: true, ..plainest };
        for (name, situation, expected) in [
            ("auto", plainest, "automaton resumed-copy reuse"),
            (
                "auto",
                all,
                "automaton resumed-copy reuse calibration lookup-table draft-model earlier-requests",
            ),
            ("auto", recorded, "automaton resumed-copy"),
            ("blend", plainest, "automaton calibration reuse lookup-table"),
            ("blend", all, "automaton calibration reuse lookup-table draft-model earlier-requests"),
            ("automaton", all, "automaton"),
            ("coordgen", plainest, "automaton calibration reuse"),
            ("coordgen", all, "automaton calibration reuse earlier-requests"),
            (
                "coordgen",
                Situation { earlier_requests: true, ..recorded },
                "automaton earlier-requests",
            ),
            ("prompt-lookup", all, "prompt-lookup"),
            ("sam", plainest, "sam"),
            ("sam", all, "sam-earlier-requests"),
            ("token-recycling", plainest, "token-recycling"),
            ("diaa", all, "lookup-table"),
            ("edgellm", all, "draft-model"),
            ("edgellm-ours", all, "draft-model"),
            ("chain", all, "draft-model"),
        ] {
            assert_eq!(sources(name, situation).unwrap(), expected, "{name}");
        }
        let needs_model = Error::MethodNeeds { method: "edgellm", needs: "a draft model" };
        assert_eq!(sources("edgellm", plainest), Err(needs_model));
        let needs_logits = Error::MethodNeeds { method: "diaa", needs: "logits of every row" };
        assert_eq!(sources("diaa", recorded), Err(needs_logits));
    }
}
