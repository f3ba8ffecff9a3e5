//! What the sources say, in other tokens of nearly the same text. In: the guesses after a place, or the
//! last token of the text. Out: guesses that stand beside them; places behind another spelling.

use super::frontier::{Guess, MAX_PROBABILITY};
use crate::draft::choose::acceptance::{Acceptance, Agreement, Proposal};
use crate::draft::source::{Cursor, DraftSource, Propose};
use crate::draft::token_variants::{TokenVariant, TokenVariants};
use crate::ids::TokenId;

/// How often the end of a copied line is said without its break, before anything is seen. On recorded
/// answers 0.3 and 0.5 do alike; 0.1 loses 3 to 5 % of the tokens a step where answers are single lines.
const WITHOUT_BREAK: f32 = 0.3;

/// All of its guesses share one estimate: answers that end soon are learned from by few of them. One for
/// each two tokens of the match was 1 to 2 % fewer tokens a step.
const MATCH_LEN: u32 = 15;

/// The source that knows other spellings.
#[derive(Clone, Copy)]
pub(super) struct Retokenised<'a> {
    /// Its index among all sources.
    index: usize,
    token_variants: &'a TokenVariants,
    /// Number of ids that the target knows.
    vocab_size: usize,
}

impl<'a> Retokenised<'a> {
    /// The first of `sources` that knows other spellings, held to ids below `vocab_size`.
    pub fn among(sources: &'a [Box<dyn DraftSource>], vocab_size: usize) -> Option<Self> {
        let mut known = sources.iter().enumerate();
        known.find_map(|(index, source)| {
            Some(Self { index, token_variants: source.token_variants()?, vocab_size })
        })
    }

    /// Where a source is that has matched nothing at `cursor`, were the text's `last` token written
    /// otherwise; `cursor` where that is not known either.
    ///
    /// A word in another case is a weak sign: it counts as no match, and is trusted as little. Counted
    /// as one of a token, it lost 5 % of the tokens a step on screens. Spellings of the tokens before
    /// the last gained nothing, nor did those inside of a tree.
    pub fn place(self, source: &impl Propose, cursor: Cursor, last: TokenId) -> Cursor {
        let place = |TokenVariant { token, is_same_word }| {
            let place = source.advance(cursor, token)?;
            Some(if is_same_word { place } else { Cursor { match_len: 0, ..place } })
        };
        self.token_variants.others(last).find_map(place).unwrap_or(cursor)
    }

    /// How often the end of a copied line is said without its break, of how often with it.
    pub fn share(self, acceptance: &Acceptance) -> f32 {
        WITHOUT_BREAK * acceptance.factor(self.index, MATCH_LEN, Agreement::Unopposed)
    }

    /// The guess that `whole`, the end of a line, is said without its break.
    pub fn guess(self, whole: &Guess, acceptance: &Acceptance) -> Option<Guess> {
        let token = self.token_variants.without_break(whole.token)?;
        if token.0 as usize >= self.vocab_size {
            return None;
        }
        let probability = whole.probability * WITHOUT_BREAK;
        let (source, match_len, agreement) = (self.index, MATCH_LEN, Agreement::Unopposed);
        let proposal = Proposal { source, match_len, probability, agreement };
        let probability = (whole.probability * self.share(acceptance)).min(MAX_PROBABILITY);
        // Its source has no place that the cursor could be one of.
        Some(Guess { token, probability, proposal, cursor: whole.cursor })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::*;
    use super::*;
    use crate::SuffixAutomaton;
    use crate::draft::source::Learn;
    use crate::draft::sources::respelling::Respelling;

    type Pairs<'a> = &'a [(u32, u32)];

    /// A tree behind `text` from what it says and how that may be written otherwise.
    fn grown(
        text: &[u32],
        [line_ends, spaced, cased]: [Pairs<'_>; 3],
        acceptance: &Acceptance,
    ) -> TreeGrower {
        let ids = |pairs: Pairs<'_>| {
            pairs.iter().map(|&(one, other)| (TokenId(one), TokenId(other))).collect::<Vec<_>>()
        };
        let token_variants = TokenVariants::new(ids(line_ends), ids(spaced), ids(cased));
        let mut automaton = SuffixAutomaton::new();
        let text: Vec<_> = text.iter().copied().map(TokenId).collect();
        Learn::extend(&mut automaton, &text);
        let sources: Vec<Box<dyn DraftSource>> =
            vec![Box::new(automaton), Box::new(Respelling::new(Arc::new(token_variants)))];
        let limits = GrowthLimits { num_nodes: 12, depth: 9, side_worth: 1.0, branches: true };
        let mut grower = TreeGrower::new(100, vec![]);
        grower.grow(&sources, acceptance, text[text.len() - 1], &[], limits);
        grower
    }

    /// The node of a token right below the root.
    fn below_root(grower: &TreeGrower, token: u32) -> Option<&Node> {
        let mut below = grower.nodes.iter().skip(1).filter(|node| node.parent == 0);
        below.find(|node| node.token == TokenId(token))
    }

    const LINE: [u32; 8] = [1, 2, 3, 8, 4, 1, 2, 3];

    #[test]
    fn the_end_of_a_line_may_come_without_its_break() {
        let acceptance = Acceptance::new(2);
        let plain = grown(&LINE, [&[], &[], &[]], &acceptance);
        let with = grown(&LINE, [&[(8, 9)], &[], &[]], &acceptance);
        let (whole, cut) = (below_root(&with, 8).unwrap(), below_root(&with, 9).unwrap());
        let trust = acceptance.factor(1, MATCH_LEN, Agreement::Unopposed);
        assert!((cut.worth - whole.worth * WITHOUT_BREAK * trust).abs() < 1e-6);
        assert!(below_root(&plain, 9).is_none());
        let guess = with.guesses.get(cut.guess.unwrap());
        assert_eq!((guess.proposal.source, guess.proposal.match_len), (1, MATCH_LEN));
        let foreign = grown(&LINE, [&[(8, 100)], &[], &[]], &acceptance);
        assert!(below_root(&foreign, 100).is_none(), "the target does not know it");
    }

    #[test]
    fn a_break_that_is_always_left_out_comes_second() {
        let mut acceptance = Acceptance::new(2);
        for _ in 0..50 {
            let with = grown(&LINE, [&[(8, 9)], &[], &[]], &acceptance);
            for token in [8, 9] {
                let guess = below_root(&with, token).unwrap().guess.unwrap();
                acceptance.observe(with.guesses.get(guess).proposal, token == 9);
            }
        }
        let with = grown(&LINE, [&[(8, 9)], &[], &[]], &acceptance);
        assert_eq!(with.nodes[1].token, TokenId(9));
    }

    #[test]
    fn a_new_token_goes_on_as_another_spelling_of_its_word_does() {
        let acceptance = Acceptance::new(2);
        let text = [1, 5, 6, 7, 2, 3, 4, 15];
        let first = |text: &[u32], pairs| {
            let grower = grown(text, pairs, &acceptance);
            let node = grower.nodes[1];
            (node.token.0, grower.guesses.get(node.guess.unwrap()).proposal.match_len)
        };
        assert_eq!(first(&text, [&[], &[(15, 5)], &[]]), (6, 1));
        assert_eq!(first(&text, [&[], &[], &[(15, 5)]]), (6, 0), "another case is a weaker sign");
        assert_eq!(
            first(&text, [&[], &[(15, 99)], &[(15, 5)]]),
            (6, 0),
            "the closest that is known"
        );
        let known = [&text[..], &[2, 15]].concat();
        assert_eq!(first(&known, [&[], &[(15, 5)], &[]]), (2, 1), "it is known as it is");
        let plain = grown(&text, [&[], &[], &[]], &acceptance);
        let unknown = grown(&text, [&[], &[(15, 99)], &[]], &acceptance);
        assert!(plain.worths().eq(unknown.worths()), "a spelling that is new too tells nothing");
    }
}
