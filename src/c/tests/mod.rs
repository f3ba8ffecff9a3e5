//! The interface as C calls it, and its header.

mod calls;
mod header;
