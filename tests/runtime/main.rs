//! Studies that run: the store, head and workers, emulated nodes, and whole studies with all their actors.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../support/accounts.rs"]
mod accounts;
mod agents;
mod checkpoints;
mod commands;
mod common;
mod damage;
#[path = "../support/disk.rs"]
mod disk;
mod emulate;
mod emulated;
mod failing;
mod functions;
mod fuzz;
#[path = "../support/fuzz.rs"]
mod fuzz_targets;
mod gateway;
mod library;
#[path = "../support/packages.rs"]
mod packages;
#[path = "../support/processes.rs"]
mod processes;
mod recovery;
mod slurm;
#[path = "../support/slurm.rs"]
mod slurm_cluster;
mod store;
#[path = "../support/world.rs"]
#[expect(dead_code, reason = "studies run to their end here")]
mod world;
