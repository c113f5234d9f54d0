use std::io;

use thiserror::Error;

use crate::{ids::TrialId, wire};

/// Why an agent cannot serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The way to its workers or its head.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// Something of an earlier run does not end.
    #[error(
        "process {process}{} was left behind by an earlier run and does not end, though it was killed: find out what holds it up, then \
         run again",
        .trial.map_or_else(String::new, |trial| format!(" of trial {trial}"))
    )]
    LeftBehind {
        /// The trial whose program has started it, if that is known.
        trial: Option<TrialId>,
        /// Its number.
        process: i32,
    },
    /// The system refuses something.
    #[error("{doing} failed")]
    Io {
        /// What was tried.
        doing: String,
        /// What the system says.
        source: io::Error,
    },
}

#[cfg(feature = "cli")]
impl Error {
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
