//! `pollux-tune rm`: studies and all that belongs to them are deleted.

use std::{
    fs,
    io::{BufRead, Write},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::output::pluralize;
use crate::{
    cli,
    store::{self, Reader, Runner},
};

/// Why nothing is deleted.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("the study in {folder} is run by process {process} on {host}: stop it first")]
    Runs { folder: String, process: u32, host: String },
    #[error("{folder} is a symbolic link: name the folder itself")]
    Link { folder: String },
    #[error("nothing was deleted; to delete without a question: --yes")]
    Refused,
}

/// What a study has in its folder, besides its journal. All else belongs to somebody else, and stays.
const OWN: [&str; 18] = [
    "study.yaml",
    "study.yaml.new",
    "journal.sqlite-wal",
    "journal.sqlite-shm",
    "journal.seal",
    "checkpoints",
    "logs",
    "timeline.svg",
    "control.json",
    "control.new",
    "lock",
    "emulated",
    "cluster",
    "shared",
    "locks",
    "notes.json",
    "notes.json.new",
    "notes.lock",
];

/// Deletes studies, all or none of them, after a question.
pub(super) fn run(
    folders: &[PathBuf],
    yes: bool,
    stdin: &mut impl BufRead,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let mut lines = Vec::new();
    for folder in folders {
        lines.push(check(folder)?);
    }
    if !yes {
        // Without stderr there is nobody to answer.
        let what = if folders.len() == 1 {
            "this study".to_owned()
        } else {
            format!("these {} studies", folders.len())
        };
        let _ = write!(stderr, "{}\ndelete {what} with all checkpoints and logs? [y/N] ", lines.join("\n"));
        let _ = stderr.flush();
        let mut answer = String::new();
        stdin.read_line(&mut answer).map_err(cli::Error::Stdin)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Error::Refused.into());
        }
    }
    for folder in folders {
        let left = delete(folder).map_err(|source| cli::Error::File {
            action: "delete",
            path: folder.clone(),
            source,
        })?;
        let left = match left {
            0 => String::new(),
            count => format!(
                "; {} that the study has not made stayed",
                if count == 1 { "1 file or folder".to_owned() } else { format!("{count} files and folders") }
            ),
        };
        writeln!(out, "{} is deleted{left}", folder.display()).map_err(cli::Error::Stdout)?;
    }
    Ok(())
}

/// What is about to be deleted. It must be a study that nobody runs, and nothing else.
fn check(folder: &Path) -> Result<String, cli::Error> {
    let shown = folder.display().to_string();
    if folder.is_symlink() {
        return Err(Error::Link { folder: shown }.into());
    }
    let reader = Reader::open(folder)?;
    if let Some(Runner { process, host, .. }) = reader.runner()? {
        return Err(Error::Runs { folder: shown, process, host }.into());
    }
    let status = reader.status()?;
    let trials: u32 = status.trials.values().sum();
    Ok(format!("  {shown}: {} of {}", trials, pluralize(status.wanted as usize, "trial")))
}

fn is_own(name: &str) -> bool {
    // With what fsck has moved aside.
    OWN.contains(&name) || name.starts_with("journal.damaged-")
}

/// Deletes what a study has made, the journal last: what is left after a crash is still known to be a study. Gives how many entries
/// of somebody else are left; without any, the folder is gone.
fn delete(folder: &Path) -> std::io::Result<usize> {
    let journal = store::Folder::new(folder).journal();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if path == journal || !is_own(&entry.file_name().to_string_lossy()) {
            continue;
        }
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    fs::remove_file(&journal)?;
    let left = fs::read_dir(folder)?.count();
    if left == 0 {
        fs::remove_dir(folder)?;
    }
    Ok(left)
}
