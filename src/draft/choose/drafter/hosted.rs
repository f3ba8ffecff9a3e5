//! What a drafter does for a target that another engine runs. In: tokens that the engine has
//! committed, in place of its logits. Out: trees for it to verify, by the same rules as `propose`.

use super::Drafter;
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

impl Drafter {
    /// Drafts a tree of at most `most_nodes` nodes, the root included, whatever rows a step has;
    /// without `branches` it is a chain.
    ///
    /// Fails as [`Drafter::propose`] does.
    pub(crate) fn propose_hosted(
        &mut self,
        past_len: usize,
        most_nodes: usize,
        branches: bool,
    ) -> Result<&DraftTree> {
        self.propose_within(past_len, most_nodes, branches)?;
        Ok(self.draft.tree())
    }

    /// Learns what the target has said since the last call: what the proposed tree, if there is one,
    /// got right of it, and all of the tokens.
    ///
    /// Where they end within the tree, its deeper nodes count as not verified. Fails without a
    /// request, or when a token is unknown; then nothing is learned.
    pub(crate) fn told(&mut self, tokens: &[TokenId]) -> Result<()> {
        self.check_tokens(tokens)?;
        let request = self.request.as_mut().ok_or(Error::NoRequest)?;
        let Some(last_depth) = tokens.len().checked_sub(1) else { return Ok(()) };
        let mut num_verified = 0;
        if let Some(proposed) = &mut request.proposed {
            if is_path(self.draft.tree(), tokens) {
                self.draft.trim(last_depth);
                proposed.is_given = true;
            }
            num_verified = self.accept_recorded(tokens)?.token_ids.len();
        }
        let rest = &tokens[num_verified..];
        if let (Some(request), false) = (&mut self.request, rest.is_empty()) {
            self.sources.extend(rest);
            self.seen.extend(rest);
            request.take_in(rest);
        }
        Ok(())
    }
}

/// Whether the tokens are those of a path down from the root.
fn is_path(tree: &DraftTree, tokens: &[TokenId]) -> bool {
    let down = |node: NodeId, token: &TokenId| tree.child(node, *token);
    tokens.iter().try_fold(NodeId::ROOT, down).is_some()
}
