//! Which trial gets which GPUs.
//!
//! A [`Problem`] (cluster, trials, fairness) is the input of a [`Policy`], a [`Plan`] with reasons its output.
//! `goodput` is the policy that studies use; `pollux` is the search of the paper, for comparison;
//! `static`, `optimus` and `tiresias` are baselines.
//!
//! A policy may be asked at any moment: it sees only the problem, never a clock or a tick, and answers
//! the same question the same way.
//!
//! *Architecture invariant:* no policy can return a plan that breaks the rules of [`Plan::check`];
//! every plan is checked before it is returned. Nothing here does I/O; randomness is an argument.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod allocation;
mod cluster;
mod completion;
mod concurrency;
mod error;
mod instance;
mod objective;
mod plan;
mod policy;
mod problem;
mod rules;

pub use self::{
    allocation::Allocation,
    cluster::{Cluster, ClusterSpec, Node, NodeSet},
    error::Error,
    objective::{Fairness, realloc_factor},
    plan::{Plan, Reason, TrialPlacement},
    policy::{
        GoodputOptions, GoodputPolicy, OptimusPolicy, Policy, PolicyKind, PolluxOptions, PolluxPolicy,
        StaticPolicy, TiresiasPolicy,
    },
    problem::{Problem, RemainingWork, TrialRequest},
};
pub(crate) use self::{policy::Matrix, rules::SearchRules};
