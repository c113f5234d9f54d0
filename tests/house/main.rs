//! What holds for the repository as a whole: its rules, its public interface, its documentation, its generated code.

#![expect(clippy::disallowed_methods, reason = "tests read files; the list is for the pure modules")]

mod architecture;
mod docs;
mod items;
mod proto;
mod public_api;
mod source;
