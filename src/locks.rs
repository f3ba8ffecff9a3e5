//! Locks that are waited for without holding others up. In: a mutex or another lock, or a value that
//! several owners share. Out: its guard.
//!
//! Who waits may hold what the lock's owner, or everybody else, needs: in Python, the interpreter.
//! Whoever lends out such a thing says once how it is let go of, [`set_wait_hook`]; all of the crate
//! then lets go of it where a lock is not free, and only there. So every lock is taken here: `layers`
//! holds the crate to that.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};

/// Calls what waits, while the thread holds nothing that others need.
pub type WaitHook = fn(&mut (dyn FnMut() + Send));

static WAIT_HOOK: OnceLock<WaitHook> = OnceLock::new();

/// From now on a thread that has to wait for a lock does so within `let_go`. The first call counts.
#[cfg(feature = "python")]
pub fn set_wait_hook(let_go: WaitHook) {
    WAIT_HOOK.get_or_init(|| let_go);
}

/// The value of a mutex, whatever a panic left in it, until the guard is dropped.
pub fn lock<T: Send>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    taken(|| mutex.try_lock(), || mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The value of a lock, to be read beside other readers.
pub fn read<T: Send + Sync>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    taken(|| lock.try_read(), || lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// The value of a lock, to be changed.
pub fn write<T: Send + Sync>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    taken(|| lock.try_write(), || lock.write().unwrap_or_else(PoisonError::into_inner))
}

fn taken<G>(try_take: impl Fn() -> Result<G, TryLockError<G>>, take: impl Fn() -> G + Sync) -> G {
    take_with_hook(WAIT_HOOK.get().copied(), try_take, take)
}

/// Waits until the lock is free, lets it go again, takes back what was let go of, and tries anew: a
/// thread that waited for the interpreter with the lock in hand would keep others from it.
fn take_with_hook<G>(
    let_go: Option<WaitHook>,
    try_take: impl Fn() -> Result<G, TryLockError<G>>,
    take: impl Fn() -> G + Sync,
) -> G {
    loop {
        match try_take() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        match let_go {
            Some(let_go) => let_go(&mut || drop(take())),
            None => return take(),
        }
    }
}

/// A value that is shared and locked for each use.
///
/// It only feeds drafts, which are verified: the state that a panic left behind is as good as any.
#[derive(Debug, Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T: Send> Shared<T> {
    /// Shares `value`.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    /// Whether others share it, at this moment.
    pub fn has_others(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The value, locked until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.0)
    }
}

impl<T> Clone for Shared<T> {
    /// The same value.
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_gets_what_the_owner_left() {
        let (mutex, shared) = (Mutex::new(0), RwLock::new(0));
        let (waits, is_waiting) = channel();
        thread::scope(|scope| {
            let (mut one, mut other) = (lock(&mutex), write(&shared));
            let waiting = scope.spawn(|| {
                waits.send(()).unwrap();
                (*lock(&mutex), *read(&shared))
            });
            is_waiting.recv().unwrap();
            (*one, *other) = (1, 2);
            drop((one, other));
            assert_eq!(waiting.join().unwrap(), (1, 2));
        });
    }

    #[test]
    fn what_others_need_is_let_go_of_while_a_lock_is_waited_for_and_only_then() {
        static HOLDS: AtomicBool = AtomicBool::new(true);
        let let_go: WaitHook = |wait| {
            HOLDS.store(false, Ordering::SeqCst);
            wait();
            HOLDS.store(true, Ordering::SeqCst);
        };
        let mutex = Mutex::new(0);
        let take = || {
            let lock = || mutex.lock().unwrap();
            let taken = take_with_hook(Some(let_go), || mutex.try_lock(), lock);
            assert!(HOLDS.load(Ordering::SeqCst));
            *taken
        };
        thread::scope(|scope| {
            assert_eq!(take(), 0);
            let mut owned = lock(&mutex);
            let waiting = scope.spawn(take);
            while HOLDS.load(Ordering::SeqCst) {
                thread::yield_now(); // for ever, if the other thread holds on to it
            }
            *owned = 1;
            drop(owned);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }

    #[test]
    fn what_a_panic_left_is_taken_as_it_is() {
        let mutex = Mutex::new(7);
        let panicked = thread::scope(|scope| {
            let panics = || {
                let _guard = lock(&mutex);
                panic!("with the guard in hand");
            };
            scope.spawn(panics).join()
        });
        assert!(panicked.is_err());
        assert_eq!(*lock(&mutex), 7);
    }
}
