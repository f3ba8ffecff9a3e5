//! Which nodes are drafted and how many: the drafter, and what it decides by.

pub mod acceptance;
pub mod drafter;
pub mod expert_reads;
pub mod grow;
pub mod in_vocabulary;
pub mod model_choice;
pub mod origins;
pub mod step_choice;
pub mod step_gains;
#[cfg(test)]
mod tests;
pub mod tree_shape;
