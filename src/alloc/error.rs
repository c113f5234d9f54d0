use thiserror::Error;

use crate::{
    goodput,
    ids::{NodeId, TrialId},
};

/// What can be wrong with an allocation problem or a plan.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of a trial or of the problem is NaN, infinite or outside its range.
    #[error("{owner}: {what} is {value}; expected {allowed}")]
    OutOfRange {
        /// The trial or setting the number belongs to.
        owner: String,
        /// The quantity.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed values in words.
        allowed: &'static str,
    },
    /// Two trials carry the same number.
    #[error("trial {0} appears twice")]
    DuplicateTrial(TrialId),
    /// What is left of the trials of a problem cannot be compared.
    #[error("trial {0}: its remaining work has another unit than that of the trials before it")]
    MixedUnits(TrialId),
    /// Two nodes carry the same number.
    #[error("node {0} appears twice")]
    DuplicateNode(NodeId),
    /// The cluster has no node of this number.
    #[error("the cluster has no node {0}")]
    UnknownNode(NodeId),
    /// A trial's limits contradict each other.
    #[error("trial {trial}: the minimum of {min} GPUs is larger than the maximum of {max}")]
    BadLimits {
        /// The trial.
        trial: TrialId,
        /// Its smallest number of GPUs.
        min: u32,
        /// Its largest number of GPUs.
        max: u32,
    },
    /// A cluster description that cannot be read.
    #[error(
        "`{text}` describes no nodes: write NODESxGPUSxTYPE, such as 2x8xa100, with commas between; up to 65536 nodes of up to 1024 GPUs"
    )]
    BadCluster {
        /// The part that is wrong.
        text: String,
    },
    /// No policy has this name.
    #[error("there is no policy `{name}`; expected one of {allowed}")]
    UnknownPolicy {
        /// What was given.
        name: String,
        /// The names there are.
        allowed: String,
    },
    /// A plan breaks a rule. This is a bug of the policy that made it.
    #[error("broken plan: {0}")]
    BrokenPlan(String),
    /// A number of the goodput model is wrong.
    #[error(transparent)]
    Goodput(#[from] goodput::Error),
}
