//! The checkpoints of a trial, in a folder of their own.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use super::{
    envelope::{self, Contents, Kind, Position, Problem},
    files::{self, Found, Name},
    identity::Identity,
};
use crate::trials::group::Task;

/// The last one, and the one before it in case that the last one is damaged.
const GENERATIONS: usize = 2;
const WRITE_BYTES: usize = 1 << 20;

/// The checkpoints of a trial.
///
/// A checkpoint is written beside the others under a name that only this writer uses, and gets its own name, with the number of its
/// steps, when all of it is on disk. So it replaces none, however late its writer is: the one that has come furthest counts.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointFolder {
    path: PathBuf,
    identity: Identity,
    kind: Kind,
}

/// Whether a checkpoint has to survive a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    OnDisk,
    Cached,
}

/// A state to be written.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) contents: Contents,
    pub(crate) durability: Durability,
}

/// Why there is no checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotSaved(pub(crate) String);

impl fmt::Display for NotSaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A folder or a file that cannot be read: whether there is a whole checkpoint is not known.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

/// What a folder had for a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded<T> {
    /// None if the trial starts from the beginning.
    pub(crate) state: Option<T>,
    /// What the user should know of checkpoints that were not used.
    pub(crate) warning: Option<String>,
}

/// A checkpoint at its numbers, or why it cannot be used.
type Opened = Result<(Contents, File), Problem>;

impl CheckpointFolder {
    pub(crate) fn new(path: &Path, identity: Identity, kind: Kind) -> Self {
        Self { path: path.to_owned(), identity, kind }
    }

    /// That of a trial that is trained.
    pub(crate) fn of(task: &Task, kind: Kind) -> Self {
        Self::new(&task.checkpoint, Identity::of(task), kind)
    }

    /// Writes a checkpoint, and removes those that nobody needs any more. `data` writes the numbers of all vectors.
    pub(crate) fn write(
        &self,
        state: &State,
        data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), NotSaved> {
        let steps = state.contents.position.steps;
        self.try_write(state, data).map_err(|error| {
            NotSaved(format!(
                "the checkpoint of step {steps} cannot be written to {}: {error}",
                self.path.display()
            ))
        })?;
        if let Err(error) = self.prune() {
            tracing::warn!(folder = %self.path.display(), %error, "old checkpoints cannot be removed");
        }
        Ok(())
    }

    fn try_write(
        &self,
        State { contents, durability }: &State,
        data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.make()?;
        let name = Name::new(contents.position, &self.identity);
        let part = self.path.join(name.part(random()?));
        let write = || {
            let mut out = BufWriter::with_capacity(WRITE_BYTES, File::create_new(&part)?);
            envelope::write(&mut out, &self.identity, self.kind, contents, data)?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            if *durability == Durability::OnDisk {
                file.sync_all()?;
            }
            fs::rename(&part, self.path.join(name.whole()))?;
            if *durability == Durability::OnDisk {
                File::open(&self.path)?.sync_all()?;
            }
            Ok(())
        };
        let written = write();
        if written.is_err() {
            // It may not even be there.
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Makes the folder. In earlier versions a file had its name, which is kept.
    fn make(&self) -> io::Result<()> {
        let Err(error) = fs::create_dir_all(&self.path) else { return Ok(()) };
        if !self.path.is_file() {
            return Err(error);
        }
        let mut earlier = self.path.as_os_str().to_owned();
        earlier.push(".earlier");
        if fs::symlink_metadata(&earlier).is_ok() {
            earlier.push(format!("-{:016x}", random()?));
        }
        fs::rename(&self.path, earlier)?;
        fs::create_dir_all(&self.path)
    }

    /// Keeps the last ones of this trial, and all that is not its own.
    fn prune(&self) -> io::Result<()> {
        let mut own = self.own()?;
        own.sort();
        for name in own.iter().rev().skip(GENERATIONS) {
            fs::remove_file(self.path.join(name.whole())).or_else(unless_gone)?;
        }
        Ok(())
    }

    fn own(&self) -> io::Result<Vec<Name>> {
        let whole = files::list(&self.path)?.into_iter().filter_map(|found| match found {
            Found::Whole(name) if name.is_of(&self.identity) => Some(name),
            Found::Whole(_) | Found::Part(..) => None,
        });
        Ok(whole.collect())
    }

    /// The state of the checkpoint that has come furthest among those that are whole and of this trial, as `read` finds it. `read` gets
    /// the numbers of all vectors to read, and may find that the state does not fit.
    ///
    /// What a writer that died has left is removed: there is nobody else when a trial has to be loaded, or nobody who counts.
    pub(crate) fn load<T, E>(
        &self,
        unreadable: fn(Unreadable) -> E,
        mut read: impl FnMut(&Contents, &mut dyn Read) -> Result<Result<T, Problem>, E>,
    ) -> Result<Loaded<T>, E> {
        let mut problems = Vec::new();
        let mut names = match files::list(&self.path) {
            Ok(found) => self.without_parts(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(_) if self.path.is_file() => {
                problems.push(told(&self.path, &Problem::Earlier));
                Vec::new()
            }
            Err(source) => return Err(unreadable(Unreadable { path: self.path.clone(), source })),
        };
        names.sort();
        let mut loaded = None;
        for name in names.into_iter().rev() {
            let path = self.path.join(name.whole());
            let Some(opened) = self.open(&path).map_err(unreadable)? else { continue };
            let problem = match opened {
                Ok((contents, mut file)) => match read(&contents, &mut file)? {
                    Ok(state) => {
                        loaded = Some((name.position, state));
                        break;
                    }
                    Err(problem) => problem,
                },
                Err(problem) => problem,
            };
            problems.push(told(&path, &problem));
            if name.is_of(&self.identity) {
                // Out of the way of those that are still to come. If that fails, it is found again.
                let _ = fs::rename(&path, self.path.join(name.unusable()));
            }
        }
        let warning = warning(&problems, loaded.as_ref().map(|(position, _)| *position));
        Ok(Loaded { state: loaded.map(|(_, state)| state), warning })
    }

    /// Opens a checkpoint that is whole and of this trial, at its numbers; none if somebody has removed it since it was listed. A disk or
    /// a server that fails does not make it damaged.
    fn open(&self, path: &Path) -> Result<Option<Opened>, Unreadable> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Unreadable { path: path.to_owned(), source }),
        };
        match envelope::verify(&mut file, &self.identity, self.kind).map_err(Problem::into_system_error) {
            Ok(contents) => Ok(Some(Ok((contents, file)))),
            Err(Err(problem)) => Ok(Some(Err(problem))),
            Err(Ok(source)) => Err(Unreadable { path: path.to_owned(), source }),
        }
    }

    /// Removes what was not written to its end. Gives what was.
    fn without_parts(&self, found: Vec<Found>) -> Vec<Name> {
        let whole = found.into_iter().filter_map(|found| match found {
            Found::Whole(name) => Some(name),
            Found::Part(name, file) => {
                if name.is_of(&self.identity) {
                    // If that fails, it is found again.
                    let _ = fs::remove_file(self.path.join(file));
                }
                None
            }
        });
        whole.collect()
    }

    /// Removes all checkpoints of a trial that needs them no longer. Other files stay, and so does what could not be used.
    pub(crate) fn discard(&self) -> io::Result<()> {
        let found = match files::list(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound || self.path.is_file() => return Ok(()),
            found => found?,
        };
        for found in found {
            let (name, file) = match found {
                Found::Whole(name) => (name, name.whole()),
                Found::Part(name, file) => (name, file),
            };
            if name.is_of(&self.identity) {
                fs::remove_file(self.path.join(file)).or_else(unless_gone)?;
            }
        }
        // Unless something else is in it.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

fn told(path: &Path, problem: &Problem) -> String {
    format!("the checkpoint {} {problem}", path.display())
}

fn warning(problems: &[String], loaded: Option<Position>) -> Option<String> {
    if problems.is_empty() {
        return None;
    }
    let instead = loaded.map_or_else(
        || "the trial starts from the beginning".to_owned(),
        |position| format!("the trial resumes from the one of step {}", position.steps),
    );
    Some(format!("{}; {instead}", problems.join(", and ")))
}
