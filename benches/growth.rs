//! Whether a step's work grows with the text before it: instructions of every source, method and
//! chooser at 1,000, 100,000 and 1,000,000 tokens.
//!
//! `make growth`, or `cargo bench --bench growth -- 1000 100000`, counts instructions with callgrind
//! (Debian and others: package valgrind) and fails where a step takes a tenth more than after the
//! shortest text. Run as a test, it counts the bytes that a step asks the allocator for, at two small
//! lengths, which needs no tool: what copies the text is seen, what only reads it is not.
//!
//! Counted is all that happens between two runs of the target: propose, fill and accept, and what is
//! asked of a draft model that is not run. The first steps are not: arrays grow in them that the prompt has
//! filled to the brim.

#[path = "growth/cases.rs"]
mod cases;
#[path = "growth/counting.rs"]
mod counting;
#[path = "growth/grown_texts.rs"]
mod grown_texts;
#[path = "growth/replay.rs"]
mod replay;
mod text;

use std::ffi::CString;
use std::process::ExitCode;

use self::cases::Case;
use self::counting::Counting;
use self::grown_texts::{KINDS, Text};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// Of the test, which counts bytes.
const SMALL_LENGTHS: [usize; 2] = [1_000, 4_000];
/// How much more than after the shortest text a step may take.
const MOST_GROWTH: f64 = 1.1;
/// Marks the program that callgrind runs: the kind of text and its length follow.
const COUNT: &str = "--count";

/// What was counted of each case: after texts of each length.
struct Row {
    name: String,
    counts: Vec<u64>,
    /// Draft nodes and tokens given out, which tell whether the same was asked.
    asked: Vec<String>,
}

impl Row {
    fn growth(&self) -> f64 {
        let most = self.counts.iter().max().copied().unwrap_or_default();
        most as f64 / self.counts[0].max(1) as f64
    }
}

/// Counts bytes of the median step: now and then an array grows by a share of its length.
fn bytes_of(kind: &'static str, lengths: &[usize]) -> Vec<Row> {
    let texts: Vec<Text> = lengths.iter().map(|&len| Text::new(kind, len)).collect();
    let rows = Case::all().into_iter().map(|case| {
        let counted = texts.iter().map(|text| replay::count(&case, text, c""));
        let (counts, asked) = counted.map(|it| (it.bytes[it.bytes.len() / 2], it.asked())).unzip();
        Row { name: case.name, counts, asked }
    });
    rows.collect()
}

/// Runs every case after a text of one length, for callgrind to count.
fn run_all(kind: &str, len: usize) {
    let kind = KINDS.into_iter().find(|&known| known == kind).expect("a kind of text");
    let text = Text::new(kind, len);
    for case in Case::all() {
        let name = CString::new(&case.name[..]).expect("a name");
        println!("{}\t{}", case.name, replay::count(&case, &text, &name).asked());
    }
}

/// Counts instructions of all counted steps.
fn instructions_of(kind: &str, lengths: &[usize]) -> Vec<Row> {
    let folder = std::env::temp_dir().join(format!("coordgen-callgrind-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for what callgrind writes");
    let run = |len: &usize| {
        let arguments = [COUNT, kind, &len.to_string()].map(String::from);
        let (counts, said) = counting::instructions(&arguments, &folder);
        eprintln!("counted: {kind}, {len} tokens");
        (counts, said)
    };
    let runs: Vec<_> = lengths.iter().map(run).collect();
    let _ = std::fs::remove_dir_all(&folder);
    let rows = Case::all().into_iter().map(|case| {
        let counts = runs.iter().map(|(counts, _)| counts[&case.name]).collect();
        let asked = runs.iter().map(|(_, said)| {
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("{}\t", case.name)));
            line.expect("every case is told").to_owned()
        });
        Row { asked: asked.collect(), name: case.name, counts }
    });
    rows.collect()
}

/// Prints a table; returns how many rows grow too much.
fn print(what: &str, kind: &str, lengths: &[usize], rows: &[Row]) -> usize {
    let heading: Vec<_> = lengths.iter().map(|len| format!("{len:>12} tokens")).collect();
    println!(
        "\n{:40} | {} | most/first | nodes/tokens",
        format!("{what}, {kind}"),
        heading.join(" | ")
    );
    for row in rows {
        let cells: Vec<_> = row.counts.iter().map(|count| format!("{count:>19}")).collect();
        let mark = if row.growth() > MOST_GROWTH { "  GROWS" } else { "" };
        let asked = row.asked.join(", ");
        println!("{:40} | {} | {:10.3} | {asked}{mark}", row.name, cells.join(" | "), row.growth());
    }
    rows.iter().filter(|row| row.growth() > MOST_GROWTH).count()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [count, kind, len] = &arguments[..]
        && count == COUNT
    {
        run_all(kind, len.parse().expect("a length"));
        return ExitCode::SUCCESS;
    }
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let asked: Vec<usize> = arguments.iter().flat_map(|argument| argument.parse()).collect();
    let lengths = if asked.is_empty() { &LENGTHS[..] } else { &asked };
    let mut num_growing = 0;
    for kind in KINDS {
        num_growing += if is_bench {
            if let Err(reason) = counting::can_count_instructions() {
                eprintln!("instructions cannot be counted: {reason}");
                return ExitCode::FAILURE;
            }
            print("instructions", kind, lengths, &instructions_of(kind, lengths))
        } else {
            print("bytes", kind, &SMALL_LENGTHS, &bytes_of(kind, &SMALL_LENGTHS))
        };
    }
    if num_growing > 0 {
        eprintln!("{num_growing} rows take a tenth more after a longer text");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
