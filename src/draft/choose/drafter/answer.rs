//! What the target answers to a tree. In: the logits of a step, or a recorded answer in their
//! place. Out: what it says after a node, and what it holds likely there.

use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::logits::Logits;
use crate::sampling::Sampling;
use crate::top_k::TopK;
use crate::tree::draft_tree::DraftTree;

/// A target's answer to a step.
pub(super) enum Answer<'a> {
    /// Computed, a row for each node.
    Computed {
        /// Of the step's rows.
        logits: Logits<'a>,
        /// How tokens are drawn from them; `None` for greedy choice.
        sampling: Option<Sampling>,
        /// Number of tokens that the request gave out before.
        num_given: usize,
    },
    /// A recorded answer, from its next token on.
    Recorded(&'a [TokenId]),
}

impl<'a> Answer<'a> {
    /// The rows of all nodes; `None` of a recorded answer.
    pub fn logits(&self) -> Option<Logits<'a>> {
        match *self {
            Self::Computed { logits, .. } => Some(logits),
            Self::Recorded(_) => None,
        }
    }

    /// What the target says after `node`, which stands on the path that it takes; `None` after a
    /// node whose path leaves the record. Fails when its row is not finite, or the record ends before
    /// the answer does.
    pub fn says(&self, tree: &DraftTree, node: NodeId) -> Result<Option<TokenId>> {
        let depth = tree.depths()[node.index()] as usize;
        match self {
            Self::Computed { logits, sampling: None, .. } => logits.argmax(node).map(Some),
            Self::Computed { logits, sampling: Some(sampling), num_given } => {
                logits.drawn(node, sampling, num_given + depth).map(Some)
            }
            Self::Recorded(answer) if tree.path_is(node, answer) => {
                let (what, got, expected) = ("the recorded answer", answer.len(), depth + 1);
                let says = answer.get(depth).copied();
                says.map(Some).ok_or(Error::WrongLength { what, got, expected })
            }
            Self::Recorded(_) => Ok(None),
        }
    }

    /// What the target would say after a rejected `node`: its likeliest token, whatever it draws
    /// elsewhere. It only feeds drafts, and the likeliest is the best of them; to draw it would cost
    /// several times as much. `None` where its row is unusable or its path leaves the record.
    pub fn would_say(&self, tree: &DraftTree, node: NodeId) -> Option<TokenId> {
        match self {
            Self::Computed { logits, .. } => logits.argmax(node).ok(),
            Self::Recorded(_) => self.says(tree, node).ok().flatten(),
        }
    }

    /// What the target holds likely after `node`: of a recorded answer, what it says.
    pub fn likely(&self, tree: &DraftTree, node: NodeId) -> Option<TopK> {
        match self {
            Self::Computed { logits, .. } => logits.top_k(node),
            Self::Recorded(_) => self.says(tree, node).ok().flatten().map(TopK::certain),
        }
    }
}
