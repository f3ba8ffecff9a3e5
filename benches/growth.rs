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
//! filled to the brim. A length a little below a power of two is one to avoid: a table doubles within the
//! counted steps, which all steps pay together, and the row seems to grow.
//!
//! Two kinds of text ask the same of a step, whatever their length: they show what a question costs. In
//! the third, words come in any order; the longer it is, the more of them are frequent, and what is
//! likely is asked about. There a row may take more as it is asked more, and is held to a tenth for as
//! many questions. From 1,000 to 100,000 tokens these took most more, and at 1,000,000 they are asked
//! as often as at 100,000 or less often, but for auto (0.8 % more):
//!
//! | | instructions | questions |
//! |---|--:|--:|
//! | automaton, with costs | 1.118 | 1.151 |
//! | auto, with costs | 1.126 | 1.074 |
//! | prediction | 1.123 | 1.136 |
//! | earlier-requests | 1.110 | 1.099 |
//!
//! How much can be asked does not hang on the text: as many nodes as a step has rows, of each source.

#[path = "growth/asked.rs"]
mod asked;
#[path = "growth/cases.rs"]
mod cases;
#[path = "growth/counting.rs"]
mod counting;
#[path = "growth/grown_texts.rs"]
mod grown_texts;
#[path = "growth/replay.rs"]
mod replay;
mod text;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::CString;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use self::cases::Case;
use self::counting::Counting;
use self::grown_texts::{ANY_ORDER, KINDS, Text};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// Of the test, which counts bytes.
const SMALL_LENGTHS: [usize; 2] = [1_000, 4_000];
/// How much more than after the shortest text a step may take.
const MOST_GROWTH: f64 = 1.1;
/// Marks the program that callgrind runs: the kind of text, its length, and the part follow.
const COUNT: &str = "--count";
/// Programs that share the cases after a text, so that no core is idle while another has many left.
const PARTS: usize = 3;

/// What was counted of each case: after texts of each length.
struct Row {
    name: String,
    counts: Vec<u64>,
    /// Draft nodes, tokens given out, and questions to the sources.
    asked: Vec<[u64; 3]>,
}

impl Row {
    /// The most over the first. Where what is likely hangs on the length of the text, so does what is
    /// asked: then it is the most that as many questions as the first's take.
    fn growth(&self, kind: &str) -> f64 {
        let share = |count: u64, first: u64| count as f64 / first.max(1) as f64;
        let grown = self.counts.iter().zip(&self.asked).map(|(&count, &[.., questions])| {
            let more = share(questions, self.asked[0][2]).max(1.0);
            share(count, self.counts[0]) / if kind == ANY_ORDER { more } else { 1.0 }
        });
        grown.fold(0.0, f64::max)
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

/// Runs a part of the cases after a text of one length, for callgrind to count.
fn run_part(kind: &str, len: usize, part: usize) {
    let kind = KINDS.into_iter().find(|&known| known == kind).expect("a kind of text");
    let text = Text::new(kind, len);
    for case in Case::all().into_iter().skip(part).step_by(PARTS) {
        let name = CString::new(&case.name[..]).expect("a name");
        let asked = replay::count(&case, &text, &name).asked();
        println!("{}\t{}", case.name, asked.map(|number| number.to_string()).join("\t"));
    }
}

/// Instructions of all counted steps of a part of the cases after a text of one length, and what was
/// asked.
fn run_counted(kind: &str, len: usize, part: usize) -> HashMap<String, (u64, [u64; 3])> {
    let arguments = [COUNT, kind, &len.to_string(), &part.to_string()].map(String::from);
    let (counts, said) = counting::instructions(&arguments);
    eprintln!("counted: {kind}, {len} tokens, part {} of {PARTS}", part + 1);
    let cases = said.lines().map(|line| {
        let (name, asked) = line.split_once('\t').expect("a name and numbers");
        let mut numbers = asked.split('\t').map(|number| number.parse().expect("a number"));
        let asked = std::array::from_fn(|_| numbers.next().expect("three numbers"));
        (name.to_owned(), (counts[name], asked))
    });
    cases.collect()
}

/// Counts instructions after all kinds of texts; one process after another on each core, the longest
/// first.
fn instructions_of(lengths: &[usize]) -> Vec<Vec<Row>> {
    let each_part =
        |len| KINDS.into_iter().flat_map(move |kind| (0..PARTS).map(move |it| (len, kind, it)));
    let mut order: Vec<_> = lengths.iter().copied().flat_map(each_part).collect();
    order.sort_by_key(|&(len, ..)| Reverse(len));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let Some(&(len, kind, part)) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let counted = run_counted(kind, len, part);
                    let mut done = done.lock().expect("nobody panicked");
                    done.entry((kind, len)).or_insert_with(HashMap::new).extend(counted);
                }
            });
        }
    });
    let done = done.into_inner().expect("nobody panicked");
    let row = |kind: &'static str, name: String| {
        let counted = lengths.iter().map(|&len| done[&(kind, len)][&name]);
        let (counts, asked) = counted.unzip();
        Row { name, counts, asked }
    };
    let rows = |kind| Case::all().into_iter().map(|case| row(kind, case.name)).collect();
    KINDS.into_iter().map(rows).collect()
}

/// Prints a table; returns how many rows grow too much.
fn print(what: &str, kind: &str, lengths: &[usize], rows: &[Row]) -> usize {
    let heading: Vec<_> = lengths.iter().map(|len| format!("{len:>12} tokens")).collect();
    let (title, heading) = (format!("{what}, {kind}"), heading.join(" | "));
    println!("\n{title:40} | {heading} | most/first | nodes/tokens/questions");
    for row in rows {
        let cells: Vec<_> = row.counts.iter().map(|count| format!("{count:>19}")).collect();
        let growth = row.growth(kind);
        let mark = if growth > MOST_GROWTH { "  GROWS" } else { "" };
        let asked = row.asked.iter().map(|numbers| numbers.map(|it| it.to_string()).join("/"));
        let asked: Vec<_> = asked.collect();
        let (cells, asked) = (cells.join(" | "), asked.join(", "));
        println!("{:40} | {cells} | {growth:10.3} | {asked}{mark}", row.name);
    }
    rows.iter().filter(|row| row.growth(kind) > MOST_GROWTH).count()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [count, kind, len, part] = &arguments[..]
        && count == COUNT
    {
        run_part(kind, len.parse().expect("a length"), part.parse().expect("its number"));
        return ExitCode::SUCCESS;
    }
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let asked: Vec<usize> = arguments.iter().flat_map(|argument| argument.parse()).collect();
    let lengths = if asked.is_empty() { &LENGTHS[..] } else { &asked };
    let num_growing: usize = if is_bench {
        if let Err(reason) = counting::can_count_instructions() {
            eprintln!("instructions cannot be counted: {reason}");
            return ExitCode::FAILURE;
        }
        let tables = KINDS.into_iter().zip(instructions_of(lengths));
        tables.map(|(kind, rows)| print("instructions", kind, lengths, &rows)).sum()
    } else {
        let table = |kind| print("bytes", kind, &SMALL_LENGTHS, &bytes_of(kind, &SMALL_LENGTHS));
        KINDS.into_iter().map(table).sum()
    };
    if num_growing > 0 {
        eprintln!("{num_growing} rows take a tenth more after a longer text");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
