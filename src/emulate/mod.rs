//! Emulated devices: workers that take as long as a real training would, but compute nothing.
//!
//! A head cannot tell light workers from real ones: they come in over the same gRPC streams, obey the same commands and say the same
//! events. What a training would do meanwhile is modelled from measurements ([`sim::Modelled`](crate::sim::Modelled)), in time
//! that may run faster or slower than the clock. So whole clusters run on a laptop, with everything real but the training.
//!
//! One process stands for a node and hosts a worker for each of its slots. [`launch`] prepares such a process, and a program that
//! calls [`serve_if_node`] first thing in `main` becomes one. All times in messages are emulated seconds.
//!
//! *Architecture invariant:* a worker that trains follows from its state and the time, and wakes up only when somebody is to be
//! told: its cost grows neither with the number of steps nor with the size of the model.

mod check;
mod checkpoint;
mod course;
mod desk;
mod door;
mod error;
mod hall;
mod inbox;
mod light;
mod process;
mod session;
#[cfg(test)]
mod tests;
mod training;

pub use check::check;
pub use error::Error;
pub use process::{NodeLaunch, launch, serve_if_node};
