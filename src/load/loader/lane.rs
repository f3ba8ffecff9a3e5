//! A loader's lane without a thread, on a clock that stands until somebody advances it. In: the
//! clock, and how long each load takes. Out: the same calls to the store and to `state` that the
//! thread makes, at the moments at which they are due. It decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::state::NextAction;
use super::{Shared, perform};
use crate::ids::{BlockId, Graph};
use crate::load::BlockStore;
use crate::load::timetable::{Action, ActionKind};

/// A clock that stands until it is advanced. Several loaders may share one, as those of a target and
/// its draft model do.
#[derive(Debug, Default)]
pub struct SimulatedClock(AtomicU64);

impl SimulatedClock {
    /// Microseconds since it was made.
    pub fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Lets so many microseconds pass, as a run that takes them does.
    pub fn advance(&self, us: u64) {
        self.0.fetch_add(us, Ordering::SeqCst);
    }

    fn advance_to(&self, moment_us: u64) {
        self.0.fetch_max(moment_us, Ordering::SeqCst);
    }
}

/// Microseconds that a load takes.
pub type LoadTimes = Box<dyn Fn(BlockId, Graph) -> u64 + Send + Sync>;

/// An action whose call has returned, and whose end is yet to come.
struct UnderWay {
    outcome: std::result::Result<(), String>,
    end_us: u64,
}

/// What stands for the thread. The store is called as an action begins; a release takes no time.
pub(super) struct Lane {
    clock: Arc<SimulatedClock>,
    load_us: LoadTimes,
    /// Held while the store is called.
    under_way: Mutex<Option<UnderWay>>,
}

impl Lane {
    pub(super) fn new(clock: Arc<SimulatedClock>, load_us: LoadTimes) -> Self {
        Self { clock, load_us, under_way: Mutex::default() }
    }

    pub(super) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Whether the store is being called.
    pub(super) fn is_performing(&self) -> bool {
        self.under_way.try_lock().is_err()
    }

    /// Ends what the clock has come to the end of, and begins what may begin.
    pub(super) fn catch_up(&self, shared: &Shared, store: &dyn BlockStore) {
        let Ok(mut under_way) = self.under_way.try_lock() else { return };
        let mut moment_us = self.now_us();
        loop {
            if let Some(over) = under_way.take_if(|action| action.end_us <= self.now_us()) {
                moment_us = over.end_us;
                shared.lock().action_over(over.outcome, moment_us);
            }
            if under_way.is_some() {
                return;
            }
            let next = shared.lock().next(moment_us);
            let NextAction::Begin(action) = next else { return };
            let end_us = moment_us + self.duration_us(&action);
            *under_way = Some(UnderWay { outcome: perform(store, &action), end_us });
        }
    }

    /// Advances the clock to the end of the action under way; false where there is none.
    pub(super) fn pass_time(&self) -> bool {
        let Ok(under_way) = self.under_way.try_lock() else { return true };
        let end_us = under_way.as_ref().map(|action| action.end_us);
        end_us.inspect(|&end_us| self.clock.advance_to(end_us)).is_some()
    }

    fn duration_us(&self, action: &Action) -> u64 {
        match action.kind {
            ActionKind::Load => (self.load_us)(action.block, action.graph),
            ActionKind::Release => 0,
        }
    }
}
