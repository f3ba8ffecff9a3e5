//! Which experts are in memory, what is read next, and what goes for it. In: what layers ask for and
//! let go of, and what reads came to. Out: reads and drops, one at a time, for as many readers as there
//! are. No thread, no file, no clock: those are the store's.
//!
//! - What a layer asks for is read before all else, and stays until the layer lets go of it.
//! - What makes room is what is expected to be used last (Belady's rule, by expectation). Layers take
//!   turns, so an expert that a prompt is sure to use again is used a whole pass later: then those
//!   that have just been used go first, which is right for a scan.
//! - While nothing is asked for, the next layers' likely experts are read ahead. They take no room
//!   from what is expected sooner, and a read that is asked for waits for one piece of them at most.
//!   As long as there is room for all, nothing is too unlikely to be read.
//! - An expert is read in pieces, so that several readers share one expert.

use std::collections::VecDeque;
use std::ops::Range;

use super::shape::Shape;
use crate::error::{Error, Result};

/// What tells how soon an expert is used; [`Expectation`](super::expectation::Expectation), but
/// simulations compare others.
pub trait Forecast {
    /// A layer has had its turn: the experts of each row, `per_row` of them each.
    fn observe(&mut self, layer: usize, chosen: &[u16], per_row: usize);

    /// How likely the next turn of its layer asks for an expert.
    fn due(&self, expert: usize) -> f32;

    /// The larger, the later an expert is used, whose layer's next turn is `turns` away.
    fn turns_until_use(&self, expert: usize, turns: usize) -> f32;
}

/// What a reader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read these bytes of an expert.
    Read(usize, Range<u64>),
    /// Drop all of an expert.
    Drop(usize),
}

/// What came of it all. Bytes are those of whole experts, but for those read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Experts that were asked for, once a layer's turn.
    pub asked: u64,
    /// Of these, how many were not there, or not all of them.
    pub misses: u64,
    /// Of these, how many the first row of a turn had chosen.
    pub first_row_misses: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Experts that were begun to be read before they were asked for.
    pub ahead: u64,
    /// Of these, how many were asked for before they were dropped.
    pub ahead_used: u64,
    /// Of these, how many were dropped before they were asked for.
    pub ahead_wasted: u64,
    /// Bytes that were read of those.
    pub wasted_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Reading,
    Resident,
    Leaving,
    /// A read of it failed: whoever touches it is told by the system.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Presence,
    /// Layers' turns that hold it.
    pins: u32,
    /// Read before it was asked for, and not asked for since.
    is_ahead: bool,
    /// Pieces that are being read.
    in_flight: usize,
    /// Bytes of it that reads have begun, and that are read.
    begun: u64,
    read: u64,
}

const ABSENT: Entry =
    Entry { place: Presence::Absent, pins: 0, is_ahead: false, in_flight: 0, begun: 0, read: 0 };

/// How far and how boldly it is read ahead.
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead {
    /// Turns of layers to look ahead.
    pub turns: usize,
    /// How likely an expert must be asked for at its layer's next turn.
    pub least_due: f32,
    /// Passes over all layers by which it must be expected before what goes for it.
    pub margin: f32,
    /// Pieces in flight at a time.
    pub most_pieces: usize,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self { turns: 4, least_due: 0.7, margin: 0.5, most_pieces: 2 }
    }
}

/// Which experts are in memory.
#[derive(Clone, Debug)]
pub struct Residency<F> {
    shape: Shape,
    forecast: F,
    read_ahead: ReadAhead,
    budget: u64,
    piece_bytes: u64,
    entries: Vec<Entry>,
    held_bytes: u64,
    /// Of these, bytes of what is being dropped.
    leaving_bytes: u64,
    /// Pieces that are being read.
    in_flight: usize,
    /// Asked for, and with bytes that no read has begun.
    wanted: VecDeque<usize>,
    /// The layer whose turn it is, or was last.
    layer: usize,
    pieces_ahead: usize,
    counts: Counts,
}

impl<F: Forecast> Residency<F> {
    /// Nothing is in memory. At most `budget` bytes will be, read in pieces of `piece_bytes`.
    ///
    /// Fails where the budget does not hold all experts of the largest layer: a wide step may ask
    /// for them.
    pub fn new(shape: Shape, budget: u64, piece_bytes: u64, forecast: F) -> Result<Self> {
        let least = shape.least_bytes();
        if budget < least {
            return Err(Error::BudgetTooSmall { budget, least });
        }
        Ok(Self {
            entries: vec![ABSENT; shape.num_experts()],
            layer: shape.layers().len().saturating_sub(1),
            shape,
            forecast,
            read_ahead: ReadAhead::default(),
            budget,
            piece_bytes: piece_bytes.max(1),
            held_bytes: 0,
            leaving_bytes: 0,
            in_flight: 0,
            wanted: VecDeque::new(),
            pieces_ahead: 0,
            counts: Counts::default(),
        })
    }

    /// Reads ahead otherwise than by default.
    pub fn set_read_ahead(&mut self, read_ahead: ReadAhead) {
        self.read_ahead = read_ahead;
    }

    /// A layer's turn: `chosen` are the experts of each row, `per_row` of them each. Returns the
    /// distinct ones as numbers among all, ascending; they are held until [`let_go`](Self::let_go).
    pub fn ask(&mut self, layer: usize, chosen: &[u16], per_row: usize) -> Vec<usize> {
        let first = self.shape.of_layer(layer).start;
        let mut asked: Vec<_> = chosen.iter().map(|&expert| first + usize::from(expert)).collect();
        asked.sort_unstable();
        asked.dedup();
        self.layer = layer;
        for &expert in &asked {
            let entry = &mut self.entries[expert];
            entry.pins += 1;
            self.counts.asked += 1;
            self.counts.ahead_used += u64::from(entry.is_ahead);
            if entry.is_ahead {
                self.pieces_ahead -= entry.in_flight;
            }
            entry.is_ahead = false;
            if entry.place == Presence::Failed {
                (entry.place, entry.begun, entry.read) = (Presence::Reading, 0, 0);
            }
            if entry.place != Presence::Resident {
                self.counts.misses += 1;
                let of_first_row = chosen.iter().take(per_row);
                let is_first =
                    of_first_row.map(|&it| first + usize::from(it)).any(|it| it == expert);
                self.counts.first_row_misses += u64::from(is_first);
            }
            if entry.place != Presence::Resident && !self.wanted.contains(&expert) {
                self.wanted.push_back(expert);
            }
        }
        self.forecast.observe(layer, chosen, per_row);
        asked
    }

    /// Whether an expert is there.
    pub fn is_resident(&self, expert: usize) -> bool {
        self.entries[expert].place == Presence::Resident
    }

    /// Whether nothing of an expert is there or comes.
    pub fn is_absent(&self, expert: usize) -> bool {
        self.entries[expert].place == Presence::Absent
    }

    /// Whether the last read of an expert failed.
    pub fn has_failed(&self, expert: usize) -> bool {
        self.entries[expert].place == Presence::Failed
    }

    /// What `ask` returned is in use no longer.
    pub fn let_go(&mut self, asked: &[usize]) {
        for &expert in asked {
            let entry = &mut self.entries[expert];
            entry.pins = entry.pins.saturating_sub(1);
        }
        let entries = &self.entries;
        self.wanted.retain(|&expert| entries[expert].pins > 0);
    }

    /// What a reader does now; none where there is nothing to do until something changes.
    pub fn next_action(&mut self) -> Option<Action> {
        while let Some(&expert) = self.wanted.front() {
            match self.entries[expert].place {
                Presence::Resident | Presence::Failed => {}
                Presence::Leaving => return None,
                Presence::Absent if self.must_wait_for_room(expert) => {
                    return self.make_room(expert, f32::MIN);
                }
                Presence::Absent | Presence::Reading => {
                    if let Some(read) = self.next_piece(expert) {
                        return Some(read);
                    }
                }
            }
            self.wanted.pop_front();
        }
        self.next_ahead()
    }

    /// A read that `next_action` gave is over, well or not: what failed is absent again, and is read
    /// by whoever touches it.
    pub fn read_over(&mut self, expert: usize, bytes: &Range<u64>, is_read: bool) {
        let num_bytes = self.shape.num_bytes(expert);
        let entry = &mut self.entries[expert];
        entry.in_flight -= 1;
        self.in_flight -= 1;
        self.pieces_ahead -= usize::from(entry.is_ahead);
        if is_read {
            entry.read += bytes.end - bytes.start;
            self.counts.read_bytes += bytes.end - bytes.start;
        } else {
            entry.begun = num_bytes; // no further pieces
        }
        if entry.begun == num_bytes && entry.in_flight == 0 {
            entry.place =
                if entry.read == num_bytes { Presence::Resident } else { Presence::Failed };
        }
    }

    /// A drop that `next_action` gave is over.
    pub fn drop_over(&mut self, expert: usize) {
        let num_bytes = self.shape.num_bytes(expert);
        (self.held_bytes, self.leaving_bytes) =
            (self.held_bytes - num_bytes, self.leaving_bytes - num_bytes);
        let pins = self.entries[expert].pins;
        self.entries[expert] = Entry { pins, ..ABSENT };
    }

    /// Bytes of what is in memory, or comes, or goes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What came of it all so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn has_room(&self, expert: usize) -> bool {
        self.held_bytes + self.shape.num_bytes(expert) <= self.budget
    }

    /// Whether there is no room for what is asked for, and will be: turns that hold more than the
    /// budget together go beyond it, as they would wait for each other for ever.
    fn must_wait_for_room(&self, expert: usize) -> bool {
        let moves = self.in_flight > 0 || self.leaving_bytes > 0;
        !self.has_room(expert) && (moves || self.used_last().is_some())
    }

    fn next_piece(&mut self, expert: usize) -> Option<Action> {
        let num_bytes = self.shape.num_bytes(expert);
        let entry = &mut self.entries[expert];
        if entry.place == Presence::Absent {
            entry.place = Presence::Reading;
            self.held_bytes += num_bytes;
        }
        let start = entry.begun;
        let end = num_bytes.min(start + self.piece_bytes);
        entry.begun = end;
        (start < end).then(|| {
            entry.in_flight += 1;
            self.in_flight += 1;
            Action::Read(expert, start..end)
        })
    }

    /// Turns of layers until that of an expert's.
    fn turns(&self, layer: usize) -> usize {
        let num_layers = self.shape.layers().len();
        (layer + num_layers - self.layer - 1) % num_layers + 1
    }

    /// Makes room for an expert, if none is being made: drops what is used last, if that is expected
    /// after more than `turns` turns.
    fn make_room(&mut self, expert: usize, turns: f32) -> Option<Action> {
        let num_bytes = self.shape.num_bytes(expert);
        if self.held_bytes - self.leaving_bytes + num_bytes <= self.budget {
            return None;
        }
        let victim = self.used_last().filter(|&(_, last)| last > turns)?.0;
        let entry = &mut self.entries[victim];
        self.counts.ahead_wasted += u64::from(entry.is_ahead);
        self.counts.wasted_bytes += if entry.is_ahead { entry.read } else { 0 };
        (entry.place, entry.is_ahead) = (Presence::Leaving, false);
        self.leaving_bytes += self.shape.num_bytes(victim);
        Some(Action::Drop(victim))
    }

    /// Of what may go, what is expected to be used last, and when.
    fn used_last(&self) -> Option<(usize, f32)> {
        let mut last = None;
        for layer in 0..self.shape.layers().len() {
            let turns = self.turns(layer);
            for expert in self.shape.of_layer(layer) {
                let entry = &self.entries[expert];
                let is_idle = match entry.place {
                    Presence::Resident | Presence::Failed => true,
                    Presence::Reading => entry.in_flight == 0,
                    Presence::Absent | Presence::Leaving => false,
                };
                if is_idle && entry.pins == 0 {
                    let until = self.forecast.turns_until_use(expert, turns);
                    if last.is_none_or(|(_, most)| until > most) {
                        last = Some((expert, until));
                    }
                }
            }
        }
        last
    }

    /// A piece of what the next layers will probably ask for, or room for it.
    fn next_ahead(&mut self) -> Option<Action> {
        if self.pieces_ahead >= self.read_ahead.most_pieces {
            return None;
        }
        let ReadAhead { turns, least_due, .. } = self.read_ahead;
        let expert = self.likely_soon(turns, least_due, false);
        // Only then: room that was made for a likely one is not for others.
        let expert = expert.or_else(|| self.likely_soon(usize::MAX, 0.0, true))?;
        if self.entries[expert].place == Presence::Absent {
            if !self.has_room(expert) {
                let turns = self.turns(self.shape.layer(expert));
                let until = self.forecast.turns_until_use(expert, turns);
                let margin = self.read_ahead.margin * self.shape.layers().len() as f32;
                return self.make_room(expert, until + margin);
            }
            self.entries[expert].is_ahead = true;
            self.counts.ahead += 1;
        }
        let read = self.next_piece(expert);
        self.pieces_ahead += usize::from(read.is_some() && self.entries[expert].is_ahead);
        read
    }

    /// The likeliest expert of the nearest layer that has one to be read, within so many turns.
    fn likely_soon(&self, turns: usize, least_due: f32, is_for_room: bool) -> Option<usize> {
        let num_layers = self.shape.layers().len();
        for turns in 1..=turns.min(num_layers) {
            let layer = (self.layer + turns) % num_layers;
            let num_bytes = self.shape.layers()[layer].num_bytes;
            let may_begin = !is_for_room || self.held_bytes + num_bytes <= self.budget;
            let mut best = None;
            for expert in self.shape.of_layer(layer) {
                let entry = &self.entries[expert];
                let is_to_read = match entry.place {
                    Presence::Absent => may_begin,
                    Presence::Reading => entry.begun < num_bytes,
                    Presence::Resident | Presence::Leaving | Presence::Failed => false,
                };
                let due = self.forecast.due(expert);
                if is_to_read && due >= least_due {
                    let is_better = best.is_none_or(|(_, most)| due > most);
                    best = if is_better { Some((expert, due)) } else { best };
                }
            }
            if let Some((expert, _)) = best {
                return Some(expert);
            }
        }
        None
    }
}
