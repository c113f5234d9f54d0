//! Whole studies, with all their actors.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod commands;
mod common;
mod emulated;
mod functions;
#[path = "../common/processes.rs"]
mod processes;
