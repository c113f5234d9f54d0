use std::{io, path::PathBuf};

use thiserror::Error;

/// What can be wrong with the studies that `ask-tell` reads and resumes.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("cannot read {}", .file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("{} is in use by another process: wait for it to end, or give another folder", .0.display())]
    InUse(PathBuf),
    #[error("{}:{line}: {problem}", .file.display())]
    Line { file: PathBuf, line: usize, problem: String },
    #[error("{} is not a journal of `ask-tell`: it does not begin with a study", .0.display())]
    NoStudy(PathBuf),
    #[error("{} has form {found}, this program knows 1: use a newer one", .file.display())]
    Newer { file: PathBuf, found: u32 },
    #[error("{} belongs to another study: {differences}; give another folder{remedy}", .path.display())]
    OtherStudy { path: PathBuf, differences: String, remedy: &'static str },
    #[error("{} is not a file: give the name of a file that can be read again", .0.display())]
    NotAFile(PathBuf),
}
