//! What a grammar refuses of a grown tree. In: which nodes may stay. Out: the same tree without the
//! others, before a width is chosen for it. Asks no grammar itself.

use super::{Node, TreeGrower};
use crate::ids::TokenId;

impl TreeGrower {
    /// Token and parent of each node, `(nodes,)` each, parents first.
    pub fn arrays(&self) -> (Vec<TokenId>, Vec<u32>) {
        self.nodes.iter().map(|node| (node.token, node.parent)).unzip()
    }

    /// Forgets the nodes that are not `kept`, `(nodes,)`, and all below them; the root stays. Where
    /// the first path ends by it, it goes on with the worthiest of what is left. Called once the tree
    /// is grown: the places of sources no longer belong to its nodes.
    ///
    /// Cost: none but a look at each where all are kept.
    pub fn retain(&mut self, kept: &[bool]) {
        if kept.iter().all(|&kept| kept) {
            return;
        }
        let order: Vec<usize> =
            (0..self.nodes.len()).filter(|&node| node == 0 || kept[node]).collect();
        self.reorder(&order);
        self.lengthen_first_path();
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        // A stable order: parents, which are worth no less, stay before their children.
        order.sort_by(|&one, &other| self.nodes[other].worth.total_cmp(&self.nodes[one].worth));
        self.reorder(&order);
    }

    /// Makes the nodes of `order` the tree, in that order; a node whose parent is not before it goes.
    fn reorder(&mut self, order: &[usize]) {
        let mut places = vec![None; self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::with_capacity(order.len());
        for &index in order {
            let node = self.nodes[index];
            let parent = if index == 0 { Some(0) } else { places[node.parent as usize] };
            if let Some(parent) = parent {
                places[index] = Some(nodes.len() as u32);
                nodes.push(Node { parent, ..node });
            }
        }
        self.nodes = nodes;
    }

    /// The worthiest child of the first path's end is worth what its probability says, and so on.
    fn lengthen_first_path(&mut self) {
        let mut end = self.nodes.iter().rposition(|node| node.on_first_path).unwrap_or(0);
        let child_of = |nodes: &[Node], end: usize| {
            (end + 1..nodes.len()).find(|&node| nodes[node].parent as usize == end)
        };
        while let Some(child) = child_of(&self.nodes, end) {
            let node = &mut self.nodes[child];
            (node.on_first_path, node.worth) = (true, node.path_probability);
            end = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::draft::choose::tests::Scripted;
    use proptest::prelude::*;

    /// The tokens from below the root to each node.
    fn paths(grower: &TreeGrower) -> Vec<Vec<TokenId>> {
        let (tokens, parents) = grower.arrays();
        let mut paths = vec![vec![]];
        for node in 1..tokens.len() {
            let parent: &Vec<TokenId> = &paths[parents[node] as usize];
            paths.push([&parent[..], &[tokens[node]]].concat());
        }
        paths
    }

    proptest! {
        #[test]
        fn what_is_left_is_whole_in_order_and_has_a_first_path(
            rules in prop::collection::vec(0u32..20, 1..3),
            carried in prop::collection::vec((0u32..3).prop_map(TokenId), 0..3),
            num_nodes in 1usize..20,
            side_worth in prop::sample::select(vec![0.25_f32, 1.0]),
            kept in prop::collection::vec(prop::bool::weighted(0.7), 20),
        ) {
            let sources = Scripted::sources(&rules);
            let limits = GrowthLimits { num_nodes, depth: 9, side_worth, branches: true };
            let mut grower = TreeGrower::new(usize::MAX, vec![]);
            let acceptance = Acceptance::new(sources.len());
            grower.grow(&sources, &acceptance, TokenId(0), &carried, limits);
            let before = paths(&grower);
            let refused: Vec<_> = (1..before.len()).filter(|&node| !kept[node]).collect();
            let is_left = |path: &Vec<TokenId>| {
                !refused.iter().any(|&node| path.starts_with(&before[node]))
            };
            let mut expected: Vec<_> = before.iter().filter(|path| is_left(path)).cloned().collect();
            grower.retain(&kept[..before.len()]);

            let mut left = paths(&grower);
            prop_assert!(grower.nodes.iter().enumerate().skip(1).all(|(at, node)| (node.parent as usize) < at));
            let worths: Vec<f32> = grower.worths().collect();
            prop_assert!(worths.is_sorted_by(|one, other| one >= other));
            let mut end = 0;
            while let Some(next) = (1..left.len()).find(|&node| grower.nodes[node].parent as usize == end) {
                prop_assert!(grower.nodes[next].on_first_path, "a path without its end");
                end = next;
            }
            let on_path = grower.nodes.iter().filter(|node| node.on_first_path).count();
            prop_assert_eq!(on_path, grower.nodes[end].depth as usize + 1);
            left.sort();
            expected.sort();
            prop_assert_eq!(left, expected);
        }
    }
}
