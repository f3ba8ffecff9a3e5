//! How a draft model drafts: what its tree looks like, and when it is enough. In: names. Out: the
//! choices that [`ModelDraft`](super::ModelDraft) follows. Each part of EdgeLLM can be left out, as
//! in its ablation (Figure 22).

use crate::error::{Error, Result};

/// What the model reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The likeliest token after the last one: a chain, as in plain speculative decoding.
    Chain,
    /// The branch that is shortest of what it should be (EdgeLLM, section III-B, Eq. 1 and 2).
    Paced,
    /// The surest token of any branch. Ours: no branch grows while a likelier token waits.
    Surest,
}

/// When the target is to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// When T_c, the confidence of the surest branch, is below the first alpha, which stays.
    Fixed,
    /// When T_c is below alpha, which follows what verification finds (EdgeLLM, section III-C, Eq. 3).
    TreeConfidence,
    /// When the surest token that could be read next is below that alpha. Ours: a branch that has
    /// ended cannot grow, however sure it is, and the first token of a branch that has not begun
    /// yet may be surer than all that go on.
    NextToken,
}

/// What a method does with a draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// What is read next.
    pub growth: Growth,
    /// When it is enough.
    pub stop: Stop,
}

impl ModelShape {
    /// EdgeLLM's.
    pub const EDGELLM: Self = Self { growth: Growth::Paced, stop: Stop::TreeConfidence };
    /// Ours.
    pub const OURS: Self = Self { growth: Growth::Surest, stop: Stop::NextToken };

    /// The shape of these names. Fails when one is unknown.
    pub fn named(growth: &str, stop: &str) -> Result<Self> {
        let growth = of_name("growth", &Growth::ALL, Growth::name, growth)?;
        Ok(Self { growth, stop: of_name("stop", &Stop::ALL, Stop::name, stop)? })
    }
}

impl Default for ModelShape {
    fn default() -> Self {
        Self::OURS
    }
}

impl Growth {
    const ALL: [Self; 3] = [Self::Chain, Self::Paced, Self::Surest];

    /// The name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Paced => "paced",
            Self::Surest => "surest",
        }
    }
}

impl Stop {
    const ALL: [Self; 3] = [Self::Fixed, Self::TreeConfidence, Self::NextToken];

    /// The name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::TreeConfidence => "tree-confidence",
            Self::NextToken => "next-token",
        }
    }
}

fn of_name<T: Copy>(
    what: &'static str,
    all: &[T; 3],
    name: impl Fn(T) -> &'static str,
    asked: &str,
) -> Result<T> {
    let must = match what {
        "growth" => "chain, paced or surest",
        _ => "fixed, tree-confidence or next-token",
    };
    let found = all.iter().find(|&&it| name(it) == asked);
    found.copied().ok_or_else(|| Error::BadOption { what, got: format!("{asked:?}"), must })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_names_that_lead_back_to_it() {
        for growth in Growth::ALL {
            for stop in Stop::ALL {
                let named = ModelShape::named(growth.name(), stop.name());
                assert_eq!(named, Ok(ModelShape { growth, stop }));
            }
        }
        let error = ModelShape::named("bush", "fixed").unwrap_err().to_string();
        assert_eq!(error, "growth is \"bush\", but must be chain, paced or surest");
        assert!(ModelShape::named("paced", "never").is_err());
    }
}
