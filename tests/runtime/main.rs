//! Studies that run: the store, head and workers, emulated nodes, and whole studies with all their actors.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod checkpoints;
mod commands;
mod common;
mod emulate;
mod emulated;
mod functions;
mod gateway;
#[path = "../support/processes.rs"]
mod processes;
mod store;
#[path = "../support/world.rs"]
#[expect(dead_code, reason = "studies run to their end here")]
mod world;
