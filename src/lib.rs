//! Lossless drafting and tree verification for text generation on fixed-shape graphs.

pub mod commit;
pub mod draft;
pub mod error;
pub mod ids;
pub mod logits;
pub mod tree;
pub mod verify;

#[cfg(feature = "python")]
mod py;
