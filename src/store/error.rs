use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::ErrorCode;
use rustix::io::Errno;
use thiserror::Error;

use crate::trials::{self, engine};

/// What can go wrong with a study on disk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to read.
    #[error("{} holds no study", .0.display())]
    NoStudy(PathBuf),
    /// The journal is gone, but what a study leaves is there.
    #[error(
        "{} has no journal, but {} is there: restore journal.sqlite from a copy, or remove the folder to begin anew",
        .root.display(), .trace.display()
    )]
    NoJournal {
        /// The folder.
        root: PathBuf,
        /// What is there.
        trace: PathBuf,
    },
    /// The journal does not hold what it must.
    #[error(
        "{} is damaged: {problem}; `pollux-tune fsck FOLDER` tells what is whole, and can keep that",
        .path.display()
    )]
    NotWhole {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Somebody took the journal away from the process that writes it.
    #[error("{} was removed or replaced while the study ran: {}", .path.display(), rescue(.rescued.as_deref()))]
    Removed {
        /// The file.
        path: PathBuf,
        /// Where all facts were saved.
        rescued: Option<PathBuf>,
    },
    /// A file with the right name holds something else.
    #[error("{} is not the journal of a study: give another folder", .0.display())]
    NotAJournal(PathBuf),
    /// A newer program wrote it.
    #[error("{} was written by a newer pollux-tune (form {found}, this one knows {known}): use a newer one", .path.display())]
    Newer {
        /// The journal.
        path: PathBuf,
        /// The form it has.
        found: u32,
        /// The newest one that this program knows.
        known: u32,
    },
    /// Somebody else writes.
    #[error("the study in {} is run by another process: wait for it to end, or stop it (`pollux-tune stop`)", .0.display())]
    InUse(PathBuf),
    /// Trials of one study make no sense in another one.
    #[error("{} belongs to another study: {differences}; give another folder", .path.display())]
    OtherStudy {
        /// The folder.
        path: PathBuf,
        /// In which ways the study there is another one.
        differences: String,
        /// Whether its results mean the same.
        same_objectives: bool,
    },
    /// What the search refuses.
    #[error(transparent)]
    Search(#[from] trials::Error),
    /// Writing is not allowed.
    #[error("cannot write {}: give a folder that can be written", .path.display())]
    NotWritable {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: Cause,
    },
    /// The disk is full.
    #[error("no space left for {}: make some, and run the study again to resume it", .path.display())]
    Full {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: Cause,
    },
    /// A fact that contradicts those before it.
    #[error("a fact does not follow from those before it in {}", .path.display())]
    OutOfPlace {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        source: engine::Error,
    },
    /// What is there cannot be understood.
    #[error("{} is damaged: {problem}", .path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Anything else that the system refuses.
    #[error("cannot {doing} {}", .path.display())]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The system's error.
        source: Cause,
    },
}

/// What became of a journal that was removed.
fn rescue(rescued: Option<&Path>) -> String {
    rescued.map_or_else(
        || "its facts could not be saved elsewhere".to_owned(),
        |path| format!("the study is saved in {}, and can be resumed there", path.display()),
    )
}

/// The system's error.
#[derive(Debug, Error)]
pub enum Cause {
    /// About a file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// About the journal.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl Error {
    pub(super) fn not_whole(path: &Path, problem: String) -> Self {
        Self::NotWhole { path: path.to_owned(), problem }
    }

    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path, source: source.into() }
            }
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists => Self::NotWritable { path, source: source.into() },
            _ => Self::Failed { doing, path, source: source.into() },
        }
    }

    pub(super) fn sqlite(doing: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { path, source: source.into() },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Self::NotWritable { path, source: source.into() }
            }
            Some(ErrorCode::NotADatabase) => Self::NotAJournal(path),
            Some(ErrorCode::DatabaseCorrupt) => Self::NotWhole { path, problem: source.to_string() },
            _ => Self::Failed { doing, path, source: source.into() },
        }
    }

    /// Whether it may mend itself without the study being touched: there is no room on the disk, or no more files or memory. What is
    /// missing, replaced or damaged stays so.
    #[must_use]
    pub fn is_of_the_environment(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Failed { source: Cause::Io(error), .. } => {
                let out_of = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
                Errno::from_io_error(error).is_some_and(|errno| out_of.contains(&errno))
            }
            Self::Failed { source: Cause::Sqlite(error), .. } => matches!(
                error.sqlite_error_code(),
                Some(
                    ErrorCode::SystemIoFailure
                        | ErrorCode::OutOfMemory
                        | ErrorCode::CannotOpen
                        | ErrorCode::DatabaseBusy
                )
            ),
            _ => false,
        }
    }

    /// Whether the user can correct it: with another folder, by ending another process, or with room on the disk.
    #[must_use]
    pub const fn is_of_input(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Removed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_told_apart() {
        let path = Path::new("study");
        let of = |kind: io::ErrorKind| Error::io("write", path, kind.into()).to_string();
        assert_eq!(
            of(io::ErrorKind::StorageFull),
            "no space left for study: make some, and run the study again to resume it"
        );
        let refused = [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::NotADirectory,
            io::ErrorKind::AlreadyExists,
        ];
        for kind in refused {
            assert_eq!(of(kind), "cannot write study: give a folder that can be written");
        }
        assert_eq!(of(io::ErrorKind::TimedOut), "cannot write study");
        assert!(Error::io("write", path, io::ErrorKind::StorageFull.into()).is_of_input());
        assert!(!Error::io("write", path, io::ErrorKind::TimedOut.into()).is_of_input());
        assert!(Error::NoStudy(path.to_owned()).is_of_input());
    }

    #[test]
    fn what_may_mend_itself_is_told_apart() {
        let path = Path::new("study");
        let of = |error: io::Error| Error::io("write", path, error).is_of_the_environment();
        assert!(of(io::ErrorKind::StorageFull.into()) && of(Errno::MFILE.into()) && of(Errno::DQUOT.into()));
        assert!(!of(io::ErrorKind::PermissionDenied.into()) && !of(io::ErrorKind::NotFound.into()));
        let code = |code| {
            Error::sqlite(
                "write",
                path,
                rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None),
            )
        };
        for waits in [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_IOERR, rusqlite::ffi::SQLITE_NOMEM] {
            assert!(code(waits).is_of_the_environment());
        }
        for stays in
            [rusqlite::ffi::SQLITE_CORRUPT, rusqlite::ffi::SQLITE_READONLY, rusqlite::ffi::SQLITE_NOTADB]
        {
            assert!(!code(stays).is_of_the_environment());
        }
        assert!(!Error::NoStudy(path.to_owned()).is_of_the_environment());
    }
}
