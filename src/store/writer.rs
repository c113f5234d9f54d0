use std::{
    fs::File,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, TransactionBehavior};

use super::{
    Error, Folder, Journal,
    facts::{self, Facts},
    opening::{Opening, replay},
    place::{Place, sync_folder},
    project::{Problem, Projection},
    seal::{Claim, Seal, Sealer},
    sqlite,
    wal::Wal,
};
use crate::{
    ids::StudyId,
    trials::engine::{JournalEntry, State},
};

/// A study on disk, for the one process that runs it.
///
/// ```
/// use pollux_tune::store::{Journal, Store};
/// use pollux_tune::trials::engine::{JournalEntry, Fact};
///
/// # let folder = std::env::temp_dir().join(format!("pollux-tune-store-{}", std::process::id()));
/// let mut store = Store::open(&folder)?;
/// let entry = JournalEntry { at_s: 0.0, fact: Fact::StudyCreated { yaml: "space: {}".to_owned() } };
/// store.append(&[entry.clone()])?;
/// assert!(Store::open(&folder).is_err(), "one writes, others read");
/// drop(store);
/// assert_eq!(Store::open(&folder)?.entries(0)?, [entry]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    folder: Folder,
    connection: Connection,
    study_id: StudyId,
    next: u64,
    /// None after a write that failed: it is read again before the next one.
    projection: Option<Projection>,
    /// Where the newest facts are, to wait until they are on disk.
    wal: Wal,
    /// Facts that are known to be on disk.
    synced: u64,
    sealer: Sealer,
    /// The files that must stay what they are.
    places: Vec<Place>,
    /// Closed after the connection: fields go in their order.
    _lock: File,
}

impl Store {
    /// Opens the study in a folder, or begins one there. Fails if another process runs it.
    pub fn open(root: &Path) -> Result<Self, Error> {
        Self::begin(root)?.replay(|_| Ok(()))
    }

    /// The same in two steps, for those who follow the facts so far.
    pub fn begin(root: &Path) -> Result<Opening, Error> {
        Opening::of(root)
    }

    /// All facts are whole, and lead to this.
    pub(super) fn ready(opening: Opening, projection: Projection) -> Result<Self, Error> {
        let Opening { folder, connection, study_id, lock } = opening;
        folder.sign(&lock, Some(study_id))?;
        let path = folder.journal();
        let io = |source| Error::io("open", &path, source);
        let known = Seal::read(&folder)?.is_some_and(|seal| seal.is_durable(projection.claim()));
        let wal = Wal::open(&folder.wal(), known).map_err(io)?;
        let places = [path.clone(), folder.wal()].iter().map(|path| Place::of(path)).collect();
        let places: Vec<Place> = Result::from_iter::<Vec<_>>(places).map_err(io)?;
        sync_folder(folder.root()).map_err(io)?;
        let sealer = Sealer::create(&folder, study_id, projection.claim())?;
        let synced = projection.state.facts;
        let (next, projection) = (synced + 1, Some(projection));
        Ok(Self { folder, connection, study_id, next, projection, wal, synced, sealer, places, _lock: lock })
    }

    /// Where the study stands; none after a write that failed.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.projection.as_ref().map(|projection| &projection.state)
    }

    /// Which study it is: 128 random bits from its beginning.
    #[must_use]
    pub const fn study_id(&self) -> StudyId {
        self.study_id
    }

    /// Where things are.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// How many facts there are.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.next - 1
    }

    /// Whether nothing happened yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the study file in the folder, as a whole.
    pub fn write_study(&self, yaml: &str) -> Result<(), Error> {
        self.folder.write_study(yaml)
    }

    fn write(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        let path = self.folder.journal();
        let mut projection = match self.projection.take() {
            Some(projection) => projection,
            None => replay::<Error>(&self.connection, &path, |_| Ok(()))?,
        };
        let mut write = || -> Result<(), Problem> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let chain = facts::insert(&transaction, self.next, projection.claim().chain, entries)?;
            projection.apply(&transaction, entries, chain)?;
            Ok(transaction.commit()?)
        };
        write().map_err(|problem| problem.of(&path))?;
        // The facts are there, whether or not the seal can be written: it is older then, and `sync` tells.
        let _ = self.sealer.written(projection.claim());
        self.projection = Some(projection);
        self.next += entries.len() as u64;
        Ok(())
    }

    /// Fails unless all facts can be read from the files: what the disk has refused once, the system may have dropped.
    fn check_written(&self) -> Result<(), Error> {
        let path = self.folder.journal();
        let (connection, _) = sqlite::open_reader(&self.folder)?;
        let found = replay::<Error>(&connection, &path, |_| Ok(()))?.claim().facts;
        if found == self.len() {
            return Ok(());
        }
        Err(Error::not_whole(&path, format!("the disk has kept {found} of {} facts", self.len())))
    }

    /// Fails if somebody took the journal away. All facts are saved elsewhere then.
    fn check_places(&self) -> Result<(), Error> {
        let Some(gone) = self.places.iter().find(|place| !place.is_same()) else { return Ok(()) };
        let rescued =
            self.rescue().inspect_err(|error| tracing::error!(%error, "the study cannot be saved elsewhere"));
        Err(Error::Removed { path: gone.path().to_owned(), rescued: rescued.ok() })
    }

    /// Writes the study into a new folder beside that of the study.
    fn rescue(&self) -> Result<PathBuf, Error> {
        let root = std::path::absolute(self.folder.root());
        let root = root.map_err(|source| Error::io("find", self.folder.root(), source))?;
        let root = beside(&root, "rescued");
        let (folder, own) = (Folder::new(&root), self.folder.journal());
        folder.create()?;
        let path = folder.journal();
        let mut facts = Facts::after(&own, 0, &self.connection)?;
        let claim = write_new(&path, self.study_id, &mut facts, &self.connection)?;
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(|source| Error::io("write", &path, source))?;
        Sealer::create(&folder, self.study_id, claim)?;
        if let Some(state) = self.state() {
            folder.write_study(&state.yaml)?;
        }
        Ok(root)
    }
}

/// A name beside that of a file or folder which nothing has yet.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut number = 1_u32;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{what}-{number}"));
        if !Path::new(&name).exists() {
            return name.into();
        }
        number += 1;
    }
}

/// Writes the facts of a journal into a new file.
pub(super) fn write_new(
    path: &Path,
    study: StudyId,
    facts: &mut Facts<'_>,
    from: &Connection,
) -> Result<Claim, Error> {
    let mut write = || facts::copy(facts, from, &mut Connection::open(path)?, study);
    write().map_err(|problem: Problem| problem.of(path))
}

impl Journal for Store {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        if entries.is_empty() { Ok(()) } else { self.write(entries) }
    }

    fn sync(&mut self) -> Result<(), Error> {
        let io = |source| Error::io("write", &self.folder.journal(), source);
        if self.synced < self.len() {
            // What `SQLite` does with `synchronous = FULL`, but for many transactions at once.
            let was_doubtful = self.wal.is_doubtful();
            self.wal.sync().map_err(io)?;
            if was_doubtful {
                self.check_written()?;
            }
            self.sealer.durable().map_err(io)?;
            self.synced = self.len();
        }
        self.check_places()?;
        self.sealer.keep()
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        Facts::after(&self.folder.journal(), from, &self.connection)?.collect(&self.connection)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;
    use crate::trials::engine::Fact;

    fn entry(at_s: f64, text: &str) -> JournalEntry {
        JournalEntry { at_s, fact: Fact::StudyChanged { yaml: text.to_owned() } }
    }

    #[test]
    fn a_full_disk_loses_nothing_but_what_did_not_fit() {
        let root = env::temp_dir().join(format!("pollux-tune-full-{}", process::id()));
        let mut store = Store::open(&root).unwrap();
        store.append(&[entry(0.0, "a"), entry(1.0, "b")]).unwrap();
        let pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        store.connection.pragma_update(None, "max_page_count", pages + 4).unwrap();
        let error = store.append(&[entry(2.0, "c"), entry(3.0, &"d".repeat(100_000))]).unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error:?}");
        assert!(error.to_string().contains("make some, and run the study again"), "{error}");
        assert_eq!((store.len(), store.entries(0).unwrap().len()), (2, 2), "all or nothing");
        store.append(&[entry(2.0, "c")]).unwrap();
        assert_eq!(store.entries(1).unwrap(), [entry(1.0, "b"), entry(2.0, "c")]);
        drop(store);
        fs::remove_dir_all(&root).unwrap();
    }
}
