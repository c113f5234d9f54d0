//! The file of a journal: its form and how it is opened.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use super::{Error, Folder};
use crate::ids::{InvalidStudyId, StudyId};

/// The form of the file; readers of an older form refuse it.
pub(super) const VERSION: u32 = 3;
/// Marks our files among those of `SQLite`: `PlxT`.
const APPLICATION: i32 = 0x506c_7854;
/// So long somebody else may hold the file up.
const PATIENCE: Duration = Duration::from_secs(10);

/// So many pages of 4 KiB wait before they are moved to their places, which takes a wait for the disk.
const WAL_PAGES: u32 = 4000;

const FACTS: &str = "
CREATE TABLE facts (
    seq INTEGER PRIMARY KEY,   -- from 1, without gaps
    v INTEGER NOT NULL,        -- the form of the fact
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    trial INTEGER,
    fact TEXT NOT NULL         -- JSON
) STRICT;
";

/// Which study it is. No fact, because it is the same whatever happens.
const IDENTITY: &str = "
CREATE TABLE identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    study TEXT NOT NULL        -- 128 random bits
) STRICT;
";

/// What follows from the facts. Form 1 had the same tables; its `study` had two columns more.
const TABLES: &str = "
DROP TABLE IF EXISTS study;
DROP TABLE IF EXISTS slots;
DROP TABLE IF EXISTS trials;
DROP TABLE IF EXISTS spans;
CREATE TABLE study (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    yaml TEXT NOT NULL DEFAULT '',
    stopping INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    ended TEXT                 -- why there are no more trials
) STRICT;
INSERT INTO study (id) VALUES (1);
CREATE TABLE slots (
    node INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    up INTEGER NOT NULL,
    PRIMARY KEY (node, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE trials (
    trial INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    params TEXT NOT NULL,      -- JSON
    created_s REAL NOT NULL,
    ended_s REAL,
    epochs REAL NOT NULL DEFAULT 0,
    metrics TEXT NOT NULL DEFAULT '{}',  -- JSON
    result TEXT,               -- JSON, a value for each objective
    value REAL,                -- that of the first
    reason TEXT,
    generation INTEGER NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 0,
    batch INTEGER,
    slot_s REAL NOT NULL DEFAULT 0,
    counted_s REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE spans (
    node INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    trial INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    from_s REAL NOT NULL,
    to_s REAL                  -- none while it lasts
) STRICT;
CREATE INDEX spans_that_last ON spans (trial) WHERE to_s IS NULL;
";

/// Opens the journal for the one who writes, and makes it if there is none. The form that it has is the second.
pub(super) fn open_writer(folder: &Folder) -> Result<(Connection, u32), Error> {
    let path = folder.journal();
    let failed = |source| Error::sqlite("open", &path, source);
    let mut connection = Connection::open(&path).map_err(failed)?;
    let version = check(&connection, &path)?;
    let new_id = random_id(&path)?;
    // With WAL and `NORMAL` nothing is lost when the process is killed. When the machine loses power, the last facts may be
    // missing, but never one before another that is there; the study then resumes from a little earlier, and since all
    // workers have joined again, nothing contradicts it. `FULL` would cost a wait for the disk with every fact.
    let mut prepare = || -> rusqlite::Result<()> {
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        connection.set_prepared_statement_cache_capacity(64);
        if version == 0 {
            let transaction = connection.transaction()?;
            transaction.execute_batch(FACTS)?;
            begin_identity(&transaction, new_id)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            begin_tables(&transaction)?;
            transaction.commit()?;
        }
        Ok(())
    };
    prepare().map_err(failed)?;
    Ok((connection, if version == 0 { VERSION } else { version }))
}

/// 128 random bits: no two studies have the same.
pub(super) fn random_id(path: &Path) -> Result<StudyId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::io("draw an id for", path, error.into()))?;
    Ok(StudyId(u128::from_be_bytes(bytes)))
}

/// Gives the study its id, for ever.
pub(super) fn begin_identity(connection: &Connection, study: StudyId) -> rusqlite::Result<()> {
    connection.execute_batch(IDENTITY)?;
    connection.execute("INSERT INTO identity (id, study) VALUES (1, ?)", [study.to_string()])?;
    Ok(())
}

/// The id of the study in a journal of the present form.
pub(super) fn study_id(connection: &Connection, path: &Path) -> Result<StudyId, Error> {
    let text: String = connection
        .query_row("SELECT study FROM identity", [], |row| row.get(0))
        .map_err(|source| Error::sqlite("read", path, source))?;
    text.parse()
        .map_err(|error: InvalidStudyId| Error::Damaged { path: path.to_owned(), problem: error.to_string() })
}

/// Makes empty tables in place of those that are there.
pub(super) fn begin_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.pragma_update(None, "user_version", VERSION)
}

/// Opens the journal for one who only looks.
pub(super) fn open_reader(folder: &Folder) -> Result<Connection, Error> {
    let path = folder.journal();
    if !path.exists() {
        return Err(Error::NoStudy(folder.root().to_owned()));
    }
    let connection = match open_shared(&path) {
        // Whoever may not write to the folder cannot take part in WAL. Where nobody writes, that is not needed.
        Err(Error::Failed { .. } | Error::NotWritable { .. }) if !has_wal(&path) => open_finished(&path)?,
        opened => opened?,
    };
    match check(&connection, &path)? {
        0 => Err(Error::NoStudy(folder.root().to_owned())),
        _ => Ok(connection),
    }
}

fn has_wal(path: &Path) -> bool {
    path.with_extension("sqlite-wal").exists()
}

/// Opens a journal that somebody may write to.
fn open_shared(path: &Path) -> Result<Connection, Error> {
    let failed = |source| Error::sqlite("read", path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    check(&connection, path)?;
    Ok(connection)
}

/// Half a byte as one digit.
fn hex(half: u8) -> char {
    char::from_digit(u32::from(half), 16).unwrap_or('0')
}

/// Opens a journal that nobody writes to.
fn open_finished(path: &Path) -> Result<Connection, Error> {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte));
            }
            _ => uri.extend(['%', hex(byte >> 4), hex(byte & 15)]),
        }
    }
    uri.push_str("?immutable=1");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags).map_err(|source| Error::sqlite("read", path, source))
}

/// The form of a journal; 0 if nothing was written yet.
fn check(connection: &Connection, path: &Path) -> Result<u32, Error> {
    let read = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let failed = |source| Error::sqlite("read", path, source);
    let (application, version) =
        (read("application_id").map_err(failed)?, read("user_version").map_err(failed)?);
    if application == 0 && version == 0 {
        let tables = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = connection.query_row(tables, [], |row| row.get(0)).map_err(failed)?;
        return if tables == 0 { Ok(0) } else { Err(Error::NotAJournal(path.to_owned())) };
    }
    if application != APPLICATION {
        return Err(Error::NotAJournal(path.to_owned()));
    }
    match u32::try_from(version) {
        Ok(version) if version <= VERSION => Ok(version),
        found => Err(newer(path, found.unwrap_or(u32::MAX))),
    }
}

pub(super) fn newer(path: &Path, found: u32) -> Error {
    Error::Newer { path: path.to_owned(), found, known: VERSION }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn a_finished_study_can_be_read_without_taking_part() {
        let root = env::temp_dir().join(format!("pollux-tune 100% finished? {}", process::id()));
        let folder = Folder::new(&root);
        folder.create().unwrap();
        drop(open_writer(&folder).unwrap());
        assert!(!has_wal(&folder.journal()));
        let connection = open_finished(&folder.journal()).unwrap();
        assert_eq!(check(&connection, &folder.journal()).unwrap(), VERSION);
        let (writer, _) = open_writer(&folder).unwrap();
        writer.execute_batch("UPDATE study SET done = 1").unwrap();
        assert!(has_wal(&folder.journal()), "as long as somebody writes");
        drop((connection, writer));
        fs::remove_dir_all(&root).unwrap();
    }
}
