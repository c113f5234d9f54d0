//! How commands fail, and with which code the program exits.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use thiserror::Error;

use super::{
    annotate, ask_tell, compare, export, init, inspect, nodes, pause, picture, profile, remove_study,
    results, run, simulate, stop, study, train, trial_table, warm_start,
};
use crate::{actors, agent, slurm, store, trials, wire};

/// The exit codes of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ExitStatus {
    /// The command has done what it was asked to.
    Success = 0,
    /// Something failed that the user did not type: a disk, a training, a process.
    Failure = 1,
    /// The command line, an input file or a folder is wrong, and the user can correct it.
    Usage = 2,
    /// A panic, also where panics abort.
    Bug = 101,
    /// The user has stopped the program; as shells have it, 128 and the number of the signal.
    Interrupted = 130,
}

impl ExitStatus {
    pub(super) const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

/// Why a command has failed. A message never includes that of its source: the program prints the whole chain.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("cannot write the output")]
    Stdout(#[source] io::Error),
    #[error("cannot read the input")]
    Stdin(#[source] io::Error),
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot {action} {}", .path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    System { action: String, source: io::Error },
    #[error(transparent)]
    Profile(#[from] profile::Error),
    #[error(transparent)]
    Study(#[from] study::Error),
    #[error(transparent)]
    AskTell(#[from] ask_tell::Error),
    #[error(transparent)]
    WarmStart(#[from] warm_start::Error),
    #[error(transparent)]
    Export(#[from] export::Error),
    #[error(transparent)]
    Results(#[from] results::Error),
    #[error(transparent)]
    Picture(#[from] picture::Error),
    #[error(transparent)]
    Init(#[from] init::Error),
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
    #[error(transparent)]
    TrialTable(#[from] trial_table::Error),
    #[error(transparent)]
    Compare(#[from] compare::Error),
    #[error(transparent)]
    RemoveStudy(#[from] remove_study::Error),
    #[error(transparent)]
    Nodes(#[from] nodes::Error),
    #[error(transparent)]
    Stop(#[from] stop::Error),
    #[error(transparent)]
    Pause(#[from] pause::Error),
    #[error(transparent)]
    Annotate(#[from] annotate::Error),
    #[error(transparent)]
    Run(#[from] run::Error),
    #[error(transparent)]
    Train(#[from] train::Error),
    #[error(transparent)]
    Simulate(#[from] simulate::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Search(#[from] trials::Error),
    #[error("{}", .file.display())]
    SearchOf { file: PathBuf, source: trials::Error },
    #[error(transparent)]
    Engine(#[from] trials::engine::Error),
    #[error(transparent)]
    Slurm(#[from] slurm::Error),
    #[error(transparent)]
    Agent(#[from] agent::Error),
    #[error(transparent)]
    Wire(#[from] wire::Error),
    #[error(transparent)]
    Dashboard(#[from] crate::dashboard::Error),
    #[error(transparent)]
    Devices(#[from] agent::devices::TooFew),
    #[error(transparent)]
    Actors(#[from] actors::Error),
    #[error("the study in {} did not finish", .folder.display())]
    Unfinished { folder: PathBuf, source: Box<actors::Error> },
    #[cfg(feature = "torch")]
    #[error(transparent)]
    Worker(#[from] crate::worker::Error),
}

impl Error {
    /// For `map_err`: a file could not be read.
    pub(super) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }

    /// For `map_err`: a file could not be written.
    pub(super) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action: "write", path, source }
    }

    /// For `map_err`: the system refuses something.
    pub(super) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }

    pub(super) fn exit_status(&self) -> ExitStatus {
        let is_of_input = match self {
            Self::Stdout(_) | Self::Stdin(_) | Self::File { .. } | Self::System { .. } => false,
            Self::Read { .. }
            | Self::Profile(_)
            | Self::Study(_)
            | Self::AskTell(_)
            | Self::WarmStart(_)
            | Self::Export(_)
            | Self::Results(_)
            | Self::Picture(_)
            | Self::Init(_)
            | Self::Inspect(_)
            | Self::TrialTable(_)
            | Self::Compare(_)
            | Self::RemoveStudy(_)
            | Self::Nodes(_)
            | Self::Stop(_)
            | Self::Pause(_)
            | Self::Annotate(_)
            | Self::Run(_)
            | Self::Simulate(_)
            | Self::Search(_)
            | Self::SearchOf { .. }
            | Self::Devices(_)
            | Self::Wire(_)
            | Self::Agent(agent::Error::Wire(_))
            | Self::Engine(_) => true,
            Self::Agent(_) => false,
            Self::Train(error) => error.is_of_input(),
            Self::Store(error) => error.is_of_input(),
            Self::Dashboard(error) => error.is_of_input(),
            Self::Slurm(error) => error.is_of_input(),
            Self::Actors(error) => error.is_of_input(),
            Self::Unfinished { source, .. } => source.is_of_input(),
            #[cfg(feature = "torch")]
            Self::Worker(_) => false,
        };
        if is_of_input { ExitStatus::Usage } else { ExitStatus::Failure }
    }

    /// Whether the reader of stdout has seen enough, as in `| head`: the end, but not a failure.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::with_causes;

    #[test]
    fn only_a_closed_pipe_of_stdout_is_a_silent_end() {
        assert!(Error::Stdout(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!Error::Stdout(io::ErrorKind::StorageFull.into()).is_broken_pipe());
        assert!(!Error::writing(Path::new("a.svg"))(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
    }

    fn store_errors() -> [(store::Error, ExitStatus); 11] {
        let path = || PathBuf::from("study");
        let [denied, full] =
            [io::ErrorKind::PermissionDenied, io::ErrorKind::StorageFull].map(io::Error::from);
        [
            (store::Error::NoStudy(path()), ExitStatus::Usage),
            (store::Error::NotAJournal(path()), ExitStatus::Usage),
            (store::Error::Newer { path: path(), found: 9, known: 1 }, ExitStatus::Usage),
            (store::Error::InUse(path()), ExitStatus::Usage),
            (store::Error::Damaged { path: path(), problem: "torn".to_owned() }, ExitStatus::Usage),
            (store::Error::NotWhole { path: path(), problem: "torn".to_owned() }, ExitStatus::Usage),
            (store::Error::NoJournal { root: path(), trace: path() }, ExitStatus::Usage),
            (store::Error::Removed { path: path(), rescued: None }, ExitStatus::Failure),
            (store::Error::NotWritable { path: path(), source: denied.into() }, ExitStatus::Usage),
            (store::Error::Full { path: path(), source: full.into() }, ExitStatus::Usage),
            (failed(), ExitStatus::Failure),
        ]
    }

    fn failed() -> store::Error {
        let source = io::Error::from(io::ErrorKind::TimedOut).into();
        store::Error::Failed { doing: "write", path: "study".into(), source }
    }

    #[test]
    fn a_store_error_has_one_exit_status_whoever_reports_it() {
        let reports: [fn(store::Error) -> Error; 3] = [
            Error::from,
            |error| actors::Error::from(error).into(),
            |error| Error::Unfinished { folder: "study".into(), source: Box::new(error.into()) },
        ];
        for report in reports {
            for (error, status) in store_errors() {
                let error = report(error);
                assert_eq!(error.exit_status(), status, "{error}");
            }
        }
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        let error = Error::Unfinished { folder: "study".into(), source: Box::new(failed().into()) };
        assert_eq!(with_causes(&error), "the study in study did not finish: cannot write study: timed out");
    }
}
