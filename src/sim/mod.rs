//! Modelled training in virtual time: what a cluster would do with a list of jobs, under any policy.
//!
//! Jobs are trainings of which step times and gradient statistics were measured ([`Application`]); they run as
//! fast as was measured, while the policies of [`alloc`](crate::alloc) see no more than they would of a live
//! job: step times of what it ran on, and its gradient noise. [`simulate`] runs one workload to its end.
//!
//! Two sets of rules ([`Rules`]): those of the authors' simulator (Pollux OSDI'21), to the second, so that results can be
//! compared job by job, and our own, which schedule when something happens.
//!
//! *Architecture invariant:* the decisions come from [`alloc`](crate::alloc) and [`goodput`](crate::goodput), none is
//! taken here; the clock is a number, and a run depends on nothing but its arguments.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod agent;
mod application;
mod autoscale;
mod builtin;
mod data;
mod error;
mod job;
mod mesh;
mod modelled;
pub(crate) mod osdi21;
mod report;
mod run;
mod step_time;
mod study;
mod surface;
mod workload;

pub use application::Application;
pub use autoscale::{Cloud, ScaleBy, ScaleReport, Segment, Thresholds, autoscale, wanted_nodes};
pub use error::Error;
pub use modelled::Modelled;
pub use osdi21::Rules;
pub use report::{JobReport, Report};
pub use run::{Aim, Progress, Settings, simulate};
pub use step_time::{StepTime, StepTimes};
#[cfg(feature = "cli")]
pub(crate) use study::follow_study;
pub use study::{SimulatedCluster, StudyReport, TrialReport, simulate_study};
pub use workload::{JobSpec, Workload};
