//! What may come next: the sources, and the drafter that asks them all.

pub mod choose;
pub mod host;
pub mod methods;
pub mod setting;
pub mod source;
pub mod sources;
pub mod token_variants;
