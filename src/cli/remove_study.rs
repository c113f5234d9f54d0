//! `pollux-tune rm`: studies and all that belongs to them are deleted.

use std::{
    fs,
    io::{self, BufRead, Write},
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
    #[error("nothing was deleted: the study in {folder} has changed since the question")]
    Changed { folder: String },
    #[error("nothing was deleted; to delete without a question: --yes")]
    Refused,
}

/// What a study has in its folder, besides its lock, in the order in which it is deleted. All else belongs to somebody else, and stays.
/// Without a journal, nobody goes on with a study that is half deleted.
const OWN: [&str; 20] = [
    "journal.sqlite",
    "journal.sqlite-wal",
    "journal.sqlite-shm",
    "journal.sqlite.new",
    "journal.seal",
    "journal.seal.new",
    "study.yaml",
    "study.yaml.new",
    "checkpoints",
    "logs",
    "timeline.svg",
    "control.json",
    "control.new",
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
    // Nobody begins to run one of them from now on, but somebody may have before.
    let mut locks = Vec::new();
    for (folder, line) in folders.iter().zip(&lines) {
        locks.push(store::Folder::new(folder).lock()?);
        if describe(folder)? != *line {
            return Err(Error::Changed { folder: folder.display().to_string() }.into());
        }
    }
    for folder in folders {
        let left = delete(&store::Folder::new(folder)).map_err(|source| cli::Error::File {
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

/// What is about to be deleted. It must be a study that nobody runs, or what is left of one, and nothing else.
fn check(folder: &Path) -> Result<String, cli::Error> {
    let line = describe(folder)?;
    if let Some(Runner { process, host, .. }) = store::Folder::new(folder).runner()? {
        return Err(Error::Runs { folder: folder.display().to_string(), process, host }.into());
    }
    Ok(line)
}

fn describe(folder: &Path) -> Result<String, cli::Error> {
    let shown = folder.display();
    if folder.is_symlink() {
        return Err(Error::Link { folder: shown.to_string() }.into());
    }
    let place = store::Folder::new(folder);
    if place.deletion().exists() && !place.journal().exists() {
        return Ok(format!("  {shown}: what was left when its deletion was interrupted"));
    }
    let status = Reader::open(folder)?.status()?;
    let trials: u32 = status.trials.values().sum();
    Ok(format!("  {shown}: {} of {}", trials, pluralize(status.wanted as usize, "trial")))
}

/// Deletes what a study has made, while its lock is held. What is left after a crash is known to be that of a study, and can be deleted in the
/// same way. Gives how many entries of somebody else are left; without any, the folder is gone.
fn delete(folder: &store::Folder) -> io::Result<usize> {
    let (root, deletion) = (folder.root(), folder.deletion());
    // On a full disk, it must do without.
    let _ = fs::write(&deletion, "");
    for name in OWN {
        remove(&root.join(name))?;
    }
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // What fsck has moved aside.
        if entry.file_name().to_string_lossy().starts_with("journal.damaged-") {
            remove(&entry.path())?;
        }
    }
    remove(&deletion)?;
    remove(&folder.lock_path())?;
    let left = fs::read_dir(root)?.count();
    if left == 0 {
        fs::remove_dir(root)?;
    }
    Ok(left)
}

/// Removes a file, or a folder with all that is in it, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    let removed =
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, sink};

    use super::*;
    use crate::{
        store::{Journal, Store},
        trials::engine::{Fact, JournalEntry},
    };

    fn study(name: &str) -> (PathBuf, Store) {
        let root = std::env::temp_dir().join(format!("pollux-tune-rm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let yaml = "{space: {lr: {log: [1e-5, 1]}}, objective: {minimize: loss}}".to_owned();
        let mut store = Store::open(&root).expect("it can be made");
        store
            .append(&[JournalEntry { at_s: 1.0, fact: Fact::StudyCreated { yaml } }])
            .expect("it can be written");
        (root, store)
    }

    /// Somebody who takes their time, in which something happens.
    struct Slow<F>(Option<F>, Cursor<&'static [u8]>);

    impl<F: FnOnce()> Read for Slow<F> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.1.read(bytes)
        }
    }

    impl<F: FnOnce()> BufRead for Slow<F> {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            if let Some(meanwhile) = self.0.take() {
                meanwhile();
            }
            self.1.fill_buf()
        }

        fn consume(&mut self, bytes: usize) {
            self.1.consume(bytes);
        }
    }

    #[test]
    fn a_study_that_was_begun_during_the_question_is_not_deleted() {
        let (root, store) = study("question");
        drop(store);
        let mut runs = None;
        let mut answer = Slow(Some(|| runs = Some(Store::open(&root))), Cursor::new(&b"y\n"[..]));
        let deleted = run(std::slice::from_ref(&root), false, &mut answer, &mut sink(), &mut sink());
        let store = runs.expect("it was asked").expect("it is free");
        assert!(deleted.is_err() && root.join("journal.sqlite").exists(), "it runs");
        drop(store);
        run(std::slice::from_ref(&root), true, &mut io::empty(), &mut sink(), &mut sink())
            .expect("nobody runs it");
        assert!(!root.exists());
    }

    #[test]
    fn a_deletion_that_was_interrupted_is_finished_by_the_next_one() {
        let (root, store) = study("crash");
        drop(store);
        // What other commands may have left when they were killed.
        for name in ["journal.seal.new", "journal.sqlite.new", "control.new"] {
            fs::write(root.join(name), "half").expect("it can be written");
        }
        // As after a crash behind the first step.
        let place = store::Folder::new(&root);
        fs::write(place.deletion(), "").expect("it can be written");
        fs::remove_file(place.journal()).expect("it is there");
        assert!(Store::open(&root).is_err(), "nobody goes on with it");
        let mut out = Vec::new();
        run(std::slice::from_ref(&root), true, &mut io::empty(), &mut out, &mut sink()).expect("it is known");
        assert!(!root.exists(), "{}", String::from_utf8_lossy(&out));
    }
}
