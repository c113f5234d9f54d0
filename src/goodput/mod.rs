//! How fast a training job makes progress, and what it should do with the GPUs it has.
//!
//! Goodput is throughput times statistical efficiency (Pollux OSDI'21 eq. 4). This module holds the
//! throughput model and its online fit, the gradient noise scale behind the efficiency, learning-rate
//! rules, the best batch size for an allocation, and what the trials of one study teach each other.
//!
//! It owns no trial and knows no cluster: numbers in, numbers out.
//!
//! *Architecture invariant:* nothing here reads a clock, does I/O, or draws a random number, and
//! nothing here imports another module of the crate.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod batch;
mod batch_scan;
mod bootstrap;
mod efficiency;
mod error;
mod fit;

mod knowledge;
mod learning_rate;
mod model;
mod noise;
mod noise_curve;
mod observe;
mod shape;
mod table;
mod throughput;

pub use batch::{BatchLimits, BatchMode, BatchPlan, BestBatch, best_batch};
pub use bootstrap::{CostRatio, Profile, TypeCatalog, TypeRatio, bootstrap};
pub use efficiency::{NoiseScale, StatisticalProgress};
pub use error::Error;
pub(crate) use fit::damped_step;
pub use fit::{Fit, ThroughputPrior, fit, rmsle};

pub use knowledge::{Compared, Comparison, Features, Sharing, StudyKnowledge};
pub use learning_rate::{LrContext, LrRule, LrScaling, scale_lr};
pub use model::GoodputModel;
pub use noise::{
    ConsecutiveNorms, GradientNorms, GradientSample, GradientStats, NoiseEstimator, NoiseState, Optimizer,
    Preconditioner,
};
pub use noise_curve::NoiseCurve;
pub use observe::{Observation, Observations};
pub use shape::{Shape, Tier};
pub use table::{Curve, GoodputTable};
pub use throughput::{ComputeCost, SyncCost, ThroughputParams};
