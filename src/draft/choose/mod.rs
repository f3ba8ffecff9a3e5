//! Which nodes are drafted and how many: the drafter, and what it decides by.

pub mod acceptance;
pub mod chain_ahead;
pub mod drafter;
pub mod expert_reads;
pub mod grow;
pub mod model_choice;
pub mod origins;
pub mod rate;
#[cfg(test)]
mod scripted;
pub mod step_choice;
pub mod tree_shape;
pub mod within;
