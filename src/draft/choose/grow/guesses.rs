//! What all sources propose after one place. In: where each source is there, and the trust in it.
//! Out: their guesses, the likeliest first, each token once.

use std::ops::Range;

use super::frontier::{Guess, Key, MAX_PROBABILITY};
use super::retokenised::Retokenised;
use crate::draft::choose::acceptance::{Acceptance, Agreement, Proposal};
use crate::draft::choose::in_vocabulary::InVocabulary;
use crate::draft::source::{Cursor, DraftSource, Propose, Successor};
use crate::ids::TokenId;

/// A source that knows a place where the text ends: the others are silent in all of the tree.
pub(super) struct ActiveSource<'a> {
    /// Its index among all sources.
    index: usize,
    source: InVocabulary<'a>,
    is_model: bool,
    is_background: bool,
    /// Where the text ends.
    pub(super) cursor: Cursor,
}

impl<'a> ActiveSource<'a> {
    /// Those of `sources`, in their order but for those in the background, which come last, held to
    /// ids below `vocab_size`.
    pub(super) fn among(sources: &'a [Box<dyn DraftSource>], vocab_size: usize) -> Vec<Self> {
        let mut active = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            if let Some(cursor) = source.cursor() {
                let (is_model, is_background) = (source.is_model(), source.is_background());
                let source = InVocabulary::new(&**source, vocab_size);
                active.push(Self { index, source, is_model, is_background, cursor });
            }
        }
        active.sort_by_key(|one| one.is_background);
        active
    }

    /// Where it is after `token`, from `before` on; `guess` is what led there.
    pub(super) fn follow(
        &self,
        before: Option<Cursor>,
        token: TokenId,
        guess: Option<&Guess>,
    ) -> Option<Cursor> {
        match guess {
            Some(guess) if guess.proposal.source == self.index => {
                match guess.cursor.led_on_from() {
                    Some(from) => self.source.advance(from, token),
                    None => Some(guess.cursor),
                }
            }
            _ => self.source.advance(before?, token),
        }
    }
}

/// Who is asked, in all of a tree.
pub(super) struct ActiveSources<'a> {
    pub(super) active: Vec<ActiveSource<'a>>,
    retokenised: Option<Retokenised<'a>>,
    acceptance: &'a Acceptance,
}

impl<'a> ActiveSources<'a> {
    /// Those of `sources` that know a place, how their guesses may be written otherwise, and the trust
    /// in all. Those that have not seen the text's `last` token stand where another spelling of it
    /// leads, but for a draft model, which has read it, and for what tells of any text.
    pub fn among(
        sources: &'a [Box<dyn DraftSource>],
        acceptance: &'a Acceptance,
        vocab_size: usize,
        last: TokenId,
    ) -> Self {
        let mut active = ActiveSource::among(sources, vocab_size);
        let retokenised = Retokenised::among(sources, vocab_size);
        if let Some(retokenised) = retokenised {
            let is_new = |one: &&mut ActiveSource<'_>| {
                one.cursor.match_len == 0 && !one.is_model && !one.is_background
            };
            for one in active.iter_mut().filter(is_new) {
                one.cursor = retokenised.place(&one.source, one.cursor, last);
            }
        }
        Self { active, retokenised, acceptance }
    }
}

/// More than rounding can add to a product of a few factors.
const ROUNDING: f32 = 1.0 + 1e-5;

/// The guesses after each place of a tree, with buffers that are used again for the next tree.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// After all places that were asked about.
    guesses: Vec<Guess>,
    /// Those after the newest place, the likeliest first, the older one first among equals.
    order: Vec<Key>,
    /// Index of the draft model among those who know a place.
    model: Option<usize>,
    /// Index among them of the source that tells what the target held likely in like places.
    expectation: Option<usize>,
    /// No source is trusted more than this.
    largest_factor: f32,
    /// Whether all sources keep silent about what is less likely than they are asked for.
    leave_out_the_unlikely: bool,
    /// Whether it is among those who propose something after the newest place.
    model_speaks: bool,
    successors: Vec<Successor>,
}

impl Guesses {
    /// A tree is to be grown from these sources.
    pub fn begin(&mut self, ActiveSources { active, acceptance, .. }: &ActiveSources<'_>) {
        self.model = active.iter().position(|one| one.is_model);
        self.expectation = active.iter().position(|one| one.source.is_expectation());
        let factors = active.iter().map(|one| acceptance.largest_factor(one.index));
        self.largest_factor = factors.fold(0.0, f32::max) * ROUNDING;
        self.leave_out_the_unlikely = active.iter().all(|one| one.source.leaves_out_the_unlikely());
    }

    /// No guess is likelier than this.
    pub fn largest(&self) -> f32 {
        self.largest_factor.min(MAX_PROBABILITY)
    }

    /// Whether no source answers anywhere when asked for guesses of `at_least`.
    pub fn are_none_above(&self, at_least: f32) -> bool {
        self.leave_out_the_unlikely && at_least > self.largest_factor
    }

    /// Forgets the guesses of all places.
    pub fn clear(&mut self) {
        self.guesses.clear();
        self.order.clear();
    }

    /// One of all guesses.
    pub fn get(&self, guess: u32) -> &Guess {
        &self.guesses[guess as usize]
    }

    /// Those after the newest place, by their index among all, the likeliest first.
    pub fn newest(&self) -> impl Iterator<Item = (u32, f32)> {
        self.order.iter().map(|key| (key.index(), key.value()))
    }

    /// Collects the guesses of all sources that are at `cursors`, the newest place; those below
    /// `at_least` may be left out.
    ///
    /// A token that several sources name keeps its largest probability. Sources read much the
    /// same text, so their agreement is not independent evidence, and probabilities are not added up.
    /// What the target held likely is other evidence: copies that agree with it are trusted apart from
    /// those that do not. On recorded prompts of SmolLM2 that gained 0.1 to 0.4 % more tokens a step;
    /// that a source also learns where it names the token with a lower estimate was up to 2 % fewer.
    /// What is common anywhere is a share of what is left over by all that speak of this text.
    pub fn ask(
        &mut self,
        ActiveSources { active, retokenised, acceptance }: &ActiveSources<'_>,
        cursors: &[Option<Cursor>],
        at_least: f32,
    ) {
        let start = self.guesses.len();
        let model_says = self.likeliest(self.model, active, cursors);
        let expected = self.likeliest(self.expectation, active, cursors);
        self.model_speaks = model_says.is_some();
        for (place, (one, cursor)) in active.iter().zip(cursors).enumerate() {
            let Some(cursor) = *cursor else { continue };
            let said = model_says.filter(|_| !one.is_model);
            let expected = expected.filter(|_| Some(place) != self.expectation);
            let share = if one.is_background { self.left_over(start) } else { 1.0 };
            if share <= 0.0 {
                continue;
            }
            let at_least = at_least / share;
            let factor = |agreement| acceptance.factor(one.index, cursor.match_len, agreement);
            if said.is_none() && expected.is_none() {
                let factor = factor(Agreement::Unopposed);
                if self.query(one, cursor, at_least / factor) {
                    self.add_successors(start, one, cursor, share, |_| {
                        (Agreement::Unopposed, factor)
                    });
                }
                continue;
            }
            let contested = if said.is_some() { factor(Agreement::ModelDisagrees) } else { 0.0 };
            let agreed = match expected {
                Some(_) => [Agreement::ExpectationAgrees, Agreement::ExpectationDisagrees],
                None => [Agreement::Unopposed; 2],
            };
            let [if_expected, if_not] = agreed.map(factor);
            if self.query(one, cursor, at_least / if_expected.max(if_not).max(contested)) {
                self.add_successors(start, one, cursor, share, |token| {
                    if said.is_some_and(|said| said != token) {
                        (Agreement::ModelDisagrees, contested)
                    } else if expected == Some(token) {
                        (agreed[0], if_expected)
                    } else {
                        (agreed[1], if_not)
                    }
                });
            }
        }
        if let Some(retokenised) = retokenised {
            let model = self.model.map(|model| active[model].index);
            self.add_retokenised(start, *retokenised, acceptance, (model, at_least));
        }
        self.order.clear();
        let guesses = self.guesses.iter().enumerate().skip(start);
        self.order.extend(guesses.map(|(index, guess)| Key::new(guess.probability, index)));
        // Each source has named its own in order, so this merges a few runs.
        self.order.sort_by(|one, other| other.cmp(one));
    }

    /// Adds to the guesses from `start` on those that are ends of lines without their breaks; not those
    /// of the draft `model`, which has looked at both, or where they would be below `at_least`.
    fn add_retokenised(
        &mut self,
        start: usize,
        retokenised: Retokenised<'_>,
        acceptance: &Acceptance,
        (model, at_least): (Option<usize>, f32),
    ) {
        let least_whole = at_least / retokenised.share(acceptance);
        let end = self.guesses.len();
        for at in start..end {
            let whole = &self.guesses[at];
            if whole.probability < least_whole || Some(whole.proposal.source) == model {
                continue;
            }
            if let Some(guess) = retokenised.guess(whole, acceptance) {
                let all = start..self.guesses.len();
                add(&mut self.guesses, all, guess);
            }
        }
    }

    /// What the guesses from `start` on leave of a certainty.
    fn left_over(&self, start: usize) -> f32 {
        let total: f32 = self.guesses[start..].iter().map(|guess| guess.probability).sum();
        (1.0 - total).max(0.0)
    }

    /// Asks one source for its successors of `at_least` its own estimate; tells whether it was asked.
    #[inline]
    fn query(&mut self, one: &ActiveSource<'_>, cursor: Cursor, at_least: f32) -> bool {
        if self.leave_out_the_unlikely && at_least > 1.0 {
            return false; // it would say nothing
        }
        self.successors.clear();
        one.source.successors_above(cursor, at_least, &mut self.successors);
        true
    }

    /// Takes in what one source has said behind `cursor`, which names no token twice: estimates of
    /// `share` of what comes next. `judge` tells how a token stands and how far it is trusted. The
    /// guesses of the place begin at `start`.
    #[inline]
    fn add_successors(
        &mut self,
        start: usize,
        one: &ActiveSource<'_>,
        Cursor { match_len, .. }: Cursor,
        share: f32,
        judge: impl Fn(TokenId) -> (Agreement, f32),
    ) {
        let num_before = self.guesses.len();
        debug_assert!(names_no_token_twice(&self.successors));
        for &Successor { token, probability, cursor } in &self.successors {
            let (agreement, factor) = judge(token);
            let probability = probability * share;
            let proposal = Proposal { source: one.index, match_len, probability, agreement };
            let probability = (probability * factor).min(MAX_PROBABILITY);
            let guess = Guess { token, probability, proposal, cursor };
            add(&mut self.guesses, start..num_before, guess);
        }
    }

    /// Factors on the likeliest guess and on the others, by which all sum up to 1 at most.
    ///
    /// Copies that contradict each other are all less sure for it. Where a draft model speaks, the
    /// trust in who contradicts it is priced in already: the likeliest keeps its estimate, and the
    /// others share what it leaves.
    pub fn scales(&self) -> (f32, f32) {
        let total: f32 = self.order.iter().map(|key| key.value()).sum();
        let first = self.order.first().map_or(0.0, |key| key.value());
        if self.model_speaks && total > 1.0 {
            return (1.0, (1.0 - first) / (total - first));
        }
        (1.0 / total.max(1.0), 1.0 / total.max(1.0))
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.guesses.capacity() * size_of::<Guess>()
            + self.order.capacity() * size_of::<Key>()
            + self.successors.capacity() * size_of::<Successor>()
    }

    /// What a source, if there is one, holds likeliest there.
    fn likeliest(
        &mut self,
        source: Option<usize>,
        active: &[ActiveSource<'_>],
        cursors: &[Option<Cursor>],
    ) -> Option<TokenId> {
        let place = source?;
        let cursor = cursors[place]?;
        self.successors.clear();
        active[place].source.successors(cursor, &mut self.successors);
        self.successors.first().map(|likeliest| likeliest.token)
    }
}

/// Adds a guess, unless its token is among those of `known` and no less likely there.
#[inline]
fn add(guesses: &mut Vec<Guess>, known: Range<usize>, guess: Guess) {
    match guesses[known].iter_mut().find(|known| known.token == guess.token) {
        Some(known) if known.probability >= guess.probability => {}
        Some(known) => *known = guess,
        None => guesses.push(guess),
    }
}

/// What a source must keep to: then only what others have said is searched for its tokens.
fn names_no_token_twice(successors: &[Successor]) -> bool {
    let mut after = successors.iter().enumerate();
    after.all(|(at, one)| successors[at + 1..].iter().all(|next| next.token != one.token))
}
