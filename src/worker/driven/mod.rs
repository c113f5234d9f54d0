//! Training by the caller's own thread, in whatever language it is written: the Python package trains so.
//!
//! The worker protocol runs on a thread of its own and asks for one thing at a time ([`Request`]); the thread that trains answers
//! ([`Answer`]). What does not need a model stays here: the order of the examples, the statistics of the gradient, the learning rate
//! and the progress ([`Training`]), checkpoints, and the rooms where groups meet.

mod backend;
mod saved;
#[cfg(test)]
mod tests;
mod training;
mod worker;

pub use backend::{Answer, Fault, GroupRequest, Request, Trained};
pub use saved::{Restored, SavedTensor, load_checkpoint};
pub use training::{Comparing, GroupPlace, StepPlan, Training};
pub use worker::DrivenWorker;

pub use super::{
    memory::is_out_of_memory,
    rendezvous::{GroupStore, StoreError},
};
