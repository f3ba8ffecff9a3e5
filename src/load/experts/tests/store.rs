use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::thread;

use crate::error::{Error, Result};
use crate::load::experts::mapping::file_at;
use crate::load::experts::store::{Budget, ExpertStore, Region, store_of};

use crate::sampling::random::uniform;

const STRIDE: u64 = 256 << 10;
const EXPERTS: usize = 8;
const LAYERS: usize = 3;

/// A file with the experts of all layers, whose bytes are all the number of their expert.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let name = format!("coordgen-experts-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let one = |expert: usize| vec![expert as u8; STRIDE as usize];
        let all: Vec<u8> = (0..LAYERS * EXPERTS).flat_map(one).collect();
        fs::write(&path, all).unwrap();
        Self(path)
    }

    fn open(&self, budget: Option<u64>) -> Result<Arc<ExpertStore>> {
        let region = |layer: usize| Region {
            file: 0,
            offset: layer as u64 * EXPERTS as u64 * STRIDE,
            num_experts: EXPERTS,
            stride: STRIDE,
        };
        let budget =
            budget.map(|num_bytes| Budget { num_bytes, num_threads: 3, is_forgotten: false });
        ExpertStore::open(slice::from_ref(&self.0), (0..LAYERS).map(region).collect(), budget)
    }

    fn cut(&self, num_bytes: u64) {
        OpenOptions::new().write(true).open(&self.0).unwrap().set_len(num_bytes).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

const ROOM: u64 = 10 * STRIDE;

fn chosen(step: u64, layer: usize) -> [i32; 4] {
    let draw = |at: u64| uniform(step * LAYERS as u64 + layer as u64, at);
    let first = (draw(0) * draw(1) * EXPERTS as f64) as i32;
    [first, (first + 1) % EXPERTS as i32, first, (first + 3) % EXPERTS as i32]
}

#[test]
fn what_a_layer_holds_is_right_and_within_the_budget() {
    let files = Files::new("held");
    let store = files.open(Some(ROOM)).unwrap();
    for step in 0..60 {
        for layer in 0..LAYERS {
            let chosen = chosen(step, layer);
            let held = store.hold(layer, &chosen, 2).unwrap();
            for expert in chosen {
                let bytes = &store.memory(layer)[expert as usize * STRIDE as usize..];
                let number = (layer * EXPERTS) as u8 + expert as u8;
                assert!(bytes[..STRIDE as usize].iter().all(|&byte| byte == number));
            }
            assert!(store.report().held_bytes <= ROOM);
            drop(held);
        }
    }
    let counts = store.report().counts;
    assert_eq!(counts.asked, 60 * LAYERS as u64 * 3);
    assert!(counts.misses > 0 && counts.misses < counts.asked);
    assert!(counts.read_bytes >= LAYERS as u64 * 3 * STRIDE);
    assert!(counts.ahead_used + counts.ahead_wasted <= counts.ahead);
}

/// Two sessions over one store may hold more than the budget together; neither waits for ever.
#[test]
fn many_threads_hold_at_once_and_none_waits_for_another() {
    let files = Files::new("threads");
    let store = files.open(Some(8 * STRIDE)).unwrap();
    thread::scope(|scope| {
        for number in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for step in 0..40 {
                    for layer in 0..LAYERS {
                        let all: Vec<i32> = (0..EXPERTS as i32).collect();
                        let some = chosen(step + number * 100, layer);
                        let chosen = if step % 10 == 0 { &all[..] } else { &some[..] };
                        let _held = store.hold(layer, chosen, 2).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(store.report().counts.asked, 4 * LAYERS as u64 * (4 * 8 + 36 * 3));
}

#[test]
fn a_store_is_found_by_the_memory_that_it_lends_and_not_when_it_is_gone() {
    let files = Files::new("found");
    let store = files.open(None).unwrap();
    let address = store.memory(2).as_ptr() as usize;
    let (found, layer) = store_of(store.memory(2)).unwrap();
    assert!(Arc::ptr_eq(&found, &store));
    assert_eq!(layer, 2);
    assert!(store_of(&store.memory(2)[1..]).is_none());
    assert_eq!(file_at(address + 5).unwrap().to_str().unwrap(), files.0.to_str().unwrap());
    drop((found, store));
    assert!(file_at(address + 5).is_none());
}

#[test]
fn without_a_budget_nothing_is_read_or_counted() {
    let files = Files::new("none");
    let store = files.open(None).unwrap();
    drop(store.hold(1, &[2, 3], 2).unwrap());
    assert_eq!(store.report().counts.asked, 0);
    assert_eq!(store.memory(1)[2 * STRIDE as usize], 10);
}

#[test]
fn a_file_that_became_shorter_is_named_with_a_budget_and_without() {
    for budget in [Some(ROOM), None] {
        let files = Files::new("cut");
        let store = files.open(budget).unwrap();
        drop(store.hold(0, &[0, 1], 2).unwrap());
        files.cut(EXPERTS as u64 * STRIDE);
        drop(store.hold(0, &[2, 3], 2).unwrap()); // its layer is still there
        let failed = store.hold(1, &[0, 1], 2).unwrap_err();
        let Error::ExpertsUnreadable { file, reason } = &failed else { panic!("{failed}") };
        assert_eq!(*file, files.0.display().to_string());
        assert!(reason.starts_with("it was cut short to 2097152 bytes"), "{reason}");
        assert_eq!(store.take_failure(), Some(failed));
        files.cut(LAYERS as u64 * EXPERTS as u64 * STRIDE);
        drop(store.hold(1, &[0, 1], 2).unwrap()); // zeros, but there
    }
}

/// Whoever asks for an expert is told why that one cannot be read; a read ahead that nobody asks for is
/// nobody's failure.
#[test]
fn a_read_ahead_that_fails_is_told_to_nobody_but_who_asks() {
    let files = Files::new("ahead");
    let store = files.open(Some(LAYERS as u64 * EXPERTS as u64 * STRIDE)).unwrap();
    files.cut(EXPERTS as u64 * STRIDE);
    drop(store.hold(0, &[0, 1], 2).unwrap());
    while store.report().counts.ahead < (LAYERS * EXPERTS - 2) as u64 {
        thread::yield_now(); // all there is room for is read ahead, most of it in vain
    }
    drop(store.hold(0, &[0, 1], 2).unwrap());
    assert_eq!(store.take_failure(), None);
    let failed = store.hold(1, &[0, 1], 2).unwrap_err();
    assert_eq!(store.take_failure(), Some(failed));
}

#[test]
fn regions_outside_their_file_and_small_budgets_are_refused() {
    let files = Files::new("refused");
    let refused = files.open(Some(EXPERTS as u64 * STRIDE - 1)).unwrap_err();
    let least = EXPERTS as u64 * STRIDE;
    assert_eq!(refused, Error::BudgetTooSmall { budget: least - 1, least });
    let region = Region { file: 0, offset: 0, num_experts: EXPERTS, stride: STRIDE };
    for wrong in [
        Region { file: 1, ..region },
        Region { offset: 512, ..region },
        Region { stride: STRIDE + 8, ..region },
        Region { num_experts: LAYERS * EXPERTS + 1, ..region },
        Region { num_experts: 0, ..region },
        Region { offset: u64::MAX - 4095, ..region },
    ] {
        let refused = ExpertStore::open(slice::from_ref(&files.0), vec![wrong], None).unwrap_err();
        assert!(matches!(refused, Error::BadOption { .. }), "{refused}");
    }
    let absent = ExpertStore::open(&[files.0.join("absent")], vec![], None).unwrap_err();
    assert!(matches!(absent, Error::ExpertsUnreadable { .. }), "{absent}");
}
