//! The draft tree, and the inputs of the step that verifies it.

pub mod draft_tree;
pub mod step_inputs;
