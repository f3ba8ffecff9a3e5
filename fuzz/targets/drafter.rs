//! A drafter's life: whatever is called, in whatever order, the tokens given out are those of plain
//! decoding, and a call that fails changes nothing.
//!
//! The input is read as a drafter's options, then as calls until it is used up. The twin is a text:
//! it knows what plain decoding says next, whether a request runs and whether a tree waits.

#![no_main]

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use coordgen_fuzz::within_memory;
use coordgen_rs::draft::choose::model_choice::ModelPrice;
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::choose::tree_shape::appended_tree::AppendedOptions;
use coordgen_rs::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use coordgen_rs::draft::methods::{SourceInputs, source_from};
use coordgen_rs::draft::sources::common_phrases::PhraseTable;
use coordgen_rs::draft::sources::model::ModelDraft;
use coordgen_rs::draft::sources::model::source::SharedModelDraft;
use coordgen_rs::draft::token_variants::TokenVariants;
use coordgen_rs::sampling::Sampling;
use coordgen_rs::logits::top_k::top_k;
use coordgen_rs::{
    Commit, CommitPolicy, DraftSource, Drafter, DrafterOptions, Error, FinishReason, History,
    StepChoice, StepCost, StepShape, TokenId,
};
use libfuzzer_sys::fuzz_target;

use ruled_target::{VOCAB_SIZE, plain, run_step, says};

#[path = "../../src/draft/choose/drafter/tests/ruled_target.rs"]
mod ruled_target;

const ATTENDED: usize = 64;
const NAMES: [&str; 12] = [
    "automaton",
    "calibration",
    "reuse",
    "lookup-table",
    "draft-model",
    "earlier-requests",
    "prompt-lookup",
    "sam",
    "sam-earlier-requests",
    "token-recycling",
    "common-phrases",
    "respelling",
];

fuzz_target!(|data: &[u8]| {
    within_memory(data.len() + (1 << 16), || {
        if let Ok(Some(life)) = Life::new(&mut Unstructured::new(data)) {
            let _ = life.0.live(&mut Unstructured::new(life.1));
        }
    });
});

/// A drafter and its twin.
struct Life {
    drafter: Drafter,
    model: SharedModelDraft,
    history: History,
    rows: Vec<usize>,
    is_canonical: bool,
    end: TokenId,
    sampling: Option<Sampling>,
    text: Vec<TokenId>,
    prompt_len: usize,
    max_new_tokens: usize,
    is_running: bool,
    /// The step that the waiting tree is for.
    proposed: Option<usize>,
    num_steps: usize,
}

impl Life {
    /// A drafter by the first bytes of `input`, and the rest of them; none where it is refused.
    fn new<'a>(input: &mut Unstructured<'a>) -> Result<Option<(Self, &'a [u8])>> {
        let model = SharedModelDraft::new(ModelDraft::new(VOCAB_SIZE, vec![], 0.1).expect("0 to 1"));
        let history = History::new(VOCAB_SIZE as u32);
        let [one, two, three] = [1, 2, 3].map(TokenId);
        let phrases = [((None, one), two, 0.5), ((Some(one), two), three, 0.9)];
        let inputs = SourceInputs {
            draft_model: Some(model.clone()),
            phrases: Some(Arc::new(PhraseTable::new(phrases).expect("chances"))),
            token_variants: Some(Arc::new(TokenVariants::new([(two, one)], [(one, three)], [(three, two)]))),
            ..SourceInputs::default()
        };
        let chosen = u16::arbitrary(input)?;
        let mut sources: Vec<Box<dyn DraftSource>> = (NAMES.iter().enumerate())
            .filter(|(index, _)| chosen >> index & 1 == 1)
            .map(|(_, name)| source_from(name, &inputs).expect("it is in the registry"))
            .collect();
        if chosen >> 15 == 1 {
            sources.extend(history.sources());
        }
        let rows: Vec<usize> = match u8::arbitrary(input)? % 4 {
            0 => vec![1, 3, 8],
            1 => vec![2],
            2 => vec![1, 4],
            _ => (0..3).map(|_| Ok(u8::arbitrary(input)?.into())).collect::<Result<_>>()?,
        };
        let shapes = rows.iter().map(|&rows| StepShape { rows, attended: ATTENDED }).collect();
        let cost = |input: &mut Unstructured<'_>| {
            Ok(StepCost { base: small(input)?, per_token: small(input)? })
        };
        let costs = match bool::arbitrary(input)? {
            true => Some(rows.iter().map(|_| cost(input)).collect::<Result<_>>()?),
            false => None,
        };
        let Ok(steps) = StepChoice::new(shapes, costs) else { return Ok(None) };
        let shape = match u8::arbitrary(input)? % 6 {
            0 => TreeShape::Static,
            1 => TreeShape::Dynamic(DynamicTreeOptions {
                budget: Option::<u8>::arbitrary(input)?.map(usize::from),
                update_interval: u8::arbitrary(input)?.into(),
                ..DynamicTreeOptions::FIGURE_7
            }),
            2 => TreeShape::Appended(AppendedOptions {
                depth: Option::<u8>::arbitrary(input)?.map(usize::from),
                nodes: Option::<u8>::arbitrary(input)?.map(usize::from),
                by_ranks: bool::arbitrary(input)?,
            }),
            3 => TreeShape::Drafted,
            _ => TreeShape::BestFirst,
        };
        let is_canonical = bool::arbitrary(input)?;
        let commit = if is_canonical { CommitPolicy::Canonical } else { CommitPolicy::Compact };
        let end = TokenId(u32::from(u8::arbitrary(input)?) % 8);
        let options =
            DrafterOptions { steps, vocab_size: VOCAB_SIZE, commit, end_tokens: vec![end], shape };
        let Ok(drafter) = Drafter::new(sources, options) else { return Ok(None) };
        let life = Self {
            drafter,
            model,
            history,
            rows,
            is_canonical,
            end,
            sampling: None,
            text: Vec::new(),
            prompt_len: 0,
            max_new_tokens: 0,
            is_running: false,
            proposed: None,
            num_steps: 0,
        };
        Ok(Some((life, input.bytes(input.len())?)))
    }

    /// Makes the calls that `input` says.
    fn live(mut self, input: &mut Unstructured<'_>) -> Result<()> {
        while !input.is_empty() {
            match u8::arbitrary(input)? % 16 {
                0 => self.begin(input)?,
                1..=4 => self.propose(input)?,
                5 => self.propose_draft(input)?,
                6..=9 => self.accept(),
                10 => self.accept_what_is_wrong(input)?,
                11 => self.accept_recorded(input)?,
                12 => self.prefilled(input)?,
                13 => self.run_the_model(input)?,
                14 => self.sample(input)?,
                _ => self.ask(input)?,
            }
        }
        Ok(())
    }

    fn begin(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (prompt, prediction) = (tokens(input)?, tokens(input)?);
        let max_new_tokens = usize::from(u8::arbitrary(input)? % 64);
        match self.drafter.begin_predicted(&prompt, max_new_tokens, &prediction) {
            Ok(()) => {
                (self.prompt_len, self.max_new_tokens) = (prompt.len(), max_new_tokens);
                (self.text, self.is_running, self.proposed) = (prompt, true, None);
                self.num_steps = 0;
            }
            Err(Error::EmptyPrompt) => assert!(prompt.is_empty()),
            Err(Error::TokenOutOfRange { token, .. }) => assert!(token.0 as usize >= VOCAB_SIZE),
            Err(error) => assert!(max_new_tokens == 0, "{error}"),
        }
        Ok(())
    }

    fn past_len(&self, input: &mut Unstructured<'_>) -> Result<usize> {
        let right = self.text.len().saturating_sub(1);
        Ok(match u8::arbitrary(input)? {
            255 => usize::from(u8::arbitrary(input)?),
            254 => usize::MAX - usize::from(u8::arbitrary(input)?),
            _ => right,
        })
    }

    /// The tree and its step are what they must be, or there is no request or no room.
    fn proposed(&mut self, past_len: usize, proposed: coordgen_rs::Result<usize>) {
        match proposed {
            Ok(step) => {
                assert!(self.is_running);
                let (tree, rows) = (self.drafter.tree(), self.rows[step]);
                assert!(tree.num_nodes() <= rows && past_len + rows <= ATTENDED);
                assert!(tree.token_ids().iter().all(|token| (token.0 as usize) < VOCAB_SIZE));
                assert_eq!(Some(&tree.token_ids()[0]), self.text.last());
                let depth = tree.depths().iter().max().map_or(0, |&depth| depth as usize);
                assert!(depth < self.remaining(), "a node that cannot be given out");
                self.proposed = Some(step);
            }
            Err(Error::NoRequest) => assert!(!self.is_running),
            Err(Error::StepOutOfRange { .. }) => {
                assert!(past_len.saturating_add(self.rows[0]) > ATTENDED)
            }
            Err(error) => panic!("a proposal is refused as another thing: {error}"),
        }
    }

    fn propose(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let past_len = self.past_len(input)?;
        let proposed = self.drafter.propose(past_len);
        self.proposed(past_len, proposed);
        Ok(())
    }

    fn propose_draft(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let past_len = self.past_len(input)?;
        let mut token_ids = tokens(input)?;
        let parents: Vec<u32> = token_ids
            .iter()
            .enumerate()
            .map(|(node, _)| Ok(u32::from(u8::arbitrary(input)?) % (node as u32 + 1)))
            .collect::<Result<_>>()?;
        if let (Some(first), Some(&root)) = (token_ids.first_mut(), self.text.last()) {
            *first = if bool::arbitrary(input)? { root } else { *first };
        }
        match self.drafter.propose_draft(past_len, &token_ids, &parents) {
            Err(Error::TokenOutOfRange { token, .. }) => assert!(token.0 as usize >= VOCAB_SIZE),
            Err(Error::WrongRoot { .. }) => assert_ne!(token_ids.first(), self.text.last()),
            Err(Error::WrongLength { .. }) => assert!(token_ids.is_empty()),
            Err(Error::ParentAfterChild { node, parent }) => assert!(parent >= node),
            proposed => self.proposed(past_len, proposed),
        }
        Ok(())
    }

    fn remaining(&self) -> usize {
        self.max_new_tokens - (self.text.len() - self.prompt_len)
    }

    /// The next `num_tokens` tokens of plain decoding.
    fn plain(&self, num_tokens: usize) -> Vec<TokenId> {
        let mut text = self.text.clone();
        for _ in 0..num_tokens {
            let says = says(&text);
            let number = (text.len() - self.prompt_len) as u64;
            let mut row = [0.0; VOCAB_SIZE];
            row[says.0 as usize] = 1.0;
            let drawn = self.sampling.as_ref().map(|sampling| sampling.draw(&row, number));
            text.push(drawn.map_or(says, |drawn| drawn.expect("the row is finite")));
        }
        text.split_off(self.text.len())
    }

    /// What was given out is what plain decoding gives out.
    fn accepted(&mut self, expected: &[TokenId], commit: &Commit) {
        let num_given = commit.token_ids.len();
        assert!(num_given >= 1 && num_given <= self.remaining());
        assert_eq!(commit.token_ids, expected[..num_given]);
        assert_eq!((commit.rows.len(), commit.rows[0].index()), (num_given, 0));
        if self.is_canonical {
            assert!(commit.rows.iter().enumerate().all(|(index, row)| row.index() == index));
        }
        self.text.extend(&commit.token_ids);
        let ends = |token: &TokenId| *token == self.end;
        let finish_reason = match commit.token_ids.iter().position(ends) {
            Some(at) => Some((at + 1 == num_given).then_some(FinishReason::Stop).expect("no more")),
            None => (self.remaining() == 0).then_some(FinishReason::Length),
        };
        assert_eq!(commit.finish_reason, finish_reason);
        assert_eq!(self.drafter.finish_reason(), finish_reason);
        assert_eq!(self.drafter.origins().len(), num_given);
        (self.is_running, self.proposed) = (finish_reason.is_none(), None);
        self.num_steps += 1;
        let counted = self.drafter.statistics().accept_histogram.iter().sum::<usize>();
        assert_eq!(counted, self.num_steps);
        if finish_reason.is_some() {
            self.history.remember(&self.text).expect("its tokens are known");
        }
    }

    fn accept(&mut self) {
        let Some(step) = self.proposed else {
            assert_eq!(self.drafter.accept(&mut []), Err(Error::NothingProposed));
            return;
        };
        let mut logits = run_step(&self.drafter, &self.text, self.rows[step]);
        let expected = self.plain(self.rows[step].min(self.remaining()));
        let commit = self.drafter.accept(&mut logits).expect("every row is finite");
        self.accepted(&expected, &commit);
    }

    /// Logits of another number, or with a row that is not finite: an error that changes nothing, or
    /// a row that nobody asked for.
    fn accept_what_is_wrong(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let Some(step) = self.proposed else { return Ok(()) };
        let rows = self.rows[step];
        let mut logits = run_step(&self.drafter, &self.text, rows);
        let at = usize::from(u8::arbitrary(input)?) % logits.len();
        let expected = self.plain(rows.min(self.remaining()));
        if bool::arbitrary(input)? {
            let refused = self.drafter.accept(&mut logits[..at]);
            assert!(matches!(refused, Err(Error::WrongLength { .. })));
        } else {
            logits[at] = if bool::arbitrary(input)? { f32::NAN } else { f32::INFINITY };
            match self.drafter.accept(&mut logits) {
                Ok(commit) => self.accepted(&expected, &commit),
                Err(Error::NonFiniteLogits { row }) => assert_eq!(row, at / VOCAB_SIZE),
                Err(error) => panic!("logits are refused as another thing: {error}"),
            }
        }
        Ok(())
    }

    /// A record of plain decoding, perhaps one that ends too soon.
    fn accept_recorded(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let num_tokens = usize::from(u8::arbitrary(input)?);
        let record = match self.is_running {
            true => plain(&self.text, self.end, self.remaining().min(num_tokens)),
            false => Vec::new(),
        };
        match self.drafter.accept_recorded(&record) {
            Ok(commit) => self.accepted(&record, &commit),
            Err(Error::NothingProposed) => assert!(self.proposed.is_none()),
            Err(Error::WrongLength { .. }) => assert!(record.len() < self.remaining()),
            Err(error) => panic!("a record is refused as another thing: {error}"),
        }
        Ok(())
    }

    fn prefilled(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let num_logits = usize::from(u8::arbitrary(input)?) % (4 * VOCAB_SIZE);
        let score = small(input)?;
        let logits: Vec<f32> = (0..num_logits).map(|index| (index % 5) as f32 * score).collect();
        match self.drafter.prefilled(&logits) {
            Ok(()) => assert!(self.is_running),
            Err(Error::NoRequest) => assert!(!self.is_running),
            Err(Error::NonFiniteLogits { .. }) => assert!(!(4.0 * score).is_finite()),
            Err(Error::WrongLength { .. }) => {}
            Err(error) => panic!("a prompt's logits are refused as another thing: {error}"),
        }
        Ok(())
    }

    /// What a draft model's session does between two steps, or a part of it.
    fn run_the_model(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let mut model = self.model.lock();
        if bool::arbitrary(input)? {
            model.take_realignment();
        }
        model.skip(u8::arbitrary(input)?.into());
        let row = [small(input)?, 0.5, 1.0];
        for _ in 0..u8::arbitrary(input)? % 8 {
            let Some(step) = model.next_step((6, usize::MAX), false) else { break };
            assert!(step.first < step.tree.num_nodes());
            top_k(&row).iter().for_each(|likely| model.read(likely));
        }
        drop(model);
        let cost = small(input)?;
        match self.drafter.model_ran(cost, 0.0) {
            Ok(()) => assert!(self.is_running),
            Err(Error::NoRequest) => assert!(!self.is_running),
            Err(error) => assert!(!(cost.is_finite() && cost >= 0.0), "{error}"),
        }
        Ok(())
    }

    fn sample(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (temperature, top_p) = (small(input)?, small(input)?);
        let top_k = u8::arbitrary(input)?.into();
        self.sampling = Sampling::new(temperature, top_k, top_p, u64::arbitrary(input)?).ok();
        self.drafter.set_sampling(self.sampling.clone()).unwrap();
        Ok(())
    }

    /// Questions change nothing.
    fn ask(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let past_len = self.past_len(input)?;
        match self.drafter.model_pays(past_len, ModelPrice::default()) {
            Ok(_) => assert!(self.is_running),
            Err(Error::NoRequest) => assert!(!self.is_running),
            Err(Error::StepOutOfRange { .. }) => {
                assert!(past_len.saturating_add(self.rows[0]) > ATTENDED)
            }
            Err(error) => panic!("a question is refused as another thing: {error}"),
        }
        assert!(self.drafter.memory_bytes() < 1 << 20);
        Ok(())
    }
}

/// Up to 16 tokens, of which one in a few inputs is unknown.
fn tokens(input: &mut Unstructured<'_>) -> Result<Vec<TokenId>> {
    let len = u8::arbitrary(input)? % 16;
    let token = |byte: u8| if byte == 255 { VOCAB_SIZE as u32 } else { u32::from(byte) % 3 };
    (0..len).map(|_| Ok(TokenId(token(u8::arbitrary(input)?)))).collect()
}

/// A number of common size, or any at all.
fn small(input: &mut Unstructured<'_>) -> Result<f32> {
    Ok(match u8::arbitrary(input)? {
        255 => f32::from_bits(u32::arbitrary(input)?),
        byte => f32::from(byte) / 16.0,
    })
}
