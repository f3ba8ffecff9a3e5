//! What all targets need: a bound on memory, a file to be read, and numbers out of a few bytes.

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::{fs, panic};

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Runs `work` on an input of `num_bytes`, which may hold 4 MiB and 64 bytes for each of them. The
/// process aborts where it asks for more.
pub fn within_memory<T>(num_bytes: usize, work: impl FnOnce() -> T) -> T {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        // What tells of a panic may hold what it needs.
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |told| {
            let _ = ALLOCATOR.set_limit(usize::MAX);
            tell(told);
        }));
    });
    let bound = (4 << 20) + 64 * num_bytes;
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + bound).expect("the limit is above what is held");
    let result = work();
    ALLOCATOR.set_limit(usize::MAX).expect("there is no limit");
    result
}

/// A path of this process, in memory where the system has a place for that; removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A path at which nothing is.
    pub fn new(name: &str) -> Self {
        let in_memory = Path::new("/dev/shm");
        let folder = if in_memory.is_dir() { in_memory.into() } else { std::env::temp_dir() };
        Self(folder.join(format!("coordgen-fuzz-{}-{name}", std::process::id())))
    }

    /// A file of these bytes.
    pub fn holding(name: &str, bytes: &[u8]) -> Self {
        let scratch = Self::new(name);
        fs::write(&scratch.0, bytes).expect("the folder of temporary files can be written");
        scratch
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A number that is small in most inputs and may be as large as the type: 16 bits, shifted.
pub fn wide(bits: u16, shift: u8) -> u64 {
    u64::from(bits) << (shift % 49)
}

/// The words of a file out of two bytes each: the largest stands for the largest word, others with
/// the highest bit set for words beyond any vocabulary.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(2).map(|pair| match u16::from_le_bytes([pair[0], pair[1]]) {
        u16::MAX => u32::MAX,
        word if word >> 15 == 1 => u32::from(word) << 16,
        word => u32::from(word),
    })
}
