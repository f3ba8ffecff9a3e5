//! What a target on CPU computes by itself: attention, and products with weights in blocks.
//!
//! [`attention`] and [`product`] say what they take and give; ONNX Runtime calls them
//! through `src/ort`. Their lines are compiled for vectors of several kinds, which all give the same
//! bits (`lanes`), powers and what rests on them included (`exp`). [`nodes`] are those of draft trees,
//! along whose paths attention computes.

pub mod attention;
mod exp;
mod lanes;
pub mod nodes;
pub mod product;
mod room;

pub use lanes::{Processor, WIDTH};
pub use nodes::Nodes;
pub use room::Room;
