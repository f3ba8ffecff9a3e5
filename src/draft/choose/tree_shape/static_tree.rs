//! Token Recycling's static tree (Luo et al. 2024, arXiv 2408.08696, Figure 3): the same shape in
//! every step. Out: the shape.

use super::ranked_tree::{RankedNode, RankedTree};

/// Children of the nodes of the published tree of 80 nodes, breadth first from the root on; the
/// nodes after the last entry have none. A node with n children has the n likeliest.
const NUM_CHILDREN: [usize; 74] = [
    8, 8, 4, 3, 2, 1, 1, 1, 1, 8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 5, 2,
    1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 3, 1, 1, 0, 0, 1, 0, 0, 0,
    0, 1, 0, 1, 0, 0, 2, 0, 0, 1,
];

/// The published tree of 80 nodes below the root.
///
/// The paper has no tree for fewer rows, so the nodes stand in an order that can be cut anywhere:
/// by the sum of the ranks on the path, each counted from 1, and of equals breadth first.
pub fn static_tree() -> RankedTree {
    // (the node breadth first, its parent, rank, and the sum on its path)
    let mut nodes: Vec<(Option<usize>, usize, usize)> = Vec::new();
    for (number, &num_children) in NUM_CHILDREN.iter().enumerate() {
        let parent = number.checked_sub(1);
        let sum = parent.map_or(0, |parent| nodes[parent].2);
        nodes.extend((0..num_children).map(|rank| (parent, rank, sum + rank + 1)));
    }
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&node| nodes[node].2);
    let mut places = vec![0; nodes.len()];
    for (place, &node) in order.iter().enumerate() {
        places[node] = place;
    }
    let ranked = |&node: &usize| {
        let (parent, rank, _) = nodes[node];
        RankedNode { parent: parent.map(|parent| places[parent]), rank }
    };
    RankedTree { nodes: order.iter().map(ranked).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_published_levels() {
        let tree = static_tree();
        let mut depths: Vec<usize> = Vec::new();
        for (index, node) in tree.nodes.iter().enumerate() {
            assert!(
                node.parent.is_none_or(|parent| parent < index),
                "parents stand before children"
            );
            depths.push(node.parent.map_or(1, |parent| depths[parent] + 1));
        }
        let level = |depth: usize| depths.iter().filter(|&&at| at == depth).count();
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(level), [8, 21, 25, 15, 8, 3, 0]);
    }
}
