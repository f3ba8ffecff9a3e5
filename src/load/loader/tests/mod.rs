//! The loader's thread against a store that is told when to finish and when to fail.

mod interleavings;
mod progress;

use std::sync::Weak;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use self::interleavings::timetables::timetable;
use super::*;
use crate::ids::Graph::{Decode, Prefill};
use crate::load::timetable::ActionKind::{Load, Release};

#[test]
fn no_time_passes_where_nothing_is_under_way() {
    let clock = Arc::new(SimulatedClock::default());
    let lane = Lane::new(Arc::clone(&clock), Box::new(|_, _| 1));
    assert!(!lane.pass_time());
    assert_eq!(clock.now_us(), 0);
}

type Call = (ActionKind, u32, Graph);
type Answer = std::result::Result<(), String>;

/// Tells of each call, and waits for its answer.
struct ToldStore {
    calls: Sender<Call>,
    answers: Mutex<Receiver<Answer>>,
}

impl ToldStore {
    fn call(&self, call: Call) -> Answer {
        self.calls.send(call).unwrap();
        self.answers.lock().unwrap().recv().unwrap()
    }
}

impl BlockStore for ToldStore {
    fn load(&self, block: BlockId, graph: Graph) -> Answer {
        self.call((Load, block.0, graph))
    }

    fn release(&self, block: BlockId, graph: Graph) {
        self.call((Release, block.0, graph)).unwrap();
    }
}

/// The other end of a `ToldStore`.
struct Teller {
    calls: Receiver<Call>,
    answers: Sender<Answer>,
}

impl Teller {
    fn expect(&self, call: Call) {
        assert_eq!(self.calls.recv().unwrap(), call);
    }

    fn answer(&self, call: Call, answer: Answer) {
        self.expect(call);
        self.answers.send(answer).unwrap();
    }
}

fn told(num_blocks: usize) -> (Loader, Teller) {
    let ((calls, of_store), (answers, of_teller)) = (channel(), channel());
    let store = ToldStore { calls, answers: Mutex::new(of_teller) };
    let loader = Loader::new(Arc::new(store), vec![[1, 1]; num_blocks]).unwrap();
    (loader, Teller { calls: of_store, answers })
}

/// Two blocks on G1.
fn on_g1() -> (Loader, Teller) {
    let (loader, teller) = told(2);
    let both = [(BlockId(0), Prefill), (BlockId(1), Prefill)];
    loader.begin(Timetable::immediate(2, Load, &both)).unwrap();
    teller.answer((Load, 0, Prefill), Ok(()));
    teller.answer((Load, 1, Prefill), Ok(()));
    loader.finish().unwrap();
    (loader, teller)
}

/// Two runs, of block 0 and of block 1, and these actions.
fn plan(actions: &[(ActionKind, u32, Graph, usize)]) -> Timetable {
    timetable(2, &[Decode, Decode], actions)
}

fn cancel_elsewhere(loader: &Loader) {
    thread::scope(|scope| scope.spawn(|| loader.cancel()).join().unwrap());
}

const SWITCH_0: [(ActionKind, u32, Graph, usize); 2] =
    [(Release, 0, Prefill, 0), (Load, 0, Decode, 0)];

#[test]
fn a_late_load_does_not_stop_compute_while_the_other_graph_is_there() {
    let (loader, teller) = on_g1();
    loader.begin(plan(&[(Load, 1, Decode, 0), (Release, 1, Prefill, 0)])).unwrap();
    teller.expect((Load, 1, Decode));
    for block in [0, 1] {
        assert_eq!(loader.enter(BlockId(block)), Ok(Prefill));
        loader.leave().unwrap();
    }
    teller.answers.send(Ok(())).unwrap();
    teller.answer((Release, 1, Prefill), Ok(()));
    let report = loader.finish().unwrap();
    assert_eq!((report.num_under_other_graph, report.actual.runs.len()), (2, 2));
    assert_eq!(loader.resident(), [[true, false], [false, true]]);
}

#[test]
fn a_switch_begins_between_runs_and_compute_waits_for_it() {
    let (loader, teller) = on_g1();
    loader.begin(plan(&[])).unwrap();
    assert_eq!(loader.enter(BlockId(0)), Ok(Prefill));
    cancel_elsewhere(&loader);
    assert_eq!(loader.begin(plan(&SWITCH_0)), Err(Error::StillRunning { block: BlockId(0) }));
    loader.leave().unwrap();
    loader.begin(plan(&SWITCH_0)).unwrap();
    teller.answer((Release, 0, Prefill), Ok(()));
    teller.expect((Load, 0, Decode));
    assert_eq!(loader.try_enter(BlockId(0)), Ok(None));
    thread::scope(|scope| {
        let compute = scope.spawn(|| loader.enter(BlockId(0)));
        teller.answers.send(Ok(())).unwrap();
        assert_eq!(compute.join().unwrap(), Ok(Decode));
    });
}

#[test]
fn a_thread_that_cancels_gives_up_its_own_run_and_no_other() {
    let (loader, _teller) = on_g1();
    let still_running = Err(Error::StillRunning { block: BlockId(0) });
    loader.begin(plan(&[])).unwrap();
    loader.enter(BlockId(0)).unwrap();
    cancel_elsewhere(&loader);
    assert_eq!(loader.begin(plan(&[])), still_running);
    loader.cancel();
    assert_eq!(loader.begin(plan(&[])), Ok(()));
    for leave_after in [true, false] {
        loader.enter(BlockId(0)).unwrap();
        loader.cancel();
        if leave_after {
            assert_eq!(loader.leave(), Ok(()));
            assert_eq!(loader.leave(), Err(Error::NothingRunning));
        }
        loader.begin(plan(&[])).unwrap();
        assert_eq!(loader.leave(), Err(Error::NothingRunning));
    }
    loader.cancel();
    assert_eq!(loader.finish().unwrap().actual.runs, []);
}

#[test]
fn a_run_that_is_abandoned_is_due_again() {
    let (loader, teller) = on_g1();
    loader.begin(plan(&SWITCH_0)).unwrap();
    teller.answer((Release, 0, Prefill), Ok(()));
    teller.answer((Load, 0, Decode), Ok(()));
    loader.enter(BlockId(0)).unwrap();
    loader.abandon();
    assert_eq!(loader.enter(BlockId(0)), Ok(Decode));
    loader.leave().unwrap();
    loader.enter(BlockId(1)).unwrap();
    loader.leave().unwrap();
    let report = loader.finish().unwrap();
    assert_eq!(report.actual.runs.iter().map(|run| run.block.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(loader.resident(), [[false, true], [true, false]]);
}

#[test]
fn a_failed_load_is_named_undone_and_the_rest_goes_on() {
    let (loader, teller) = on_g1();
    let mut actions = SWITCH_0.to_vec();
    actions.extend([(Release, 1, Prefill, 0), (Load, 1, Decode, 0)]);
    loader.begin(plan(&actions)).unwrap();
    teller.answer((Release, 0, Prefill), Ok(()));
    teller.answer((Load, 0, Decode), Err("no room".to_owned()));
    teller.answer((Load, 0, Prefill), Ok(()));
    teller.answer((Release, 1, Prefill), Ok(()));
    teller.answer((Load, 1, Decode), Ok(()));
    for (block, graph) in [(0, Prefill), (1, Decode)] {
        assert_eq!(loader.enter(BlockId(block)), Ok(graph));
        loader.leave().unwrap();
    }
    let reason = "no room".to_owned();
    let failure = Error::LoadFailed { block: BlockId(0), graph: Decode, reason };
    assert_eq!(loader.finish().unwrap().failures, [failure]);
}

#[test]
fn a_block_with_nothing_loaded_is_an_error_not_a_wait() {
    let (loader, teller) = on_g1();
    loader.begin(plan(&SWITCH_0)).unwrap();
    teller.answer((Release, 0, Prefill), Ok(()));
    teller.answer((Load, 0, Decode), Err("no room".to_owned()));
    teller.answer((Load, 0, Prefill), Err("no room for this either".to_owned()));
    let reason = "no room for this either".to_owned();
    let failure = Error::LoadFailed { block: BlockId(0), graph: Prefill, reason };
    assert_eq!(loader.enter(BlockId(0)), Err(failure));
    loader.cancel();
    assert_eq!(loader.finish().unwrap().failures.len(), 2);
    assert_eq!(loader.resident(), [[false, false], [true, false]]);
}

#[test]
fn cancelling_wakes_who_waits_and_keeps_what_is_under_way() {
    let (loader, teller) = told(2);
    loader.begin(plan(&[(Load, 0, Decode, 0), (Load, 1, Decode, 0)])).unwrap();
    teller.expect((Load, 0, Decode));
    thread::scope(|scope| {
        let compute = scope.spawn(|| loader.enter(BlockId(0)));
        loader.cancel();
        teller.answers.send(Ok(())).unwrap();
        assert_eq!(compute.join().unwrap(), Ok(Decode));
    });
    assert_eq!(loader.enter(BlockId(1)), Err(Error::StillRunning { block: BlockId(0) }));
    loader.leave().unwrap();
    assert_eq!(loader.enter(BlockId(1)), Err(Error::LoadingCancelled));
    assert!(loader.finish().unwrap().is_cancelled);
    assert_eq!(loader.resident(), [[false, true], [false, false]]);
}

#[test]
fn a_thread_that_waits_for_a_load_behind_is_told_of_the_cancellation() {
    let (loader, teller) = told(2);
    let both = [(BlockId(0), Decode), (BlockId(1), Decode)];
    loader.begin(Timetable::immediate(2, Load, &both)).unwrap();
    teller.expect((Load, 0, Decode));
    thread::scope(|scope| {
        let compute = scope.spawn(|| loader.enter(BlockId(1)));
        loader.cancel();
        assert_eq!(compute.join().unwrap(), Err(Error::LoadingCancelled));
        teller.answers.send(Ok(())).unwrap();
    });
}

#[test]
fn dropping_the_loader_waits_for_the_action_under_way() {
    let (loader, teller) = told(1);
    let loads = Timetable::immediate(1, Load, &[(BlockId(0), Decode), (BlockId(0), Prefill)]);
    loader.begin(loads).unwrap();
    teller.expect((Load, 0, Decode));
    loader.cancel();
    let dropping = thread::spawn(move || drop(loader));
    teller.answers.send(Ok(())).unwrap();
    dropping.join().unwrap();
    // The store is gone with the thread, after one call.
    assert_eq!(teller.calls.recv(), Err(std::sync::mpsc::RecvError));
}

/// Drops its own loader in the middle of a load, as a garbage collector may.
struct Dropping {
    loader: Mutex<Receiver<Loader>>,
    dropped: Sender<()>,
}

impl BlockStore for Dropping {
    fn load(&self, _: BlockId, _: Graph) -> Answer {
        drop(self.loader.lock().unwrap().recv().unwrap());
        self.dropped.send(()).unwrap();
        Ok(())
    }

    fn release(&self, _: BlockId, _: Graph) {}
}

#[test]
fn a_loader_that_is_dropped_on_its_own_thread_ends_after_its_action_and_can_be_waited_for() {
    let ((to_store, loader), (dropped, was_dropped)) = (channel(), channel());
    let store = Dropping { loader: Mutex::new(loader), dropped };
    let loader = Loader::new(Arc::new(store), vec![[1, 1]; 2]).unwrap();
    let worker = Arc::clone(loader.worker());
    let both = [(BlockId(0), Decode), (BlockId(1), Decode)];
    loader.begin(Timetable::immediate(2, Load, &both)).unwrap();
    to_store.send(loader).unwrap();
    // One load was carried out to its end; then the store went with the thread.
    assert_eq!(was_dropped.iter().count(), 1);
    worker.join();
    assert!(worker.has_ended());
}

#[test]
fn a_closed_loader_begins_nothing_and_runs_what_it_has() {
    let (loader, _teller) = on_g1();
    loader.close();
    assert_eq!(loader.begin(plan(&[])), Err(Error::LoadingCancelled));
    assert_eq!(loader.enter(BlockId(1)), Ok(Prefill));
}

/// Keeps a balance; every third call panics.
#[derive(Default)]
struct PanickingStore {
    balance: AtomicIsize,
    num_calls: AtomicIsize,
}

impl PanickingStore {
    fn may_panic(&self) {
        if self.num_calls.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            std::panic::resume_unwind(Box::new("told to panic")); // no message on stderr
        }
    }
}

impl BlockStore for PanickingStore {
    fn load(&self, _: BlockId, _: Graph) -> Answer {
        self.may_panic();
        self.balance.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn release(&self, _: BlockId, _: Graph) {
        self.balance.fetch_sub(1, Ordering::SeqCst);
        self.may_panic();
    }
}

#[test]
fn a_thousand_timetables_with_panics_leave_no_graph_behind() {
    std::panic::set_hook(Box::new(|_| {}));
    let store = Arc::new(PanickingStore::default());
    let loader = Loader::new(Arc::clone(&store) as Arc<dyn BlockStore>, vec![[1, 1]; 2]).unwrap();
    let every = [0, 1].map(BlockId).into_iter().flat_map(|block| Graph::BOTH.map(|g| (block, g)));
    let every: Vec<_> = every.collect();
    let mut num_failures = 0;
    for round in 0..1_000 {
        let (from, to) = if round % 2 == 0 { (Prefill, Decode) } else { (Decode, Prefill) };
        loader
            .begin(plan(&[
                (Release, 0, from, 0),
                (Load, 0, to, 0),
                (Load, 1, to, 1),
                (Release, 1, from, 2),
            ]))
            .unwrap();
        let run = |block| loader.enter(BlockId(block)).and_then(|_| loader.leave());
        if [0, 1].into_iter().try_for_each(run).is_err() {
            loader.cancel();
        }
        let report = loader.finish().unwrap();
        num_failures += report.failures.len();
        let said = |error: &Error| error.to_string().contains("the store panicked: told to panic");
        assert!(report.failures.iter().all(said));
        let num_held = loader.resident().into_iter().flatten().filter(|held| *held).count();
        assert_eq!(store.balance.load(Ordering::SeqCst), num_held as isize);
    }
    assert!(num_failures > 0);
    loader.begin(Timetable::immediate(2, Release, &every)).unwrap();
    loader.finish().unwrap();
    assert_eq!(store.balance.load(Ordering::SeqCst), 0);
}

#[test]
fn a_step_may_load_for_the_next_step() {
    let (loader, teller) = told(2);
    loader.begin(Timetable::immediate(2, Load, &[(BlockId(0), Decode)])).unwrap();
    teller.answer((Load, 0, Decode), Ok(()));
    let step = plan(&[
        (Load, 1, Decode, 0),
        (Release, 0, Decode, 1),
        (Load, 0, Decode, 1),
        (Release, 1, Decode, 2),
    ]);
    for _ in 0..3 {
        loader.begin(step.clone()).unwrap();
        teller.answer((Load, 1, Decode), Ok(()));
        assert_eq!(loader.enter(BlockId(0)), Ok(Decode));
        loader.leave().unwrap();
        teller.answer((Release, 0, Decode), Ok(()));
        assert_eq!(loader.enter(BlockId(1)), Ok(Decode));
        loader.leave().unwrap();
        teller.answer((Load, 0, Decode), Ok(()));
        teller.answer((Release, 1, Decode), Ok(()));
    }
    let report = loader.finish().unwrap();
    assert_eq!((report.actual.actions.len(), report.peak_bytes), (13, 2));
}

/// A store that calls its own loader, which is told once it is made.
struct CallingStore {
    loader: Mutex<Option<Weak<Loader>>>,
    said: Mutex<Vec<Result<()>>>,
}

impl BlockStore for CallingStore {
    fn load(&self, block: BlockId, _: Graph) -> Answer {
        let loader = self.loader.lock().unwrap().as_ref().and_then(Weak::upgrade);
        let loader = loader.expect("it is told before it loads");
        let nothing = || Timetable::immediate(1, Load, &[]);
        let said = [
            loader.enter(block).map(drop),
            loader.try_enter(block).map(drop),
            loader.rest(),
            loader.finish().map(drop),
            loader.check_ready(),
            loader.begin(nothing()),
            loader.begin_anew(nothing()),
        ];
        self.said.lock().unwrap().extend(said);
        assert_eq!(loader.resident(), [[false; 2]]); // what waits for nothing is answered
        Ok(())
    }

    fn release(&self, _: BlockId, _: Graph) {}
}

#[test]
fn a_store_that_calls_its_own_loader_within_a_load_is_refused() {
    let store = Arc::new(CallingStore { loader: Mutex::default(), said: Mutex::default() });
    let loader = Arc::new(Loader::new(Arc::clone(&store) as _, vec![[1, 1]]).unwrap());
    *store.loader.lock().unwrap() = Some(Arc::downgrade(&loader));
    loader.begin(Timetable::immediate(1, Load, &[(BlockId(0), Decode)])).unwrap();
    assert!(loader.finish().unwrap().failures.is_empty());
    assert_eq!(*store.said.lock().unwrap(), vec![Err(Error::WithinAction); 7]);
    assert_eq!(loader.resident(), [[false, true]]);
}
