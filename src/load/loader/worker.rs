//! A loader's thread, which may outlive the loader. In: what it runs. Out: its end, to be waited
//! for by whoever may: not by itself, and not in a fork of its process, where it does not exist.

use std::sync::Mutex;
use std::thread::{self, JoinHandle, ThreadId};

use crate::error::{Error, Result};
use crate::locks;

/// A thread, and the process that it belongs to.
#[derive(Debug)]
pub struct Worker {
    handle: Mutex<Option<JoinHandle<()>>>,
    thread: Option<ThreadId>,
    process: u32,
}

impl Worker {
    /// Starts a thread. Fails where the system gives none.
    pub(in crate::load) fn start(work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let handle = thread::Builder::new()
            .name("coordgen-loader".to_owned())
            .spawn(work)
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        let (thread, process) = (Some(handle.thread().id()), std::process::id());
        Ok(Self { handle: Mutex::new(Some(handle)), thread, process })
    }

    /// Belongs to this process, and has no thread.
    pub(super) fn none() -> Self {
        Self { handle: Mutex::new(None), thread: None, process: std::process::id() }
    }

    /// Fails in a fork of the thread's process.
    pub fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether this is the thread.
    pub(super) fn is_current(&self) -> bool {
        Some(thread::current().id()) == self.thread
    }

    /// Waits until the thread has ended. On the thread itself, which ends later, and in a fork, where
    /// it never ran, it returns at once.
    pub fn join(&self) {
        if self.check_process().is_err() || self.is_current() {
            return;
        }
        // Held until the end: whoever comes second waits for it, too.
        let mut handle = locks::lock(&self.handle);
        if let Some(handle) = handle.take() {
            // Its own panics are caught; there is nothing to learn from the result.
            let _ = handle.join();
        }
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        let has_ended =
            |handle: &Option<JoinHandle<()>>| handle.as_ref().is_none_or(JoinHandle::is_finished);
        self.handle.try_lock().is_ok_and(|handle| has_ended(&handle))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The system would detach a thread that this process does not have.
            if let Ok(handle) = self.handle.get_mut() {
                std::mem::forget(handle.take());
            }
        }
    }
}
