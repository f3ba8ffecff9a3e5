//! The ways to draft: every source alone, every method, and every way to choose a step or a token.

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::methods::{METHODS, Method, MethodContext, SOURCES};
use coordgen_rs::sampling::{Penalties, Sampling};

/// What there is of a draft model.
#[derive(Clone, Copy, PartialEq)]
pub enum Model {
    None,
    Made,
    Run,
}

/// Who makes the tree.
#[derive(Clone, Copy, PartialEq)]
pub enum Tree {
    Sources,
    Caller,
    Host,
}

/// One way to draft.
pub struct Case {
    pub name: String,
    pub sources: Vec<String>,
    pub shape: TreeShape,
    pub has_costs: bool,
    pub commit: CommitPolicy,
    pub sampling: Option<Sampling>,
    pub has_grammar: bool,
    pub model: Model,
    pub tree: Tree,
}

impl Case {
    fn new(name: impl Into<String>, sources: impl IntoIterator<Item: Into<String>>) -> Self {
        let sources = sources.into_iter().map(Into::into).collect();
        Self {
            name: name.into(),
            sources,
            shape: TreeShape::BestFirst,
            has_costs: false,
            commit: CommitPolicy::Canonical,
            sampling: None,
            has_grammar: false,
            model: Model::None,
            tree: Tree::Sources,
        }
    }

    fn of_method(method: &'static Method, has_costs: bool) -> Self {
        let context = MethodContext {
            free_rows: !has_costs,
            draft_model: true,
            common_phrases: true,
            earlier_requests: true,
            recorded: false,
        };
        let sources = method.sources(context).expect("everything is there");
        let rows = if has_costs { "with costs" } else { "free rows" };
        let shape = method.tree;
        Self {
            shape,
            has_costs,
            model: Model::Made,
            ..Self::new(format!("{}, {rows}", method.name), sources)
        }
    }

    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut cases: Vec<Self> = SOURCES
            .iter()
            .map(|source| Self { model: Model::Made, ..Self::new(source.name, [source.name]) })
            .collect();
        for method in METHODS {
            cases.extend([false, true].map(|has_costs| Self::of_method(method, has_costs)));
        }
        let drawn = Sampling::new(0.8, 40, 0.95, 7).and_then(|it| it.with_min_p(0.01));
        let drawn = drawn.expect("in range");
        let repetition = Penalties { repetition: 1.1, ..Penalties::default() };
        let counted = Penalties { presence: 0.1, frequency: 0.01, ..Penalties::default() };
        let auto = || Self::new("", ["automaton", "resumed-copy", "reuse"]);
        cases.extend([
            Self {
                name: "a model that is run".into(),
                model: Model::Run,
                sources: ["automaton", "draft-model"].map(String::from).into(),
                ..auto()
            },
            Self {
                name: "a model that is run, with costs".into(),
                model: Model::Run,
                has_costs: true,
                sources: ["automaton", "draft-model"].map(String::from).into(),
                ..auto()
            },
            Self { name: "a chain".into(), shape: TreeShape::Chain, ..auto() },
            Self { name: "compact".into(), commit: CommitPolicy::Compact, ..auto() },
            Self { name: "the caller's own tree".into(), tree: Tree::Caller, ..auto() },
            Self { name: "a host".into(), tree: Tree::Host, ..auto() },
            Self { name: "a grammar".into(), has_grammar: true, ..auto() },
            Self { name: "drawn".into(), sampling: Some(drawn.clone()), ..auto() },
            Self {
                name: "drawn, with a penalty".into(),
                sampling: drawn.clone().with_penalties(repetition).ok(),
                ..auto()
            },
            Self {
                name: "drawn, with counts".into(),
                sampling: drawn.with_penalties(counted).ok(),
                ..auto()
            },
        ]);
        cases
    }
}
