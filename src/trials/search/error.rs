use thiserror::Error;

use super::End;
use crate::{
    ids::TrialId,
    space::{self, BadDims},
    tpe::{self},
    trials::stopping,
};

/// What can go wrong between a search and its caller.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A study must want something.
    #[error("the study has no objective; expected one or more")]
    NoObjective,
    /// The study has all its trials.
    #[error("all {0} trials of the study were asked for; raise `search.trials` for more")]
    Finished(u32),
    /// There is no such trial.
    #[error("there is no trial {0}, {count} asked for", count = count(*.1))]
    Unknown(TrialId, usize),
    /// It has ended.
    #[error("trial {0} {1}")]
    Ended(TrialId, End),
    /// Facts that are missing, or there twice.
    #[error("trial {found} was asked for; expected {expected}: facts are missing, or there twice")]
    OutOfOrder {
        /// The number of the trial.
        found: TrialId,
        /// What it should be.
        expected: TrialId,
    },
    /// A result with too few or too many values.
    #[error("{given} given, the study has {wanted}", given = values(*given), wanted = objectives(*wanted))]
    Values {
        /// How many values there are.
        given: usize,
        /// How many objectives.
        wanted: usize,
    },
    /// Parameters that are not of the space.
    #[error(transparent)]
    Space(#[from] space::Error),
    /// A space that cannot be searched.
    #[error(transparent)]
    Dims(#[from] BadDims),
    /// Of the suggester.
    #[error(transparent)]
    Suggester(#[from] tpe::Error),
    /// Of the stopping rule.
    #[error(transparent)]
    Stopping(#[from] stopping::Error),
}

impl Error {
    /// Whether there is nothing left to try: the end of a study, not a mistake.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Suggester(tpe::Error::Exhausted(_)))
    }
}

fn count(trials: usize) -> String {
    if trials == 1 { "one was".to_owned() } else { format!("{trials} were") }
}

fn values(count: usize) -> String {
    if count == 1 { "one value was".to_owned() } else { format!("{count} values were") }
}

fn objectives(count: usize) -> String {
    if count == 1 { "one objective".to_owned() } else { format!("{count} objectives") }
}
