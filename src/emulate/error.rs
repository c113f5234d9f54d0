use std::path::PathBuf;

use crate::{
    goodput,
    ids::EmptyGpuType,
    sim, wire,
    worker::{checkpoint::Unreadable, environment},
};

/// Why an emulated node or worker cannot do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What is to be trained cannot be modelled.
    #[error(transparent)]
    Model(#[from] sim::Error),
    /// A setting of the trial is wrong.
    #[error(transparent)]
    Goodput(#[from] goodput::Error),
    /// A GPU type without a name.
    #[error(transparent)]
    GpuType(#[from] EmptyGpuType),
    /// A number is outside of its range.
    #[error("{what} is {value}; expected {allowed}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What it may be.
        allowed: &'static str,
    },
    /// GPUs on which nothing is known.
    #[error("`{trainable}` was not measured on GPUs of type `{gpu_type}`; expected one of {allowed}")]
    UnknownType {
        /// What is trained.
        trainable: String,
        /// The type of the GPUs.
        gpu_type: String,
        /// The types that were measured.
        allowed: String,
    },
    /// A step whose time is not known.
    #[error(
        "how long a step of `{trainable}` takes on `{gpu_type}` GPUs with {per_gpu} examples on each was not measured; \
         expected {allowed}"
    )]
    NotMeasured {
        /// What is trained.
        trainable: String,
        /// The type of the GPUs.
        gpu_type: String,
        /// Examples of a pass on one GPU.
        per_gpu: u32,
        /// The types that were measured, with at least one example.
        allowed: String,
    },
    /// Whether a trial has a checkpoint cannot be found out.
    #[error("the checkpoints in {} cannot be read", path.display())]
    Checkpoint {
        /// The folder, or a file in it.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The environment of a process does not describe a node.
    #[error("the variable {name} is `{value}`; start emulated nodes through `emulate::launch`")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The head cannot be talked to.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// Files, sockets and processes.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// For `map_err`.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }

    /// Whether it is the fault of something that all trials share.
    pub(super) fn is_of_the_environment(&self) -> bool {
        match self {
            Self::Io { source, .. } => environment::is_to_blame(source),
            // It may be whole: to start over without it would be worse than to wait.
            Self::Checkpoint { .. } => true,
            _ => false,
        }
    }

    pub(super) fn check_positive(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, allowed: "a finite number above 0" })
    }

    pub(super) fn check_max(
        what: &'static str,
        value: f64,
        max: f64,
        allowed: &'static str,
    ) -> Result<(), Self> {
        if value <= max {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, allowed })
    }
}

impl From<Unreadable> for Error {
    fn from(Unreadable { path, source }: Unreadable) -> Self {
        Self::Checkpoint { path, source }
    }
}
