//! A file that is mapped, whose pages come and go on demand. In: a path, ranges of bytes. Out: the
//! bytes, at one address as long as the mapping lives; pages that were read, or why not.
//!
//! Nothing is wrong where a page is absent: the system reads it when it is touched. A file that
//! became shorter is found before it is read here; whoever touches the rest is told of by the system
//! (SIGBUS), and [`file_at`] names the file in its handler.
//!
//! The system brings and gives back whole pages of its own, of 4, 16 or 64 KiB, and refuses advice
//! that does not begin at one: bytes are brought with all pages that they touch, and given back with
//! those that lie within them, so that nothing beside them goes.
//!
//! Unsafe: a file is mapped that others may change, and pages are given back.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{Mmap, UncheckedAdvice};

/// What a fault maps beside the page that it is for, if that is in the system's cache.
pub const FAULT_AROUND: usize = 64 << 10;
/// Bytes of a read where the system cannot bring pages itself.
const READ_BYTES: usize = 1 << 18;

/// A file, mapped as a whole to be read.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    file: File,
    memory: Mmap,
    page: usize,
    slot: Option<&'static Slot>,
}

impl Mapping {
    /// Maps the file at `path`. Fails where it cannot be opened or mapped, or is empty.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: it is only read; who makes the file shorter is told of, as the module says.
        let memory = unsafe { Mmap::map(&file) }?;
        let slot = Slot::take(memory.as_ptr() as usize, memory.len(), path);
        // SAFETY: asks the system for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        Ok(Self { path: path.to_owned(), file, memory, page, slot })
    }

    /// Bytes of the system's pages.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Its path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length when it was opened.
    pub fn num_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Some of its bytes. Who touches them where the file became shorter is told by the system.
    pub fn bytes(&self, bytes: Range<usize>) -> &[u8] {
        &self.memory[bytes]
    }

    /// Fails where the file ends before `end` by now.
    pub fn check_holds(&self, end: usize) -> io::Result<()> {
        let held = self.file.metadata()?.len();
        if held < end as u64 {
            let what = format!("it was cut short to {held} bytes while it was in use");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(())
    }

    /// Reads bytes and brings their pages into the process. Fails where the file became shorter, or
    /// its disk fails.
    pub fn bring(&self, bytes: &Range<usize>) -> io::Result<()> {
        self.check_holds(bytes.end)?;
        #[cfg(target_os = "linux")]
        {
            let pages = touched(bytes, self.page, self.memory.len());
            // All of it at once, where a fault alone reads as much as the system reads ahead.
            let advise = |advice| self.memory.advise_range(advice, pages.start, pages.len());
            let _ = advise(Advice::WillNeed);
            match advise(Advice::PopulateRead) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {} // before Linux 5.14
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    self.check_holds(bytes.end)?;
                    return Err(io::Error::other("its disk cannot read it"));
                }
                outcome => return outcome,
            }
        }
        let mut read = vec![0; READ_BYTES.min(bytes.len())];
        for start in bytes.clone().step_by(READ_BYTES) {
            let num_bytes = READ_BYTES.min(bytes.end - start);
            self.file.read_exact_at(&mut read[..num_bytes], start as u64)?;
        }
        Ok(())
    }

    /// Gives the pages within some bytes back; where `is_forgotten`, the system is asked to keep no
    /// copy either.
    pub fn give_back(&self, bytes: &Range<usize>, is_forgotten: bool) {
        let pages = within(bytes, self.page, self.memory.len());
        if pages.is_empty() {
            return;
        }
        // SAFETY: of a mapping that is only read nothing is lost; where it fails, the pages stay.
        let _ = unsafe {
            let give_back = UncheckedAdvice::DontNeed;
            self.memory.unchecked_advise_range(give_back, pages.start, pages.len())
        };
        #[cfg(target_os = "linux")]
        if is_forgotten {
            let (start, length) = (pages.start as i64, pages.len() as i64);
            let forget = libc::POSIX_FADV_DONTNEED;
            // SAFETY: advice about an open file.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), start, length, forget) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = is_forgotten;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// The pages that some bytes of a file touch; the last one of the file ends with it.
fn touched(bytes: &Range<usize>, page: usize, file_bytes: usize) -> Range<usize> {
    bytes.start / page * page..bytes.end.next_multiple_of(page).min(file_bytes)
}

/// The pages that lie within some bytes of a file; the last one of the file ends with it.
fn within(bytes: &Range<usize>, page: usize, file_bytes: usize) -> Range<usize> {
    let start = bytes.start.next_multiple_of(page);
    let end = if bytes.end == file_bytes { file_bytes } else { bytes.end / page * page };
    start..end.max(start)
}

/// Where a file is mapped, to be read in a signal's handler.
#[derive(Debug)]
struct Slot {
    /// 0 where it is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Never freed: a handler may be reading it.
    name: AtomicPtr<c_char>,
}

static SLOTS: [Slot; 256] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
    }
}; 256];

impl Slot {
    /// One for a mapping; none where all are taken, and then the file goes unnamed.
    fn take(start: usize, num_bytes: usize, path: &Path) -> Option<&'static Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        let (ordering, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let is_taken = |slot: &&Slot| slot.start.compare_exchange(0, 1, ordering, failed).is_ok();
        let slot = SLOTS.iter().find(is_taken)?;
        slot.name.store(name.into_raw(), Ordering::Release);
        slot.end.store(start + num_bytes, Ordering::Release);
        slot.start.store(start, Ordering::Release);
        Some(slot)
    }
}

/// The file that is mapped at an address. May be called in a signal's handler.
pub fn file_at(address: usize) -> Option<&'static CStr> {
    let is_at = |slot: &&Slot| {
        let start = slot.start.load(Ordering::Acquire);
        start > 1 && (start..slot.end.load(Ordering::Acquire)).contains(&address)
    };
    let name = SLOTS.iter().find(is_at)?.name.load(Ordering::Acquire);
    // SAFETY: names that are stored are C strings that are never freed.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What experts begin and end at.
    const STEP: usize = 4096;

    #[test]
    fn pages_as_large_as_experts_steps_are_just_theirs() {
        let bytes = 3 * STEP..7 * STEP;
        assert_eq!(touched(&bytes, STEP, 9 * STEP), bytes);
        assert_eq!(within(&bytes, STEP, 9 * STEP), bytes);
    }

    #[test]
    fn larger_pages_are_brought_whole_and_given_back_only_whole() {
        let (page, bytes) = (4 * STEP, 3 * STEP..13 * STEP);
        assert_eq!(touched(&bytes, page, 40 * STEP), 0..16 * STEP);
        assert_eq!(within(&bytes, page, 40 * STEP), 4 * STEP..12 * STEP);
        assert!(within(&(STEP..3 * STEP), page, 40 * STEP).is_empty());
        let last = 9 * STEP..14 * STEP; // the file ends with it
        assert_eq!(touched(&last, page, 14 * STEP), 8 * STEP..14 * STEP);
        assert_eq!(within(&last, page, 14 * STEP), 12 * STEP..14 * STEP);
    }

    proptest! {
        #[test]
        fn advice_begins_at_pages_and_loses_nothing_beside_its_bytes(
            page in prop::sample::select(&[4096usize, 16384, 65536][..]),
            start in 0..200usize,
            length in 1..200usize,
            beside in 0..50usize,
        ) {
            let bytes = start * STEP..(start + length) * STEP;
            let file_bytes = bytes.end + beside * STEP;
            let outer = touched(&bytes, page, file_bytes);
            let inner = within(&bytes, page, file_bytes);
            let ends = |at: usize| at.is_multiple_of(page) || at == file_bytes;
            prop_assert!(outer.start.is_multiple_of(page) && ends(outer.end));
            prop_assert!(outer.start <= bytes.start && bytes.end <= outer.end);
            prop_assert!(bytes.start - outer.start < page && outer.end - bytes.end < page);
            prop_assert!(inner.start.is_multiple_of(page) && (inner.is_empty() || ends(inner.end)));
            if !inner.is_empty() {
                prop_assert!(bytes.start <= inner.start && inner.end <= bytes.end);
                prop_assert!(inner.start - bytes.start < page && bytes.end - inner.end < page);
            } else {
                prop_assert!(bytes.len() < 2 * page);
            }
        }
    }
}
