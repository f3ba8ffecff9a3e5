//! A mixture of experts larger than its memory: which experts are in memory, when the others are read.
//! In: the experts that layers choose. Out: that these are in memory while they are used.
//!
//! `expectation` says how soon an expert will be used, `residency` what is read and dropped for it;
//! neither knows threads, files or time. `mapping` is a file whose pages come and go, `store` does
//! what `residency` says, on threads of its own. `shares` divides a budget between experts and the
//! graphs beside them. EdgeLLM (section III-D) and PowerInfer-2 ask the same questions.
//!
//! The core is judged in `simulate`, on routings with skew and locality (`routings`), beside one who
//! knows the future (`oracle`), one who knows the routers (`informed`), and the usual rules. Tried and
//! dropped: least recently and least frequently used, which wait 1.26 and 1.06 times as long there;
//! quotas for each layer are what expectation comes to by itself.

pub mod expectation;
#[cfg(test)]
mod informed;
#[cfg(unix)]
pub mod mapping;
#[cfg(test)]
mod oracle;
pub mod residency;
#[cfg(test)]
mod residency_tests;
#[cfg(test)]
mod routings;
pub mod shape;
pub mod shares;
#[cfg(test)]
mod simulate;
#[cfg(unix)]
pub mod store;
#[cfg(all(test, unix))]
mod store_tests;
