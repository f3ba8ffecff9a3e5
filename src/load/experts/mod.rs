//! A mixture of experts larger than its memory: which experts are in memory, when the others are read.
//! In: the experts that layers choose. Out: that these are in memory while they are used.
//!
//! `expectation` says how soon an expert will be used, `residency` what is read and dropped for it;
//! neither knows threads, files or time. `mapping` is a file whose pages come and go, `store` does
//! what `residency` says, on threads of its own. `shape` divides a budget between experts and the
//! graphs beside them. EdgeLLM (section III-D) and PowerInfer-2 ask the same questions.

pub mod expectation;
#[cfg(unix)]
pub mod mapping;
pub mod residency;
pub mod shape;
#[cfg(unix)]
pub mod store;
#[cfg(test)]
mod tests;
