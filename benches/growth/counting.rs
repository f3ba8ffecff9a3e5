//! What is counted. In: marks in a running program. Out: instructions, as callgrind counts them, and
//! bytes that are asked of the allocator.
//!
//! Instructions are the same on a busy machine and on a quiet one, and misses of the cache, which do
//! grow with the text, are none. Those of the allocator are left out: whether an array that grows is
//! copied hangs on what lies behind it, which another path of this program may change. Bytes need no
//! tool: a copy of the text shows in them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator, which counts what it is asked for.
pub struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);
/// Whether callgrind counts what this thread, which is the only one, is doing.
static IS_COLLECTING: AtomicBool = AtomicBool::new(false);

/// Begins to count instructions, or ends it.
pub fn toggle_collecting() {
    IS_COLLECTING.fetch_not(Ordering::Relaxed);
    request(Request::ToggleCollect, c"");
}

/// Leaves out the instructions of `work`.
fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let is_collecting = IS_COLLECTING.load(Ordering::Relaxed);
    if is_collecting {
        request(Request::ToggleCollect, c"");
    }
    let done = work();
    if is_collecting {
        request(Request::ToggleCollect, c"");
    }
    done
}

#[expect(unsafe_code, reason = "an allocator is unsafe to write")]
// SAFETY: all is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        uncounted(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        uncounted(|| unsafe { System.dealloc(place, layout) });
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
        uncounted(|| unsafe { System.realloc(place, layout, size) })
    }
}

/// Bytes asked for so far.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Callgrind's client requests (callgrind.h).
#[derive(Clone, Copy)]
pub enum Request {
    ToggleCollect = 2,
    DumpStatsAt = 3,
    StartInstrumentation = 4,
    StopInstrumentation = 5,
}

/// Asks callgrind for something; without it nothing happens. `name` is what a dump is found by.
#[cfg(target_arch = "x86_64")]
pub fn request(request: Request, name: &std::ffi::CStr) {
    const CALLGRIND: usize = (b'C' as usize) << 24 | (b'T' as usize) << 16;
    let arguments = [CALLGRIND + request as usize, name.as_ptr() as usize, 0, 0, 0, 0];
    #[expect(unsafe_code, reason = "callgrind reads a pattern of instructions")]
    // SAFETY: a processor turns a register around twice and exchanges another with itself; callgrind
    // reads the arguments and writes its answer to `rdx`.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") &arguments, inout("rdx") 0_usize => _,
        );
    }
}

/// Callgrind is asked in the instructions of one kind of processor only.
#[cfg(not(target_arch = "x86_64"))]
pub fn request(_request: Request, _name: &std::ffi::CStr) {}

/// Whether instructions can be counted here; if not, why.
pub fn can_count_instructions() -> Result<(), &'static str> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("they are counted on x86-64 only");
    }
    match Command::new("valgrind").arg("--version").output() {
        Ok(said) if said.status.success() => Ok(()),
        _ => Err("there is no valgrind"),
    }
}

/// Runs this program again, under callgrind, with `arguments`. Returns the instructions of each dump
/// by its name, and what was printed.
pub fn instructions(arguments: &[String]) -> (HashMap<String, u64>, String) {
    let own = std::env::current_exe().expect("a program has a path");
    let name = format!("coordgen-callgrind-{}-{}", std::process::id(), arguments.join("-"));
    let folder = std::env::temp_dir().join(name.replace(' ', "-"));
    std::fs::create_dir_all(&folder).expect("a folder for what callgrind writes");
    let output = folder.join("callgrind");
    let said = Command::new("valgrind")
        .args(["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(own)
        .args(arguments)
        .output()
        .expect("valgrind was there a moment ago");
    let messages = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "callgrind ended with {}:\n{messages}", said.status);
    let mut counts = HashMap::new();
    for number in 1.. {
        let file = folder.join(format!("callgrind.{number}"));
        let Ok(dump) = std::fs::read_to_string(&file) else { break };
        let field = |name: &str| dump.lines().find_map(|line| line.strip_prefix(name));
        let name = field("desc: Trigger: Client Request: ");
        let total = field("totals: ").or(field("summary: ")).and_then(|it| it.trim().parse().ok());
        if let (Some(name), Some(total)) = (name, total) {
            counts.insert(name.trim().to_owned(), total);
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    (counts, String::from_utf8_lossy(&said.stdout).into_owned())
}
