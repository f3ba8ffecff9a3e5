//! Greedy verification: how far a draft agrees with the target. In: a draft tree and what the
//! target says after a node. Out: the accepted path and the target's own next token.
//!
//! What of it joins the cache is decided in `commit`.

use crate::error::Result;
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The accepted nodes in path order, the root excluded.
    pub path: Vec<NodeId>,
    /// What the target says after the last node of the path (after the root when it is empty); `None`
    /// where that node ends the answer, and nobody asks.
    pub bonus: Option<TokenId>,
}

impl Verified {
    /// What the target says after a visited node; `None` of a rejected one, and behind the answer's end.
    pub fn says(&self, tree: &DraftTree, node: NodeId) -> Option<TokenId> {
        let next = match self.path.iter().position(|&visited| visited == node) {
            Some(place) => self.path.get(place + 1),
            None if node == NodeId::ROOT => self.path.first(),
            None => return None,
        };
        next.map_or(self.bonus, |&child| Some(tree.token(child)))
    }
}

/// Walks from the root, from child to child, while a child holds what the target says.
///
/// `target` is asked once for each node visited, the root included, and for no other: reading a
/// row of logits is what costs here. `None` from it is the end: the answer ends with that node, and
/// what stands in its row is nobody's business. Its errors are passed on.
///
/// ```
/// use coordgen_rs::ids::{NodeId, TokenId};
/// use coordgen_rs::tree::draft_tree::DraftTree;
/// use coordgen_rs::verify::verify;
///
/// let tree = DraftTree::from_arrays(&[TokenId(3), TokenId(4), TokenId(9)], &[0, 0, 1])?;
/// let says = [TokenId(4), TokenId(5), TokenId(6)];
/// let verified = verify(&tree, |node| Ok(Some(says[node.index()])))?;
/// assert_eq!(verified.path, [NodeId(1)]);
/// assert_eq!(verified.bonus, Some(TokenId(5)));
/// # Ok::<(), coordgen_rs::error::Error>(())
/// ```
pub fn verify(
    tree: &DraftTree,
    mut target: impl FnMut(NodeId) -> Result<Option<TokenId>>,
) -> Result<Verified> {
    let mut path = Vec::new();
    let mut node = NodeId::ROOT;
    loop {
        let bonus = target(node)?;
        let Some(child) = bonus.and_then(|said| tree.child(node, said)) else {
            return Ok(Verified { path, bonus });
        };
        path.push(child);
        node = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::draft_tree::strategies;
    use proptest::prelude::*;

    fn naive(tree: &DraftTree, says: &[TokenId], end: Option<TokenId>) -> Verified {
        let agrees = |node: &usize| tree.token_ids()[*node] == says[tree.parents()[*node].index()];
        let mut path = vec![0];
        let is_end = |node: usize| node > 0 && Some(tree.token_ids()[node]) == end;
        for node in (1..tree.num_nodes()).filter(agrees) {
            let last = path[path.len() - 1];
            if tree.parents()[node].index() == last && !is_end(last) {
                path.push(node);
            }
        }
        let last = path[path.len() - 1];
        let bonus = (!is_end(last)).then_some(says[last]);
        Verified { path: path[1..].iter().map(|&node| NodeId(node as u32)).collect(), bonus }
    }

    proptest! {
        #[test]
        fn verify_equals_its_naive_twin(
            tree in strategies::tree(12),
            says in prop::collection::vec((0u32..3).prop_map(TokenId), 12),
            end in prop::option::of((0u32..3).prop_map(TokenId)),
        ) {
            let mut asked = Vec::new();
            let is_end = |node: NodeId| node != NodeId::ROOT && Some(tree.token(node)) == end;
            let verified = verify(&tree, |node| {
                asked.push(node);
                Ok((!is_end(node)).then_some(says[node.index()]))
            })
            .unwrap();
            prop_assert_eq!(&verified, &naive(&tree, &says, end));
            for (node, &said) in says[..tree.num_nodes()].iter().enumerate() {
                let node_id = NodeId(node as u32);
                let expected = (asked.contains(&node_id) && !is_end(node_id)).then_some(said);
                prop_assert_eq!(verified.says(&tree, NodeId(node as u32)), expected);
            }
            let visited: Vec<_> = [NodeId::ROOT].into_iter().chain(verified.path).collect();
            prop_assert_eq!(asked, visited);
        }
    }
}
