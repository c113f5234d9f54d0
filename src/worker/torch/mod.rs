//! Training with libtorch: workers that are processes, and reduce their gradients through c10d.

mod backend;
mod checkpoint;
mod flat;
mod gradient;
mod host;
mod loader;
mod memory;
mod optimizer;
mod rule;
mod session;
mod store;
mod team;
mod trainable;
mod transfer;

use super::{ElasticSampler, Error, shard};

pub use host::serve_if_worker;
pub use rule::{StepTaken, UpdateRule, Variable};
pub use trainable::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable};
