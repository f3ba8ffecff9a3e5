//! Whether the cost of a step depends on the text: propose and accept of every source alone and of
//! their blend, over texts made to be slow and over a real one.
//!
//! `cargo bench --bench adversarial -- FILE ..` takes the words of the files as the real text; without
//! them a made-up one stands for it; a number among them is the only length measured, a source's name
//! the only source. A cell is the median and the 99th percentile of a thousand steps, in microseconds; of accept, for each token given out; "end" is propose where a few tokens are left,
//! so that whatever any source holds likely fills the rows. The last columns are the worst text over the
//! real one. Every request runs three times, and of each step the shortest time counts: what else the
//! machine does is not the text's doing.

mod text;
#[path = "text/adversarial.rs"]
mod texts;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::draft::choose::drafter::{Drafter, DrafterOptions};
use coordgen_rs::draft::choose::step_choice::{StepChoice, StepShape};
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::methods::{Needs, SOURCES, source_named};
use coordgen_rs::draft::source::DraftSource;
use coordgen_rs::draft::sources::common_phrases::{CommonPhrases, PhraseTable};
use coordgen_rs::draft::sources::history::History;
use coordgen_rs::draft::sources::history::format::{TERMINATOR, write_index};
use coordgen_rs::draft::sources::prediction::Prediction;
use coordgen_rs::draft::sources::respelling::Respelling;
use coordgen_rs::draft::token_variants::TokenVariants;
use coordgen_rs::ids::TokenId;

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// Rows of the step, and so nodes of the tree.
const ROWS: usize = 16;
/// Small, so that reading the logits does not hide the rest.
const VOCAB_SIZE: usize = 1_024;
const NUM_STEPS: usize = 1_000;
const NUM_ROUNDS: usize = 3;
/// Tokens that may still be given out where it is measured what a request's end costs.
const TOKENS_LEFT: usize = 6;
/// Most rows of a prompt that the sources are told of: longer ones would take minutes to make.
const MAX_PREFILLED: usize = 1 << 16;
/// Tokens that every text begins with and that the target always holds likely, though it never says
/// them: sources that learn from logits propose them, and the others have to look for them.
const NUM_FOREIGN: u32 = 7;
const KEY: [u8; 32] = [0; 32];
const BLEND: &str = "all together";

/// The words and the single other characters of `files`, numbered as they come.
fn words(files: &[String]) -> Vec<TokenId> {
    let mut numbers = HashMap::new();
    let mut tokens = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        for piece in text.split_inclusive(|letter: char| !letter.is_alphanumeric()) {
            let end = piece.char_indices().last().map_or(0, |(last, letter)| {
                if letter.is_alphanumeric() { piece.len() } else { last }
            });
            let (word, other) = piece.split_at(end);
            for part in [word, other].into_iter().filter(|part| !part.is_empty()) {
                let next = numbers.len() as u32 % (VOCAB_SIZE as u32 - NUM_FOREIGN);
                let number = *numbers.entry(part.to_owned()).or_insert(next);
                tokens.push(TokenId(NUM_FOREIGN + number));
            }
        }
    }
    tokens
}

/// A text, of which the first `len` tokens are known and the others are what the target says.
struct Text {
    name: &'static str,
    tokens: Vec<TokenId>,
    len: usize,
}

impl Text {
    fn known(&self) -> &[TokenId] {
        &self.tokens[..self.len]
    }

    /// Phrases of two tokens and of three, of which it is full.
    fn phrases(&self) -> Arc<PhraseTable> {
        let known = &self.known()[..self.len.min(40_000)];
        let of_two = known.windows(2).step_by(5).map(|two| ((None, two[0]), two[1], 0.25));
        let of_three = known.windows(3).step_by(7);
        let of_three = of_three.map(|three| ((Some(three[0]), three[1]), three[2], 0.5));
        Arc::new(PhraseTable::new(of_two.chain(of_three)).unwrap())
    }

    /// Every other token ends a line, and every token is one word with the next.
    fn token_variants(&self) -> Arc<TokenVariants> {
        let pairs = |step| {
            let tokens = (0..VOCAB_SIZE as u32 - 1).step_by(step);
            tokens.map(|token| (TokenId(token), TokenId(token + 1)))
        };
        Arc::new(TokenVariants::new(pairs(2), pairs(1), pairs(1)))
    }

    fn answer(&self) -> &[TokenId] {
        &self.tokens[self.len..]
    }

    /// The texts of `len` tokens, the real one last.
    fn all(len: usize, files: &[String]) -> Vec<Self> {
        let answer_len = len.clamp(1_000, (ROWS + 1) * NUM_STEPS);
        let total = len + answer_len;
        let real = match files {
            [] => text::text(total, VOCAB_SIZE as u32),
            _ => words(files),
        };
        assert!(real.len() >= total, "the files have {} words, {total} are needed", real.len());
        let made = texts::texts(total, NUM_FOREIGN, VOCAB_SIZE as u32);
        let named = texts::NAMES.into_iter().zip(made).chain([("real", real)]);
        let with_foreign = |(name, tokens): (_, Vec<TokenId>)| {
            let foreign = (0..NUM_FOREIGN).map(TokenId);
            let tokens = foreign.chain(tokens).take(total).collect();
            Self { name, tokens, len }
        };
        named.map(with_foreign).collect()
    }
}

/// A history whose index holds the first half of a text and whose documents hold the rest.
struct Finished {
    history: History,
    index: PathBuf,
}

impl Finished {
    fn new(text: &[TokenId]) -> Self {
        let index =
            std::env::temp_dir().join(format!("coordgen-adversarial-{}", std::process::id()));
        let history = History::new(VOCAB_SIZE as u32);
        let indexed: Vec<_> = text.iter().copied().chain([TERMINATOR]).collect();
        write_index(&index, &indexed, VOCAB_SIZE as u32, 0, KEY).unwrap();
        history.open_index(&index, &KEY).unwrap();
        history.remember(text).unwrap();
        Self { history, index }
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.index);
    }
}

/// A request whose target says what comes next in a text.
struct Replay<'a> {
    text: &'a Text,
    drafter: Drafter,
    logits: Vec<f32>,
    given_out: usize,
    past_len: usize,
    /// The prompt, and what is predicted.
    request: (&'a [TokenId], &'a [TokenId]),
    _history: Option<Finished>,
}

impl<'a> Replay<'a> {
    fn new(name: &str, text: &'a Text) -> Self {
        let is = |named: &str| name == BLEND || name == named;
        let (mut sources, mut history): (Vec<Box<dyn DraftSource>>, _) = (Vec::new(), None);
        for source in
            SOURCES.iter().filter(|source| is(source.name) && source.needs != Needs::DraftModel)
        {
            match source.needs {
                _ if name == BLEND && is_baseline(source.name) => {}
                Needs::History => {
                    let finished = history.get_or_insert_with(|| Finished::new(text.known()));
                    let of_history = finished.history.sources();
                    sources.extend(of_history.into_iter().filter(|own| own.name() == source.name));
                }
                Needs::Prediction => sources.push(Box::new(Prediction::new())),
                Needs::TokenVariants => {
                    sources.push(Box::new(Respelling::new(text.token_variants())))
                }
                Needs::PhraseTable => sources.push(Box::new(CommonPhrases::new(text.phrases()))),
                _ => sources.push(source_named(source.name).unwrap()),
            }
        }
        let shape = StepShape { rows: ROWS, attended: 1 << 22 };
        let options = DrafterOptions {
            steps: StepChoice::new(vec![shape], None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: Vec::new(),
            shape: TreeShape::BestFirst,
        };
        let drafter = Drafter::new(sources, options).unwrap();
        let prediction = if is(Prediction::NAME) { text.known() } else { &[] };
        let logits = vec![0.0; ROWS * VOCAB_SIZE];
        let request = (text.known(), prediction);
        let mut replay =
            Self { text, drafter, logits, given_out: 0, past_len: 0, request, _history: history };
        replay.begin(text.answer().len());
        // The request just begun is an earlier one of the next.
        if name.contains("earlier") || name == BLEND {
            replay.begin(text.answer().len());
        }
        replay
    }

    fn begin(&mut self, max_new_tokens: usize) {
        let (prompt, prediction) = self.request;
        self.drafter.begin_predicted(prompt, max_new_tokens, prediction).unwrap();
        (self.given_out, self.past_len) = (0, prompt.len() - 1);
        if self.drafter.reads_prefill() {
            let expected = &self.text.tokens[1..prompt.len().min(MAX_PREFILLED)];
            for chunk in expected.chunks(ROWS) {
                self.say(chunk);
                self.drafter.prefilled(&self.logits[..chunk.len() * VOCAB_SIZE]).unwrap();
            }
        }
    }

    /// Writes rows that hold `tokens` likely, and the foreign ones less so.
    fn say(&mut self, tokens: &[TokenId]) {
        for (row, token) in self.logits.chunks_mut(VOCAB_SIZE).zip(tokens) {
            row.fill(0.0);
            for (rank, score) in row[..NUM_FOREIGN as usize].iter_mut().enumerate() {
                *score = 6.5 - rank as f32 / 16.0;
            }
            row[token.0 as usize] = 9.0;
        }
    }

    /// One step; returns the times of propose and accept, and how many tokens were given out.
    fn step(&mut self) -> (Duration, Duration, usize) {
        let start = Instant::now();
        self.drafter.propose(self.past_len).unwrap();
        let proposing = start.elapsed();
        let coming = &self.text.answer()[self.given_out..];
        let said: Vec<_> =
            self.drafter.tree().depths().iter().map(|&depth| coming[depth as usize]).collect();
        self.say(&said);
        let start = Instant::now();
        let accepted = self.drafter.accept(&mut self.logits).unwrap();
        let accepting = start.elapsed();
        let num_given = accepted.token_ids.len();
        assert_eq!(accepted.token_ids, coming[..num_given]);
        (self.given_out, self.past_len) = (self.given_out + num_given, self.past_len + num_given);
        if self.given_out == self.text.answer().len() {
            self.begin(self.text.answer().len());
        }
        (proposing, accepting, num_given)
    }
}

/// Whether it is a published method that a better source of ours stands beside.
fn is_baseline(name: &str) -> bool {
    ["prompt-lookup", "sam", "sam-earlier-requests", "token-recycling"].contains(&name)
}

/// Microseconds by step, and tokens a step.
struct Measured {
    propose: Vec<f64>,
    /// For each token given out.
    accept: Vec<f64>,
    /// Propose with few tokens left.
    end: Vec<f64>,
    tokens: f64,
}

fn measured(name: &str, text: &Text, num_steps: usize) -> Measured {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let [mut proposing, mut accepting, mut ending] = [(); 3].map(|()| vec![f64::MAX; num_steps]);
    let mut total = 0;
    for _ in 0..NUM_ROUNDS {
        let mut replay = Replay::new(name, text);
        for (proposing, accepting) in proposing.iter_mut().zip(&mut accepting) {
            let (propose, accept, num_given) = replay.step();
            *proposing = proposing.min(us(propose));
            *accepting = accepting.min(us(accept) / num_given as f64);
            total += num_given;
        }
        replay.begin(TOKENS_LEFT);
        for ending in &mut ending {
            let start = Instant::now();
            replay.drafter.propose(replay.past_len).unwrap();
            *ending = ending.min(us(start.elapsed()));
        }
    }
    let tokens = total as f64 / (NUM_ROUNDS * num_steps) as f64;
    Measured { propose: proposing, accept: accepting, end: ending, tokens }
}

/// The median and the 99th percentile of some figures.
fn percentiles(mut figures: Vec<f64>) -> [f64; 2] {
    figures.sort_by(f64::total_cmp);
    [figures[figures.len() / 2], figures[figures.len() * 99 / 100]]
}

/// One line: the percentiles of each text, and the worst over the last one's.
fn line(name: &str, what: &str, cells: &[[f64; 2]]) -> String {
    let real = cells[cells.len() - 1];
    let worst =
        [0, 1].map(|which| cells.iter().map(|cell| cell[which]).fold(0.0, f64::max) / real[which]);
    let cells: Vec<_> = cells.iter().map(|[half, most]| format!("{half:6.1} {most:6.1}")).collect();
    format!("{name:20} {what:8} | {} | {:4.1} {:4.1}", cells.join(" | "), worst[0], worst[1])
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As a test, which `cargo test --all-targets` runs, it is only to work.
    let once = !arguments.iter().any(|argument| argument == "--bench");
    let words: Vec<_> = arguments.into_iter().filter(|word| !word.starts_with("--")).collect();
    let (numbers, words): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.parse::<usize>().is_ok());
    let chosen: Vec<usize> = numbers.iter().flat_map(|number| number.parse()).collect();
    let (lengths, num_steps) = match (once, &chosen[..]) {
        (true, _) => (&LENGTHS[..1], 5),
        (false, []) => (&LENGTHS[..], NUM_STEPS),
        (false, chosen) => (chosen, NUM_STEPS),
    };
    let drafting = SOURCES.iter().filter(|source| source.needs != Needs::DraftModel);
    let mut names: Vec<_> = drafting.map(|source| source.name).chain([BLEND]).collect();
    let (wanted, files): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| names.contains(&&**word));
    if !wanted.is_empty() {
        names.retain(|name| wanted.iter().any(|wanted| wanted == name));
    }
    for &len in lengths {
        let texts = Text::all(len, &files);
        let heading: Vec<_> = texts.iter().map(|text| format!("{:13}", text.name)).collect();
        println!("\n{:29} | {} | worst/real", format!("{len} tokens"), heading.join(" | "));
        for name in &names {
            let steps: Vec<_> = texts.iter().map(|text| measured(name, text, num_steps)).collect();
            let print = |what: &str, column: fn(&Measured) -> &Vec<f64>| {
                let cells = steps.iter().map(|step| percentiles(column(step).clone()));
                println!("{}", line(name, what, &cells.collect::<Vec<_>>()));
            };
            print("propose", |step| &step.propose);
            print("accept", |step| &step.accept);
            print("end", |step| &step.end);
            let tokens: Vec<_> = steps.iter().map(|step| format!("{:13.1}", step.tokens)).collect();
            println!("{name:20} tokens   | {} |", tokens.join(" | "));
        }
    }
}
