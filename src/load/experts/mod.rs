//! Experts of a target that are larger than memory.

pub mod expectation;
#[cfg(test)]
mod informed;
#[cfg(unix)]
pub mod mapping;
#[cfg(test)]
mod oracle;
pub mod residency;
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
