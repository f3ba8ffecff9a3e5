//! The experts of a target in files, brought into memory while others compute. In: files, where each
//! layer's experts are in them, a budget; what layers choose. Out: memory to read them from, and the
//! assurance that what a layer has chosen is there. What is read, kept and dropped is decided in
//! `residency`; here are the lock, the clock and the threads.
//!
//! Nobody depends on it for what is computed: all is in the mapping at any time, but slow to touch
//! where it is not in memory. So a turn that nobody announced is right, too, as is one in a fork of
//! the process, which has no threads to read.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Instant;

use super::expectation::Expectation;
use super::mapping::{FAULT_AROUND, Mapping};
use super::residency::{Action, Counts, Residency};
use super::shape::{LayerShape, Shape};
use crate::error::{Error, Result};
use crate::load::loader::Worker;
use crate::locks;

/// Bytes of a read: enough for a disk to be quick, few enough to wait for.
const PIECE_BYTES: u64 = 1 << 20;
/// Experts begin and end at a multiple of it, a page of most systems; others' are larger.
pub const PAGE: u64 = 4096;

/// Where the experts of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The index of the file.
    pub file: usize,
    /// Where the first expert begins, a multiple of [`PAGE`].
    pub offset: u64,
    /// How many there are.
    pub num_experts: usize,
    /// From one expert to the next, a multiple of [`PAGE`].
    pub stride: u64,
}

/// How experts are kept within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most bytes of experts in memory.
    pub num_bytes: u64,
    /// Threads that read: as many pieces are read at a time.
    pub num_threads: usize,
    /// Whether the system is asked to keep no copy of what is dropped, either: then what comes back
    /// is read from the disk, as on a machine that has no memory beyond the budget.
    pub is_forgotten: bool,
}

/// What the store has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// What was asked for and read.
    pub counts: Counts,
    /// Microseconds in which layers waited.
    pub waited_us: u64,
    /// Bytes of experts in memory now.
    pub held_bytes: u64,
}

/// Experts in mapped files.
///
/// With a budget they are read by threads of its own, see [`hold`](Self::hold); without, the system
/// reads what is touched. Dropping it ends the threads and the mapping.
#[derive(Debug)]
pub struct ExpertStore {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Shared {
    mappings: Vec<Mapping>,
    regions: Vec<Region>,
    shape: Shape,
    is_forgotten: bool,
    first_row_read: AtomicU64,
    num_read: AtomicU64,
    state: Mutex<State>,
    /// There may be something to read.
    work: Condvar,
    /// Something was read.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// None without a budget.
    core: Option<Residency<Expectation>>,
    waited_us: u64,
    /// Why the last read of an expert failed; told while it has, to whoever asks for it.
    failures: HashMap<usize, Error>,
    /// Why what was asked for last is not there.
    failure: Option<Error>,
    is_closed: bool,
}

/// What a layer has chosen, in memory until this is dropped.
#[derive(Debug)]
pub struct Pinned<'a> {
    shared: &'a Shared,
    asked: Vec<usize>,
}

impl ExpertStore {
    /// A store over the experts of `regions`, in the order in which the layers run.
    ///
    /// Fails where a file cannot be mapped, or a region is not inside its file; where the budget
    /// does not hold all experts of the largest layer, the least that would do is named; and where
    /// the system gives no thread.
    pub fn open(
        files: &[PathBuf],
        regions: Vec<Region>,
        budget: Option<Budget>,
    ) -> Result<Arc<Self>> {
        let open = |path: &PathBuf| Mapping::open(path).map_err(|error| unreadable(path, &error));
        let mappings = files.iter().map(open).collect::<Result<Vec<_>>>()?;
        regions.iter().try_for_each(|region| check(region, &mappings))?;
        let of_layer = |region: &Region| LayerShape {
            num_experts: region.num_experts,
            num_bytes: region.stride,
        };
        let shape = Shape::new(regions.iter().map(of_layer).collect())?;
        let core = |budget: Budget| {
            let forecast = Expectation::new(shape.clone());
            Residency::new(shape.clone(), budget.num_bytes, PIECE_BYTES, forecast)
        };
        let core = budget.map(core).transpose()?;
        let (failures, failure) = (HashMap::new(), None);
        let state = State { core, waited_us: 0, failures, failure, is_closed: false };
        let shared = Arc::new(Shared {
            mappings,
            regions,
            shape,
            is_forgotten: budget.is_some_and(|budget| budget.is_forgotten),
            first_row_read: AtomicU64::new(0),
            num_read: AtomicU64::new(0),
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut store = Self { shared, workers: Vec::new() };
        for _ in 0..budget.map_or(0, |budget| budget.num_threads.max(1)) {
            let shared = Arc::clone(&store.shared);
            store.workers.push(Worker::start(move || shared.work())?);
        }
        let store = Arc::new(store);
        let layers = 0..store.shared.regions.len();
        let mut lent = locks::write(&LAYER_MEMORY);
        lent.retain(|it| it.store.strong_count() > 0);
        lent.extend(layers.map(|layer| LayerMemory {
            start: store.memory(layer).as_ptr() as usize,
            layer,
            store: Arc::downgrade(&store),
        }));
        drop(lent);
        Ok(store)
    }

    /// All experts of a layer, one after the other.
    pub fn memory(&self, layer: usize) -> &[u8] {
        let Region { file, offset, num_experts, stride } = self.shared.regions[layer];
        let num_bytes = num_experts * stride as usize;
        self.shared.mappings[file].bytes(offset as usize..offset as usize + num_bytes)
    }

    /// How many experts a layer has.
    pub fn num_experts(&self, layer: usize) -> usize {
        self.shared.regions[layer].num_experts
    }

    /// Brings what a layer has chosen into memory, and waits for it: the experts of each row,
    /// `per_row` of them each. It stays until what this returns is dropped.
    ///
    /// Fails where a file became shorter, or its disk fails; the file is named. Of a number that no
    /// expert has, the caller answers for.
    pub fn hold(&self, layer: usize, chosen: &[i32], per_row: usize) -> Result<Pinned<'_>> {
        let shared = &*self.shared;
        let held = |asked| Pinned { shared, asked };
        let outcome = shared.check_file(layer);
        if outcome.is_err() || !self.is_managed() {
            shared.noted(outcome)?;
            return Ok(held(Vec::new()));
        }
        let chosen: Vec<u16> = chosen.iter().map(|&expert| expert as u16).collect();
        let mut state = shared.lock();
        let Some(core) = &mut state.core else { return Ok(held(Vec::new())) };
        // Let go of where it fails, too.
        let held = held(core.ask(layer, &chosen, per_row));
        shared.work.notify_all();
        let started = Instant::now();
        let mut has_waited = false;
        loop {
            let core = state.core.as_ref().expect("it has been there");
            let is_there = |&expert: &usize| core.is_resident(expert) || core.has_failed(expert);
            if held.asked.iter().all(is_there) {
                break;
            }
            has_waited = true;
            state = shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if has_waited {
            state.waited_us += started.elapsed().as_micros() as u64;
        }
        let core = state.core.as_ref().expect("it has been there");
        let failed = held.asked.iter().find(|&&expert| core.has_failed(expert));
        let failure = failed.map(|expert| state.failures[expert].clone());
        drop(state); // `held` is let go of where this fails
        shared.noted(failure.map_or(Ok(()), Err))?;
        Ok(held)
    }

    /// Counts experts that a layer's run reads: those of its first row, and all, each once.
    pub fn count_read(&self, first_row: usize, all: usize) {
        self.shared.first_row_read.fetch_add(first_row as u64, Ordering::Relaxed);
        self.shared.num_read.fetch_add(all as u64, Ordering::Relaxed);
    }

    /// Experts that were read so far for the first rows of runs of a layer, and for all rows: from
    /// memory, each once in a run; with a budget only those that were not there.
    pub fn num_read(&self) -> (u64, u64) {
        if self.is_managed() {
            let counts = self.report().counts;
            return (counts.first_row_misses, counts.misses);
        }
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.shared.first_row_read), read(&self.shared.num_read))
    }

    /// What it has done so far.
    pub fn report(&self) -> StoreReport {
        let state = locks::lock(&self.shared.state);
        StoreReport {
            counts: state.core.as_ref().map(Residency::counts).unwrap_or_default(),
            waited_us: state.waited_us,
            held_bytes: state.core.as_ref().map_or(0, Residency::held_bytes),
        }
    }

    /// Why the last [`hold`](Self::hold) that failed did, if one did since this was last asked.
    pub fn take_failure(&self) -> Option<Error> {
        locks::lock(&self.shared.state).failure.take()
    }

    /// Whether there are threads that read.
    fn is_managed(&self) -> bool {
        self.workers.first().is_some_and(|worker| worker.check_process().is_ok())
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        if self.is_managed() {
            locks::lock(&self.shared.state).is_closed = true;
            self.shared.work.notify_all();
            self.workers.iter().for_each(Worker::join);
        }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if !self.asked.is_empty() {
            if let Some(core) = &mut self.shared.lock().core {
                core.let_go(&self.asked);
            }
            self.shared.work.notify_all();
        }
    }
}

impl Shared {
    /// Never held while something is read. Who waits for it holds nothing that others need: a
    /// reader, or a thread within a graph's run.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_file(&self, layer: usize) -> Result<()> {
        let Region { file, offset, num_experts, stride } = self.regions[layer];
        let (mapping, end) =
            (&self.mappings[file], offset as usize + num_experts * stride as usize);
        mapping.check_holds(end).map_err(|error| unreadable(mapping.path(), &error))
    }

    fn noted(&self, outcome: Result<()>) -> Result<()> {
        outcome.inspect_err(|error| self.lock().failure = Some(error.clone()))
    }

    /// Where an expert's bytes are in its file.
    fn bytes(&self, expert: usize) -> (&Mapping, Range<usize>) {
        let layer = self.shape.layer(expert);
        let Region { file, offset, stride, .. } = self.regions[layer];
        let start = offset as usize + (expert - self.shape.of_layer(layer).start) * stride as usize;
        (&self.mappings[file], start..start + stride as usize)
    }

    /// A thread: takes an action, does it, says what came of it.
    fn work(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let action = state.core.as_mut().and_then(Residency::next_action);
            let Some(action) = action else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let outcome = self.perform(&action);
            state = self.lock();
            let core = state.core.as_mut().expect("it gave the action");
            match &action {
                Action::Read(expert, bytes) => {
                    core.read_over(*expert, bytes, outcome.is_ok());
                    if let Err(error) = outcome {
                        state.failures.insert(*expert, error);
                    }
                    self.done.notify_all();
                }
                Action::Drop(expert) => core.drop_over(*expert),
            }
            self.work.notify_all();
        }
    }

    fn perform(&self, action: &Action) -> Result<()> {
        match action {
            Action::Read(expert, part) => {
                let (mapping, all) = self.bytes(*expert);
                let bytes = all.start + part.start as usize..all.start + part.end as usize;
                let outcome = mapping.bring(&bytes);
                self.trim(*expert, &bytes);
                outcome.map_err(|error| unreadable(mapping.path(), &error))
            }
            Action::Drop(expert) => {
                let (mapping, bytes) = self.bytes(*expert);
                let bytes = self.with_shared_pages(*expert, mapping.page(), bytes);
                mapping.give_back(&bytes, self.is_forgotten);
                Ok(())
            }
        }
    }

    /// An expert's bytes, and of pages that it shares with a neighbour all, if that is absent. Where
    /// pages are larger than experts, more than two share one, and it stays.
    fn with_shared_pages(
        &self,
        expert: usize,
        page: usize,
        Range { start, end }: Range<usize>,
    ) -> Range<usize> {
        let (first, last) = (start / page * page, end.next_multiple_of(page));
        if end - start < page {
            return start..end;
        }
        let has_first = first < start && self.is_absent_beside(expert, expert.checked_sub(1));
        let has_last = end < last && self.is_absent_beside(expert, Some(expert + 1));
        (if has_first { first } else { start })..(if has_last { last } else { end })
    }

    /// Whether nothing is in memory of a neighbour in an expert's layer; of others it is not known.
    fn is_absent_beside(&self, expert: usize, neighbour: Option<usize>) -> bool {
        let of_layer = self.shape.of_layer(self.shape.layer(expert));
        let neighbour = neighbour.filter(|neighbour| of_layer.contains(neighbour));
        let state = self.lock();
        let core = state.core.as_ref();
        neighbour.is_some_and(|it| core.is_some_and(|core| core.is_absent(it)))
    }

    /// Gives back what faults have mapped beside an expert, of neighbours that are not in memory.
    fn trim(&self, expert: usize, bytes: &Range<usize>) {
        let (mapping, all) = self.bytes(expert);
        if all.len() < 2 * FAULT_AROUND {
            return;
        }
        let is_absent = |neighbour| self.is_absent_beside(expert, neighbour);
        if bytes.start == all.start && is_absent(expert.checked_sub(1)) {
            mapping.give_back(&(all.start - FAULT_AROUND..all.start), false);
        }
        if bytes.end == all.end && is_absent(Some(expert + 1)) {
            mapping.give_back(&(all.end..all.end + FAULT_AROUND), false);
        }
    }
}

/// Memory of a layer that a store has lent.
#[derive(Debug)]
struct LayerMemory {
    start: usize,
    layer: usize,
    store: Weak<ExpertStore>,
}

static LAYER_MEMORY: RwLock<Vec<LayerMemory>> = RwLock::new(Vec::new());

/// The store whose layer begins at this memory, and the number of that layer.
pub fn store_of(memory: &[u8]) -> Option<(Arc<ExpertStore>, usize)> {
    let start = memory.as_ptr() as usize;
    let lent = locks::read(&LAYER_MEMORY);
    let mut all = lent.iter().filter(|it| it.start == start);
    all.find_map(|it| it.store.upgrade().map(|store| (store, it.layer)))
}

fn check(region: &Region, mappings: &[Mapping]) -> Result<()> {
    let Region { file, offset, num_experts, stride } = *region;
    let end = (num_experts as u64).checked_mul(stride).and_then(|all| all.checked_add(offset));
    let held = mappings.get(file).map_or(0, |mapping| mapping.num_bytes() as u64);
    let is_whole = offset % PAGE == 0 && stride % PAGE == 0;
    let is_some = num_experts > 0 && stride > 0 && num_experts <= usize::from(u16::MAX);
    if is_some && is_whole && end.is_some_and(|end| end <= held) {
        return Ok(());
    }
    let (what, must) = ("a layer's region", "whole pages inside its file");
    Err(Error::BadOption { what, got: format!("{region:?}"), must })
}

fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::ExpertsUnreadable { file: path.display().to_string(), reason: error.to_string() }
}
