//! Elastic training in worker processes.
//!
//! A user writes a `Trainable` and puts it into a `Registry`. The program is started again as its workers, one for each slot, and each
//! hosts a rank of whatever trial it is given. Workers of a trial form a group; a group re-forms in place when workers come, go or
//! die. Which messages that takes is written once, for all ways to train, in `protocol`.
//!
//! *Architecture invariant:* what a trial learns from, and in which order, follows from its seed and its position, and not from the
//! number of its workers.

mod abort;
mod books;
#[cfg(feature = "torch")]
pub mod builtin;
pub(crate) mod checkpoint;
mod comparison;
mod counters;
pub mod driven;
pub(crate) mod environment;
mod error;
mod host;
mod launch;
pub(crate) mod link;
mod memory;
pub(crate) mod protocol;
mod rendezvous;
mod sampler;
#[cfg(feature = "torch")]
mod torch;

pub use error::Error;
#[cfg(feature = "torch")]
pub use launch::gpus;
pub use launch::{Launch, Slot, gpu_id, interpreter, launch};
pub use sampler::{ElasticSampler, shard};
#[cfg(feature = "torch")]
pub use torch::{
    BoxError, Dataset, Example, Optimizer, Registry, Schedule, StepTaken, Trainable, UpdateRule, Variable,
    serve_if_worker,
};
