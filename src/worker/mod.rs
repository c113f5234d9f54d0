//! Elastic training in worker processes.
//!
//! A user writes a `Trainable` and puts it into a `Registry`. A `Pool` starts the program again as its workers, one for each
//! slot, and each hosts a rank of whatever trial it is given. Workers of a trial form a group; a group re-forms in place when
//! workers come, go or die.
//!
//! *Architecture invariant:* what a trial learns from, and in which order, follows from its seed and its position, and not from the
//! number of its workers.

#[cfg(feature = "torch")]
mod batching;
#[cfg(feature = "torch")]
pub mod builtin;
#[cfg(feature = "torch")]
mod checkpoint;
mod error;
#[cfg(feature = "torch")]
mod flat;
#[cfg(feature = "torch")]
mod gradient;
#[cfg(feature = "torch")]
mod host;
mod launch;
#[cfg(feature = "torch")]
mod loader;
#[cfg(feature = "torch")]
mod optimizer;
#[cfg(feature = "torch")]
mod pool;
mod sampler;
#[cfg(feature = "torch")]
mod session;
#[cfg(feature = "torch")]
mod team;
#[cfg(feature = "torch")]
mod trainable;
#[cfg(feature = "torch")]
mod training;
#[cfg(feature = "torch")]
mod transfer;

#[cfg(feature = "torch")]
pub use batching::Batching;
pub use error::Error;
#[cfg(feature = "torch")]
pub use host::serve_if_worker;
pub use launch::{Launch, Slot, launch};
#[cfg(feature = "torch")]
pub use pool::{Pool, Told};
pub use sampler::{ElasticSampler, shard};
#[cfg(feature = "torch")]
pub use trainable::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable};
#[cfg(feature = "torch")]
pub use training::{Happening, Training};
