//! Experts of a target that are larger than memory.

pub mod expectation;
#[cfg(test)]
mod informed;
#[cfg(test)]
mod oracle;
pub mod residency;
#[cfg(test)]
mod routings;
pub mod shape;
#[cfg(test)]
mod simulate;
