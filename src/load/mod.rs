//! Which graph of a block is in memory when: what a device costs, what to do when, doing it.

pub mod block_store;
pub mod experts;
pub mod loader;
pub mod plan;
pub mod profile;
pub mod prompt_rows;
pub mod stream;
pub mod switcher;
pub mod timetable;
