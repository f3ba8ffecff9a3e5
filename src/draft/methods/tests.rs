//! The registry: names lead to what they name, and methods have the sources of their papers.

use std::collections::HashSet;
use std::sync::Arc;

use super::named_sources::names_to_ask_for;
use super::*;
use crate::draft::choose::origins::Origin;
use crate::draft::sources::model::ModelDraft;
use crate::draft::sources::model::shape::Growth;
use crate::draft::sources::model::source::SharedModelDraft;
use proptest::prelude::*;

fn situations() -> impl Strategy<Value = MethodContext> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(free_rows, draft_model, common_phrases, earlier_requests, recorded)| MethodContext {
            free_rows,
            draft_model,
            common_phrases,
            earlier_requests,
            recorded,
        },
    )
}

fn inputs() -> SourceInputs {
    let draft = ModelDraft::new(5, vec![], 0.0).unwrap();
    SourceInputs {
        draft_model: Some(SharedModelDraft::new(draft)),
        phrases: Some(Arc::default()),
        token_variants: Some(Arc::default()),
        ..SourceInputs::default()
    }
}

proptest! {
    #[test]
    fn a_method_has_sources_that_exist_and_have_what_they_need_or_says_what_it_needs(
        index in 0..METHODS.len(),
        context in situations(),
    ) {
        let method = &METHODS[index];
        match method.sources(context) {
            Ok(names) => {
                prop_assert!(!names.is_empty());
                let bare: Vec<_> = names.iter().map(|name| setting::split(name).0).collect();
                prop_assert!(bare.iter().all(|name| needs(name).is_met(context)));
                let distinct: HashSet<_> = bare.iter().collect();
                prop_assert_eq!(distinct.len(), names.len());
                for (name, bare) in names.iter().zip(bare) {
                    prop_assert_eq!(source_from(name, &inputs()).unwrap().name(), bare);
                }
            }
            Err(Error::MethodNeeds { method: named, .. }) => {
                prop_assert_eq!(named, method.name);
                prop_assert!(context.recorded || method.needs_draft_model());
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
        let built = source_from(source.name, &inputs());
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
    assert!(source_named("common-phrases").is_err());
    assert!(source_named("respelling").is_err());
}

#[test]
fn options_follow_a_name_and_change_it_alone() {
    let diaa = Method::named("diaa").unwrap();
    let set = Method::named("diaa:budget=60:depth_decay=0.5:update_interval=4").unwrap();
    let options = DynamicTreeOptions {
        budget: Some(60),
        depth_decay: 0.5,
        update_interval: 4,
        ..DynamicTreeOptions::PUBLISHED
    };
    assert_eq!(set, Method { tree: TreeShape::Dynamic(options), ..diaa });
    let set = "edgellm:alpha=0.1:keep=0.25:whole_lengths=yes:gamma=12";
    let model = ModelShape {
        growth: Growth::Paced { whole_lengths: true },
        first_threshold: 0.1,
        when_right: 0.25,
        ..ModelShape::EDGELLM
    };
    let edgellm = Method::named("edgellm").unwrap();
    let most_drafted = Some(12);
    assert_eq!(Method::named(set).unwrap(), Method { model, most_drafted, ..edgellm });
    let sources = Method::named("coordgen:k=2:threshold=9:depth=5")
        .unwrap()
        .sources(MethodContext::default());
    let [_, reuse, calibration] = &sources.unwrap()[..] else { panic!("three sources") };
    assert!(reuse.starts_with("reuse:threshold=9:") && calibration.starts_with("calibration:k=2:"));
    for (spelling, words) in [
        ("speculative:alpha=0.1", "the option is \"alpha\", but must be one of gamma"),
        ("edgellm-bnv:keep=0.1", "the option is \"keep\", but must be one of whole_lengths, gamma"),
        ("edgellm:alpha=0", "alpha is \"0\", but must be 0.000001 to 1"),
        ("edgellm:keep=0", "keep is \"0\", but must be 0.000001 to 1"),
        ("edgellm:gamma=2:gamma=2", "the option is \"gamma\", but must be given once"),
        ("coordgen:threshold=4097", "threshold is \"4097\", but must be 1 to 4096"),
        ("diaa:budget=0", "budget is \"0\", but must be at least 1"),
        ("diaa:nodes=3", "the option is \"nodes\", but must be one of budget, depth_decay"),
        ("automaton:budget=3", "the option is \"budget\", but must be left out"),
        ("sam:depth=3", "the option is \"depth\", but must be left out"),
    ] {
        let error = Method::named(spelling).err().unwrap().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn methods_have_the_sources_of_their_papers() {
    let sources = |name: &str, context: MethodContext| {
        let names = Method::named(name).unwrap().sources(context);
        names.map(|names| names.iter().map(|it| setting::split(it).0).collect::<Vec<_>>().join(" "))
    };
    let plainest = MethodContext::default();
    let all = MethodContext {
        free_rows: true,
        draft_model: true,
        common_phrases: true,
        earlier_requests: true,
        recorded: false,
    };
    let recorded = MethodContext { recorded: true, ..plainest };
    for (name, context, expected) in [
        ("auto", plainest, "automaton resumed-copy reuse"),
        (
            "auto",
            all,
            "automaton resumed-copy reuse calibration lookup-table draft-model common-phrases \
             respelling earlier-requests",
        ),
        ("auto", recorded, "automaton resumed-copy"),
        ("blend", plainest, "automaton calibration reuse lookup-table"),
        (
            "blend",
            all,
            "automaton calibration reuse lookup-table draft-model common-phrases respelling \
             earlier-requests",
        ),
        ("automaton", all, "automaton"),
        ("coordgen-ours", plainest, "automaton calibration reuse"),
        ("coordgen-ours", all, "automaton calibration reuse earlier-requests"),
        (
            "coordgen-ours",
            MethodContext { earlier_requests: true, ..recorded },
            "automaton earlier-requests",
        ),
        ("coordgen", plainest, "sam reuse calibration"),
        ("coordgen", all, "sam-earlier-requests reuse calibration"),
        ("sam", recorded, "sam"),
        ("sam-reuse", plainest, "sam reuse"),
        ("sam-calibration", plainest, "sam calibration"),
        ("prompt-lookup-coordgen", all, "prompt-lookup reuse calibration"),
        ("prompt-lookup-reuse", all, "prompt-lookup reuse"),
        ("prompt-lookup-calibration", all, "prompt-lookup calibration"),
        ("prompt-lookup", all, "prompt-lookup"),
        ("sam", plainest, "sam"),
        ("sam", all, "sam-earlier-requests"),
        ("token-recycling", plainest, "token-recycling"),
        ("diaa", all, "diaa-table"),
        ("diaa-static", all, "diaa-table"),
        ("diaa-ours", all, "lookup-table"),
        ("speculative", all, "draft-model"),
        ("edgellm-bnv-pp", all, "draft-model"),
        ("edgellm", all, "draft-model"),
        ("edgellm-ours", all, "draft-model"),
        ("chain", all, "draft-model"),
    ] {
        assert_eq!(sources(name, context).unwrap(), expected, "{name}");
    }
    let needs_model = Error::MethodNeeds { method: "edgellm", needs: "a draft model" };
    assert_eq!(sources("edgellm", plainest), Err(needs_model));
    let needs_logits = Error::MethodNeeds { method: "diaa", needs: "logits of every row" };
    assert_eq!(sources("diaa", recorded), Err(needs_logits));
    let needs_logits = Error::MethodNeeds { method: "coordgen", needs: "logits of every row" };
    assert_eq!(sources("coordgen", recorded), Err(needs_logits));
}
