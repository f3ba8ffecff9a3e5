//! What a target on CPU computes by itself: attention, and products with weights in blocks.
//!
//! [`attention`] and [`product`] say what they take and give; ONNX Runtime calls them through
//! `src/ort`. Their lines are compiled for vectors of several kinds, which all give the same bits
//! (`lanes`).

pub mod attention;
mod lanes;
pub mod product;

pub use lanes::{Processor, WIDTH};
