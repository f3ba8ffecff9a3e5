//! What an automaton knows of each class of substrings, laid out by how it is read. In: classes as
//! the text grows. Out: their links and edges, their lengths and counts.
//!
//! Where a text leads from class to class is the automaton's concern.

use super::edges::{EdgeList, MAX_STATES, grow};
use super::large_pages::use_large_pages;
use crate::ids::StateId;

/// Occurrences are counted up to this figure.
///
/// An occurrence counts for every suffix of it too, and each shorter class counts strictly more
/// than the longer one below. Stopping at the first class with a full count therefore bounds the
/// walk. It also means that the last positions of such frequent substrings go stale. Counting four
/// times as far drafts no better within a request (0.7 % at most over a session of many).
pub const MAX_COUNT: u32 = 1 << 8;

/// The class of the empty substring.
pub(super) const ROOT: StateId = StateId(0);

/// One class of substrings that end at the same positions: what is read of the one that a walk is at.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The class of the longest suffix that occurs elsewhere too.
    pub(super) link: StateId,
    /// Where the last occurrence ends, exclusive: the index of the token after it.
    pub(super) last_end: u32,
    /// What follows; nothing where all that it holds is too long for a match.
    pub(super) edges: EdgeList,
}

/// What is also read of classes that a walk only passes or weighs: small, so that those of a long
/// text stay in a cache.
#[derive(Clone, Copy, Debug)]
struct Tally {
    /// Length of the longest substring; one more than a match at most.
    len: u8,
    /// Occurrences after the first one, up to [`MAX_COUNT`] with it.
    further: u8,
}

/// All classes, the root first: 16 bytes a state, four of them a cache line, and two for its tally.
#[derive(Clone, Debug)]
pub(super) struct States {
    states: Vec<State>,
    tallies: Vec<Tally>,
}

impl States {
    /// The root alone.
    pub fn new() -> Self {
        let root = State { link: ROOT, last_end: 0, edges: EdgeList::EMPTY };
        Self { states: vec![root], tallies: vec![Tally { len: 0, further: 0 }] }
    }

    /// Number of classes, the root included.
    pub fn num_states(&self) -> usize {
        self.states.len()
    }

    /// The class `id`.
    pub fn get(&self, id: StateId) -> &State {
        &self.states[id.index()]
    }

    /// The class `id`, to be changed.
    pub fn get_mut(&mut self, id: StateId) -> &mut State {
        &mut self.states[id.index()]
    }

    /// Asks for what is known of a class that is soon read, without waiting for it.
    #[inline]
    pub fn prefetch(&self, id: StateId) {
        prefetch(self.get(id));
        prefetch(&self.tallies[id.index()]);
    }

    /// Length of the longest substring of a class.
    pub fn len(&self, id: StateId) -> u32 {
        self.tallies[id.index()].len.into()
    }

    /// Occurrences of a class, up to [`MAX_COUNT`]; not those of the root, which are not counted.
    pub fn count(&self, id: StateId) -> u32 {
        u32::from(self.tallies[id.index()].further) + 1
    }

    /// Makes room for `additional` tokens.
    pub fn reserve(&mut self, additional: usize) {
        grow(&mut self.states, additional);
        grow(&mut self.tallies, additional);
    }

    /// Adds a class whose longest substring has `len` tokens and occurs once.
    pub fn add(&mut self, state: State, len: u32) -> StateId {
        self.add_tallied(state, Tally { len: tallied(len), further: 0 })
    }

    /// Adds a class with substrings of `class` up to `len` tokens, which occur as often.
    pub fn add_shorter(&mut self, class: StateId, len: u32, edges: EdgeList) -> StateId {
        let state = State { edges, ..self.states[class.index()] };
        let further = self.tallies[class.index()].further;
        self.add_tallied(state, Tally { len: tallied(len), further })
    }

    /// Counts an occurrence that ends at `end` for a class and all shorter ones.
    pub fn count_again(&mut self, mut place: StateId, end: u32) {
        while place != ROOT {
            let tally = &mut self.tallies[place.index()];
            if u32::from(tally.further) + 1 == MAX_COUNT {
                return;
            }
            tally.further += 1;
            let state = &mut self.states[place.index()];
            state.last_end = end;
            place = state.link;
        }
    }

    /// Moves what is long into large pages.
    pub fn use_large_pages(&self) {
        use_large_pages(&self.states);
        use_large_pages(&self.tallies);
    }

    /// Forgets all but the root; capacity stays allocated.
    pub fn clear(&mut self) {
        self.states.truncate(1);
        self.tallies.truncate(1);
        self.states[ROOT.index()].edges = EdgeList::EMPTY;
    }

    /// Bytes held on the heap, unused capacity included.
    pub fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<State>() + self.tallies.capacity() * size_of::<Tally>()
    }

    fn add_tallied(&mut self, state: State, tally: Tally) -> StateId {
        let id = self.states.len();
        assert!(id < MAX_STATES, "a suffix automaton holds at most 2^31 states");
        self.reserve(1);
        self.states.push(state);
        self.tallies.push(tally);
        StateId(id as u32)
    }
}

/// Asks for the cache line of `value`, without waiting for it; nothing where the compiler has no such
/// hint.
#[inline]
fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a hint to the processor, which reads nothing")]
        // SAFETY: the address is that of a reference, and a prefetch has no effect that can be seen.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

fn tallied(len: u32) -> u8 {
    u8::try_from(len).expect("a match and one token more are less than 256 tokens")
}
