use std::path::PathBuf;

#[cfg(feature = "torch")]
use super::BoxError;
use super::environment;
use crate::{goodput, space, wire};

/// Why a worker cannot do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that is not in the registry.
    #[error("there is no trainable `{name}` in this program; it knows {}", if known.is_empty() { "none" } else { known })]
    UnknownTrainable {
        /// What was asked for.
        name: String,
        /// What there is, with commas.
        known: String,
    },
    /// The trainable's own code has failed.
    #[cfg(feature = "torch")]
    #[error("{what} failed")]
    User {
        /// What it was asked for.
        what: &'static str,
        /// Its error.
        source: BoxError,
    },
    /// The trainable has done something that cannot be trained.
    #[error("{0}")]
    Unfit(String),
    /// The trial needs more memory than its device has, however it divides its batches.
    #[error(
        "not even one example at a time fits into the memory of this device: make the model or its examples smaller, or use devices with more memory"
    )]
    OutOfMemory {
        /// What was tried last.
        source: Box<Self>,
    },
    /// The loss or a gradient is not a number any more.
    #[error("{what} is {value} at step {step}; the training has diverged")]
    Diverged {
        /// What is not a number.
        what: &'static str,
        /// What it is instead.
        value: f64,
        /// Optimizer steps so far.
        step: u64,
    },
    /// Whether a trial has a checkpoint cannot be found out.
    #[error("the checkpoints in {} cannot be read", path.display())]
    Checkpoint {
        /// The folder, or a file in it.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The group has lost a member, or never formed.
    #[cfg(feature = "torch")]
    #[error("the group is broken")]
    Group(#[from] c10d::Error),
    /// libtorch has refused.
    #[cfg(feature = "torch")]
    #[error("libtorch failed")]
    Torch(#[from] tch::TchError),
    /// A value of the goodput engine is out of its range.
    #[error(transparent)]
    Goodput(#[from] goodput::Error),
    /// A hyper-parameter is missing or of another type.
    #[error(transparent)]
    Space(#[from] space::Error),
    /// Head and worker cannot talk to each other.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// Files and processes.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// An invalid message of the other side.
    #[error("{0}")]
    Protocol(String),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }

    /// Whether something is to blame that all trials share, such as a full disk.
    #[must_use]
    pub fn is_of_the_environment(&self) -> bool {
        match self {
            Self::Io { source, .. } => environment::is_to_blame(source),
            // It may be whole: to start over without it would be worse than to wait.
            Self::Checkpoint { .. } => true,
            _ => false,
        }
    }

    /// Whether only the group is to blame, so that the trial can continue in another one.
    #[cfg(feature = "torch")]
    #[must_use]
    pub const fn is_of_the_group(&self) -> bool {
        matches!(self, Self::Group(error) if !matches!(error, c10d::Error::Invalid { .. }))
    }
}
