//! A request in one of the [ways to draft](crate::cases), whose target says what comes next in a text.
//! Out: what its steps take.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::constraint::{Allowed, Constraint};
use coordgen_rs::draft::choose::drafter::{Drafter, DrafterOptions};
use coordgen_rs::draft::choose::model_choice::ModelPrice;
use coordgen_rs::draft::choose::step_choice::{StepChoice, StepCost, StepShape};
use coordgen_rs::draft::host::{HostDrafter, HostOptions};
use coordgen_rs::draft::methods::{Method, Needs, Source, SourceInputs, source_from};
use coordgen_rs::draft::source::DraftSource;
use coordgen_rs::draft::sources::common_phrases::PhraseTable;
use coordgen_rs::draft::sources::history::History;
use coordgen_rs::draft::sources::history::format::{TERMINATOR, write_index};
use coordgen_rs::draft::sources::model::ModelDraft;
use coordgen_rs::draft::sources::model::source::SharedModelDraft;
use coordgen_rs::draft::sources::prediction::Prediction;
use coordgen_rs::draft::token_variants::TokenVariants;
use coordgen_rs::error::Result;
use coordgen_rs::ids::TokenId;
use coordgen_rs::logits::top_k::top_k;
use coordgen_rs::tree::draft_tree::DraftTree;
use coordgen_rs::tree::step_inputs::{PathBuffers, StepBuffers, StepInputs};

use crate::asked::{Asked, questions};
use crate::cases::{Case, Model, Tree};
use crate::counting::{Request, bytes, request, toggle_collecting};
use crate::grown_texts::{NUM_LIKELY, Text, VOCAB_SIZE};

/// Rows of the widest step.
const ROWS: usize = 16;
const STEP_ROWS: [usize; 3] = [1, 4, ROWS];
/// Steps before anything is counted: arrays that the prompt has filled to the brim grow in them.
const WARM_UP: usize = 8;
/// Steps that are counted.
const COUNTED: usize = 32;
/// Most tokens that the draft model or a host is asked for.
const MOST_DRAFTED: usize = 8;
/// Tokens of finished requests, whatever the context is: an index is searched in as many steps as its
/// own length has digits.
const FINISHED: usize = 20_000;
const KEY: [u8; 32] = [0; 32];

/// What the counted steps were.
pub struct Counted {
    /// Of each step, in increasing order.
    pub bytes: Vec<u64>,
    /// Draft nodes of all steps.
    pub num_nodes: usize,
    /// Tokens given out by them.
    pub num_tokens: usize,
    /// What the sources were asked in them; 0 for a host, who has sources of its own.
    pub num_questions: u64,
}

/// Allows everything.
struct AnyText(Vec<u32>);

impl Constraint for AnyText {
    fn forced(&mut self, _: &[TokenId]) -> Result<Vec<TokenId>> {
        Ok(Vec::new())
    }

    fn possible(&mut self, tokens: &[TokenId], _: &[u32]) -> Result<Vec<bool>> {
        Ok(vec![true; tokens.len()])
    }

    fn after(&mut self, _: &[TokenId]) -> Result<Allowed<'_>> {
        Ok(Allowed { words: &self.0, is_complete: false })
    }

    fn extend(&mut self, _: &[TokenId]) -> Result<bool> {
        Ok(false)
    }
}

/// A history whose index holds the first half of a text, and whose documents hold all of it.
struct Finished {
    history: History,
    index: PathBuf,
}

impl Finished {
    fn new(text: &[TokenId]) -> Self {
        let index = std::env::temp_dir().join(format!("coordgen-growth-{}", std::process::id()));
        let history = History::above_fleet(VOCAB_SIZE as u32);
        let indexed: Vec<_> = text.iter().copied().chain([TERMINATOR]).collect();
        write_index(&index, &indexed, VOCAB_SIZE as u32, 0, KEY).expect("an index is written");
        history.open_index(&index, &KEY).expect("and opened");
        history.open_fleet_index(&index, &KEY).expect("twice");
        history.remember(text).expect("of known tokens");
        Self { history, index }
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.index);
    }
}

/// Writes rows that hold `said` likeliest, and some tokens that are never said less so.
fn say(logits: &mut [f32], said: &[TokenId]) {
    for (row, token) in logits.chunks_mut(VOCAB_SIZE).zip(said) {
        row.fill(-60.0);
        for (rank, score) in row[..NUM_LIKELY].iter_mut().enumerate() {
            *score = 40.0 - rank as f32 / 4.0;
        }
        row[token.0 as usize] = 60.0;
    }
}

/// A request whose target says what comes next in a text.
struct Replay<'a> {
    case: &'a Case,
    text: &'a Text,
    drafter: Drafter,
    model: Option<SharedModelDraft>,
    inputs: Vec<StepInputs>,
    buffers: Vec<(Vec<i64>, Vec<i64>, Vec<f32>)>,
    logits: Vec<f32>,
    num_given: usize,
    _history: Option<Finished>,
}

impl<'a> Replay<'a> {
    fn new(case: &'a Case, text: &'a Text) -> Self {
        let attended = text.prompt.len() + text.answer.len() + ROWS;
        let shapes = STEP_ROWS.map(|rows| StepShape { rows, attended });
        let costs = [1.0, 1.2, 1.6].map(|base| StepCost { base, per_token: 0.0 });
        let options = DrafterOptions {
            steps: StepChoice::new(shapes.to_vec(), case.has_costs.then(|| costs.to_vec()))
                .expect("steps"),
            vocab_size: VOCAB_SIZE,
            commit: case.commit,
            end_tokens: vec![TokenId(VOCAB_SIZE as u32 - 1)],
            shape: case.shape,
        };
        let model = (case.model != Model::None).then(|| {
            SharedModelDraft::new(ModelDraft::new(VOCAB_SIZE, vec![], 0.05).expect("a share"))
        });
        let (sources, history) = Self::sources(case, text, model.clone());
        let asked = |source| Box::new(Asked(source)) as Box<dyn DraftSource>;
        let sources = sources.into_iter().map(asked).collect();
        let drafter = Drafter::new(sources, options).expect("a drafter");
        let inputs = STEP_ROWS.map(|rows| StepInputs::new(rows, attended).expect("rows"));
        let buffers =
            STEP_ROWS.map(|rows| (vec![0; rows], vec![0; rows], vec![0.0; rows * attended]));
        let (inputs, buffers) = (inputs.to_vec(), buffers.to_vec());
        let logits = vec![0.0; ROWS * VOCAB_SIZE];
        let mut replay = Self {
            case,
            text,
            drafter,
            model,
            inputs,
            buffers,
            logits,
            num_given: 0,
            _history: history,
        };
        replay.begin();
        replay.fill_all();
        if case.sources.iter().any(|name| name.contains("earlier")) {
            replay.begin(); // the request just begun is an earlier one of this
        }
        replay
    }

    fn sources(
        case: &Case,
        text: &Text,
        model: Option<SharedModelDraft>,
    ) -> (Vec<Box<dyn DraftSource>>, Option<Finished>) {
        let (phrases, token_variants) = (Some(phrases(text)), Some(token_variants()));
        let on =
            SourceInputs { draft_model: model, phrases, token_variants, ..SourceInputs::default() };
        let (mut sources, mut history): (Vec<Box<dyn DraftSource>>, _) = (Vec::new(), None);
        let finished = text.ending_alike(FINISHED);
        for spelling in &case.sources {
            let name = spelling.split(':').next().expect("a name");
            match Source::named(name).expect("of the registry").needs {
                Needs::History => {
                    let finished = history.get_or_insert_with(|| Finished::new(&finished));
                    let all = finished.history.all_sources();
                    sources.extend(all.filter(|own| own.name() == name));
                }
                Needs::Prediction => sources.push(Box::new(Prediction::new())),
                _ => sources.push(source_from(spelling, &on).expect("all that it draws on")),
            }
        }
        (sources, history)
    }

    fn begin(&mut self) {
        let is_predicted = self.case.sources.iter().any(|name| name == Prediction::NAME);
        let prediction = if is_predicted { &self.text.prompt[..] } else { &[] };
        let (prompt, most) = (&self.text.prompt, self.text.answer.len());
        self.drafter.begin_predicted(prompt, most, prediction).expect("a prompt");
        self.drafter.set_sampling(self.case.sampling.clone()).unwrap();
        if self.case.has_grammar {
            let words = vec![u32::MAX; VOCAB_SIZE.div_ceil(32)];
            self.drafter.constrain(Box::new(AnyText(words)));
        }
        if self.drafter.reads_prefill() {
            for chunk in prompt[1..].chunks(ROWS) {
                say(&mut self.logits, chunk);
                let read = &self.logits[..chunk.len() * VOCAB_SIZE];
                self.drafter.prefilled(read).expect("rows of the prompt");
            }
        }
        if let (Some(model), Model::Run) = (&self.model, self.case.model) {
            let mut draft = model.lock();
            draft.take_realignment();
            draft.skip(prompt.len());
        }
    }

    /// Fills the masks of all widths, as those that were in use are: one that was not used lately is
    /// behind by the tokens that were committed since, and writes each of them once.
    fn fill_all(&mut self) {
        let (root, past_len) = (DraftTree::new(TokenId(0)), self.text.prompt.len() - 1);
        for (inputs, (input_ids, position_ids, mask)) in
            self.inputs.iter_mut().zip(&mut self.buffers)
        {
            let buffers =
                StepBuffers { input_ids, position_ids, mask, path: PathBuffers::default() };
            inputs.fill(&root, past_len, buffers).expect("the step fits");
        }
    }

    /// One step: all that is done between two runs of the target. Returns the draft nodes and the
    /// tokens given out.
    fn step(&mut self) -> (usize, usize) {
        let past_len = self.text.prompt.len() - 1 + self.num_given;
        toggle_collecting();
        self.run_model(past_len);
        let step = self.propose(past_len);
        let (input_ids, position_ids, mask) = &mut self.buffers[step];
        let buffers = StepBuffers { input_ids, position_ids, mask, path: PathBuffers::default() };
        self.inputs[step].fill(self.drafter.tree(), past_len, buffers).expect("the step fits");
        toggle_collecting();
        let coming = &self.text.answer[self.num_given..];
        let depths = self.drafter.tree().depths();
        let said: Vec<_> = depths.iter().map(|&depth| coming[depth as usize]).collect();
        say(&mut self.logits, &said);
        let logits = &mut self.logits[..STEP_ROWS[step] * VOCAB_SIZE];
        toggle_collecting();
        let accepted = self.drafter.accept(logits).expect("finite logits");
        toggle_collecting();
        let num_tokens = accepted.token_ids.len();
        assert_eq!(accepted.token_ids, coming[..num_tokens]);
        self.num_given += num_tokens;
        (said.len() - 1, num_tokens)
    }

    fn propose(&mut self, past_len: usize) -> usize {
        if self.case.tree != Tree::Caller {
            return self.drafter.propose(past_len).expect("a step fits");
        }
        let given = &self.text.all[past_len..][..MOST_DRAFTED];
        let parents: [u32; MOST_DRAFTED] =
            std::array::from_fn(|node| node.saturating_sub(1) as u32);
        self.drafter.propose_draft(past_len, given, &parents).expect("a right chain")
    }

    /// What the caller asks of a draft model before a step, and, where it is run, what it reads.
    fn run_model(&mut self, past_len: usize) {
        let Some(model) = &self.model else { return };
        let catching_up = model.lock().unread().len() as f32;
        let price = ModelPrice { a_token: 0.1, catching_up };
        self.drafter.model_pays(past_len, price).expect("a request");
        if self.case.model == Model::Run {
            model.lock().take_realignment();
            while let Some(last) = next_read(model) {
                model.lock().read(&top_k(&self.text.likely[last.0 as usize]).expect("finite"));
            }
        }
    }
}

/// The last token of what the model is to read now.
fn next_read(model: &SharedModelDraft) -> Option<TokenId> {
    let mut draft = model.lock();
    let step = draft.next_step((MOST_DRAFTED, usize::MAX), false)?;
    step.tree.token_ids().last().copied()
}

/// The steps of `case` on `text`.
pub fn count(case: &Case, text: &Text, name: &CStr) -> Counted {
    let mut host = (case.tree == Tree::Host).then(|| hosted(text));
    let mut replay = Replay::new(case, text);
    let mut step = || match &mut host {
        Some((host, num_given)) => host_step(host, text, num_given),
        None => replay.step(),
    };
    for _ in 0..WARM_UP {
        step();
    }
    request(Request::StartInstrumentation, c"");
    let mut all = Counted { bytes: Vec::new(), num_nodes: 0, num_tokens: 0, num_questions: 0 };
    let before_all = questions();
    for _ in 0..COUNTED {
        let before = bytes();
        let (num_nodes, num_tokens) = step();
        all.bytes.push(bytes() - before);
        all.num_nodes += num_nodes;
        all.num_tokens += num_tokens;
    }
    all.num_questions = questions() - before_all;
    request(Request::DumpStatsAt, name);
    request(Request::StopInstrumentation, c"");
    all.bytes.sort_unstable();
    all
}

impl Counted {
    /// Draft nodes, tokens given out, and questions to the sources.
    pub fn asked(&self) -> [u64; 3] {
        [self.num_nodes as u64, self.num_tokens as u64, self.num_questions]
    }
}

/// A host's drafter, and how many tokens it was told.
fn hosted(text: &Text) -> (HostDrafter, usize) {
    let options = HostOptions {
        vocab_size: VOCAB_SIZE,
        rows: (1..=ROWS).collect(),
        costs: None,
        commit: CommitPolicy::Compact,
        end_tokens: vec![],
    };
    let method = Method::named("auto").expect("a method");
    let mut host = HostDrafter::new(method, None, options).expect("a drafter");
    host.begin(&text.prompt, &[]).expect("a prompt");
    (host, 0)
}

fn host_step(host: &mut HostDrafter, text: &Text, num_given: &mut usize) -> (usize, usize) {
    let coming = &text.answer[*num_given..];
    toggle_collecting();
    let drafted = host.propose_chain(MOST_DRAFTED).expect("a request");
    let num_right = drafted.iter().zip(coming).take_while(|(one, other)| one == other).count();
    let num_drafted = drafted.len();
    host.observe(&coming[..=num_right]).expect("known tokens");
    toggle_collecting();
    *num_given += num_right + 1;
    (num_drafted, num_right + 1)
}

/// Every other token ends a line, and every token is one word with the next.
fn token_variants() -> Arc<TokenVariants> {
    let pairs = |step| {
        let tokens = (0..VOCAB_SIZE as u32 - 1).step_by(step);
        tokens.map(|token| (TokenId(token), TokenId(token + 1)))
    };
    Arc::new(TokenVariants::new(pairs(2), pairs(1), pairs(1)))
}

/// Phrases of the answer, of two tokens and of three.
fn phrases(text: &Text) -> Arc<PhraseTable> {
    let of_two = text.answer.windows(2).step_by(5).map(|two| ((None, two[0]), two[1], 0.25));
    let of_three = text.answer.windows(3).step_by(7);
    let of_three = of_three.map(|three| ((Some(three[0]), three[1]), three[2], 0.5));
    Arc::new(PhraseTable::new(of_two.chain(of_three)).expect("chances"))
}
