//! The policies: ways to share GPUs among trials.
//!
//! [`goodput`] is the default, [`pollux`] the search of the paper; [`static_shares`], [`optimus`] and [`tiresias`] are
//! baselines, which share [`placement`].

mod goodput;
mod kind;
mod optimus;
pub(super) mod placement;
mod pollux;
mod static_shares;
mod tiresias;

use rand_chacha::ChaCha8Rng;

use super::{Error, Plan, Problem, instance, rules};

pub(crate) use self::pollux::Matrix;
pub use self::{
    goodput::{GoodputOptions, GoodputPolicy},
    kind::PolicyKind,
    optimus::OptimusPolicy,
    pollux::{PolluxOptions, PolluxPolicy},
    static_shares::StaticPolicy,
    tiresias::TiresiasPolicy,
};

/// A way to share GPUs among trials.
///
/// A policy may keep what it learned from one question to the next (the paper's search keeps its population),
/// but never a clock: the same questions with the same generator give the same answers.
pub trait Policy: Send {
    /// The name users choose it by.
    fn name(&self) -> &'static str;

    /// Decides which trial gets which GPUs.
    fn allocate(&mut self, problem: &Problem, rng: &mut ChaCha8Rng) -> Result<Plan, Error>;
}
