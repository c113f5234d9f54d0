use thiserror::Error;

use super::Fact;
use crate::{
    alloc, goodput,
    ids::TrialId,
    space,
    tpe::{self},
    trials::{End, search, stopping},
};

/// What can be wrong with a study or with the facts of one.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A study must want something.
    #[error("the study has no objective; expected one or more")]
    NoObjective,
    /// A fact about a trial that has ended, or that there never was.
    #[error("the fact `{kind}` is about trial {trial}, which is not active")]
    NotActive {
        /// The kind of fact.
        kind: &'static str,
        /// The trial.
        trial: TrialId,
    },
    /// A fact that does not follow from those before it.
    #[error("the fact `{kind}` is out of place: {problem}")]
    OutOfPlace {
        /// The kind of fact.
        kind: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A trial that there never was is to be retried.
    #[error("there is no trial {trial}, there are {count} so far")]
    NoSuchTrial {
        /// The trial.
        trial: TrialId,
        /// How many there are.
        count: usize,
    },
    /// A trial is to be retried that has not failed.
    #[error("trial {trial} {}: only failed trials can be retried", .end.as_ref().map_or_else(|| "has not ended".to_owned(), End::to_string))]
    NotFailed {
        /// The trial.
        trial: TrialId,
        /// How it ended, if it has.
        end: Option<End>,
    },
    /// Of the search.
    #[error(transparent)]
    Search(#[from] search::Error),
    /// Of the stopping rule.
    #[error(transparent)]
    Stopping(#[from] stopping::Error),
    /// Of the suggester.
    #[error(transparent)]
    Suggester(#[from] tpe::Error),
    /// Of the goodput model.
    #[error(transparent)]
    Goodput(#[from] goodput::Error),
    /// Of the allocator.
    #[error(transparent)]
    Alloc(#[from] alloc::Error),
    /// A space that cannot be searched.
    #[error(transparent)]
    Space(#[from] space::BadDims),
}

impl Error {
    pub(super) fn out_of_place(fact: &Fact, problem: String) -> Self {
        Self::OutOfPlace { kind: fact.kind(), problem }
    }
}
