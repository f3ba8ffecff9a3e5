//! The outgoing edges of automaton states. In: a state's list and a token. Out: the next state.
//!
//! Most states (85 to 90 % on text) have one edge, about 1 % have eight or more, and the root has
//! thousands. So a list is eight bytes inside its state that hold the only edge themselves; up to
//! [`MAX_BLOCK`] edges stand side by side in a shared pool; beyond that a state gets a hash table.

use super::edge_table::{Edge, EdgeTable, MAX_LIKELY, VACANT};
use super::large_pages::use_large_pages;
use crate::ids::{StateId, TokenId};

/// Number of states that the lists can tell apart; the upper half of `u32` marks longer lists.
pub(super) const MAX_STATES: usize = MANY as usize;

/// Room for the likely edges of a list.
pub(super) const NO_EDGES: [Edge; MAX_LIKELY] = [VACANT; MAX_LIKELY];

/// Longest list that is scanned; two cache lines.
const MAX_BLOCK: usize = 16;
const MANY: u32 = 1 << 31;

/// The edges of one state, in eight bytes; longer lists live in the [`EdgeStore`].
///
/// `tail` is 0: no edge. `tail < MANY`: one edge, `(head, tail)` are its token and target.
/// Else `tail - MANY` edges, in the block that starts at `head` or in hash table `head`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgeList {
    head: u32,
    tail: u32,
}

enum Kind {
    Empty,
    One(Edge),
    Block { start: usize, len: usize },
    Table(usize),
}

impl EdgeList {
    /// A list without edges.
    pub(super) const EMPTY: Self = Self { head: 0, tail: 0 };

    /// Number of edges.
    pub(super) fn degree(self) -> usize {
        match self.tail {
            0 => 0,
            tail if tail < MANY => 1,
            tail => (tail - MANY) as usize,
        }
    }

    fn one(edge: Edge) -> Self {
        Self { head: edge.token.0, tail: edge.target.0 }
    }

    fn many(place: usize, degree: usize) -> Self {
        let head = u32::try_from(place).expect("edge pool exceeds 2^32 places");
        Self { head, tail: MANY + degree as u32 }
    }

    fn kind(self) -> Kind {
        let place = self.head as usize;
        match self.tail {
            0 => Kind::Empty,
            tail if tail < MANY => {
                Kind::One(Edge { token: TokenId(self.head), target: StateId(tail) })
            }
            tail if (tail - MANY) as usize <= MAX_BLOCK => {
                Kind::Block { start: place, len: (tail - MANY) as usize }
            }
            _ => Kind::Table(place),
        }
    }
}

/// What the lists of all states share.
///
/// Within a list the edges that were followed lately or often stand in front: following edge `i`
/// swaps it with edge `i / 2`. A true order by count would need a look-up on every suffix level of
/// every token; this one costs a swap on the level where the look-up ends anyway.
#[derive(Clone, Debug, Default)]
pub(super) struct EdgeStore {
    /// Blocks of 2, 4, 8 or 16 places, filled from the front.
    pool: Vec<Edge>,
    /// Starts of blocks that were outgrown, by size class.
    free: [Vec<u32>; MAX_BLOCK.ilog2() as usize],
    tables: Vec<EdgeTable>,
    num_edges: usize,
}

impl EdgeStore {
    /// Number of edges in all lists.
    pub(super) fn num_edges(&self) -> usize {
        self.num_edges
    }

    /// Where `token` leads. O(1): at most [`MAX_BLOCK`] neighbours, or one hash look-up.
    #[inline]
    pub(super) fn target(&self, list: EdgeList, token: TokenId) -> Option<StateId> {
        match list.kind() {
            Kind::Empty => None,
            Kind::One(edge) => (edge.token == token).then_some(edge.target),
            Kind::Block { start, len } => {
                let block = &self.pool[start..start + len];
                block.iter().find(|edge| edge.token == token).map(|edge| edge.target)
            }
            Kind::Table(index) => self.tables[index].find(token).map(|edge| edge.target),
        }
    }

    /// [`target`](Self::target), and moves the edge towards the front of its list.
    #[inline]
    pub(super) fn follow(&mut self, list: EdgeList, token: TokenId) -> Option<StateId> {
        match list.kind() {
            Kind::Block { start, len } => {
                let block = &mut self.pool[start..start + len];
                let found = block.iter().position(|edge| edge.token == token)?;
                block.swap(found, found / 2);
                Some(block[found / 2].target)
            }
            Kind::Table(index) => self.tables[index].follow(token).map(|edge| edge.target),
            _ => self.target(list, token),
        }
    }

    /// Lets `token` lead to `to` if it led to `from`; tells whether it did.
    pub(super) fn redirect(
        &mut self,
        list: &mut EdgeList,
        token: TokenId,
        from: StateId,
        to: StateId,
    ) -> bool {
        let wanted = Edge { token, target: from };
        match list.kind() {
            Kind::One(edge) if edge == wanted => {
                *list = EdgeList::one(Edge { token, target: to });
                true
            }
            Kind::Empty | Kind::One(_) => false,
            Kind::Block { start, len } => {
                let mut block = self.pool[start..start + len].iter_mut();
                block.find(|edge| **edge == wanted).map(|edge| edge.target = to).is_some()
            }
            Kind::Table(index) => self.tables[index].redirect(wanted, to),
        }
    }

    /// Adds an edge whose token the list does not have yet. Amortised O(1).
    pub(super) fn insert(&mut self, list: &mut EdgeList, edge: Edge) {
        self.num_edges += 1;
        *list = match list.kind() {
            Kind::Empty => EdgeList::one(edge),
            Kind::One(first) => {
                let start = self.allocate(2);
                self.pool[start..start + 2].copy_from_slice(&[first, edge]);
                EdgeList::many(start, 2)
            }
            Kind::Block { start, len } if len < MAX_BLOCK => {
                let start = if len.is_power_of_two() { self.move_block(start, len) } else { start };
                self.pool[start + len] = edge;
                EdgeList::many(start, len + 1)
            }
            Kind::Block { start, len } => {
                let mut table = EdgeTable::new(&self.pool[start..start + len]);
                table.insert(edge);
                self.release(start, len);
                grow(&mut self.tables, 1);
                self.tables.push(table);
                EdgeList::many(self.tables.len() - 1, len + 1)
            }
            Kind::Table(index) => {
                self.tables[index].insert(edge);
                EdgeList::many(index, list.degree() + 1)
            }
        };
    }

    /// A second list with the same edges. Cost: their number.
    pub(super) fn duplicate(&mut self, list: EdgeList) -> EdgeList {
        self.num_edges += list.degree();
        match list.kind() {
            Kind::Empty | Kind::One(_) => list,
            Kind::Block { start, len } => {
                let copy = self.allocate(len.next_power_of_two());
                self.pool.copy_within(start..start + len, copy);
                EdgeList::many(copy, len)
            }
            Kind::Table(index) => {
                let copy = self.tables[index].clone();
                grow(&mut self.tables, 1);
                self.tables.push(copy);
                EdgeList::many(self.tables.len() - 1, list.degree())
            }
        }
    }

    /// At most `limit` edges, [`MAX_LIKELY`] or fewer, those followed lately or often first; in
    /// `buffer` where they do not stand side by side.
    #[inline]
    pub(super) fn likely<'a>(
        &'a self,
        list: EdgeList,
        limit: usize,
        buffer: &'a mut [Edge; MAX_LIKELY],
    ) -> &'a [Edge] {
        let limit = limit.min(MAX_LIKELY);
        match list.kind() {
            Kind::Empty => &[],
            Kind::One(edge) => {
                buffer[0] = edge;
                &buffer[..1]
            }
            Kind::Block { start, len } => &self.pool[start..start + len.min(limit)],
            Kind::Table(index) => &self.tables[index].likely()[..limit],
        }
    }

    /// Moves the pool into large pages if it is long.
    pub(super) fn use_large_pages(&self) {
        use_large_pages(&self.pool);
    }

    /// Forgets all lists; the pool stays allocated.
    pub(super) fn clear(&mut self) {
        self.pool.clear();
        self.free.iter_mut().for_each(Vec::clear);
        self.tables.clear();
        self.num_edges = 0;
    }

    /// Bytes held on the heap. Cost: the number of hash tables.
    pub(super) fn memory_bytes(&self) -> usize {
        let tables: usize = self.tables.iter().map(EdgeTable::num_slots).sum();
        let free: usize = self.free.iter().map(Vec::capacity).sum();
        (self.pool.capacity() + tables) * size_of::<Edge>()
            + free * size_of::<u32>()
            + self.tables.capacity() * size_of::<EdgeTable>()
    }

    /// The start of an unused block of `size` places, a power of two.
    fn allocate(&mut self, size: usize) -> usize {
        if let Some(start) = self.free[size_class(size)].pop() {
            return start as usize;
        }
        let start = self.pool.len();
        grow(&mut self.pool, size);
        self.pool.resize(start + size, VACANT);
        start
    }

    fn release(&mut self, start: usize, size: usize) {
        self.free[size_class(size)].push(start as u32);
    }

    /// Moves a full block to one of twice its size.
    fn move_block(&mut self, start: usize, len: usize) -> usize {
        let moved = self.allocate(2 * len);
        self.pool.copy_within(start..start + len, moved);
        self.release(start, len);
        moved
    }
}

fn size_class(size: usize) -> usize {
    size.ilog2() as usize - 1
}

/// Makes room for `additional` elements in steps of a sixteenth.
///
/// Doubling would leave up to half of the memory unused, and large allocations grow by remapping.
pub(super) fn grow<T>(vec: &mut Vec<T>, additional: usize) {
    if vec.capacity() - vec.len() < additional {
        vec.reserve_exact(additional.max(vec.len() / 16).max(16));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_behave_like_maps(
            steps in prop::collection::vec((0..6usize, 0..4u8, 0..60u32, 1..9u32), 0..400),
        ) {
            let mut store = EdgeStore::default();
            let mut lists = vec![EdgeList::EMPTY; 3];
            let mut twins = vec![HashMap::<u32, u32>::new(); 3];
            for (which, action, token, target) in steps {
                let which = which % lists.len();
                let edge = Edge { token: TokenId(token), target: StateId(target) };
                let known = twins[which].get(&token).copied();
                match (action, known) {
                    (3, _) if lists.len() < 12 => {
                        lists.push(store.duplicate(lists[which]));
                        twins.push(twins[which].clone());
                    }
                    (1, _) => {
                        let done = store.redirect(
                            &mut lists[which], edge.token, edge.target, StateId(target + 1));
                        prop_assert_eq!(done, known == Some(target));
                        if done {
                            twins[which].insert(token, target + 1);
                        }
                    }
                    (_, Some(known)) => {
                        let followed = store.follow(lists[which], edge.token);
                        prop_assert_eq!(followed, Some(StateId(known)));
                    }
                    (_, None) => {
                        prop_assert_eq!(store.follow(lists[which], edge.token), None);
                        store.insert(&mut lists[which], edge);
                        twins[which].insert(token, target);
                    }
                }
            }
            for (list, twin) in lists.iter().zip(&twins) {
                prop_assert_eq!(list.degree(), twin.len());
                for token in 0..60 {
                    let target = store.target(*list, TokenId(token)).map(|target| target.0);
                    prop_assert_eq!(target, twin.get(&token).copied());
                }
                let mut buffer = NO_EDGES;
                let likely = store.likely(*list, MAX_LIKELY, &mut buffer);
                prop_assert_eq!(likely.len(), twin.len().min(MAX_LIKELY));
                for edge in likely {
                    prop_assert_eq!(twin.get(&edge.token.0), Some(&edge.target.0));
                    prop_assert_eq!(likely.iter().filter(|e| e.token == edge.token).count(), 1);
                }
            }
            prop_assert_eq!(store.num_edges(), twins.iter().map(HashMap::len).sum::<usize>());
        }
    }

    #[test]
    fn followed_edges_come_first_among_the_likely_ones() {
        let mut store = EdgeStore::default();
        let mut list = EdgeList::EMPTY;
        for token in 0..100 {
            store.insert(&mut list, Edge { token: TokenId(token), target: StateId(1 + token) });
        }
        for _ in 0..4 {
            store.follow(list, TokenId(42));
        }
        assert_eq!(store.likely(list, MAX_LIKELY, &mut NO_EDGES.clone())[0].token, TokenId(42));
    }
}
