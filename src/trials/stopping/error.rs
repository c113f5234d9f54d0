use thiserror::Error;

use crate::ids::TrialId;

/// What can go wrong between a stopper and its caller.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A report or an end of a trial that has ended.
    #[error("trial {0} has ended")]
    Ended(TrialId),
    /// A report from nowhere.
    #[error(
        "trial {trial}: its progress is {progress} statistical epochs; expected a finite number, at least 0"
    )]
    BadProgress {
        /// The trial.
        trial: TrialId,
        /// What it reported.
        progress: f64,
    },
    /// A setting outside its range.
    #[error("{what} is {value}; expected {allowed}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The rule `threshold` without its bound.
    #[error("the rule `threshold` has no threshold")]
    NoThreshold,
}

impl Error {
    /// Whether a setting is a finite number above 0.
    pub(super) fn check_positive(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, allowed: "a finite number above 0" })
    }
}
