//! The way from a folder to a [`Store`]: everything is checked, and every fact is read once.

use std::{fs::File, path::Path};

use rusqlite::{Connection, TransactionBehavior};

use super::{
    Error, Folder, Store,
    digest::Chain,
    facts::{self, Facts},
    project::{Problem, Projection},
    reader::{self, study_row},
    seal::{Claim, Seal, Sealer},
    sqlite,
    tables::Summary,
};
use crate::{
    ids::StudyId,
    space::Study,
    trials::engine::{JournalEntry, State},
};

/// A study that is locked for the process that will run it, and whose facts are yet to be read.
///
/// All who follow the facts do so in one pass, in which each fact is in memory once and only for a moment:
///
/// ```
/// use pollux_tune::store::{Error, Journal, Store};
/// use pollux_tune::trials::engine::{Fact, JournalEntry, State};
///
/// # let folder = std::env::temp_dir().join(format!("pollux-tune-opening-{}", std::process::id()));
/// # let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}}".to_owned();
/// # Store::open(&folder)?.append(&[JournalEntry { at_s: 0.0, fact: Fact::StudyCreated { yaml } }])?;
/// let opening = Store::begin(&folder)?;
/// assert_eq!(opening.study()?.expect("it has begun").objectives[0].metric, "loss");
/// let mut kinds = Vec::new();
/// let store = opening.replay(|entry| {
///     kinds.push(entry.fact.kind());
///     Ok::<(), Error>(())
/// })?;
/// assert_eq!((kinds, store.len()), (vec!["study_created"], 1));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Opening {
    pub(super) folder: Folder,
    pub(super) connection: Connection,
    pub(super) study_id: StudyId,
    /// Closed after the connection: fields go in their order.
    pub(super) lock: File,
}

impl Opening {
    /// Locks the study in a folder, or begins one there. A journal of an earlier form gets the present one.
    pub(super) fn of(root: &Path) -> Result<Self, Error> {
        let folder = Folder::new(root);
        folder.create()?;
        let (lock, path) = (folder.lock()?, folder.journal());
        let seal = Seal::read(&folder)?;
        let (mut connection, form) = sqlite::open_writer(&folder)?;
        if form < sqlite::VERSION {
            upgrade(&mut connection, &folder, seal.as_ref())?;
        }
        let seal = Seal::read(&folder)?;
        facts::check_seal(&connection, &path, seal.as_ref())?;
        let study_id = sqlite::study_id(&connection, &path)?;
        Ok(Self { folder, connection, study_id, lock })
    }

    /// Where things are.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Whether there are trials, or parameters and results that were given for them.
    pub fn has_trials(&self) -> Result<bool, Error> {
        let any = "SELECT EXISTS (SELECT 1 FROM facts WHERE kind IN \
                   ('trial_created', 'trial_enqueued', 'result_imported'))";
        let any = self.connection.query_row(any, [], |row| row.get(0));
        any.map_err(|source| Error::sqlite("read", &self.folder.journal(), source))
    }

    /// The study as it was last started; none if nothing has happened yet.
    pub fn study(&self) -> Result<Option<Study>, Error> {
        let path = self.folder.journal();
        let summary = Summary::read(&self.connection).map_err(|flaw| flaw.of(&path))?;
        if summary.facts == 0 {
            return Ok(None);
        }
        let row = study_row(&self.connection).map_err(|flaw| flaw.of(&path))?;
        reader::parse(&path, &row.yaml).map(Some)
    }

    /// Calls `show` with one fact after the other, until that fails. If all of them are whole, the study can be written to.
    pub fn replay<E: From<Error>>(
        self,
        show: impl FnMut(&JournalEntry) -> Result<(), E>,
    ) -> Result<Store, E> {
        let projection = replay(&self.connection, &self.folder.journal(), show)?;
        Ok(Store::ready(self, projection)?)
    }
}

/// What follows from the facts in a journal of the present form, which are shown one by one.
pub(super) fn replay<E: From<Error>>(
    connection: &Connection,
    path: &Path,
    mut show: impl FnMut(&JournalEntry) -> Result<(), E>,
) -> Result<Projection, E> {
    let summary = Summary::read(connection).map_err(|flaw| Error::not_whole(path, flaw.describe()))?;
    let mut state = State::default();
    Facts::after(path, 0, connection)?.read_to(summary.claim(), connection, |entry| {
        let applied = state.apply(&entry);
        applied.map_err(|source| Error::OutOfPlace { path: path.to_owned(), source })?;
        show(&entry)
    })?;
    Ok(Projection::of(state, summary))
}

/// Gives a study of an earlier form its id and its chain, and makes its tables again.
fn upgrade(connection: &mut Connection, folder: &Folder, seal: Option<&Seal>) -> Result<(), Error> {
    let path = &folder.journal();
    // There is a seal if the upgrade was interrupted: it is made first, so that there is no moment without.
    let study = seal.map_or_else(|| sqlite::random_id(path), |seal| Ok(seal.study))?;
    let failed = |problem: Problem| problem.of(path);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = transaction.map_err(|error| failed(error.into()))?;
    let fill = || -> Result<Claim, Problem> {
        sqlite::begin_identity(&transaction, study)?;
        let chain: Chain = sqlite::begin_chain(&transaction, study)?;
        sqlite::begin_tables(&transaction, study)?;
        let mut projection = Projection::begin(study);
        Facts::unchecked(path)
            .read_chunks::<Problem>(&transaction, |entries| projection.apply(&transaction, entries, chain))?;
        Ok(projection.claim())
    };
    let claim = fill().map_err(failed)?;
    if seal.is_none() {
        let synced = File::open(folder.wal()).and_then(|wal| wal.sync_data());
        synced.map_err(|source| Error::io("write", path, source))?;
        Sealer::create(folder, study, claim)?;
    }
    transaction.commit().map_err(|error| failed(error.into()))
}
