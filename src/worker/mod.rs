//! Elastic training in worker processes.
//!
//! A user writes a `Trainable` and puts it into a `Registry`. The program is started again as its workers, one for each slot, and each
//! hosts a rank of whatever trial it is given. Workers of a trial form a group; a group re-forms in place when workers come, go or
//! die. Which messages that takes is written once, for all ways to train, in `protocol`.
//!
//! *Architecture invariant:* what a trial learns from, and in which order, follows from its seed and its position, and not from the
//! number of its workers.

#[cfg(feature = "torch")]
mod batching;
#[cfg(feature = "torch")]
pub mod builtin;
mod error;
mod launch;
#[cfg(feature = "torch")]
mod pool;
pub(crate) mod protocol;
mod sampler;
#[cfg(feature = "torch")]
mod torch;
#[cfg(feature = "torch")]
mod training;

#[cfg(feature = "torch")]
pub use batching::Batching;
pub use error::Error;
pub use launch::{Launch, Slot, launch};
#[cfg(feature = "torch")]
pub use pool::{Pool, Told};
pub use sampler::{ElasticSampler, shard};
#[cfg(feature = "torch")]
pub use torch::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable, serve_if_worker};
#[cfg(feature = "torch")]
pub use training::{Happening, Training};
