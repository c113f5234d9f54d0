use thiserror::Error;

use crate::{alloc, goodput, trials::engine};

/// What can be wrong with a simulation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A workload without a single job.
    #[error(
        "there are no jobs: the first line must name {}, and each further line is a job",
        super::workload::COLUMNS
    )]
    NoJobs,
    /// A column that is needed is not there.
    #[error("line {line}: no column `{column}` among {present}")]
    MissingColumn {
        /// The line of the header.
        line: u64,
        /// The column.
        column: &'static str,
        /// The columns there are.
        present: String,
    },
    /// A field holds something else than it should.
    #[error("line {line}: {column} is `{value}`; expected {allowed}")]
    BadField {
        /// The line.
        line: u64,
        /// The column.
        column: &'static str,
        /// What is there.
        value: String,
        /// What may be there.
        allowed: String,
    },
    /// Two jobs have the same name.
    #[error("line {line}: job `{name}` appears twice, every job needs a name of its own")]
    DuplicateJob {
        /// The line of the second one.
        line: u64,
        /// Its name.
        name: String,
    },
    /// A row that cannot be read.
    #[error("line {line}: {reason}")]
    Malformed {
        /// The line.
        line: u64,
        /// Of the reader.
        reason: String,
    },
    /// A trainable that was never measured.
    #[error("no measurements of `{name}`; expected one of {allowed}")]
    UnknownTrainable {
        /// Its name.
        name: String,
        /// Those that were.
        allowed: String,
    },
    /// A setting is outside of its range.
    #[error("{what} is {value}; expected {allowed}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The cluster has GPUs that no step time was measured on, or nodes larger than any measured one.
    #[error("no step times were measured on {nodes}; expected {allowed}")]
    BadCluster {
        /// The nodes in question.
        nodes: String,
        /// What was measured.
        allowed: String,
    },
    /// A job that will never run on this cluster.
    #[error("job `{job}` cannot run: {reason}")]
    CannotRun {
        /// The job.
        job: String,
        /// Why.
        reason: String,
    },
    /// A study that trains something else than a trainable.
    #[error("only studies with `trial.trainable` can be simulated, one of {allowed}")]
    NoTrainable {
        /// What was measured.
        allowed: String,
    },
    /// A study that cannot continue.
    #[error("the study cannot continue: {reason}")]
    StudyFailed {
        /// Why.
        reason: String,
    },
    /// Of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The policy failed.
    #[error(transparent)]
    Alloc(#[from] alloc::Error),
    /// The goodput model failed.
    #[error(transparent)]
    Goodput(#[from] goodput::Error),
}
