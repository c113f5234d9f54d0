//! Emulated devices: workers that take as long as a real training would, but compute nothing.
//!
//! For a head, emulated workers are like real ones: they attach over the same gRPC streams and follow the same protocol, with the same
//! code (`worker::protocol`). What a training would do meanwhile is modelled from measurements ([`sim::Modelled`](crate::sim::Modelled)), in time
//! that may run faster or slower than the clock. So whole clusters run on a laptop, with everything real but the training.
//!
//! One process stands for a node and hosts a worker for each of its slots. [`launch`] prepares such a process, and a program that
//! calls [`serve_if_node`] first thing in `main` becomes one. All times in messages are emulated seconds.
//!
//! *Architecture invariant:* a worker that trains follows from its state and the time, and wakes up only when something is to be
//! reported: its cost grows neither with the number of steps nor with the size of the model.

mod backend;
mod check;
mod checkpoint;
mod error;
mod process;
mod rendezvous;
mod rendezvous_tcp;
mod schedule;
mod session;
#[cfg(test)]
mod tests;

pub use check::check;
pub use error::Error;
pub use process::{NodeLaunch, launch, serve_if_node};
