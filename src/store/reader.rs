use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Row, types::Type};
use serde::de::DeserializeOwned;

use super::{
    Error, Folder, Runner,
    facts::{self, Facts},
    project::Problem,
    seal::Seal,
    sqlite,
    tables::{Flaw, PAUSED, SPANS, STOPPING, STUDY, Summary, TRIALS},
};
use crate::{
    ids::{NodeId, SlotId, StudyId, TrialId},
    space::{Params, Study},
    trials::{
        best,
        engine::{ActiveTrial, JournalEntry, Metrics, Phase},
    },
};

/// Answers questions about a study on disk, also while it runs. It changes nothing.
#[derive(Debug)]
pub struct Reader {
    folder: Folder,
    path: PathBuf,
    connection: Connection,
}

/// Where a trial stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TrialState {
    /// It has no slots yet, or none at the moment.
    Waiting,
    /// Its workers form a group.
    Forming,
    /// It trains.
    Running,
    /// It writes its state, and will leave its slots.
    Pausing,
    /// It has its result.
    Done,
    /// It was given up.
    Stopped,
    /// It has no usable result.
    Failed,
    /// It was ended for another reason.
    Cancelled,
}

impl TrialState {
    const ALL: [(Self, &str); 8] = [
        (Self::Waiting, "waiting"),
        (Self::Forming, "starting"),
        (Self::Running, "running"),
        (Self::Pausing, "pausing"),
        (Self::Done, "done"),
        (Self::Stopped, "stopped"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
    ];

    #[cfg(feature = "cli")]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(state, _)| state)
    }

    /// Its name, the same in texts, tables, JSON and on the page.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Its name in the tables of a journal, which keep the word of those who form groups.
    pub(super) fn stored_name(self) -> &'static str {
        if self == Self::Forming { "forming" } else { self.name() }
    }

    pub(super) fn from_stored(name: &str) -> Option<Self> {
        Self::ALL.into_iter().map(|(state, _)| state).find(|state| state.stored_name() == name)
    }

    /// Where a trial stands that is not over.
    pub(crate) const fn of(active: &ActiveTrial) -> Self {
        match active.phase {
            Phase::Waiting => Self::Waiting,
            Phase::Forming { .. } | Phase::Broken { .. } => Self::Forming,
            Phase::Running(_) => Self::Running,
            Phase::Pausing(_) => Self::Pausing,
        }
    }

    /// Where a trial stands that is over.
    #[cfg(feature = "cli")]
    pub(crate) const fn of_end(end: &crate::trials::End) -> Self {
        use crate::trials::End;
        match end {
            End::Done(_) => Self::Done,
            End::Stopped(_) => Self::Stopped,
            End::Failed(_) => Self::Failed,
            End::Cancelled(_) => Self::Cancelled,
        }
    }

    /// Whether the trial is over.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Stopped | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for TrialState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A trial as the journal knows it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrialRow {
    /// Its number.
    pub trial: TrialId,
    /// Where it stands.
    pub state: TrialState,
    /// What it tries.
    pub params: Params,
    /// When it was created, in seconds on the clock of the journal.
    pub created_s: f64,
    /// When it ended.
    pub ended_s: Option<f64>,
    /// Its progress, in statistical epochs.
    pub epochs: f64,
    /// The last value of each metric; those that are no numbers are missing.
    pub metrics: Metrics,
    /// Its result, a value for each objective.
    pub values: Option<Vec<f64>>,
    /// Why it ended, if it has no result.
    pub reason: Option<String>,
    /// The last generation of its group.
    pub generation: u32,
    /// How many slots it has.
    pub slots: u32,
    /// Its total batch.
    pub batch: Option<u64>,
    /// Seconds times slots it has had, up to the last fact of the study.
    pub slot_s: f64,
}

/// A study in a few numbers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not, whatever the others are")]
pub struct Status {
    /// When it was created, in seconds on the clock of the journal.
    pub created_s: f64,
    /// When its last fact became true.
    pub at_s: f64,
    /// How many facts there are.
    pub facts: u64,
    /// How many trials it is to have.
    pub wanted: u32,
    /// How many trials are in which state.
    pub trials: BTreeMap<TrialState, u32>,
    /// Slots with a worker.
    pub slots: u32,
    /// Slots that trials have.
    pub busy: u32,
    /// Its user wants to resume later.
    pub stopping: bool,
    /// Its user wants no trial to be launched for now.
    pub paused: bool,
    /// All is over.
    pub done: bool,
    /// Why there will be no more trials.
    pub ended: Option<String>,
    /// A process runs it now.
    pub is_run: bool,
    /// What it waits for: of the whole study, machines among it, or of a machine that cannot start workers.
    pub waits: Vec<(Option<NodeId>, String)>,
}

/// A trial had a slot for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The slot.
    pub slot: SlotId,
    /// The trial.
    pub trial: TrialId,
    /// The generation of its group.
    pub generation: u32,
    /// From when on.
    pub from_s: f64,
    /// Until when; none while it lasts.
    pub to_s: Option<f64>,
}

impl Reader {
    /// Opens the study in a folder.
    pub fn open(root: &Path) -> Result<Self, Error> {
        if root.is_file() {
            return Err(Error::NoStudy(root.to_owned()));
        }
        let folder = Folder::new(root);
        let path = folder.journal();
        // Read before the journal: that only grows meanwhile.
        let seal = Seal::read(&folder)?;
        let (connection, form) = sqlite::open_reader(&folder)?;
        if form == sqlite::VERSION {
            facts::check_seal(&connection, &path, seal.as_ref())?;
            return Ok(Self { folder, path, connection });
        }
        let connection = present_form(&connection, &path)?;
        Ok(Self { folder, path, connection })
    }

    /// Where things are.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Reads at one moment.
    fn at_once<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Flaw>) -> Result<T, Error> {
        let look = || {
            let transaction = self.connection.unchecked_transaction()?;
            read(&transaction)
        };
        look().map_err(|flaw| flaw.of(&self.path))
    }

    /// The study as it was last started.
    pub fn study(&self) -> Result<Study, Error> {
        parse(&self.path, &self.at_once(study_row)?.yaml)
    }

    /// Which study it is.
    pub fn study_id(&self) -> Result<StudyId, Error> {
        sqlite::study_id(&self.connection, &self.path)
    }

    /// Whether nothing happened yet.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.facts()? == 0)
    }

    /// Calls `take` with one fact after the other, from the first one on, until that fails. Unlike [`entries`](Self::entries), it needs
    /// no memory for them.
    pub fn replay<E: From<Error>>(&self, take: impl FnMut(JournalEntry) -> Result<(), E>) -> Result<(), E> {
        self.read(0, take)
    }

    /// The same from a place on; 0 is the first one.
    #[cfg(feature = "cli")]
    pub(crate) fn replay_from<E: From<Error>>(
        &self,
        from: u64,
        take: impl FnMut(JournalEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read(from, take)
    }

    /// How many facts there are.
    pub(crate) fn facts(&self) -> Result<u64, Error> {
        Ok(self.at_once(Summary::read)?.facts)
    }

    /// All facts from a place on; 0 is the first one.
    pub fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        let mut entries = Vec::new();
        self.read::<Error>(from, |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(entries)
    }

    fn read<E: From<Error>>(
        &self,
        from: u64,
        take: impl FnMut(JournalEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |source| Error::sqlite("read", &self.path, source);
        let transaction = self.connection.unchecked_transaction().map_err(failed)?;
        let summary = Summary::read(&transaction).map_err(|flaw| flaw.of(&self.path))?;
        Facts::after(&self.path, from, &transaction)?.read_to(summary.claim(), &transaction, take)
    }

    /// All trials, in the order they were created.
    pub fn trials(&self) -> Result<Vec<TrialRow>, Error> {
        self.at_once(|at| {
            let Summary { at_s, sums, .. } = Summary::read(at)?;
            TRIALS.all(at, "ORDER BY trial", sums.trials, |row| trial_row(row, at_s))
        })
    }

    /// One trial.
    pub fn trial(&self, trial: TrialId) -> Result<Option<TrialRow>, Error> {
        self.at_once(|at| {
            let summary = Summary::read(at)?;
            let read = |row: &Row<'_>| trial_row(row, summary.at_s);
            let (mut rows, _) = TRIALS.rows(at, "WHERE trial = ?", [trial.0], read)?;
            match rows.pop() {
                None if trial.0 < summary.trials() => Err(Flaw::Rows(TRIALS.name)),
                row => Ok(row),
            }
        })
    }

    /// The best `count` trials that ran to their end, the best first; with several objectives by the number of
    /// fronts before them.
    pub fn best(&self, count: usize) -> Result<Vec<TrialRow>, Error> {
        let (yaml, values) = self.at_once(|at| {
            let read = |row: &Row<'_>| Ok((TrialId(row.get(0)?), json::<Vec<f64>>(row, 7)?));
            let values = TRIALS.all(at, "ORDER BY trial", Summary::read(at)?.sums.trials, read)?;
            Ok((study_row(at)?.yaml, values))
        })?;
        let done = values.iter().filter_map(|(trial, values)| Some((*trial, &values.as_ref()?[..])));
        let best = best(&parse(&self.path, &yaml)?.objectives, done, count);
        let rows = best.into_iter().map(|trial| self.trial(trial));
        rows.filter_map(Result::transpose).collect()
    }

    /// Who had which slot when, in the order of their beginnings.
    pub fn timeline(&self) -> Result<Vec<Span>, Error> {
        self.at_once(|at| {
            let wanted = Summary::read(at)?.sums.spans;
            SPANS.all(at, "ORDER BY from_s, node, slot", wanted, |row| {
                Ok(Span {
                    slot: SlotId { node: NodeId(row.get(0)?), index: row.get(1)? },
                    trial: TrialId(row.get(2)?),
                    generation: row.get(3)?,
                    from_s: row.get(4)?,
                    to_s: row.get(5)?,
                })
            })
        })
    }

    /// How the study stands.
    pub fn status(&self) -> Result<Status, Error> {
        let (summary, row) = self.at_once(|at| Ok((Summary::read(at)?, study_row(at)?)))?;
        let wanted = parse(&self.path, &row.yaml)?.search.trials;
        let Summary { facts, created_s, at_s, states: trials, slots, busy, .. } = summary;
        let StudyRow { stopping, paused, done, ended, mut waits, .. } = row;
        let is_run = self.is_run();
        if !is_run {
            // Whoever comes next finds out by itself.
            waits.clear();
        }
        Ok(Status {
            created_s,
            at_s,
            facts,
            wanted,
            trials,
            slots,
            busy,
            stopping,
            paused,
            done,
            ended,
            is_run,
            waits,
        })
    }

    /// Whether a process runs the study now.
    #[must_use]
    pub fn is_run(&self) -> bool {
        self.folder.is_run()
    }

    /// Who runs the study now, if anybody does.
    pub fn runner(&self) -> Result<Option<Runner>, Error> {
        self.folder.runner()
    }

    /// Waits until nobody runs the study.
    pub fn wait(&self) -> Result<(), Error> {
        self.folder.wait()
    }
}

/// A journal of an earlier form as one of the present form, in memory: looking at a study does not change it.
fn present_form(earlier: &Connection, path: &Path) -> Result<Connection, Error> {
    let make = || -> Result<Connection, Problem> {
        let mut connection = Connection::open_in_memory()?;
        facts::copy(&mut Facts::unchecked(path), earlier, &mut connection, StudyId::default())?;
        Ok(connection)
    };
    make().map_err(|problem| problem.of(path))
}

/// A study file that was journaled.
pub(super) fn parse(path: &Path, yaml: &str) -> Result<Study, Error> {
    let parsed = Study::from_yaml("the study in the journal", yaml);
    parsed.map_err(|problems| Error::not_whole(path, problems.to_string()))
}

/// The one row of the table `study`.
pub(super) struct StudyRow {
    pub(super) yaml: String,
    stopping: bool,
    paused: bool,
    done: bool,
    ended: Option<String>,
    waits: Vec<(Option<NodeId>, String)>,
}

pub(super) fn study_row(at: &Connection) -> Result<StudyRow, Flaw> {
    let wanted = Summary::read(at)?.sums.study;
    let mut rows = STUDY.all(at, "", wanted, |row| {
        let (yaml, flags, done, ended): (_, i64, _, _) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        let (stopping, paused) = (flags & STOPPING != 0, flags & PAUSED != 0);
        Ok(StudyRow { yaml, stopping, paused, done, ended, waits: json(row, 5)?.unwrap_or_default() })
    })?;
    rows.pop().ok_or(Flaw::Rows(STUDY.name))
}

/// A trial as it is at a time.
fn trial_row(row: &Row<'_>, at_s: f64) -> rusqlite::Result<TrialRow> {
    let (slots, slot_s, counted_s): (u32, f64, f64) = (row.get(11)?, row.get(13)?, row.get(14)?);
    Ok(TrialRow {
        trial: TrialId(row.get(0)?),
        state: state(row, 1)?,
        params: json(row, 2)?.unwrap_or_default(),
        created_s: row.get(3)?,
        ended_s: row.get(4)?,
        epochs: row.get(5)?,
        metrics: json(row, 6)?.unwrap_or_default(),
        values: json(row, 7)?,
        reason: row.get(9)?,
        generation: row.get(10)?,
        slots,
        batch: row.get::<_, Option<i64>>(12)?.map(i64::cast_unsigned),
        slot_s: slot_s + f64::from(slots) * (at_s - counted_s).max(0.0),
    })
}

fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<TrialState> {
    let name = row.get_ref(column)?.as_str()?;
    TrialState::from_stored(name).ok_or_else(|| {
        let problem = format!("there is no state `{name}`");
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, problem.into())
    })
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let text = row.get_ref(column)?.as_str_or_null()?;
    let read = |text: &str| {
        serde_json::from_str(text)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into()))
    };
    text.map(read).transpose()
}
