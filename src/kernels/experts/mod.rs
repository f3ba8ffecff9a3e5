//! Mixtures of experts: a feed-forward of which each row takes some of many.
//!
//! In: rows of the residual stream, a router's scores, the weights of all experts. Out: rows, in which the
//! outputs of each row's experts are summed by their shares. The bits of a row depend on the row alone: not
//! on the rows beside it, on which of them share an expert, on tasks or the processor.
//!
//! # What a step does
//!
//! 1. Each row chooses experts by its scores, and their shares (`route.rs`).
//! 2. The pairs of a row and an expert are sorted by expert: a group each (`dispatch.rs`).
//! 3. A group's rows are gathered, normed and rounded (`dispatch.rs`), and multiplied with the expert's gate and
//!    up (`products.rs`): all of them read its weights once.
//! 4. Gates and what they gate are rounded, and multiplied with the expert's down.
//! 5. Each row's products are summed in the order of rank, the best expert first (`combine.rs`).
//!
//! `layer.rs` says what a layer is and where an expert's weights stand, `step.rs` what a step reads and
//! refuses. Of one row only both products are worth telling other threads of.
//!
//! Unsafe: products and rounded rows are written by several threads through pointers, each place by one;
//! all else is slices whose lengths are checked when a step is made.
#![allow(unsafe_code)]

mod combine;
mod dispatch;
mod layer;
mod products;
mod route;
mod step;

pub use self::layer::{Experts, ExpertsError};
pub use self::route::{Router, Scoring};
pub use self::step::{Inputs, Scratch, Step};

#[cfg(test)]
mod tests;
