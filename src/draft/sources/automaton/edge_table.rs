//! The edges of a state with many of them. In: a token. Out: the next state, or the few edges that
//! were followed lately or often.

use crate::ids::{StateId, TokenId};

/// At most this many edges of a state are ever enumerated.
///
/// Sixteen were tried: up to 1 % more accepted tokens, for up to twice the time a step.
pub(super) const MAX_LIKELY: usize = 8;

/// One edge: after `token` comes `target`, which is never the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) token: TokenId,
    pub(super) target: StateId,
}

/// Fills unused places; no edge leads to the root.
pub(super) const VACANT: Edge = Edge { token: TokenId(0), target: StateId(0) };

/// The edges of a state with many: open addressing, at most three quarters full.
#[derive(Clone, Debug)]
pub(super) struct EdgeTable {
    slots: Vec<Edge>,
    num_edges: usize,
    /// The edges followed lately or often, once more: their slots are far from each other.
    likely: [Edge; MAX_LIKELY],
}

impl EdgeTable {
    /// A table of `edges`, at least [`MAX_LIKELY`] of them.
    pub(super) fn new(edges: &[Edge]) -> Self {
        let slots = vec![VACANT; 2 * edges.len()];
        let likely = std::array::from_fn(|i| edges[i]);
        let mut table = Self { slots, num_edges: 0, likely };
        for &edge in edges {
            table.place(edge);
        }
        table
    }

    /// The edge of `token`.
    pub(super) fn find(&self, token: TokenId) -> Option<Edge> {
        let edge = self.slots[self.slot(token)];
        (edge != VACANT).then_some(edge)
    }

    /// Lets the edge `from` lead to `to`, if it is there; tells whether it is.
    pub(super) fn redirect(&mut self, from: Edge, to: StateId) -> bool {
        let slot = self.slot(from.token);
        let is_there = self.slots[slot] == from;
        if is_there {
            self.slots[slot].target = to;
            let likely = self.likely.iter_mut().find(|edge| edge.token == from.token);
            likely.into_iter().for_each(|edge| edge.target = to);
        }
        is_there
    }

    /// The edges followed lately or often, [`MAX_LIKELY`] of them.
    pub(super) fn likely(&self) -> &[Edge; MAX_LIKELY] {
        &self.likely
    }

    /// Number of slots, used or not.
    pub(super) fn num_slots(&self) -> usize {
        self.slots.capacity()
    }

    /// Adds an edge whose token the table does not have yet. Amortised O(1).
    pub(super) fn insert(&mut self, edge: Edge) {
        if 4 * (self.num_edges + 1) > 3 * self.slots.len() {
            let doubled = vec![VACANT; 2 * self.slots.len()];
            let edges = std::mem::replace(&mut self.slots, doubled);
            self.num_edges = 0;
            for edge in edges.into_iter().filter(|edge| *edge != VACANT) {
                self.place(edge);
            }
        }
        self.place(edge);
        self.prefer(edge);
    }

    /// [`find`](Self::find), and moves the edge forward among the likely ones.
    pub(super) fn follow(&mut self, token: TokenId) -> Option<Edge> {
        let slot = self.slot(token);
        let edge = Some(self.slots[slot]).filter(|edge| *edge != VACANT)?;
        self.prefer(edge);
        Some(edge)
    }

    fn place(&mut self, edge: Edge) {
        let slot = self.slot(edge.token);
        self.slots[slot] = edge;
        self.num_edges += 1;
    }

    /// Moves the edge forward among the likely ones; a newcomer takes the last place.
    fn prefer(&mut self, edge: Edge) {
        match self.likely.iter().position(|&likely| likely == edge) {
            Some(found) => self.likely.swap(found, found / 2),
            None => self.likely[MAX_LIKELY - 1] = edge,
        }
    }

    /// The slot that holds `token`, or the vacant one where it belongs.
    fn slot(&self, token: TokenId) -> usize {
        let mask = self.slots.len() - 1;
        // Fibonacci hashing: the upper half of the product is well mixed.
        let hash = u64::from(token.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut slot = hash as usize & mask;
        while self.slots[slot] != VACANT && self.slots[slot].token != token {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
