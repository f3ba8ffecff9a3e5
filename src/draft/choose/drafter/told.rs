//! Logprobs of the tokens that a step gives out. In: the rows of the nodes that the target visits, and
//! what it says there. Out: how likely each token was, for those who asked.

use super::Drafter;
use super::answer::Answer;
use crate::error::Result;
use crate::ids::{NodeId, TokenId};
use crate::logprobs::{RowLogprobs, TokenLogprob, check_num_alternatives};

/// The logprobs of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// How many alternatives are told of each token; `None` where nothing is asked for.
    num_alternatives: Option<usize>,
    /// Of the tokens given out last.
    tokens: Vec<TokenLogprob>,
}

impl Drafter {
    /// Whether [`Drafter::logprobs`] tells of the tokens from now on: with so many alternatives to
    /// each, or, with `None`, nothing.
    ///
    /// Fails when there are more than [`MAX_ALTERNATIVES`](crate::logprobs::MAX_ALTERNATIVES).
    pub fn tell_logprobs(&mut self, num_alternatives: Option<usize>) -> Result<()> {
        check_num_alternatives(num_alternatives.unwrap_or_default())?;
        self.told = Told { num_alternatives, tokens: Vec::new() };
        Ok(())
    }

    /// How likely the target held the tokens given out last, in their order: once each, whatever was
    /// drafted; `None` where nothing is asked for. A recorded answer has none.
    pub fn logprobs(&self) -> Option<&[TokenLogprob]> {
        self.told.num_alternatives.map(|_| &self.told.tokens[..])
    }
}

/// What is told of a step that is being verified.
#[derive(Debug)]
pub(super) struct Telling {
    num_alternatives: Option<usize>,
    tokens: Vec<TokenLogprob>,
}

impl Telling {
    /// Of a step of a request.
    pub fn new(told: &Told) -> Self {
        Self { num_alternatives: told.num_alternatives, tokens: Vec::new() }
    }

    /// What the row of a visited node says, before it is masked; `None` where nothing is to be told.
    /// Fails when the row is not finite.
    pub fn row(&self, answer: &Answer<'_>, node: NodeId) -> Result<Option<RowLogprobs>> {
        self.num_alternatives.map_or(Ok(None), |num| answer.logprobs(node, num))
    }

    /// Takes down what the target says after the node.
    pub fn says(
        &mut self,
        row: Option<RowLogprobs>,
        answer: &Answer<'_>,
        (node, token): (NodeId, TokenId),
    ) {
        if let (Some(row), Some(score)) = (row, answer.score(node, token)) {
            self.tokens.push(row.of(score));
        }
    }

    /// What is told of the first `num_tokens` tokens, which are given out. The others are carried, and
    /// told of in the step that gives them out.
    pub fn end(mut self, num_tokens: usize, told: &mut Told) {
        self.tokens.truncate(num_tokens);
        told.tokens = self.tokens;
    }
}
