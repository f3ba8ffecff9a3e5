//! The draft tree, and the inputs of the step that verifies it.

pub mod draft_tree;
pub mod mask;
pub mod step_inputs;
