use std::{fs::File, path::Path};

use rusqlite::{Connection, TransactionBehavior, params};

use super::{Error, Folder, Journal, project, reader, sqlite};
use crate::trials::engine::JournalEntry;

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
    next: u64,
    /// Closed after the connection: fields go in their order.
    _lock: File,
}

impl Store {
    /// Opens the study in a folder, or begins one there. Fails if another process runs it.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let folder = Folder::new(root);
        folder.create()?;
        let lock = folder.lock()?;
        let connection = sqlite::open_writer(&folder)?;
        let count = "SELECT coalesce(max(seq), 0) FROM facts";
        let last: i64 = connection
            .query_row(count, [], |row| row.get(0))
            .map_err(|source| Error::sqlite("read", &folder.journal(), source))?;
        Ok(Self { folder, connection, next: last.cast_unsigned() + 1, _lock: lock })
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
        let failed = |source| Error::sqlite("write", &path, source);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        {
            let insert = "INSERT INTO facts (seq, v, at_s, kind, trial, fact) VALUES (?, ?, ?, ?, ?, ?)";
            let mut insert = transaction.prepare_cached(insert).map_err(failed)?;
            for (seq, entry) in (self.next..).zip(entries) {
                let fact = serde_json::to_string(&entry.fact)
                    .map_err(|error| Error::Damaged { path: path.clone(), problem: error.to_string() })?;
                let (kind, trial) = (entry.fact.kind(), entry.fact.trial().map(|trial| trial.0));
                let row = params![seq.cast_signed(), JournalEntry::VERSION, entry.at_s, kind, trial, fact];
                insert.execute(row).map_err(failed)?;
            }
            project::entries(&transaction, entries).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        self.next += entries.len() as u64;
        Ok(())
    }
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
