//! Exports that are folders: written next to their place, and moved there once they are whole.

use std::{
    fs, io, path,
    path::{Path, PathBuf},
};

use super::{Error, Record, mlflow, tensorboard::Files};
use crate::cli::{self, output::temporary};

/// Writes a folder for TensorBoard, which is all of one study.
pub(super) fn write_tensorboard(output: &Path, files: &Files, force: bool) -> Result<(), cli::Error> {
    if check_folder(output)? {
        let names = names(output).map_err(cli::Error::reading(output))?;
        let is_events =
            |name: &&String| name.starts_with("events.out.tfevents.") && name.ends_with(".pollux-tune");
        let is_export = names.iter().any(|name| is_events(&name));
        let is_ours = |name: &&String| is_export && (name.starts_with("trial-") || is_events(name));
        if let Some(other) = names.iter().find(|name| !is_ours(name)) {
            return Err(Error::Foreign { folder: output.to_owned(), other: other.clone() }.into());
        }
        if !force && !names.is_empty() {
            return Err(Error::Exists(output.to_owned()).into());
        }
    }
    replace(output, output, files)
}

/// Writes a folder for MLflow, in which there may be other experiments.
pub(super) fn write_mlflow(output: &Path, record: &Record, force: bool) -> Result<(), cli::Error> {
    let output = path::absolute(output).map_err(cli::Error::writing(output))?;
    check_folder(&output)?;
    let home = output.join(mlflow::experiment_id(record));
    if !force && fs::symlink_metadata(&home).is_ok() {
        return Err(Error::Exists(home).into());
    }
    let files = mlflow::files(record, &home);
    // MLflow expects it.
    fs::create_dir_all(output.join(".trash")).map_err(cli::Error::writing(&output))?;
    replace(&home, &output, &files)
}

/// Whether there is such a folder; another kind of file is not what the user means.
fn check_folder(output: &Path) -> Result<bool, Error> {
    match fs::metadata(output) {
        Ok(there) if !there.is_dir() => Err(Error::IsFile(output.to_owned())),
        there => Ok(there.is_ok()),
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Puts a folder with these files at a place, instead of what was there. It is made next to `aside`, where nobody looks.
fn replace(place: &Path, aside: &Path, files: &Files) -> Result<(), cli::Error> {
    let fresh = temporary(aside)?;
    let old = fresh.with_extension("old");
    let write = || -> Result<(), (PathBuf, io::Error)> {
        for (name, bytes) in files {
            let path = fresh.join(name);
            let is_folder = name.ends_with('/');
            let folder = if is_folder { &path } else { path.parent().unwrap_or(&fresh) };
            let written = fs::create_dir_all(folder);
            let written = if is_folder { written } else { written.and_then(|()| fs::write(&path, bytes)) };
            written.map_err(|error| (path, error))?;
        }
        let failed = |error| (place.to_owned(), error);
        if fs::symlink_metadata(place).is_ok() {
            fs::rename(place, &old).map_err(failed)?;
        }
        fs::rename(&fresh, place).map_err(failed)
    };
    let written = write().map_err(|(path, error)| cli::Error::writing(&path)(error));
    if written.is_err() {
        // The first failure is the one to report. What was there comes back.
        let _ = fs::remove_dir_all(&fresh);
        let _ = fs::rename(&old, place);
    } else {
        // It may not have been there.
        let _ = fs::remove_dir_all(&old);
    }
    written
}
