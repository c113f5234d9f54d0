//! Which trial gets which GPUs.
//!
//! A [`Problem`] (cluster, trials, fairness) goes into a [`Policy`], a [`Plan`] with reasons comes out.
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
mod error;
mod fixed;
mod instance;
mod kind;
mod objective;
mod optimal;
mod optimus;
mod placement;
mod plan;
mod policy;
mod pollux;
mod problem;
mod rules;
mod tiresias;

pub use allocation::Allocation;
pub use cluster::{Cluster, Node};
pub use error::Error;
pub use fixed::StaticPolicy;
pub use kind::PolicyKind;
pub use objective::{Fairness, realloc_factor};
pub use optimal::{GoodputOptions, GoodputPolicy};
pub use optimus::OptimusPolicy;
pub use plan::{Plan, Reason, TrialPlacement};
pub use policy::Policy;
pub(crate) use pollux::Matrix;
pub use pollux::{PolluxOptions, PolluxPolicy};
pub use problem::{Problem, TrialRequest};
pub(crate) use rules::SearchRules;
pub use tiresias::TiresiasPolicy;
