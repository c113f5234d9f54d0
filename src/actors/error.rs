use std::{io, path::PathBuf};

use thiserror::Error;

use crate::{agent, emulate, ids::EmptyGpuType, space::Difference, store, trials::engine, wire};

/// Why a study could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The journal.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The study, or the facts in its journal.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The way to the workers.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// This machine cannot serve.
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// The queue of jobs.
    #[error(transparent)]
    Slurm(#[from] crate::slurm::Error),
    /// What was asked for cannot be emulated.
    #[error(transparent)]
    Emulation(#[from] emulate::Error),
    /// A GPU type without a name.
    #[error(transparent)]
    GpuType(#[from] EmptyGpuType),
    /// The folder holds another study.
    #[error(
        "the study in the folder is another one: {}; give another folder (`--folder`), delete the study (`pollux-tune rm`), or run the study file that it began with",
        list(differences)
    )]
    Differs {
        /// What is different.
        differences: Vec<Difference>,
    },
    /// A trial would need more than there is.
    #[error("`trial.min_gpus` is {wanted}, but there are only {slots} slots of one type")]
    TooFewSlots {
        /// The fewest that a trial needs.
        wanted: u32,
        /// The most that there are of one type.
        slots: u32,
    },
    /// A program would need more than there is.
    #[error(
        "a program has {wanted} GPUs of one machine (`trial.gpus`), and there are only {slots} slots of one type"
    )]
    TooFewGpus {
        /// The fewest that a program has.
        wanted: u32,
        /// The most that there are of one type.
        slots: u32,
    },
    /// The folder of the programs is not there.
    #[error("`trial.folder` is {}, and there is no such folder: it is seen from the folder of the study file", .0.display())]
    NoSuchFolder(PathBuf),
    /// The study file does not say what a trial runs.
    #[error(
        "the study file says none of `trial.python`, `trial.module`, `trial.trainable` and `trial.command`: add one of them"
    )]
    NoProgram,
    /// Programs keep their files in the folder of the study.
    #[error("a study of programs needs a folder")]
    NoFolder,
    /// The program of the trials is not there.
    #[error(
        "`trial.command` names the program `{0}`, which is not there: give its path, or a program in `PATH`"
    )]
    NoSuchProgram(String),
    /// Something that belongs to us died again and again.
    #[error(
        "the {actor} has died {times} times, the last time at once after a start; this is a mistake in pollux-tune"
    )]
    Died {
        /// Which actor.
        actor: &'static str,
        /// How often.
        times: u32,
    },
    /// The queue gives no machines, and there are no others.
    #[error(
        "there is no machine to run trials on, and none to be expected: {0}; run the study again when there is one"
    )]
    NoNodes(String),
    /// No worker can be started.
    #[error("no worker can be started: {0}")]
    NoWorkers(String),
    /// A slot that is not there.
    #[error("there is no slot {slot}; there are {slots}, which are numbered from 0")]
    NoSuchSlot {
        /// Its number.
        slot: u32,
        /// How many there are.
        slots: u32,
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

impl Error {
    /// Whether the study, its folder or the machine's settings are wrong, and the user can correct it.
    #[must_use]
    pub const fn is_of_input(&self) -> bool {
        match self {
            Self::Store(error) => error.is_of_input(),
            Self::Slurm(error) => error.is_of_input(),
            Self::Engine(_)
            | Self::Wire(_)
            | Self::Emulation(_)
            | Self::GpuType(_)
            | Self::Differs { .. }
            | Self::TooFewSlots { .. }
            | Self::TooFewGpus { .. }
            | Self::NoSuchFolder(_)
            | Self::NoSuchSlot { .. }
            | Self::NoProgram
            | Self::NoFolder
            | Self::NoSuchProgram(_) => true,
            Self::Agent(_) | Self::Died { .. } | Self::NoNodes(_) | Self::NoWorkers(_) | Self::Io { .. } => {
                false
            }
        }
    }

    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
