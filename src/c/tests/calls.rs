//! Calls by address and length, as C makes them.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use super::super::*;

fn options() -> Options {
    // SAFETY: all of it may be zero, as the type says.
    let zero: Options = unsafe { std::mem::zeroed() };
    Options { size: size_of::<Options>(), vocab_size: 10, ..zero }
}

fn new(options: &Options) -> Result<u64, Status> {
    let mut drafter = 0;
    // SAFETY: the arrays of the options are as long as they say.
    match unsafe { coordgen_drafter_new(options, &mut drafter) } {
        Status::Ok => Ok(drafter),
        failed => Err(failed),
    }
}

fn begin(drafter: u64, prompt: &[i32]) -> Status {
    // SAFETY: of a slice, and of nothing.
    unsafe { coordgen_drafter_begin(drafter, prompt.as_ptr(), prompt.len(), null(), 0) }
}

fn accept(drafter: u64, tokens: &[i32]) -> Status {
    // SAFETY: of a slice.
    unsafe { coordgen_drafter_accept(drafter, tokens.as_ptr(), tokens.len()) }
}

fn tree(drafter: u64, capacity: usize) -> Result<(Vec<i32>, Vec<u32>), Status> {
    let (mut tokens, mut parents, mut num) = (vec![-7; capacity], vec![7; capacity], 0);
    let (tokens_at, parents_at) = (tokens.as_mut_ptr(), parents.as_mut_ptr());
    // SAFETY: both have room for `capacity`.
    match unsafe {
        coordgen_drafter_propose_tree(drafter, tokens_at, parents_at, capacity, &mut num)
    } {
        Status::Ok => {
            tokens.truncate(num);
            parents.truncate(num);
            Ok((tokens, parents))
        }
        failed => Err(failed),
    }
}

fn chain(drafter: u64, capacity: usize) -> Result<Vec<i32>, Status> {
    let (mut tokens, mut num) = (vec![-7; capacity], 0);
    // SAFETY: it has room for `capacity`.
    match unsafe {
        coordgen_drafter_propose_chain(drafter, tokens.as_mut_ptr(), capacity, &mut num)
    } {
        Status::Ok => Ok(tokens[..num].to_vec()),
        failed => Err(failed),
    }
}

fn message() -> String {
    // SAFETY: the message ends with a zero and stays until the next failure of this thread.
    unsafe { CStr::from_ptr(coordgen_last_error()) }.to_str().unwrap().to_owned()
}

/// A path of its own, whose files are removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("coordgen-c-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn open(&self, vocab_size: u32) -> Result<u64, Status> {
        let path = CString::new(self.0.to_str().unwrap()).unwrap();
        let mut history = 0;
        // SAFETY: the path ends with a zero.
        match unsafe { coordgen_history_open(path.as_ptr(), vocab_size, 0, &mut history) } {
            Status::Ok => Ok(history),
            failed => Err(failed),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_repeated_text_is_drafted_and_accepted() {
    let drafter = new(&options()).unwrap();
    assert_eq!(begin(drafter, &[1, 2, 3, 4, 5, 1, 2]), Status::Ok);
    assert_eq!(chain(drafter, 4).unwrap(), [2, 3, 4, 5]);
    let (tokens, parents) = tree(drafter, 4).unwrap();
    assert_eq!((&tokens[..], &parents[..]), (&[2, 3, 4, 5][..], &[0, 0, 1, 2][..]));
    assert_eq!(chain(drafter, 1).unwrap(), [2]);
    assert_eq!(chain(drafter, 4).unwrap(), [2, 3, 4, 5]);
    assert_eq!(accept(drafter, &[3, 4, 9]), Status::Ok);
    let mut statistics = Statistics::default();
    // SAFETY: it can be written.
    let status = unsafe { coordgen_drafter_statistics(drafter, &mut statistics) };
    assert_eq!(status, Status::Ok);
    let Statistics { num_tokens, prompt_len, num_steps, num_drafted, num_accepted, .. } =
        statistics;
    assert_eq!((num_tokens, prompt_len, num_steps, num_accepted), (10, 7, 1, 2));
    assert_eq!(num_drafted, 3);
    assert_eq!(coordgen_drafter_rewind(drafter, 8), Status::Ok);
    assert_eq!(chain(drafter, 2).unwrap(), [3, 4]);
    let text = [1, 2, 3, 4, 5, 1, 2, 3, 4];
    // SAFETY: of a slice.
    let status = unsafe { coordgen_drafter_follow(drafter, text.as_ptr(), text.len()) };
    assert_eq!(status, Status::Ok);
    assert_eq!(chain(drafter, 2).unwrap(), [4, 5]);
    assert_eq!(coordgen_drafter_end(drafter), Status::Ok);
    assert_eq!(chain(drafter, 2), Err(Status::NoRequest));
    assert_eq!(coordgen_drafter_free(drafter), Status::Ok);
}

#[test]
fn what_is_wrong_is_told() {
    let drafter = new(&options()).unwrap();
    assert_eq!(chain(drafter, 4), Err(Status::NoRequest));
    assert_eq!(begin(drafter, &[]), Status::BadLength);
    assert_eq!(begin(drafter, &[1, -3]), Status::BadToken);
    assert_eq!(message(), "prompt holds the token id -3");
    assert_eq!(begin(drafter, &[1, 10]), Status::BadToken);
    assert_eq!(message(), "token id 10 is outside the vocabulary of 10");
    // SAFETY: neither NULL nor so long an array is read.
    unsafe {
        assert_eq!(coordgen_drafter_begin(drafter, null(), 3, null(), 0), Status::BadPointer);
        let short = [1];
        let status = coordgen_drafter_begin(drafter, short.as_ptr(), MAX_TOKENS + 1, null(), 0);
        assert_eq!(status, Status::BadLength);
        let odd = short.as_ptr().byte_add(1);
        assert_eq!(coordgen_drafter_accept(drafter, odd, 1), Status::BadPointer);
        assert_eq!(coordgen_drafter_new(null(), &mut 0), Status::BadPointer);
        assert_eq!(coordgen_drafter_new(&options(), null_mut()), Status::BadPointer);
    }
    assert_eq!(begin(drafter, &[1]), Status::Ok);
    assert_eq!(tree(drafter, 0), Err(Status::BadLength));
    assert_eq!(coordgen_drafter_rewind(drafter, 2), Status::BadLength);
    assert_eq!(coordgen_drafter_rewind(drafter, 0), Status::BadLength);
    assert_eq!(coordgen_drafter_free(drafter), Status::Ok);
    assert_eq!(coordgen_drafter_free(drafter), Status::BadHandle);
    assert_eq!(accept(drafter, &[1]), Status::BadHandle);
}

#[test]
fn options_are_checked() {
    let (rows, costs, tokens) = ([1_u32, 2], [1.0_f32, f32::NAN], [10]);
    let method = |name: &CStr| Options { method: name.as_ptr(), ..options() };
    let falling = [2, 1];
    let wide = [1, MAX_ROWS as u32 + 1];
    let given = |rows: &[u32]| Options { rows: rows.as_ptr(), num_rows: rows.len(), ..options() };
    for (wrong, status) in [
        (Options { size: 8, ..options() }, Status::BadOption),
        (Options { vocab_size: 0, ..options() }, Status::BadOption),
        (Options { vocab_size: u32::MAX, ..options() }, Status::BadOption),
        (Options { commit: 2, ..options() }, Status::BadOption),
        (given(&falling), Status::BadOption),
        (given(&wide), Status::BadOption),
        (Options { num_rows: 2, ..options() }, Status::BadPointer),
        (Options { num_rows: usize::MAX, ..given(&rows) }, Status::BadLength),
        (Options { costs: costs.as_ptr(), ..given(&rows) }, Status::BadOption),
        (Options { end_tokens: tokens.as_ptr(), num_end_tokens: 1, ..options() }, Status::BadToken),
        (method(c"no-such"), Status::BadOption),
        (method(c"plain"), Status::BadOption),
        (method(c"edgellm"), Status::BadOption),
        (Options { history: 7, ..options() }, Status::BadHandle),
    ] {
        assert_eq!(new(&wrong), Err(status), "{wrong:?}: {}", message());
    }
    let costs = [1.0, 1.0];
    let good = Options { costs: costs.as_ptr(), costs_per_token: costs.as_ptr(), ..given(&rows) };
    for good in [good, method(c"automaton"), Options { commit: 1, ..options() }] {
        assert_eq!(coordgen_drafter_free(new(&good).unwrap()), Status::Ok);
    }
}

#[test]
fn a_history_is_drafted_from_and_outlives_its_handle() {
    let scratch = Scratch::new("history");
    let history = scratch.open(10).unwrap();
    assert_eq!(scratch.open(10), Err(Status::InUse));
    let document = [3, 1, 4, 1, 5, 9];
    // SAFETY: of a slice.
    let status = unsafe { coordgen_history_append(history, document.as_ptr(), document.len()) };
    assert_eq!(status, Status::Ok);
    assert_eq!(new(&Options { history, vocab_size: 11, ..options() }), Err(Status::BadOption));
    let drafter = new(&Options { history, ..options() }).unwrap();
    assert_eq!(coordgen_history_index(drafter), Status::BadHandle);
    assert_eq!(coordgen_history_close(history), Status::Ok);
    assert_eq!(coordgen_history_close(history), Status::BadHandle);
    assert_eq!(begin(drafter, &[7, 3, 1, 4]), Status::Ok);
    assert_eq!(chain(drafter, 4).unwrap(), [4, 1, 5, 9]);
    assert_eq!(coordgen_drafter_free(drafter), Status::Ok);

    assert_eq!(scratch.open(11), Err(Status::File));
    let history = scratch.open(10).unwrap();
    let mut counts = HistoryStatistics::default();
    // SAFETY: it can be written.
    let status = unsafe { coordgen_history_statistics(history, &mut counts) };
    assert_eq!((status, counts.num_tokens, counts.num_dropped_bytes), (Status::Ok, 6, 0));
    assert_eq!(coordgen_history_clear(history), Status::Ok);
    assert_eq!(coordgen_history_close(history), Status::Ok);
}

#[test]
fn a_status_has_a_name() {
    // SAFETY: names end with a zero and stay.
    let name = |status: i32| unsafe { CStr::from_ptr(coordgen_status_name(status)) };
    assert_eq!(name(Status::Broken as i32), c"broken");
    assert_eq!(name(Status::Forked as i32), c"forked");
    assert_eq!((name(12), name(-1)), (c"unknown", c"unknown"));
    // SAFETY: as above.
    let version = unsafe { CStr::from_ptr(coordgen_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_panic_becomes_a_status() {
    let status = failure::guarded(|| panic!("a made-up one"));
    assert_eq!((status, &message()[..]), (Status::Broken, "a defect: a made-up one"));
}
