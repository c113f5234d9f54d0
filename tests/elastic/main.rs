//! Elastic training with real worker processes, which come, go and are killed.

#[path = "../support/accounts.rs"]
mod accounts;
#[path = "../support/checkpoint_files.rs"]
mod checkpoint_files;
mod checkpoints;
mod common;
#[path = "../support/disk.rs"]
mod disk;
mod export;
mod failing;
mod failures;
mod hangs;
mod head_loss;
mod memory;
mod net;
mod noise;
mod own;
#[path = "../support/processes.rs"]
mod processes;
mod rescale;
mod storm;
mod strangers;
mod study;
mod torch;

use pollux_tune::worker::serve_if_worker;

/// Not a test: what the worker processes of the other tests run. Started by `cargo test` it does nothing.
#[test]
fn worker() {
    serve_if_worker(&net::registry().with("own", own::Own::new));
}
