//! The suffix automaton of CoordGen: every substring of a growing text, and what it drafts.
//!
//! Other sources draw on it, too: `other_text` is an automaton over a text beside the request's.

mod edge_table;
mod edges;
pub mod escape;
mod frequent;
mod large_pages;
pub(super) mod other_text;
mod source;
mod states;
pub mod suffix_automaton;
