//! The tables that follow from the facts: their columns, and the checks of their rows.

use std::{collections::BTreeMap, path::Path};

use rusqlite::{Connection, Row, types::Value};
use serde::{Deserialize, Serialize};

use super::{
    Error, TrialState,
    digest::{Chain, row_sum},
    seal::Claim,
};

/// A table whose last column is the checksum of the others.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// All columns in their order, with the checksum.
    pub(super) select: &'static str,
    pub(super) insert: &'static str,
    /// Without the checksum.
    pub(super) columns: usize,
}

pub(super) const STUDY: Table = Table {
    name: "study",
    select: "SELECT id, yaml, stopping, done, ended, waits, sum FROM study",
    insert: "INSERT OR REPLACE INTO study (id, yaml, stopping, done, ended, waits, sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
    columns: 6,
};

/// In the column `stopping`: the user wants to resume later.
pub(super) const STOPPING: i64 = 1;
/// In the same column: the user wants no trial to be launched for now.
pub(super) const PAUSED: i64 = 2;

pub(super) const SLOTS: Table = Table {
    name: "slots",
    select: "SELECT node, slot, gpu_type, up, sum FROM slots",
    insert: "INSERT INTO slots (node, slot, gpu_type, up, sum) VALUES (?, ?, ?, ?, ?)",
    columns: 4,
};

pub(super) const TRIALS: Table = Table {
    name: "trials",
    select: "SELECT trial, state, params, created_s, ended_s, epochs, metrics, result, value, reason, generation, slots, \
             batch, slot_s, counted_s, sum FROM trials",
    insert: "INSERT OR REPLACE INTO trials (trial, state, params, created_s, ended_s, epochs, metrics, result, value, reason, \
             generation, slots, batch, slot_s, counted_s, sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    columns: 15,
};

pub(super) const SPANS: Table = Table {
    name: "spans",
    select: "SELECT node, slot, trial, generation, from_s, to_s, sum FROM spans",
    insert: "INSERT INTO spans (node, slot, trial, generation, from_s, to_s, sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
    columns: 6,
};

pub(super) const SUMMARY: Table = Table {
    name: "summary",
    select: "SELECT id, facts, chain, created_s, at_s, states, slots, busy, sums, sum FROM summary",
    insert: "INSERT OR REPLACE INTO summary (id, facts, chain, created_s, at_s, states, slots, busy, sums, sum) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    columns: 9,
};

/// What is wrong with a table.
#[derive(Debug)]
pub(super) enum Flaw {
    Sqlite(rusqlite::Error),
    /// What is there was not written so.
    Changed(&'static str),
    /// Some rows are missing, or too many are there.
    Rows(&'static str),
}

impl Flaw {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Sqlite(error) => error.to_string(),
            Self::Changed(table) => format!("a row of the table `{table}` is not what was written"),
            Self::Rows(table) => format!("the table `{table}` does not have all its rows"),
        }
    }
}

impl Flaw {
    /// As an error of a journal.
    pub(super) fn of(self, path: &Path) -> Error {
        match self {
            Self::Sqlite(source @ rusqlite::Error::SqliteFailure(..)) => Error::sqlite("read", path, source),
            flaw => Error::not_whole(path, flaw.describe()),
        }
    }
}

impl From<rusqlite::Error> for Flaw {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Table {
    /// Whether a row is what was written, and its checksum.
    pub(super) fn check(&self, row: &Row<'_>) -> Result<i64, Flaw> {
        let values = (0..self.columns).map(|column| row.get_ref(column)).collect::<Result<Vec<_>, _>>()?;
        let sum: i64 = row.get(self.columns)?;
        if row_sum(self.name, values) == sum { Ok(sum) } else { Err(Flaw::Changed(self.name)) }
    }

    /// The rows that a condition or an order leaves, checked one by one; the second is the sum of their checksums.
    pub(super) fn rows<T>(
        &self,
        from: &Connection,
        rest: &str,
        values: impl rusqlite::Params,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<(Vec<T>, i64), Flaw> {
        let mut statement = from.prepare_cached(&format!("{} {rest}", self.select))?;
        let (mut rows, mut all, mut sum) = (statement.query(values)?, Vec::new(), 0_i64);
        while let Some(row) = rows.next()? {
            sum = sum.wrapping_add(self.check(row)?);
            all.push(read(row)?);
        }
        Ok((all, sum))
    }

    /// All rows in an order, of which none may be missing.
    pub(super) fn all<T>(
        &self,
        from: &Connection,
        order: &str,
        wanted: i64,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Flaw> {
        let (rows, sum) = self.rows(from, order, [], read)?;
        if sum == wanted { Ok(rows) } else { Err(Flaw::Rows(self.name)) }
    }
}

/// The sums of the checksums of the rows of each table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) trials: i64,
    pub(super) spans: i64,
    pub(super) slots: i64,
    pub(super) study: i64,
}

/// A study in one row, from which it is known what the other tables must hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Summary {
    pub(super) facts: u64,
    pub(super) chain: Chain,
    pub(super) created_s: f64,
    pub(super) at_s: f64,
    pub(super) states: BTreeMap<TrialState, u32>,
    pub(super) slots: u32,
    pub(super) busy: u32,
    pub(super) sums: Sums,
}

impl Summary {
    pub(super) const fn begin(chain: Chain) -> Self {
        let sums = Sums { trials: 0, spans: 0, slots: 0, study: 0 };
        Self { facts: 0, chain, created_s: 0.0, at_s: 0.0, states: BTreeMap::new(), slots: 0, busy: 0, sums }
    }

    /// A trial is in a state no more.
    pub(super) fn leave(&mut self, state: TrialState, slots: u32) {
        self.busy = self.busy.saturating_sub(slots);
        if let Some(count) = self.states.get_mut(&state) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.states.remove(&state);
            }
        }
    }

    /// A trial is in a state from now on.
    pub(super) fn enter(&mut self, state: TrialState, slots: u32) {
        self.busy += slots;
        *self.states.entry(state).or_default() += 1;
    }

    /// The facts that the tables follow from.
    pub(super) const fn claim(&self) -> Claim {
        Claim { facts: self.facts, chain: self.chain }
    }

    /// How many trials there are.
    pub(super) fn trials(&self) -> u32 {
        self.states.values().sum()
    }

    pub(super) fn row(&self) -> Result<Vec<Value>, serde_json::Error> {
        let states: BTreeMap<&str, u32> =
            self.states.iter().map(|(state, count)| (state.stored_name(), *count)).collect();
        Ok(vec![
            1.into(),
            self.facts.cast_signed().into(),
            self.chain.bytes().to_vec().into(),
            self.created_s.into(),
            self.at_s.into(),
            serde_json::to_string(&states)?.into(),
            self.slots.into(),
            self.busy.into(),
            serde_json::to_string(&self.sums)?.into(),
        ])
    }

    pub(super) fn read(from: &Connection) -> Result<Self, Flaw> {
        let (mut rows, _) = SUMMARY.rows(from, "", [], |row| {
            let states: BTreeMap<String, u32> =
                serde_json::from_str(row.get_ref(5)?.as_str()?).unwrap_or_default();
            let states =
                states.iter().filter_map(|(name, count)| Some((TrialState::from_stored(name)?, *count)));
            let chain = Chain::from_bytes(row.get_ref(2)?.as_blob()?);
            let sums = serde_json::from_str(row.get_ref(8)?.as_str()?).ok();
            let summary = |chain, sums| -> rusqlite::Result<Self> {
                Ok(Self {
                    facts: row.get::<_, i64>(1)?.cast_unsigned(),
                    chain,
                    created_s: row.get(3)?,
                    at_s: row.get(4)?,
                    states: states.collect(),
                    slots: row.get(6)?,
                    busy: row.get(7)?,
                    sums,
                })
            };
            chain.zip(sums).map(|(chain, sums)| summary(chain, sums)).transpose()
        })?;
        rows.pop().flatten().ok_or(Flaw::Rows(SUMMARY.name))
    }
}
