use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::Error;

const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Where things are in the folder of a study.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder of this name. It need not be there.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The study file.
    #[must_use]
    pub fn study(&self) -> PathBuf {
        self.root.join("study.yaml")
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal.sqlite")
    }

    /// The states of trials.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// What programs have printed.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Makes the folder and what belongs in it.
    pub(super) fn create(&self) -> Result<(), Error> {
        for path in [self.root.clone(), self.checkpoints(), self.logs()] {
            fs::create_dir_all(&path).map_err(|source| Error::io("make the folder", &path, source))?;
        }
        Ok(())
    }

    /// Keeps all other writers away for as long as the file is open. The system takes the lock back from a dead process.
    pub(super) fn lock(&self) -> Result<File, Error> {
        let path = self.root.join("lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|source| Error::io("open", &path, source))?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                // Perhaps only somebody who looks whether the study runs.
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path, source)),
            }
        }
        Err(Error::InUse(self.root.clone()))
    }

    /// Replaces the study file, as a whole.
    pub(super) fn write_study(&self, yaml: &str) -> Result<(), Error> {
        let path = self.study();
        let new = self.root.join("study.yaml.new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(yaml.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|source| Error::io("write", &path, source))
    }
}
