//! What every source does: it is told ([`Learn`]) and asked ([`Propose`]). In: committed tokens.
//! Out: likely successors of a place.
//!
//! A source answers questions about *places*; it never builds the tree. The drafter walks many
//! places of many sources at once and keeps the likeliest, so a source stays a lookup.

use crate::commit::Commit;
use crate::draft::token_variants::TokenVariants;
use crate::ids::{NodeId, TokenId};
use crate::logits::Logits;
use crate::logits::top_k::TopK;
use crate::tree::draft_tree::DraftTree;
use crate::verify::Verified;

/// A place in a source's own data: where some text that ends in a draft node was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The source's own index: a state, a position, a range. Valid until the next `extend`.
    pub place: u64,
    /// Number of tokens, ending at this place, that agree with the committed text and the draft.
    pub match_len: u32,
}

impl Cursor {
    /// Set in `match_len`, which is far below it, where the place is one before the token.
    const PUT_OFF: u32 = 1 << 31;

    /// In place of the place after a successor's token: that before it, to be led on from by
    /// [`Propose::advance`] once it is asked about. Most successors never are.
    pub fn put_off(self) -> Self {
        Self { match_len: self.match_len | Self::PUT_OFF, ..self }
    }

    /// The place to be led on from, where the one after a successor's token was put off.
    pub fn led_on_from(self) -> Option<Self> {
        let from = Self { match_len: self.match_len & !Self::PUT_OFF, ..self };
        (from != self).then_some(from)
    }
}

/// One token that may come next, as a source sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Successor {
    /// The token.
    pub token: TokenId,
    /// The source's own estimate, in (0, 1], that the target says it.
    pub probability: f32,
    /// The place after the token.
    pub cursor: Cursor,
}

/// The most likely tokens after each of some tokens: consecutive ones of the prompt, or a step's.
#[derive(Clone, Copy, Debug)]
pub struct TopKRows<'a> {
    /// Position in the prompt of the token that row 0 follows; 0 for a step's.
    pub first_position: usize,
    /// Entries a row, likeliest first.
    pub k: usize,
    /// `(rows, k)`.
    pub token_ids: &'a [TokenId],
    /// `(rows, k) f32`: estimates of the probability that the target says the token there.
    pub probabilities: &'a [f32],
}

/// What a verification saw, for sources that learn from more than the tokens given out.
pub struct Verification<'a> {
    /// The tree that was verified.
    pub tree: &'a DraftTree,
    /// The accepted path, and the target's own next token.
    pub verified: &'a Verified,
    /// What was given out, what was carried.
    pub commit: &'a Commit,
    /// What the target says after a node; after a rejected one, its likeliest token, also where tokens
    /// are drawn. `None` where the row is unusable. Cost: a pass over a rejected node's row of logits.
    pub says: &'a mut dyn FnMut(NodeId) -> Option<TokenId>,
    /// What the target held likely after a node, also a rejected one; `None` where its row is
    /// unusable. In a recorded answer it is the recorded token alone, or the recorded row. Cost: a pass
    /// over a row of logits.
    pub top_k: &'a mut dyn FnMut(NodeId) -> Option<TopK>,
    /// All rows, node `i` in row `i`, for those who read every one of them; `None` in a recorded
    /// answer. Borrowed for the call: who learns later keeps what it has read, not the logits.
    pub logits: Option<Logits<'a>>,
}

/// What a source is asked: what may come next at a place. Asking changes nothing.
pub trait Propose {
    /// The name in options and statistics.
    fn name(&self) -> &'static str;

    /// Number of ids in the vocabulary of what it draws on beside the requests; `None` where there is
    /// nothing else, or its vocabulary is not known.
    fn vocab_size(&self) -> Option<usize> {
        None
    }

    /// The place that the committed text ends in; `None` when nothing matches.
    fn cursor(&self) -> Option<Cursor>;

    /// The place after `token`, were it to come next; `None` when nothing matches any more.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor>;

    /// Appends the likely successors of `cursor` to `out`, a bounded number, likeliest first, each
    /// token once; without those below a probability of `at_least`, so far as leaving them out saves
    /// work: they would not be used. Places may be [put off](Cursor::put_off).
    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>);

    /// All of [`successors_above`](Self::successors_above), and none of their places put off.
    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        let start = out.len();
        self.successors_above(cursor, 0.0, out);
        for successor in &mut out[start..] {
            successor.cursor = self.place_of(successor);
        }
    }

    /// The place of a successor, also where it was put off.
    fn place_of(&self, successor: &Successor) -> Cursor {
        let from = successor.cursor.led_on_from();
        let place = from.and_then(|from| self.advance(from, successor.token));
        place.unwrap_or(successor.cursor)
    }

    /// Whether [`successors_above`](Self::successors_above) appends nothing where `at_least` is above
    /// 1, as no probability is: then it need not be asked, nor led to the place.
    fn leaves_out_the_unlikely(&self) -> bool {
        false
    }

    /// Whether it is a model of the target, which has read all of the text: what contradicts it is
    /// trusted apart from what does not.
    fn is_model(&self) -> bool {
        false
    }

    /// Whether it tells what the target held likely in like places: copies that agree with it are
    /// trusted apart from those that do not.
    fn is_expectation(&self) -> bool {
        false
    }

    /// Whether it tells what is common in any text: its estimates are shares of what all others leave
    /// over at the place.
    fn is_background(&self) -> bool {
        false
    }

    /// Whether asking may read a file, as things are: then others are to go on meanwhile.
    fn reads_disk(&self) -> bool {
        false
    }

    /// How what the others say may be written otherwise, where it knows that; such a source has no
    /// place, and says nothing of its own.
    fn token_variants(&self) -> Option<&TokenVariants> {
        None
    }
}

/// What a source is told: the request, and what the target made of it.
pub trait Learn {
    /// Appends committed tokens (the prompt first) to the text that the source draws on.
    fn extend(&mut self, tokens: &[TokenId]);

    /// Learns the number of ids in the target's vocabulary, which all that it is told is of; told
    /// once, before anything else.
    fn set_vocab_size(&mut self, _vocab_size: usize) {}

    /// Takes the user's own prediction of the next answer; an empty one is ignored.
    fn predicted(&mut self, _prediction: &[TokenId]) {}

    /// Whether `prefilled` is of any use to it: reading the prompt's rows costs the target's time.
    fn reads_prefill(&self) -> bool {
        false
    }

    /// Learns what the target expected while it read the prompt; told a chunk after another,
    /// after `extend` of the whole prompt.
    fn prefilled(&mut self, _rows: &TopKRows<'_>) {}

    /// Learns that the rows of the prompt's first tokens will not be told: the target has computed
    /// them for earlier requests. Told after `extend` of the whole prompt, before any `prefilled`.
    fn reused(&mut self, _num_tokens: usize) {}

    /// Learns from a verification; told before `extend` of what was given out.
    fn verified(&mut self, _seen: &mut Verification<'_>) {}

    /// Forgets the text of the request; capacity may stay allocated.
    fn clear(&mut self);

    /// Learns that the request is over, and gives back what it shares with others: files, and texts
    /// that they may want to be gone. Nothing is asked before the next `clear`.
    fn ended(&mut self) {}

    /// How many rows of a step's logits it reads in `verified`, of a tree of `num_nodes`.
    fn rows_read(&self, _num_nodes: usize) -> usize {
        0
    }

    /// Bytes held on the heap.
    fn memory_bytes(&self) -> usize;
}

/// A source as a drafter holds it: it learns between the steps, and proposes in each.
pub trait DraftSource: Propose + Learn + Send + Sync {}

impl<T: Propose + Learn + Send + Sync> DraftSource for T {}

/// Tokens before a place that tell it from others with the same token.
pub(super) const MAX_CONTEXT: usize = 15;

/// Number of tokens, up to [`MAX_CONTEXT`], in which the ends of two texts agree.
pub(super) fn agreement(one: &[TokenId], other: &[TokenId]) -> u32 {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs.take(MAX_CONTEXT).take_while(|(one, other)| one == other).count() as u32
}
