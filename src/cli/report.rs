//! `pollux-tune report`: a study as one web page, to be sent and kept.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use super::{export, output::write_atomically};
use crate::cli::{self, dashboard};

/// What is to be written.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) folder: PathBuf,
    /// The page in the folder, if it is not said.
    pub(super) output: Option<PathBuf>,
    /// Whether it may replace a file.
    pub(super) force: bool,
}

/// Writes the page, and says where it is.
pub(super) fn run(
    Settings { folder, output, force }: &Settings,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let path = match output {
        Some(path) => check(path, *force)?,
        // Nobody else writes it.
        None => folder.join("report.html"),
    };
    write_atomically(&path, &dashboard::page(folder)?)?;
    writeln!(out, "{}", path.display()).map_err(cli::Error::Stdout)
}

fn check(path: &Path, force: bool) -> Result<PathBuf, export::Error> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => Err(export::Error::IsFolder(path.to_owned())),
        Ok(_) if !force => Err(export::Error::Exists(path.to_owned())),
        _ => Ok(path.to_owned()),
    }
}
