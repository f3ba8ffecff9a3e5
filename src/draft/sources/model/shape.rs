//! How a draft model drafts: what its tree looks like, and when it is enough. In: how sure the tree is,
//! and what verification found. Out: the choices that [`ModelDraft`](super::ModelDraft) follows; whether
//! to go on drafting, or the target verifies (EdgeLLM, section III-C, Eq. 3). Each part of EdgeLLM can be
//! left out, as in its ablation (Figure 22).

use crate::draft::setting::{Setting, Settings};
use crate::error::{Error, Result};

/// What the model reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The likeliest token after the last one: a chain, as in plain speculative decoding.
    Chain,
    /// The branch that is shortest of what it should be (EdgeLLM, section III-B, Eq. 1 and 2).
    Paced {
        /// Whether a branch's length T, of which the paper does not say where it begins, is that from
        /// the root on, not from where it left its parent.
        whole_lengths: bool,
    },
    /// The surest token of any branch. Ours: no branch grows while a likelier token waits.
    Surest,
}

/// When the target is to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// When as many tokens are drafted as may be: plain speculative decoding.
    Count,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShape {
    /// What is read next.
    pub growth: Growth,
    /// When it is enough.
    pub stop: Stop,
    /// Whether what is drafted is proposed, all of it, and nothing else, as in the paper; or all that
    /// the model holds likely, of which the tree takes what pays.
    pub drafted_only: bool,
    /// alpha at first, in (0, 1].
    pub first_threshold: f32,
    /// What alpha is multiplied by when all of a draft was right, in (0, 1].
    pub when_right: f32,
}

impl ModelShape {
    /// Plain speculative decoding's.
    pub const SPECULATIVE: Self =
        Self { growth: Growth::Chain, stop: Stop::Count, ..Self::EDGELLM };
    /// EdgeLLM's.
    pub const EDGELLM: Self = Self {
        growth: Growth::Paced { whole_lengths: false },
        stop: Stop::TreeConfidence,
        drafted_only: true,
        ..Self::OURS
    };
    /// Ours. Both numbers of alpha are the paper's.
    pub const OURS: Self = Self {
        growth: Growth::Surest,
        stop: Stop::NextToken,
        drafted_only: false,
        first_threshold: 0.01,
        when_right: 0.5,
    };

    /// What a user may set of it, by the paper's names: alpha at first, what of it is kept when all was
    /// right, and whether a branch's length counts from the root.
    pub fn settings(&mut self) -> Settings<'_> {
        let mut settings = Settings::new();
        if self.stop == Stop::TreeConfidence {
            settings.push(("alpha", Setting::Share(&mut self.first_threshold, LEAST_THRESHOLD)));
            settings.push(("keep", Setting::Share(&mut self.when_right, LEAST_THRESHOLD)));
        }
        if let Growth::Paced { whole_lengths } = &mut self.growth {
            settings.push(("whole_lengths", Setting::Switch(whole_lengths)));
        }
        settings
    }

    /// A chain of the likeliest tokens for as long as they are likely, of which the tree takes what pays.
    pub const CHAIN: Self = Self { growth: Growth::Chain, stop: Stop::Fixed, ..Self::OURS };
}

impl Growth {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Paced { .. } => "paced",
            Self::Surest => "surest",
        }
    }
}

impl Stop {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Fixed => "fixed",
            Self::TreeConfidence => "tree-confidence",
            Self::NextToken => "next-token",
        }
    }
}

/// Least alpha: long before a tree falls below it, its rows are full.
const LEAST_THRESHOLD: f32 = 1e-6;

/// The self-adaptive threshold alpha on how sure the tree is: in the paper its tree-cumulative
/// confidence T_c, the largest C of any branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fallback {
    threshold: f32,
    when_right: f32,
    least_that_pays: f32,
}

impl Fallback {
    /// alpha at its first value. A branch less sure than `least_that_pays` is never followed: a
    /// token that costs this share of a target's step pays only if it is right at least as often.
    ///
    /// Fails when that is not 0 to 1.
    pub fn new(least_that_pays: f32) -> Result<Self> {
        if !(0.0..=1.0).contains(&least_that_pays) {
            let (what, must) = ("the least confidence that pays", "0 to 1");
            return Err(Error::BadOption { what, got: least_that_pays.to_string(), must });
        }
        let ModelShape { first_threshold: threshold, when_right, .. } = ModelShape::OURS;
        Ok(Self { threshold, when_right, least_that_pays })
    }

    /// The same with the two numbers of a shape.
    pub fn shaped(self, shape: ModelShape) -> Self {
        Self { threshold: shape.first_threshold, when_right: shape.when_right, ..self }
    }

    /// alpha, in (0, 1].
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Whether no token pays, however sure: it costs what it saves.
    pub fn never_pays(&self) -> bool {
        self.least_that_pays >= 1.0
    }

    /// Whether the target should verify now.
    pub fn is_due(&self, confidence: f32) -> bool {
        confidence < self.threshold
    }

    /// Whether a token of this confidence is worth its step.
    pub fn pays(&self, confidence: f32) -> bool {
        confidence >= self.least_that_pays
    }

    /// Learns from a verification (EdgeLLM, Eq. 3): in the branch that agreed furthest, N_correct,
    /// `num_right`, of N_all, `num_drafted`, tokens were right; T_c had been `tree_confidence`.
    ///
    /// Beyond the paper alpha stays within 1e-6 and 1: from 0 it would never come back.
    pub fn verified(&mut self, num_right: usize, num_drafted: usize, tree_confidence: f32) {
        let factor = if num_right == num_drafted {
            self.when_right
        } else {
            let share_wrong = (num_drafted - num_right) as f32 / num_drafted as f32;
            tree_confidence.max(f32::MIN_POSITIVE).powf(-share_wrong)
        };
        self.threshold = (self.threshold * factor).clamp(LEAST_THRESHOLD, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_threshold_follows_equation_3_within_its_bounds(
            seen in prop::collection::vec((0usize..9, 0usize..9, 0.0f32..=1.0), 0..60),
            (first_threshold, when_right) in (0.001f32..=1.0, 0.1f32..=1.0),
        ) {
            let shape = ModelShape { first_threshold, when_right, ..ModelShape::EDGELLM };
            let mut fallback = Fallback::new(0.0).unwrap().shaped(shape);
            prop_assert_eq!(fallback.threshold(), first_threshold);
            for (num_right, num_wrong, confidence) in seen {
                let before = f64::from(fallback.threshold());
                let num_drafted = num_right + num_wrong;
                fallback.verified(num_right, num_drafted, confidence);
                let expected = if num_wrong == 0 {
                    before * f64::from(when_right)
                } else {
                    before / f64::from(confidence).powf(num_wrong as f64 / num_drafted as f64)
                };
                let after = f64::from(fallback.threshold());
                let bounded = expected.clamp(1e-6, 1.0);
                prop_assert!((after - bounded).abs() <= 1e-4 * bounded, "{after}, not {bounded}");
                prop_assert!(!fallback.is_due(1.0));
                prop_assert!(fallback.is_due(0.0));
            }
        }
    }

    #[test]
    fn what_does_not_pay_is_not_drafted() {
        let fallback = Fallback::new(0.3).unwrap();
        assert!(!fallback.pays(0.29));
        assert!(fallback.pays(0.31));
        assert!(!fallback.never_pays() && Fallback::new(1.0).unwrap().never_pays());
        assert!(Fallback::new(1.5).is_err());
        assert!(Fallback::new(f32::NAN).is_err());
    }
}
