//! When trials are stopped early.
//!
//! Trials report values at points of their training, a [`Stopper`] decides which of them continue. [`stopper`] builds the one that a
//! study file asks for: `asha`, `hyperband`, `median`, `patience`, `threshold`, or `none`.
//!
//! Progress is counted in statistical epochs, so trials compare fairly though their batches differ and change. What a rule
//! decides on does not depend on where reports happen to fall: the value at a rung is interpolated between the
//! reports around it.
//!
//! `record` keeps the rules that hold for all stoppers (what has ended, what has diverged, what was already reported) and leaves
//! a [`Rule`] only the judgement; [`of_rule`] makes a stopper of a rule of your own. `ladder` holds rungs, for `asha` and for every bracket of `hyperband`.
//!
//! *Architecture invariant:* a verdict depends on nothing but the reports and ends so far, in their order. A stopper
//! that is shown them again after a restart is the same as the one before.

mod build;
mod error;
mod hyperband;
mod ladder;
mod median;
mod odds;
mod record;
mod simple;
mod stopper;

pub use build::{of_rule, stopper};
pub use error::Error;
#[cfg(feature = "cli")]
pub(crate) use ladder::value_at_rung;
pub use record::{Rule, Sample};
pub use stopper::{EndKind, Reason, StopReason, Stopper, Verdict};
