//! What a target on CPU computes by itself: attention, products with weights in blocks, mixtures of
//! experts, recurrent layers, and caps of logits.
//!
//! [`attention`], [`product`], [`experts`], [`recurrent`] and [`soft_cap`] say what they take and give; ONNX Runtime calls them
//! through `src/ort`. Their lines are compiled for vectors of several kinds, which all give the same
//! bits (`lanes`), powers and what rests on them included (`exp`). [`nodes`] are those of draft trees,
//! along whose paths attention and recurrent layers compute.

pub mod attention;
mod exp;
pub mod experts;
mod lanes;
pub mod nodes;
pub mod product;
pub mod recurrent;
pub mod soft_cap;
mod tasks;

pub use lanes::{Processor, WIDTH};
pub use nodes::Nodes;
pub(crate) use tasks::Shared;
pub use tasks::Workspace;
