//! What a grammar refuses of a grown tree. In: which nodes may stay. Out: the same tree without the
//! others, before a width is chosen for it. Asks no grammar itself.

use super::{Node, TreeGrower};
use crate::ids::TokenId;

impl TreeGrower {
    /// Token and parent of each node, `(nodes,)` each, parents first.
    pub fn arrays(&self) -> (Vec<TokenId>, Vec<u32>) {
        self.nodes.iter().map(|node| (node.token, node.parent as u32)).unzip()
    }

    /// Forgets the nodes that are not `kept`, `(nodes,)`, and all below them; the root stays. Called
    /// once the tree is grown: the places of sources no longer belong to its nodes.
    pub fn retain(&mut self, kept: &[bool]) {
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        let mut num_kept = 0;
        for index in 0..self.nodes.len() {
            let node = self.nodes[index];
            let parent = if index == 0 { Some(0) } else { places[node.parent] };
            let parent = parent.filter(|_| index == 0 || kept[index]);
            places.push(parent.map(|_| num_kept));
            if let Some(parent) = parent {
                self.nodes[num_kept] = Node { parent, ..node };
                num_kept += 1;
            }
        }
        self.nodes.truncate(num_kept);
    }
}
