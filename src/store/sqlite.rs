//! The file of a journal: its form and how it is opened.

use std::{fs, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, params};

use super::{
    Error, Folder,
    digest::{Chain, RawFact},
    project::{Problem, Projection},
};
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
    fact TEXT NOT NULL,        -- JSON
    chain BLOB NOT NULL        -- the checksum of all up to this one
) STRICT;
";

/// Which study it is. No fact, because it is the same whatever happens.
const IDENTITY: &str = "
CREATE TABLE identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    study TEXT NOT NULL        -- 128 random bits
) STRICT;
";

/// What follows from the facts. Each row has its own checksum, and `summary` the sums of these, so that no row can be changed or left out.
const TABLES: &str = "
DROP TABLE IF EXISTS study;
DROP TABLE IF EXISTS slots;
DROP TABLE IF EXISTS trials;
DROP TABLE IF EXISTS spans;
DROP TABLE IF EXISTS summary;
CREATE TABLE study (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    yaml TEXT NOT NULL,
    stopping INTEGER NOT NULL, -- 1: it stops, 2: it is paused, 3: both
    done INTEGER NOT NULL,
    ended TEXT,                -- why there are no more trials
    waits TEXT NOT NULL,       -- JSON, what has to be mended: a node, or none for the whole study, and why
    sum INTEGER NOT NULL
) STRICT;
CREATE TABLE slots (
    node INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    up INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (node, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE trials (
    trial INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    params TEXT NOT NULL,      -- JSON
    created_s REAL NOT NULL,
    ended_s REAL,
    epochs REAL NOT NULL,
    metrics TEXT NOT NULL,     -- JSON
    result TEXT,               -- JSON, a value for each objective
    value REAL,                -- that of the first
    reason TEXT,
    generation INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    batch INTEGER,
    slot_s REAL NOT NULL,
    counted_s REAL NOT NULL,
    sum INTEGER NOT NULL
) STRICT;
CREATE TABLE spans (
    node INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    trial INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    from_s REAL NOT NULL,
    to_s REAL,                 -- none while it lasts
    sum INTEGER NOT NULL
) STRICT;
CREATE INDEX spans_that_last ON spans (trial) WHERE to_s IS NULL;
CREATE TABLE summary (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    facts INTEGER NOT NULL,    -- how many the tables follow from
    chain BLOB NOT NULL,       -- that of the last one
    created_s REAL NOT NULL,
    at_s REAL NOT NULL,
    states TEXT NOT NULL,      -- JSON, how many trials are in which state
    slots INTEGER NOT NULL,    -- with a worker
    busy INTEGER NOT NULL,
    sums TEXT NOT NULL,        -- JSON, of the rows of each table
    sum INTEGER NOT NULL
) STRICT;
";

/// Opens the journal for the one who writes, and makes it if there is none. The form that it has is the second.
pub(super) fn open_writer(folder: &Folder) -> Result<(Connection, u32), Error> {
    let path = folder.journal();
    let failed = |source| Error::sqlite("open", &path, source);
    if is_empty(&path) {
        folder.check_nothing_is_lost()?;
    }
    let mut connection = Connection::open(&path).map_err(failed)?;
    let version = check(&connection, &path)?;
    if version == 0 {
        folder.check_nothing_is_lost()?;
    }
    // With WAL and `NORMAL` nothing is lost when the process is killed, and no fact before another that is there when the
    // machine loses power. `Store::sync` waits for the disk where that is not enough.
    let prepare = || -> rusqlite::Result<()> {
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(())
    };
    prepare().map_err(failed)?;
    if version == 0 {
        begin(&mut connection, random_id(&path)?).map_err(|problem| problem.of(&path))?;
    }
    Ok((connection, if version == 0 { VERSION } else { version }))
}

/// Makes the journal of a new study.
pub(super) fn begin(connection: &mut Connection, study: StudyId) -> Result<(), Problem> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(FACTS)?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    begin_identity(&transaction, study)?;
    begin_tables(&transaction, study)?;
    Ok(transaction.commit()?)
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
    let text = connection.query_row("SELECT study FROM identity", [], |row| row.get::<_, String>(0));
    let text = text.map_err(|source| Error::sqlite("read", path, source))?;
    text.parse().map_err(|error: InvalidStudyId| Error::not_whole(path, error.to_string()))
}

/// Makes tables in which nothing has happened, in place of those that are there.
pub(super) fn begin_tables(connection: &Connection, study: StudyId) -> Result<(), Problem> {
    connection.execute_batch(TABLES)?;
    Projection::begin(study).write_all(connection)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok(())
}

/// Gives facts of an earlier form their chain.
pub(super) fn begin_chain(connection: &Connection, study: StudyId) -> Result<Chain, Problem> {
    connection.execute_batch("ALTER TABLE facts ADD COLUMN chain BLOB NOT NULL DEFAULT x''")?;
    let mut read = connection.prepare("SELECT seq, v, at_s, kind, trial, fact FROM facts ORDER BY seq")?;
    let mut write = connection.prepare("UPDATE facts SET chain = ? WHERE seq = ?")?;
    let (mut rows, mut chain) = (read.query([])?, Chain::begin(study));
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        chain = chain.next(&RawFact {
            seq: seq.cast_unsigned(),
            v: row.get(1)?,
            at_s: row.get(2)?,
            kind: row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?,
            trial: row.get(4)?,
            fact: row.get_ref(5)?.as_str().map_err(rusqlite::Error::from)?,
        });
        write.execute(params![chain.bytes(), seq])?;
    }
    Ok(chain)
}

/// Opens the journal for one who only looks. The form that it has is the second.
pub(super) fn open_reader(folder: &Folder) -> Result<(Connection, u32), Error> {
    let path = folder.journal();
    // `SQLite` removes what it takes for the remains of another journal beside an empty one.
    if is_empty(&path) {
        folder.check_nothing_is_lost()?;
        return Err(Error::NoStudy(folder.root().to_owned()));
    }
    let connection = match open_shared(&path) {
        // Whoever may not write to the folder cannot take part in WAL. Where nobody writes, that is not needed.
        Err(Error::Failed { .. } | Error::NotWritable { .. }) if !has_wal(&path) => open_finished(&path)?,
        opened => opened?,
    };
    match check(&connection, &path)? {
        0 => {
            folder.check_nothing_is_lost()?;
            Err(Error::NoStudy(folder.root().to_owned()))
        }
        version => Ok((connection, version)),
    }
}

/// Whether there is nothing to read, not even a header.
fn is_empty(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |file| file.len() == 0)
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
    use std::{env, process};

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
        writer.execute_batch("UPDATE identity SET id = 1").unwrap();
        assert!(has_wal(&folder.journal()), "as long as somebody writes");
        drop((connection, writer));
        fs::remove_dir_all(&root).unwrap();
    }
}
