use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use super::{Error, place::is_at};
use crate::ids::{StudyId, TrialId};

const EMULATED: &str = "emulated";
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The process that runs a study.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// Its number.
    pub process: u32,
    /// The name of its machine.
    pub host: String,
    /// The study that it runs; none until its journal is open.
    pub study: Option<StudyId>,
}

impl Runner {
    /// This process.
    #[must_use]
    pub fn this() -> Self {
        Self {
            process: process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            study: None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (process, host) = lines.next()?.trim_end().split_once(' ')?;
        let study = lines.next().map(str::parse).transpose().ok()?;
        Some(Self { process: process.parse().ok()?, host: host.to_owned(), study })
    }
}

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

    /// How to reach the head that runs the study, while one does.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.root.join("control.json")
    }

    /// What the journal must hold.
    #[must_use]
    pub fn seal(&self) -> PathBuf {
        self.root.join("journal.seal")
    }

    /// The newest facts of the journal, until they are moved into it.
    pub(super) fn wal(&self) -> PathBuf {
        self.root.join("journal.sqlite-wal")
    }

    /// Fails if there was a study here. To be asked where there is no journal.
    pub(super) fn check_nothing_is_lost(&self) -> Result<(), Error> {
        // Other files, like the log of the head, may be there before a study begins.
        let is_of_trial = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"trial-"))
        };
        let has_entries = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.any(is_of_trial));
        let has_bytes = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
        let wal = self.wal();
        let traces = [self.seal(), self.checkpoints(), self.logs(), wal.clone()];
        let trace = traces.into_iter().find(|path| {
            if path.is_dir() { has_entries(path) } else { path.exists() && (*path != wal || has_bytes(path)) }
        });
        trace.map_or(Ok(()), |trace| Err(Error::NoJournal { root: self.root.clone(), trace }))
    }

    /// The states of trials.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// The folder with the states of a trial: checkpoints of its workers, or whatever its program keeps there.
    #[must_use]
    pub fn checkpoint(&self, trial: TrialId) -> PathBuf {
        self.checkpoints().join(format!("trial-{trial}"))
    }

    /// What the program of a trial has printed.
    #[must_use]
    pub fn log(&self, trial: TrialId) -> PathBuf {
        self.logs().join(format!("trial-{trial}.log"))
    }

    /// What makes the head known to its agents, and them to it.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }

    /// What agents need to know to join.
    pub(crate) fn join_file(&self) -> PathBuf {
        self.cluster().join("join.json")
    }

    /// What machines read to find out whether they see this folder.
    pub(crate) fn probe(&self) -> PathBuf {
        self.root.join("shared")
    }

    /// What workers hold while they live.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// What programs have printed.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// What the study runs on, if its devices are emulated.
    #[must_use]
    pub fn emulated(&self) -> Option<String> {
        Some(fs::read_to_string(self.root.join(EMULATED)).ok()?.trim().to_owned())
    }

    /// Marks the study as one on emulated devices. Its folder is made if it is not there.
    pub fn mark_emulated(&self, devices: &str) -> Result<(), Error> {
        self.create()?;
        let path = self.root.join(EMULATED);
        fs::write(&path, format!("{devices}\n")).map_err(|source| Error::io("write", &path, source))
    }

    /// Makes the folder and what belongs in it.
    pub(crate) fn create(&self) -> Result<(), Error> {
        for path in [self.root.clone(), self.checkpoints(), self.logs()] {
            fs::create_dir_all(&path).map_err(|source| Error::io("make the folder", &path, source))?;
        }
        Ok(())
    }

    /// Tags and notes that people have given to the study and its trials.
    #[must_use]
    pub fn notes(&self) -> PathBuf {
        self.root.join("notes.json")
    }

    /// Held by who changes them.
    #[cfg(feature = "cli")]
    pub(super) fn notes_lock(&self) -> PathBuf {
        self.root.join("notes.lock")
    }

    /// There while the study is deleted: without a journal, the rest still has a meaning.
    #[cfg(feature = "cli")]
    pub(crate) fn deletion(&self) -> PathBuf {
        self.root.join("deletion")
    }

    /// Held by the process that runs the study, whose number and machine it names.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Keeps all other writers away for as long as the file is open. The system takes the lock back from a dead process.
    pub(crate) fn lock(&self) -> Result<File, Error> {
        let file = try_lock(&self.lock_path(), LOCK_TRIES)?.ok_or_else(|| Error::InUse(self.root.clone()))?;
        self.sign(&file, None)?;
        Ok(file)
    }

    /// Writes into a lock who holds it, and for which study.
    pub(super) fn sign(&self, mut lock: &File, study: Option<StudyId>) -> Result<(), Error> {
        let Runner { process, host, .. } = Runner::this();
        let study = study.map_or_else(String::new, |study| format!("{study}\n"));
        let text = format!("{process} {host}\n{study}");
        let mut sign = || {
            lock.set_len(0)?;
            lock.rewind()?;
            lock.write_all(text.as_bytes())
        };
        sign().map_err(|source| Error::io("write", &self.lock_path(), source))
    }

    /// Whether a process runs the study now.
    pub(super) fn is_run(&self) -> bool {
        let lock = File::open(self.lock_path());
        lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Who runs the study now, if anybody does.
    pub(crate) fn runner(&self) -> Result<Option<Runner>, Error> {
        let path = self.lock_path();
        if !self.is_run() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(|source| Error::io("read", &path, source))?;
        let problem = || "it does not name the process that runs the study".to_owned();
        Runner::parse(&text).map(Some).ok_or_else(|| Error::Damaged { path, problem: problem() })
    }

    /// Who ran the study last, as far as that is known.
    pub(super) fn last_runner(&self) -> Option<Runner> {
        Runner::parse(&fs::read_to_string(self.lock_path()).ok()?)
    }

    /// Waits until nobody runs the study.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let path = self.lock_path();
        // Closing the file gives the lock back.
        let wait = || File::open(&path)?.lock_shared();
        match wait() {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::io("lock", &path, source)),
            _ => Ok(()),
        }
    }

    /// Replaces the study file, as a whole.
    pub(crate) fn write_study(&self, yaml: &str) -> Result<(), Error> {
        replace(&self.study(), &self.root.join("study.yaml.new"), yaml)
    }

    /// Replaces tags and notes, as a whole.
    #[cfg(feature = "cli")]
    pub(super) fn write_notes(&self, text: &str) -> Result<(), Error> {
        replace(&self.notes(), &self.root.join("notes.json.new"), text)
    }
}

/// Locks a file, which is made if it is not there; none if somebody else has it each time, with [`LOCK_PAUSE`] in between. Closing the file
/// gives the lock back.
pub(super) fn try_lock(path: &Path, tries: u32) -> Result<Option<File>, Error> {
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = open().map_err(|source| Error::io("open", path, source))?;
    for _ in 0..tries {
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            // Its last holder has deleted the study: nobody else would meet this lock.
            Ok(()) => file = open().map_err(|source| Error::io("open", path, source))?,
            // Perhaps only somebody who looks whether the study runs.
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", path, source)),
        }
    }
    Ok(None)
}

/// Writes a file beside another one and puts it in its place.
fn replace(path: &Path, new: &Path, text: &str) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        let mut file = File::create(new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write().map_err(|source| Error::io("write", path, source))
}
