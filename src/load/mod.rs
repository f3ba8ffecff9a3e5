//! Which graph of a block is in memory when: what a device costs, what to do when, doing it.

pub mod block_store;
pub mod loader;
pub mod profile;
pub mod stream;
pub mod timetable;
