//! A draft model's tree as a source. In: the request, and the tree as far as the model has read. Out:
//! what the model holds likely after each node of it.

use super::ModelDraft;
use crate::draft::source::{Cursor, Learn, Propose, Successor, Verification};
use crate::ids::{NodeId, TokenId};
use crate::locks::Shared;

/// Places from here on are nodes of the tree; those before, tokens of the context.
const NODES: u64 = 1 << 32;

/// A model's draft, shared by a drafter and the code that runs the model in between.
pub type SharedModelDraft = Shared<ModelDraft>;

/// Proposes what is drafted, or all that the model holds likely after what it has read.
///
/// Beyond the paper's tree the latter are also the tokens with which further branches would begin: they
/// are known, and rows that stay free cost nothing.
#[derive(Debug)]
pub struct ModelSource {
    shared: SharedModelDraft,
    /// Whether the prompt of the request is known: what comes first after `clear`.
    has_prompt: bool,
    /// What the last verification left to be fed again.
    carried: Vec<TokenId>,
}

impl ModelSource {
    /// The name in options and statistics.
    pub const NAME: &'static str = "draft-model";

    /// Proposes what `shared` drafts.
    pub fn new(shared: SharedModelDraft) -> Self {
        Self { shared, has_prompt: false, carried: Vec::new() }
    }
}

impl Propose for ModelSource {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn vocab_size(&self) -> Option<usize> {
        Some(self.shared.lock().vocab_size)
    }

    /// The last token of the text; `None` before the prompt.
    fn cursor(&self) -> Option<Cursor> {
        let last = self.shared.lock().text_len.checked_sub(1)?;
        Some(Cursor { place: last as u64, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let draft = self.shared.lock();
        let next = match draft.node_at(cursor) {
            Some(node) => {
                let branches = draft.branches.as_ref()?;
                NODES + u64::from(branches.tree().child(node, token)?.0)
            }
            None => {
                let known = draft.context.get(cursor.place as usize + 1) == Some(&token);
                known.then_some(cursor.place + 1)?
            }
        };
        Some(Cursor { place: next, match_len: cursor.match_len + 1 })
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        let draft = self.shared.lock();
        let Some((node, branches)) = draft.node_at(cursor).zip(draft.branches.as_ref()) else {
            return;
        };
        let successor = |(token, probability, child): (TokenId, f32, Option<NodeId>)| {
            // Tokens after which nothing is known stand at a node that is none.
            let place = NODES + u64::from(child.map_or(u32::MAX, |child| child.0));
            let cursor = Cursor { place, match_len: cursor.match_len + 1 };
            Successor { token, probability, cursor }
        };
        if draft.shape.drafted_only {
            out.extend(branches.drafted_after(node).map(successor));
        } else {
            let child = |token| branches.tree().child(node, token);
            let likely = branches.after(node);
            out.extend(likely.map(|(token, likely)| successor((token, likely, child(token)))));
        }
    }

    fn is_model(&self) -> bool {
        true
    }
}

impl Learn for ModelSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        let mut draft = self.shared.lock();
        if std::mem::replace(&mut self.has_prompt, true) {
            draft.extend(tokens, &self.carried);
        } else {
            draft.begin(tokens);
        }
    }

    fn verified(&mut self, seen: &mut Verification<'_>) {
        self.carried.clone_from(&seen.commit.carried);
    }

    fn clear(&mut self) {
        self.has_prompt = false;
        self.carried.clear();
    }

    fn memory_bytes(&self) -> usize {
        self.shared.lock().memory_bytes()
    }
}

impl ModelDraft {
    /// The node at a place, if the model may know what follows there.
    fn node_at(&self, cursor: Cursor) -> Option<NodeId> {
        let branches = self.branches.as_ref()?;
        let node = match cursor.place.checked_sub(NODES) {
            Some(node) => NodeId(node as u32),
            None if cursor.place as usize + 1 == self.context.len() => branches.root(),
            None => return None,
        };
        (node.index() < branches.tree().num_nodes()).then_some(node)
    }
}
