//! What may become a node of a growing tree. In: candidates, in the order in which they are found.
//! Out: the worthiest, and how worthy a newcomer must be.

use super::Node;

/// Candidates in the order of their worth.
///
/// What is sorted are keys of eight bytes: a candidate is ten times as long, and most of them never
/// leave.
#[derive(Debug, Default)]
pub(super) struct Frontier {
    /// The worthiest last, the older one last among equals.
    keys: Vec<Key>,
    /// In the order of their coming, also those that have left.
    candidates: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    worth: f32,
    candidate: u32,
}

impl Frontier {
    /// Forgets all candidates.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.candidates.clear();
    }

    /// Adds a candidate.
    pub fn push(&mut self, candidate: Node) {
        let key = Key { worth: candidate.worth, candidate: self.candidates.len() as u32 };
        let place = self.keys.partition_point(|known| known.worth < key.worth);
        self.keys.insert(place, key);
        self.candidates.push(candidate);
    }

    /// Takes the worthiest out, the oldest of equals.
    pub fn pop(&mut self) -> Option<Node> {
        self.keys.pop().map(|key| self.candidates[key.candidate as usize])
    }

    /// The worth that a newcomer must exceed to become one of `num_missing` nodes; `None` where any
    /// would do, or nothing is missing.
    pub fn least_worth(&self, num_missing: usize) -> Option<f32> {
        let surplus = self.keys.len().checked_sub(num_missing)?;
        self.keys.get(surplus).map(|known| known.worth)
    }

    /// Whether something of this worth may still become one of `num_missing` nodes.
    pub fn admits(&self, worth: f32, num_missing: usize) -> bool {
        match self.keys.len().checked_sub(num_missing) {
            Some(surplus) => self.keys.get(surplus).is_some_and(|known| worth > known.worth),
            None => true,
        }
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>() + self.candidates.capacity() * size_of::<Node>()
    }
}
