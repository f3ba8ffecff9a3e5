//! The nodes of draft trees: where each stands and which slots its path is in.
//!
//! In: parents, sequences and lengths, as the operator's inputs. Out: of each node its position and
//! slot, and of any node the slots of its path in a tile of positions. What does not fit is refused;
//! no input panics.

use std::ops::Range;

/// Positions of a tile, which begins at a multiple of it.
pub const TILE: usize = 64;

/// What is wrong with the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NodesError {
    #[error("there are {parents} parents, but sequences of {sequences} nodes")]
    Nodes { parents: usize, sequences: usize },
    #[error("there is no row to compute")]
    NoRows,
    #[error("{real} rows from node {first} on do not fit into {rows} rows and {nodes} nodes")]
    Span { first: i32, real: i32, rows: usize, nodes: usize },
    #[error("sequence {sequence} has the length {length}")]
    Length { sequence: usize, length: i32 },
    #[error("node {node} is of sequence {sequence}, but there are {sequences}")]
    Sequence { node: usize, sequence: i32, sequences: usize },
    #[error("node {node} has the parent {parent}, which is no earlier node")]
    Parent { node: usize, parent: i32 },
    #[error("node {node} is of sequence {sequence}, but its parent of {other}")]
    OtherSequence { node: usize, sequence: i32, other: u32 },
    #[error("node {node} needs slot {slot} of {slots}")]
    Slots { node: usize, slot: usize, slots: usize },
}

/// A node's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The sequence that it is of.
    pub sequence: u32,
    /// Tokens before it on its path.
    pub position: u32,
    /// Where its key and value are.
    pub slot: u32,
    /// Up to which position (excluded) each of its path is in the slot of the same number.
    straight: u32,
    /// The node before it; none where it follows the committed tokens.
    pub parent: Option<u32>,
    /// The ancestor at the last position of the tile before.
    tile_before: Option<u32>,
}

/// The nodes up to the last row, and the rows of each sequence.
#[derive(Clone, Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    first: usize,
    /// Rows, sequence after sequence, each in order.
    by_sequence: Vec<u32>,
}

impl Nodes {
    /// Of `real` rows, whose first is node `first`, with caches of `slots`. What follows the last
    /// row's node is not looked at.
    pub fn new(
        parents: &[i32],
        sequences: &[i32],
        lengths: &[i32],
        [first, real]: [i32; 2],
        rows: usize,
        slots: usize,
    ) -> Result<Self, NodesError> {
        if parents.len() != sequences.len() {
            return Err(NodesError::Nodes { parents: parents.len(), sequences: sequences.len() });
        }
        if real < 1 {
            return Err(NodesError::NoRows);
        }
        let wrong = NodesError::Span { first, real, rows, nodes: parents.len() };
        let start = usize::try_from(first).map_err(|_| wrong)?;
        let end = start + real as usize;
        if real as usize > rows || end > parents.len() {
            return Err(wrong);
        }
        let negative = lengths.iter().enumerate().find(|(_, length)| **length < 0);
        if let Some((sequence, &length)) = negative {
            return Err(NodesError::Length { sequence, length });
        }
        let mut next: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
        let mut nodes = Vec::<Node>::with_capacity(end);
        for (node, (&parent, &sequence)) in parents.iter().zip(sequences).take(end).enumerate() {
            let known = usize::try_from(sequence).ok().filter(|known| *known < lengths.len());
            let Some(known) = known else {
                return Err(NodesError::Sequence { node, sequence, sequences: lengths.len() });
            };
            let slot = next[known];
            if slot >= slots.min(u32::MAX as usize) {
                return Err(NodesError::Slots { node, slot, slots });
            }
            next[known] += 1;
            let before = match parent {
                -1 => None,
                _ => match usize::try_from(parent).ok().and_then(|parent| nodes.get(parent)) {
                    None => return Err(NodesError::Parent { node, parent }),
                    Some(other) if other.sequence != known as u32 => {
                        return Err(NodesError::OtherSequence {
                            node,
                            sequence,
                            other: other.sequence,
                        });
                    }
                    before => before.copied(),
                },
            };
            let (position, straight) = match before {
                None => (lengths[known] as u32, lengths[known] as u32),
                Some(before) => (before.position + 1, before.straight),
            };
            let slot = slot as u32;
            let parent = before.map(|_| parent as u32);
            nodes.push(Node {
                sequence: known as u32,
                position,
                slot,
                straight: straight + u32::from(slot == position && straight == position),
                parent,
                tile_before: match before {
                    Some(before) if before.position as usize % TILE < TILE - 1 => {
                        before.tile_before
                    }
                    _ => parent,
                },
            });
        }
        let mut by_sequence: Vec<u32> = (0..real as u32).collect();
        by_sequence.sort_by_key(|row| nodes[start + *row as usize].sequence);
        Ok(Self { nodes, first: start, by_sequence })
    }

    /// Rows that are no padding.
    pub fn num_rows(&self) -> usize {
        self.by_sequence.len()
    }

    /// The node of a row.
    pub fn of_row(&self, row: usize) -> Node {
        self.nodes[self.first + row]
    }

    /// The first row's node, which is also the number of nodes before it.
    pub fn first(&self) -> usize {
        self.first
    }

    /// All up to the last row's.
    pub fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// The rows, those of a sequence together.
    pub fn rows(&self) -> &[u32] {
        &self.by_sequence
    }

    /// The slots of a node's path at the positions `seen` of one tile, of which its own is not before
    /// the last: to their places in the tile.
    pub fn slots(&self, node: Node, seen: Range<usize>, slots: &mut [u32; TILE]) {
        if seen.end <= node.straight as usize {
            for position in seen {
                slots[position % TILE] = position as u32;
            }
            return;
        }
        let mut at = self.ancestor(node, seen.start / TILE);
        for position in seen.rev() {
            slots[position % TILE] = at.map_or(position as u32, |node| node.slot);
            at = at.and_then(|node| node.parent).map(|parent| self.nodes[parent as usize]);
        }
    }

    /// The slot of a node's path at the last position of a tile that the node sees.
    pub fn last_slot(&self, node: Node, position: usize) -> u32 {
        if position < node.straight as usize {
            return position as u32;
        }
        self.ancestor(node, position / TILE).map_or(position as u32, |node| node.slot)
    }

    /// The last of a node's path in a tile, where that is no committed token.
    fn ancestor(&self, node: Node, tile: usize) -> Option<Node> {
        let mut at = Some(node);
        while let Some(later) = at.filter(|node| node.position as usize / TILE > tile) {
            at = later.tile_before.map(|before| self.nodes[before as usize]);
        }
        at
    }
}
