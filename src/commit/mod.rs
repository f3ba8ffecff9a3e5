//! What a verification gives out, and which rows join the cache. In: a tree and what verification
//! found in it. Out: tokens, rows, tokens to feed again, and whether the answer ends.

pub mod cache_rows;

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;
use crate::verify::Verified;

/// How accepted rows join the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitPolicy {
    /// Only rows along the tree's first path are committed: their keys and values already stand
    /// where plain decoding would have put them. What was accepted on a side branch is fed again
    /// as the first rows of the next step. Exact even where a row's bits depend on the slots of
    /// what it sees.
    Canonical,
    /// All accepted rows are committed, and the session moves them together. Exact only where a
    /// row's bits depend on the tokens of its path alone, and not on their slots.
    Compact,
}

impl FromStr for CommitPolicy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "canonical" => Ok(Self::Canonical),
            "compact" => Ok(Self::Compact),
            _ => Err(Error::BadOption {
                what: "commit",
                got: format!("{name:?}"),
                must: "canonical or compact",
            }),
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The target said an end token, which is the last token given out.
    Stop,
    /// The token budget of the request is spent.
    Length,
    /// The grammar of the request is complete: nothing may follow.
    Grammar,
}

impl FinishReason {
    /// The word for it in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Grammar => "grammar",
        }
    }
}

/// Where an answer must end.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Tokens that end the answer.
    pub end_tokens: &'a [TokenId],
    /// Tokens that may still be given out, at least 1.
    pub remaining: usize,
}

/// The decision after one verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Tokens given out, at least one.
    pub token_ids: Vec<TokenId>,
    /// Rows whose keys and values join the cache, as many as `token_ids`: the root, then accepted
    /// nodes in path order. The last token given out is never among them: it is the next root.
    pub rows: Vec<NodeId>,
    /// Number of draft tokens whose rows were accepted for good. Where nothing is cut, one less
    /// than `token_ids`: the last is the target's own.
    pub accept_len: usize,
    /// How many of `token_ids`, from the first, stand in the draft. One more than `accept_len`
    /// where the target's own token was drafted too, on a side branch.
    pub num_drafted: usize,
    /// Tokens accepted beyond those given out, to be verified again in their canonical place.
    pub carried: Vec<TokenId>,
    /// Set when the answer ends with these tokens.
    pub finish_reason: Option<FinishReason>,
}

/// Decides what is given out and committed after `verified` was found in `tree`.
///
/// Under [`CommitPolicy::Canonical`] the tokens of the path's part on the first path are given
/// out, and the target's token after it. Were the path to leave the first path there, then that
/// token is its first side node; the rest of it, and the bonus token, are only carried, because
/// their rows saw keys in other slots than plain decoding's.
///
/// ```
/// use coordgen_rs::commit::{CommitPolicy, Limits, commit};
/// use coordgen_rs::ids::{NodeId, TokenId};
/// use coordgen_rs::tree::draft_tree::DraftTree;
/// use coordgen_rs::verify::Verified;
///
/// // Node 1 is the first path; nodes 2 and 3 are a side branch, which was accepted.
/// let tokens = [10, 11, 12, 13].map(TokenId);
/// let tree = DraftTree::from_arrays(&tokens, &[0, 0, 0, 2])?;
/// let verified = Verified { path: vec![NodeId(2), NodeId(3)], bonus: Some(TokenId(14)) };
/// let limits = Limits { end_tokens: &[], remaining: 100 };
///
/// let canonical = commit(CommitPolicy::Canonical, &tree, &verified, limits);
/// assert_eq!(canonical.token_ids, [12].map(TokenId));
/// assert_eq!(canonical.rows, [0].map(NodeId));
/// assert_eq!(canonical.carried, [13, 14].map(TokenId));
///
/// let compact = commit(CommitPolicy::Compact, &tree, &verified, limits);
/// assert_eq!(compact.token_ids, [12, 13, 14].map(TokenId));
/// assert_eq!(compact.rows, [0, 2, 3].map(NodeId));
/// # Ok::<(), coordgen_rs::error::Error>(())
/// ```
pub fn commit(
    policy: CommitPolicy,
    tree: &DraftTree,
    verified: &Verified,
    limits: Limits<'_>,
) -> Commit {
    let committed = match policy {
        CommitPolicy::Canonical => {
            let first_path_len = tree.first_path_len();
            verified.path.iter().take_while(|node| node.index() <= first_path_len).count()
        }
        CommitPolicy::Compact => verified.path.len(),
    };
    // The first `committed` tokens are draft tokens, the next is the target's own, the rest is carried.
    let mut token_ids: Vec<TokenId> = verified.path.iter().map(|&node| tree.token(node)).collect();
    token_ids.extend(verified.bonus);
    let mut carried = token_ids.split_off(token_ids.len().min(committed + 1));

    let finish_reason = cut(&mut token_ids, limits);
    if finish_reason.is_some() {
        carried.clear();
    }
    let accept_len = committed.min(token_ids.len());
    let num_drafted = verified.path.len().min(token_ids.len());
    let nodes = verified.path.iter().copied();
    let rows = std::iter::once(NodeId::ROOT).chain(nodes).take(token_ids.len()).collect();
    Commit { token_ids, rows, accept_len, num_drafted, carried, finish_reason }
}

/// Cuts `token_ids` after the first end token and at the budget, whichever comes first.
fn cut(token_ids: &mut Vec<TokenId>, limits: Limits<'_>) -> Option<FinishReason> {
    token_ids.truncate(limits.remaining);
    if let Some(end) = token_ids.iter().position(|token| limits.end_tokens.contains(token)) {
        token_ids.truncate(end + 1);
        return Some(FinishReason::Stop);
    }
    (token_ids.len() == limits.remaining).then_some(FinishReason::Length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::draft_tree::strategies;
    use crate::verify::verify;
    use proptest::prelude::*;

    const NO_LIMITS: Limits<'_> = Limits { end_tokens: &[], remaining: usize::MAX };

    proptest! {
        #[test]
        fn a_commit_is_what_the_target_said_row_by_row(
            tree in strategies::tree(12),
            says in prop::collection::vec((0u32..3).prop_map(TokenId), 12),
            compact in any::<bool>(),
        ) {
            let policy = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
            let verified = verify(&tree, |node| Ok(Some(says[node.index()]))).unwrap();
            let decided = commit(policy, &tree, &verified, NO_LIMITS);

            prop_assert_eq!(decided.rows[0], NodeId::ROOT);
            prop_assert_eq!(decided.rows.len(), decided.token_ids.len());
            prop_assert_eq!(decided.accept_len + 1, decided.token_ids.len());
            for (index, row) in decided.rows.iter().enumerate() {
                prop_assert_eq!(decided.token_ids[index], says[row.index()]);
                if index > 0 {
                    prop_assert_eq!(tree.parents()[row.index()], decided.rows[index - 1]);
                    prop_assert_eq!(tree.token(*row), decided.token_ids[index - 1]);
                }
                if !compact {
                    prop_assert_eq!(row.index(), index);
                }
            }
            let foretold = verified.path.iter().map(|&node| tree.token(node));
            prop_assert!(foretold.take(decided.num_drafted).eq(
                decided.token_ids.iter().copied().take(decided.num_drafted)));
            let on_side = verified.path.len() > decided.accept_len;
            prop_assert_eq!(decided.num_drafted, decided.accept_len + usize::from(on_side));
            let known = verified.path.len() + 1;
            prop_assert_eq!(decided.token_ids.len() + decided.carried.len(), known);
            if let Some(last) = decided.carried.last() {
                prop_assert_eq!(Some(*last), verified.bonus);
            }
        }

        #[test]
        fn cutting_keeps_a_prefix_that_ends_at_the_first_limit(
            tree in strategies::tree(12),
            says in prop::collection::vec((0u32..3).prop_map(TokenId), 12),
            end_token in prop::option::of((0u32..4).prop_map(TokenId)),
            remaining in 1usize..6,
        ) {
            let verified = verify(&tree, |node| Ok(Some(says[node.index()]))).unwrap();
            let whole = commit(CommitPolicy::Compact, &tree, &verified, NO_LIMITS);
            let limits = Limits { end_tokens: end_token.as_slice(), remaining };
            let decided = commit(CommitPolicy::Compact, &tree, &verified, limits);

            let is_end = |token: &TokenId| Some(*token) == end_token;
            let stop = whole.token_ids.iter().position(is_end).map_or(usize::MAX, |at| at + 1);
            let kept = whole.token_ids.len().min(remaining).min(stop);
            prop_assert_eq!(&decided.token_ids[..], &whole.token_ids[..kept]);
            prop_assert_eq!(&decided.rows[..], &whole.rows[..kept]);
            prop_assert_eq!(decided.accept_len, whole.accept_len.min(kept));
            prop_assert_eq!(decided.num_drafted, whole.num_drafted.min(kept));
            let expected = match kept {
                kept if kept == stop => Some(FinishReason::Stop),
                kept if kept == remaining => Some(FinishReason::Length),
                _ => None,
            };
            prop_assert_eq!(decided.finish_reason, expected);
        }
    }
}
