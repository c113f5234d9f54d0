use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, Row, types::Type};
use serde::de::DeserializeOwned;

use super::{Error, Folder, Runner, sqlite};
use crate::{
    ids::{NodeId, SlotId, TrialId},
    space::{Params, Study},
    trials::{
        best,
        engine::{JournalEntry, Metrics},
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
        (Self::Forming, "forming"),
        (Self::Running, "running"),
        (Self::Pausing, "pausing"),
        (Self::Done, "done"),
        (Self::Stopped, "stopped"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
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
    /// All is over.
    pub done: bool,
    /// Why there will be no more trials.
    pub ended: Option<String>,
    /// A process runs it now.
    pub is_run: bool,
    /// What it waits for: of the whole study, or of a machine that cannot start workers.
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

const COLUMNS: &str = "trial, state, params, created_s, ended_s, epochs, metrics, result, reason, generation, slots, \
                       batch, slot_s + slots * max(0, (SELECT at_s FROM facts ORDER BY seq DESC LIMIT 1) - counted_s)";

impl Reader {
    /// Opens the study in a folder.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let folder = Folder::new(root);
        let (path, connection) = (folder.journal(), sqlite::open_reader(&folder)?);
        Ok(Self { folder, path, connection })
    }

    /// Where things are.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        match source {
            rusqlite::Error::FromSqlConversionFailure(_, _, problem) => {
                Error::Damaged { path: self.path.clone(), problem: problem.to_string() }
            }
            source => Error::sqlite("read", &self.path, source),
        }
    }

    fn rows<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let all = || self.connection.prepare(sql)?.query_map(values, read)?.collect::<rusqlite::Result<_>>();
        all().map_err(|source| self.failed(source))
    }

    /// The study as it was last started.
    pub fn study(&self) -> Result<Study, Error> {
        let yaml: Vec<String> = self.rows("SELECT yaml FROM study", [], |row| row.get(0))?;
        let yaml = yaml.first().map_or("", String::as_str);
        let damaged = |problem: String| Error::Damaged { path: self.path.clone(), problem };
        Study::from_yaml("the study in the journal", yaml).map_err(|problems| damaged(problems.to_string()))
    }

    /// Whether nothing happened yet.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.rows("SELECT seq FROM facts LIMIT 1", [], |_| Ok(()))?.is_empty())
    }

    /// All facts from a place on; 0 is the first one.
    pub fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        entries(&self.connection, &self.path, from)
    }

    /// All trials, in the order they were created.
    pub fn trials(&self) -> Result<Vec<TrialRow>, Error> {
        self.rows(&format!("SELECT {COLUMNS} FROM trials ORDER BY trial"), [], trial_row)
    }

    /// One trial.
    pub fn trial(&self, trial: TrialId) -> Result<Option<TrialRow>, Error> {
        let one = format!("SELECT {COLUMNS} FROM trials WHERE trial = ?");
        Ok(self.rows(&one, [trial.0], trial_row)?.pop())
    }

    /// The best `count` trials that ran to their end, the best first; with several objectives by the number of
    /// fronts before them.
    pub fn best(&self, count: usize) -> Result<Vec<TrialRow>, Error> {
        let done = "SELECT trial, result FROM trials WHERE result IS NOT NULL ORDER BY trial";
        let done: Vec<(u32, Vec<f64>)> =
            self.rows(done, [], |row| Ok((row.get(0)?, json(row, 1)?.unwrap_or_default())))?;
        let done = done.iter().map(|(trial, values)| (TrialId(*trial), &values[..]));
        let best = best(&self.study()?.objectives, done, count);
        let rows = best.into_iter().map(|trial| self.trial(trial));
        rows.filter_map(Result::transpose).collect()
    }

    /// Who had which slot when, in the order of their beginnings.
    pub fn timeline(&self) -> Result<Vec<Span>, Error> {
        let all = "SELECT node, slot, trial, generation, from_s, to_s FROM spans ORDER BY from_s, node, slot";
        self.rows(all, [], |row| {
            Ok(Span {
                slot: SlotId { node: NodeId(row.get(0)?), index: row.get(1)? },
                trial: TrialId(row.get(2)?),
                generation: row.get(3)?,
                from_s: row.get(4)?,
                to_s: row.get(5)?,
            })
        })
    }

    /// How the study stands.
    pub fn status(&self) -> Result<Status, Error> {
        let wanted = self.study()?.search.trials;
        let states: Vec<(TrialState, u32)> =
            self.rows("SELECT state, count(*) FROM trials GROUP BY state", [], |row| {
                Ok((state(row, 0)?, row.get(1)?))
            })?;
        let one = "SELECT coalesce(first.at_s, 0), coalesce(last.at_s, 0), stopping, done, ended, coalesce(last.seq, 0), \
                   (SELECT count(*) FROM slots WHERE up), (SELECT coalesce(sum(slots), 0) FROM trials) \
                   FROM study LEFT JOIN facts AS first ON first.seq = 1 \
                   LEFT JOIN facts AS last ON last.seq = (SELECT max(seq) FROM facts)";
        let mut status = self.rows(one, [], |row| {
            Ok(Status {
                created_s: row.get(0)?,
                at_s: row.get(1)?,
                stopping: row.get(2)?,
                done: row.get(3)?,
                ended: row.get(4)?,
                facts: row.get::<_, i64>(5)?.cast_unsigned(),
                slots: row.get(6)?,
                busy: row.get(7)?,
                wanted: 0,
                trials: BTreeMap::new(),
                is_run: false,
                waits: Vec::new(),
            })
        })?;
        let status = status.pop().ok_or_else(|| Error::NoStudy(self.folder.root().to_owned()))?;
        let (is_run, trials) = (self.is_run(), states.into_iter().collect());
        // Whoever comes next finds out by itself.
        let waits = if is_run { self.waits()? } else { Vec::new() };
        Ok(Status { wanted, trials, is_run, waits, ..status })
    }

    fn waits(&self) -> Result<Vec<(Option<NodeId>, String)>, Error> {
        let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'waits'";
        if self.rows(known, [], |_| Ok(()))?.is_empty() {
            return Ok(Vec::new());
        }
        let all = "SELECT node, reason FROM waits ORDER BY node";
        self.rows(all, [], |row| Ok((row.get::<_, Option<u32>>(0)?.map(NodeId), row.get(1)?)))
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

/// All facts of a journal from a place on.
pub(super) fn entries(connection: &Connection, path: &Path, from: u64) -> Result<Vec<JournalEntry>, Error> {
    let failed = |source| Error::sqlite("read", path, source);
    let all = "SELECT seq, v, at_s, fact FROM facts WHERE seq > ? ORDER BY seq";
    let mut statement = connection.prepare_cached(all).map_err(failed)?;
    let mut rows = statement.query([from.cast_signed()]).map_err(failed)?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let (seq, v, at_s, fact): (i64, u32, f64, String) = read().map_err(failed)?;
        if v > JournalEntry::VERSION {
            return Err(sqlite::newer(path, v));
        }
        let damaged = |problem: String| Error::Damaged {
            path: path.to_owned(),
            problem: format!("fact {seq} cannot be read: {problem}"),
        };
        if seq.cast_unsigned() != from + entries.len() as u64 + 1 {
            return Err(damaged("facts before it are missing".to_owned()));
        }
        let fact = serde_json::from_str(&fact).map_err(|error| damaged(error.to_string()))?;
        entries.push(JournalEntry { at_s, fact });
    }
    Ok(entries)
}

fn trial_row(row: &Row<'_>) -> rusqlite::Result<TrialRow> {
    Ok(TrialRow {
        trial: TrialId(row.get(0)?),
        state: state(row, 1)?,
        params: json(row, 2)?.unwrap_or_default(),
        created_s: row.get(3)?,
        ended_s: row.get(4)?,
        epochs: row.get(5)?,
        metrics: json(row, 6)?.unwrap_or_default(),
        values: json(row, 7)?,
        reason: row.get(8)?,
        generation: row.get(9)?,
        slots: row.get(10)?,
        batch: row.get::<_, Option<i64>>(11)?.map(|batch| batch as u64),
        slot_s: row.get(12)?,
    })
}

fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<TrialState> {
    let name: String = row.get(column)?;
    let known = TrialState::ALL.into_iter().find(|(_, known)| *known == name);
    known.map(|(state, _)| state).ok_or_else(|| {
        let problem = format!("there is no state `{name}`");
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, problem.into())
    })
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    let read = |text: String| {
        serde_json::from_str(&text)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into()))
    };
    text.map(read).transpose()
}
