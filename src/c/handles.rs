//! Handles: numbers that stand for values in a table. In: a value. Out: its number, by which it is found
//! until it is removed, and never again after that.
//!
//! A number holds the kind of value, the place in the table and how often the place was used, counted from a
//! random number on: one that is stale, of another kind or invented is found out.
//!
//! A table belongs to the process that made it. A fork has a copy of it, whose files are the parent's as well and
//! whose locks may be held by threads that the fork does not have: nothing in it is used there.

use std::hash::{BuildHasher, RandomState};
use std::iter::successors;
use std::process;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use super::failure::{Failure, Status};
use crate::locks;

const SLOT_BITS: u32 = 24;
const ROUND_BITS: u32 = 32;

/// A value, and what became of it.
struct Entry<T> {
    value: T,
    /// A call on it has panicked.
    is_broken: bool,
    /// Its last call was made: whoever found it before comes too late.
    is_over: bool,
}

type Shared<T> = Arc<Mutex<Entry<T>>>;

struct Slot<T> {
    round: u32,
    held: Option<Shared<T>>,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

/// What a process has made. It stays for ever, as does a fork's copy of it.
struct Table<T: 'static> {
    process: u32,
    slots: Mutex<Slots<T>>,
    /// That of the process which this one is a fork of.
    parent: Option<&'static Self>,
}

/// Values of one kind; calls on one of them wait for each other, calls on different ones do not.
pub(super) struct Handles<T: 'static> {
    /// Not 0, so that no handle is.
    kind: u8,
    name: &'static str,
    /// The last one: null before the first value, and a parent's before a fork's first value.
    table: AtomicPtr<Table<T>>,
}

impl<T: Send> Handles<T> {
    pub const fn new(kind: u8, name: &'static str) -> Self {
        Self { kind, name, table: AtomicPtr::new(null_mut()) }
    }

    fn last_table(&self) -> Option<&'static Table<T>> {
        // SAFETY: null, or of a box that is never freed.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// That of this process, if it has made anything.
    fn own_table(&self) -> Option<&'static Table<T>> {
        self.last_table().filter(|table| table.process == process::id())
    }

    fn own_table_or_new(&self) -> &'static Table<T> {
        loop {
            if let Some(table) = self.own_table() {
                return table;
            }
            let parent = self.last_table();
            let slots = Mutex::new(Slots { all: Vec::new(), vacant: Vec::new() });
            let new = Box::into_raw(Box::new(Table { process: process::id(), slots, parent }));
            let before = parent.map_or(null_mut(), |parent| std::ptr::from_ref(parent).cast_mut());
            let set = self.table.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
            if set.is_err() {
                // SAFETY: another thread was first, so nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Takes a value in. Fails when there are 2^24 already.
    pub fn add(&self, value: T) -> Result<u64, Failure> {
        let held = Some(Arc::new(Mutex::new(Entry { value, is_broken: false, is_over: false })));
        let mut slots = locks::lock(&self.own_table_or_new().slots);
        let index = match slots.vacant.pop() {
            Some(index) => index,
            None if slots.all.len() >> SLOT_BITS == 0 => {
                let round = RandomState::new().hash_one(slots.all.len()) as u32;
                slots.all.push(Slot { round, held: None });
                (slots.all.len() - 1) as u32
            }
            None => return Err(Failure::new(Status::Full, format!("too many {}s", self.name))),
        };
        let slot = &mut slots.all[index as usize];
        slot.held = held;
        let kind = u64::from(self.kind) << (SLOT_BITS + ROUND_BITS);
        Ok(kind | u64::from(slot.round) << SLOT_BITS | u64::from(index))
    }

    /// Calls `call` on the value of a handle. Fails when there is none, when it is a parent's, and when a call on it
    /// has panicked.
    pub fn with<R>(
        &self,
        handle: u64,
        call: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let shared = self.own_table().and_then(|table| {
            let slots = locks::lock(&table.slots);
            self.slot(&slots, handle).and_then(|index| slots.all[index].held.clone())
        });
        let shared = shared.ok_or_else(|| self.unknown(handle))?;
        let mut held = locks::lock(&shared);
        if held.is_over {
            return Err(self.unknown(handle));
        }
        if held.is_broken {
            let message = format!("a call on this {} met a defect before", self.name);
            return Err(Failure::new(Status::Broken, message));
        }
        held.is_broken = true; // as long as the call has not come back
        let result = call(&mut held.value);
        held.is_broken = false;
        result
    }

    /// Takes a value out; `last` is called on it as soon as no other call has it. Fails when there is none, and when
    /// it is a parent's.
    pub fn remove(&self, handle: u64) -> Result<Removed<T>, Failure> {
        let held = self.own_table().and_then(|table| {
            let mut slots = locks::lock(&table.slots);
            let index = self.slot(&slots, handle)?;
            let held = slots.all[index].held.take();
            slots.all[index].round = slots.all[index].round.wrapping_add(1);
            slots.vacant.push(index as u32);
            held
        });
        held.map(Removed).ok_or_else(|| self.unknown(handle))
    }

    fn slot(&self, slots: &Slots<T>, handle: u64) -> Option<usize> {
        let index = (handle & ((1 << SLOT_BITS) - 1)) as usize;
        let round = (handle >> SLOT_BITS) as u32;
        let kind = handle >> (SLOT_BITS + ROUND_BITS);
        let is_held = |slot: &&Slot<T>| slot.round == round && slot.held.is_some();
        let found = slots.all.get(index).filter(is_held);
        found.filter(|_| kind == u64::from(self.kind)).map(|_| index)
    }

    /// Why a handle is of no value here.
    fn unknown(&self, handle: u64) -> Failure {
        let all = successors(self.last_table(), |table| table.parent);
        let mut parents = all.filter(|table| table.process != process::id());
        // A thread that the fork lacks may have the table: no value of it can be told from others then.
        let may_hold = |table: &Table<T>| {
            table.slots.try_lock().map_or(true, |slots| self.slot(&slots, handle).is_some())
        };
        if parents.any(may_hold) {
            let message = format!(
                "{handle:#x} is a {} of the process that this one is a fork of: make one here",
                self.name
            );
            return Failure::new(Status::Forked, message);
        }
        Failure::new(Status::BadHandle, format!("{handle:#x} is no {}", self.name))
    }
}

/// A value without a handle; a call that another thread has begun may still hold it.
pub(super) struct Removed<T>(Shared<T>);

impl<T: Send> Removed<T> {
    /// Calls `last` on it, unless a call has panicked.
    pub fn with<R>(self, last: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut held = locks::lock(&self.0);
        held.is_over = true;
        (!held.is_broken).then(|| last(&mut held.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(handles: &Handles<u32>, handle: u64) -> Result<u32, Failure> {
        handles.with(handle, |&mut value| Ok(value))
    }

    #[test]
    fn a_handle_is_good_until_it_is_removed() {
        let (handles, others) = (Handles::new(b'a', "one"), Handles::new(b'b', "other"));
        let (first, second) = (handles.add(1).unwrap(), handles.add(2).unwrap());
        assert_eq!((value(&handles, first).unwrap(), value(&handles, second).unwrap()), (1, 2));
        let other = others.add(3).unwrap();
        handles.remove(first).unwrap();
        let again = handles.add(4).unwrap();
        assert_eq!(value(&handles, again).unwrap(), 4);
        for wrong in [first, other, 0, u64::MAX, second + 1, second ^ 1 << 63] {
            assert!(value(&handles, wrong).is_err(), "{wrong:#x}");
            assert!(handles.remove(wrong).is_err(), "{wrong:#x}");
        }
        assert_eq!(value(&handles, second).unwrap(), 2);
    }

    #[test]
    fn a_call_that_waited_for_the_last_one_finds_no_value() {
        let handles = Handles::new(b'a', "one");
        let handle = handles.add(1).unwrap();
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            let first = threads.spawn(|| {
                handles.with(handle, |_| {
                    begun.wait();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    Ok(())
                })
            });
            begun.wait();
            let held =
                handles.own_table().unwrap().slots.lock().unwrap().all[0].held.clone().unwrap();
            handles.remove(handle).unwrap().with(|_| ()).unwrap();
            assert!(held.lock().unwrap().is_over);
            assert!(first.join().unwrap().is_ok());
        });
        assert!(value(&handles, handle).is_err());
    }

    #[test]
    fn what_a_panic_met_can_only_be_removed() {
        let handles = Handles::new(b'a', "one");
        let handle = handles.add(1).unwrap();
        let panics = || handles.with(handle, |_| -> Result<(), Failure> { panic!("a defect") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(value(&handles, handle).is_err());
        assert!(handles.remove(handle).unwrap().with(|_| ()).is_none());
    }
}
