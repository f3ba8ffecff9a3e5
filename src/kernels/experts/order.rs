//! Pairs of a row and an expert, sorted by expert.
//!
//! In: the experts of each row, by rank. Out: a group of places for each expert that any row takes, the row of
//! each place, and the place of each pair. A counting sort, so that the rows of a group ascend.

use std::ops::Range;

/// The places of the pairs of one expert.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub expert: usize,
    start: usize,
    end: usize,
}

impl Group {
    pub fn places(&self) -> Range<usize> {
        self.start..self.end
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// All pairs of a step, in memory that is used again.
#[derive(Default)]
pub struct Order {
    /// The experts of each row, `(rows, chosen)`, by rank.
    pub chosen: Vec<i32>,
    /// Their shares.
    pub shares: Vec<f32>,
    /// Of the experts that any row takes, ascending.
    pub groups: Vec<Group>,
    /// The row of each place.
    pub rows: Vec<u32>,
    /// The place of each pair, `(rows, chosen)`.
    pub places: Vec<u32>,
    /// Of each expert: the next place of its group.
    next: Vec<usize>,
}

impl Order {
    /// Makes room for the experts of so many rows.
    pub fn resize(&mut self, rows: usize, chosen: usize) {
        let pairs = rows * chosen;
        self.chosen.resize(pairs, 0);
        self.shares.resize(pairs, 0.0);
        self.rows.resize(pairs, 0);
        self.places.resize(pairs, 0);
    }

    /// Pairs of all rows.
    pub fn num_pairs(&self) -> usize {
        self.chosen.len()
    }

    /// Sorts the pairs of rows that have chosen so many of so many experts.
    pub fn sort(&mut self, chosen: usize, experts: usize) {
        self.next.clear();
        self.next.resize(experts, 0);
        for expert in &self.chosen {
            self.next[*expert as usize] += 1;
        }
        self.groups.clear();
        let mut start = 0;
        for (expert, next) in self.next.iter_mut().enumerate() {
            let end = start + *next;
            if start < end {
                self.groups.push(Group { expert, start, end });
            }
            (*next, start) = (start, end);
        }
        for (pair, expert) in self.chosen.iter().enumerate() {
            let next = &mut self.next[*expert as usize];
            self.rows[*next] = (pair / chosen) as u32;
            self.places[pair] = *next as u32;
            *next += 1;
        }
    }

    /// The groups that some places are of, and which of the group's own places they are.
    pub fn groups_of(&self, places: Range<usize>) -> impl Iterator<Item = (Group, Range<usize>)> {
        let first = self.groups.partition_point(|group| group.end <= places.start);
        let groups = self.groups[first..].iter().copied();
        let groups = groups.take_while(move |group| group.start < places.end);
        groups.map(move |group| {
            let Group { start, end, .. } = group;
            (group, places.start.max(start) - start..places.end.min(end) - start)
        })
    }
}
