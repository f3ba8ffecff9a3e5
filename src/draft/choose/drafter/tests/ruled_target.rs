//! A target that follows a rule, and plain decoding by it: what a drafter's answers are held
//! against. In: a text. Out: the next token, all of them, or a step's logits.
//!
//! The fuzz target `drafter` reads this file too, so it names nothing but what its module has.

use super::{Drafter, TokenId};

/// Number of tokens that it says.
pub const VOCAB_SIZE: usize = 3;

/// The next token, which depends on the last three.
pub fn says(text: &[TokenId]) -> TokenId {
    let recent = text.iter().rev().take(3);
    TokenId(recent.fold(1, |sum, token| (sum * 5 + token.0 + 1) % 7) % VOCAB_SIZE as u32)
}

/// The answer of plain decoding.
pub fn plain(prompt: &[TokenId], end_token: TokenId, max_new_tokens: usize) -> Vec<TokenId> {
    let mut text = prompt.to_vec();
    while text.len() < prompt.len() + max_new_tokens {
        text.push(says(&text));
        if text.last() == Some(&end_token) {
            break;
        }
    }
    text.split_off(prompt.len())
}

/// What it says in each row of the drafter's tree, as `(rows, VOCAB_SIZE)` logits.
pub fn run_step(drafter: &Drafter, text: &[TokenId], rows: usize) -> Vec<f32> {
    let tree = drafter.tree();
    let mut logits = vec![0.0; rows * VOCAB_SIZE];
    let mut texts: Vec<Vec<TokenId>> = vec![text.to_vec()];
    for node in 0..tree.num_nodes() {
        if node > 0 {
            let mut path = texts[tree.parents()[node].index()].clone();
            path.push(tree.token_ids()[node]);
            texts.push(path);
        }
        logits[node * VOCAB_SIZE + says(&texts[node]).0 as usize] = 1.0;
    }
    logits
}
