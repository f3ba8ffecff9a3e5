//! A draft: proposed continuations as a tree. In: nodes, parents first. Out: arrays and lookups.
//!
//! Trees have at most as many nodes as a step has rows, so a lookup is a scan of short arrays: for
//! such sizes it beats hashing, and nothing is allocated per node.

use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};

/// Proposed continuations of the last token given out, which is node 0, the root.
///
/// Node `i` is row `i` of the step that verifies the tree. Parents stand before children; the
/// root is its own parent.
///
/// ```
/// use coordgen_rs::ids::{NodeId, TokenId};
/// use coordgen_rs::tree::draft_tree::DraftTree;
///
/// let mut tree = DraftTree::new(TokenId(7));
/// let first = tree.push(NodeId::ROOT, TokenId(8));
/// tree.push(first, TokenId(9));
/// tree.push(NodeId::ROOT, TokenId(5));
/// assert_eq!(tree.child(NodeId::ROOT, TokenId(5)), Some(NodeId(3)));
/// assert_eq!(tree.first_path_len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftTree {
    token_ids: Vec<TokenId>,
    parents: Vec<NodeId>,
    depths: Vec<u32>,
}

impl DraftTree {
    /// A tree of the root alone: nothing is drafted.
    pub fn new(root: TokenId) -> Self {
        Self { token_ids: vec![root], parents: vec![NodeId::ROOT], depths: vec![0] }
    }

    /// The tree that two arrays of equal length describe.
    ///
    /// Fails when they are empty or of unequal length, or a parent does not stand before its
    /// child (`parents[0]` must be 0).
    pub fn from_arrays(token_ids: &[TokenId], parents: &[u32]) -> Result<Self> {
        let Some((&root, drafted)) = token_ids.split_first() else {
            return Err(Error::WrongLength { what: "token_ids of the draft", got: 0, expected: 1 });
        };
        if parents.len() != token_ids.len() {
            let (got, expected) = (parents.len(), token_ids.len());
            return Err(Error::WrongLength { what: "parents of the draft", got, expected });
        }
        let mut tree = Self::new(root);
        if parents[0] != 0 {
            return Err(Error::ParentAfterChild { node: 0, parent: parents[0] as usize });
        }
        for (&token, &parent) in drafted.iter().zip(&parents[1..]) {
            let node = tree.num_nodes();
            if parent as usize >= node {
                return Err(Error::ParentAfterChild { node, parent: parent as usize });
            }
            tree.push(NodeId(parent), token);
        }
        Ok(tree)
    }

    /// The chain of `token_ids`, the first of which is the root. Fails when there is none.
    pub fn chain(token_ids: &[TokenId]) -> Result<Self> {
        let parents: Vec<u32> = (0..token_ids.len() as u32).map(|node| node.max(1) - 1).collect();
        Self::from_arrays(token_ids, &parents)
    }

    /// Forgets all nodes and starts again from `root`; capacity stays allocated.
    pub fn reset(&mut self, root: TokenId) {
        self.token_ids.clear();
        self.parents.clear();
        self.depths.clear();
        self.token_ids.push(root);
        self.parents.push(NodeId::ROOT);
        self.depths.push(0);
    }

    /// Appends a child of `parent`, which must be a node of the tree.
    pub fn push(&mut self, parent: NodeId, token: TokenId) -> NodeId {
        let node = NodeId(self.token_ids.len() as u32);
        self.depths.push(self.depths[parent.index()] + 1);
        self.token_ids.push(token);
        self.parents.push(parent);
        node
    }

    /// The tree without nodes deeper than `max_depth`, and of the others the first `max_nodes`.
    pub fn trimmed(&self, max_nodes: usize, max_depth: usize) -> Self {
        let mut trimmed = Self::new(self.token_ids[0]);
        let mut places = vec![NodeId::ROOT; self.num_nodes()];
        for node in 1..self.num_nodes() {
            if trimmed.num_nodes() < max_nodes && self.depths[node] as usize <= max_depth {
                let parent = places[self.parents[node].index()];
                places[node] = trimmed.push(parent, self.token_ids[node]);
            }
        }
        trimmed
    }

    /// The tree of the nodes that are `kept`, `(num_nodes,)`, and whose ancestors all are. The root
    /// always is.
    pub fn retained(&self, kept: &[bool]) -> Self {
        let mut retained = Self::new(self.token_ids[0]);
        let mut places = vec![Some(NodeId::ROOT); self.num_nodes()];
        for node in 1..self.num_nodes() {
            let parent = places[self.parents[node].index()].filter(|_| kept[node]);
            places[node] = parent.map(|parent| retained.push(parent, self.token_ids[node]));
        }
        retained
    }

    /// Number of nodes, the root included.
    pub fn num_nodes(&self) -> usize {
        self.token_ids.len()
    }

    /// The token of every node, `(num_nodes,)`.
    pub fn token_ids(&self) -> &[TokenId] {
        &self.token_ids
    }

    /// The parent of every node, `(num_nodes,)`.
    pub fn parents(&self) -> &[NodeId] {
        &self.parents
    }

    /// Number of edges from the root to every node, `(num_nodes,)`.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// The token of one node.
    pub fn token(&self, node: NodeId) -> TokenId {
        self.token_ids[node.index()]
    }

    /// The first child of `node` that holds `token`. Cost: a scan of the nodes after `node`.
    pub fn child(&self, node: NodeId, token: TokenId) -> Option<NodeId> {
        (node.index() + 1..self.num_nodes())
            .find(|&child| self.parents[child] == node && self.token_ids[child] == token)
            .map(|child| NodeId(child as u32))
    }

    /// Whether `tokens` start with those on the way from below the root to `node`.
    pub fn path_is(&self, node: NodeId, tokens: &[TokenId]) -> bool {
        let mut node = node;
        while node != NodeId::ROOT {
            let depth = self.depths[node.index()] as usize;
            if tokens.get(depth - 1) != Some(&self.token(node)) {
                return false;
            }
            node = self.parents[node.index()];
        }
        true
    }

    /// Length of the first path: the longest run of nodes 1, 2, .. of which each is the child of
    /// the node before it. Only there is a row's index its depth, so that its keys and values
    /// are written to the very slots that plain decoding would use.
    pub fn first_path_len(&self) -> usize {
        (1..self.num_nodes()).take_while(|&node| self.parents[node].index() == node - 1).count()
    }
}

/// Strategies for property tests of everything that takes a tree.
#[cfg(test)]
pub(crate) mod strategies {
    use super::*;
    use proptest::prelude::*;

    /// Trees of 1 to `max_nodes` nodes over an alphabet of three tokens.
    pub fn tree(max_nodes: usize) -> impl Strategy<Value = DraftTree> {
        prop::collection::vec((0u32..3, any::<prop::sample::Index>()), 1..=max_nodes).prop_map(
            |nodes| {
                let mut tree = DraftTree::new(TokenId(nodes[0].0));
                for (token, parent) in &nodes[1..] {
                    tree.push(NodeId(parent.index(tree.num_nodes()) as u32), TokenId(*token));
                }
                tree
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_arrays_are_refused() {
        let tokens = [TokenId(1), TokenId(2)];
        let refused = |parents: &[u32]| DraftTree::from_arrays(&tokens, parents).unwrap_err();
        assert_eq!(refused(&[1, 0]), Error::ParentAfterChild { node: 0, parent: 1 });
        assert_eq!(refused(&[0, 1]), Error::ParentAfterChild { node: 1, parent: 1 });
        assert!(matches!(refused(&[0]), Error::WrongLength { got: 1, expected: 2, .. }));
        assert!(matches!(DraftTree::from_arrays(&[], &[]), Err(Error::WrongLength { .. })));
    }

    proptest! {
        #[test]
        fn arrays_describe_the_tree(tree in strategies::tree(12)) {
            let parents: Vec<u32> = tree.parents().iter().map(|parent| parent.0).collect();
            prop_assert_eq!(DraftTree::from_arrays(tree.token_ids(), &parents).unwrap(), tree);
        }

        #[test]
        fn trimming_keeps_every_root_path_that_fits(
            tree in strategies::tree(12),
            max_nodes in 1usize..12,
            max_depth in 0usize..6,
        ) {
            let trimmed = tree.trimmed(max_nodes, max_depth);
            let fits = |depth: &&u32| **depth as usize <= max_depth;
            let expected = tree.depths().iter().filter(fits).count().min(max_nodes);
            prop_assert_eq!(trimmed.num_nodes(), expected);
            let kept: Vec<_> = (0..tree.num_nodes())
                .filter(|&node| tree.depths()[node] as usize <= max_depth)
                .take(max_nodes)
                .collect();
            for (place, &node) in kept.iter().enumerate() {
                prop_assert_eq!(trimmed.token_ids()[place], tree.token_ids()[node]);
                let parent = kept[trimmed.parents()[place].index()];
                prop_assert_eq!(parent, tree.parents()[node].index());
            }
        }

        #[test]
        fn a_retained_tree_has_the_root_paths_that_are_kept_whole(
            tree in strategies::tree(12),
            kept in prop::collection::vec(any::<bool>(), 12),
        ) {
            let path = |tree: &DraftTree, node: usize| {
                let mut path = vec![node];
                while path[0] != 0 {
                    path.insert(0, tree.parents()[path[0]].index());
                }
                path
            };
            let tokens = |tree: &DraftTree, path: &[usize]| -> Vec<TokenId> {
                path.iter().map(|&node| tree.token_ids()[node]).collect()
            };
            let whole = (0..tree.num_nodes()).map(|node| path(&tree, node));
            let whole = whole.filter(|path| path[1..].iter().all(|&node| kept[node]));
            let expected: Vec<_> = whole.map(|path| tokens(&tree, &path)).collect();
            let retained = tree.retained(&kept);
            let got = (0..retained.num_nodes()).map(|node| tokens(&retained, &path(&retained, node)));
            prop_assert_eq!(got.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn a_path_is_the_tokens_from_the_root(
            tree in strategies::tree(12),
            tokens in prop::collection::vec((0u32..3).prop_map(TokenId), 0..6),
        ) {
            for node in (0..tree.num_nodes()).map(|node| NodeId(node as u32)) {
                let mut path = Vec::new();
                let mut at = node;
                while at != NodeId::ROOT {
                    path.insert(0, tree.token(at));
                    at = tree.parents()[at.index()];
                }
                prop_assert_eq!(tree.path_is(node, &tokens), tokens.starts_with(&path));
                prop_assert!(tree.path_is(node, &path));
            }
        }

        #[test]
        fn child_is_the_first_matching_node(tree in strategies::tree(12), token in 0u32..3) {
            for node in 0..tree.num_nodes() {
                let naive = (1..tree.num_nodes()).find(|&child| {
                    tree.parents()[child].index() == node && tree.token_ids()[child].0 == token
                });
                let found = tree.child(NodeId(node as u32), TokenId(token));
                prop_assert_eq!(found.map(NodeId::index), naive);
            }
        }
    }
}
