use thiserror::Error;

use crate::ids::TrialId;

/// What can go wrong between a suggester and its caller.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A finite suggester has nothing left.
    #[error("all {0} points have been suggested")]
    Exhausted(u64),
    /// No feasible point was found.
    #[error("no feasible point in {0} tries: the constraints leave too little of the space, or nothing")]
    Infeasible(usize),
    /// A trial that is already known.
    #[error("trial {0} was already asked for")]
    DuplicateTrial(TrialId),
    /// A result of a trial that nobody asked for.
    #[error("trial {0} was never asked for")]
    UnknownTrial(TrialId),
    /// A second result.
    #[error("trial {0} already has a result")]
    DuplicateResult(TrialId),
    /// Only failures can be taken back.
    #[error("trial {0} has not failed, so there is nothing to take back")]
    NotRetractable(TrialId),
    /// A point that is not in the space.
    #[error("trial {0}: its point is not in the search space")]
    BadPoint(TrialId),
    /// A point to begin with that is not in the space.
    #[error("point {0} of the queue is not in the search space")]
    BadQueue(usize),
    /// A result with another number of objectives than the suggester optimizes.
    #[error("the number of values of trial {trial} is {given}; expected {expected}, one for each objective")]
    Objectives {
        /// The trial.
        trial: TrialId,
        /// How many values it has.
        given: usize,
        /// How many objectives there are.
        expected: usize,
    },
    /// A setting outside its range.
    #[error("{what} is {value}; expected {allowed}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed values in words.
        allowed: &'static str,
    },
    /// A grid of too many points.
    #[error("a grid of more than {0} points: give fewer levels, or use another suggester")]
    GridTooLarge(u64),
    /// Too little to say which parameters matter.
    #[error("this needs {min} trials with a finite result, there are {given}")]
    TooFewTrials {
        /// How many there are.
        given: usize,
        /// How many are needed.
        min: usize,
    },
    /// There is not one value for each point.
    #[error("{points} points have {values} values; expected one for each")]
    Values {
        /// How many points there are.
        points: usize,
        /// How many values there are.
        values: usize,
    },
    /// What a suggester of another crate says.
    #[error("{0}")]
    Custom(String),
    /// A point of a list that is not in the space.
    #[error("point {0} is not in the search space")]
    Outside(usize),
}
