use std::{fs::File, path::Path};

use rusqlite::{Connection, TransactionBehavior, params};

use super::{
    Error, Folder, Journal,
    project::{Problem, Projection},
    reader, sqlite,
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
    /// Closed after the connection: fields go in their order.
    _lock: File,
}

impl Store {
    /// Opens the study in a folder, or begins one there. Fails if another process runs it.
    pub fn open(root: &Path) -> Result<Self, Error> {
        Ok(Self::load(root)?.0)
    }

    /// The same, with all facts so far.
    pub fn load(root: &Path) -> Result<(Self, Vec<JournalEntry>), Error> {
        let folder = Folder::new(root);
        folder.create()?;
        let (lock, path) = (folder.lock()?, folder.journal());
        let (mut connection, version) = sqlite::open_writer(&folder)?;
        let entries = reader::entries(&connection, &path, 0)?;
        let projection = if version < sqlite::VERSION {
            let id = sqlite::random_id(&path)?;
            rebuild(&mut connection, id, &entries)
        } else {
            Projection::replay(&entries).map_err(Problem::Fact)
        };
        let projection = Some(projection.map_err(|problem| problem.of(&path))?);
        let study_id = sqlite::study_id(&connection, &path)?;
        folder.sign(&lock, Some(study_id))?;
        let next = entries.len() as u64 + 1;
        Ok((Self { folder, connection, study_id, next, projection, _lock: lock }, entries))
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

    /// From now on facts survive a loss of power, too: each write waits for the disk.
    pub fn sync_always(&self) -> Result<(), Error> {
        let set = self.connection.pragma_update(None, "synchronous", "full");
        set.map_err(|source| Error::sqlite("open", &self.folder.journal(), source))
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
            None => Projection::replay(&self.entries(0)?).map_err(|error| Problem::Fact(error).of(&path))?,
        };
        let mut write = || -> Result<(), Problem> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            insert(&transaction, self.next, entries)?;
            projection.apply(&transaction, entries)?;
            Ok(transaction.commit()?)
        };
        write().map_err(|problem| problem.of(&path))?;
        self.projection = Some(projection);
        self.next += entries.len() as u64;
        Ok(())
    }
}

fn insert(to: &Connection, from: u64, entries: &[JournalEntry]) -> Result<(), Problem> {
    let insert = "INSERT INTO facts (seq, v, at_s, kind, trial, fact) VALUES (?, ?, ?, ?, ?, ?)";
    let mut insert = to.prepare_cached(insert)?;
    for (seq, JournalEntry { at_s, fact }) in (from..).zip(entries) {
        let (kind, trial) = (fact.kind(), fact.trial().map(|trial| trial.0));
        let fact = serde_json::to_string(fact)?;
        insert.execute(params![seq.cast_signed(), JournalEntry::VERSION, at_s, kind, trial, fact])?;
    }
    Ok(())
}

/// Gives the study an id and makes all tables again, where they have an earlier form.
fn rebuild(
    connection: &mut Connection,
    id: StudyId,
    entries: &[JournalEntry],
) -> Result<Projection, Problem> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    sqlite::begin_identity(&transaction, id)?;
    sqlite::begin_tables(&transaction)?;
    let mut projection = Projection::default();
    projection.apply(&transaction, entries)?;
    transaction.commit()?;
    Ok(projection)
}

impl Journal for Store {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        if entries.is_empty() { Ok(()) } else { self.write(entries) }
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        reader::entries(&self.connection, &self.folder.journal(), from)
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
