//! Facts in a journal: how they are written, and how they are read and checked.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    Error,
    digest::{Chain, RawFact},
    project::{Problem, Projection},
    seal::{Claim, Seal},
    sqlite,
};
use crate::{
    ids::StudyId,
    space::Params,
    trials::engine::{Fact, JournalEntry},
};

/// Adds facts, the first of which has this place, after those with this chain. The chain after them is returned.
pub(super) fn insert(
    to: &Connection,
    from: u64,
    mut chain: Chain,
    entries: &[JournalEntry],
) -> Result<Chain, Problem> {
    let insert = "INSERT INTO facts (seq, v, at_s, kind, trial, fact, chain) VALUES (?, ?, ?, ?, ?, ?, ?)";
    let mut insert = to.prepare_cached(insert)?;
    for (seq, JournalEntry { at_s, fact }) in (from..).zip(entries) {
        let (kind, trial) = (fact.kind(), fact.trial().map(|trial| trial.0));
        let (v, fact) = (JournalEntry::VERSION, serde_json::to_string(fact)?);
        chain = chain.next(&RawFact { seq, v, at_s: *at_s, kind, trial, fact: &fact });
        insert.execute(params![seq.cast_signed(), v, at_s, kind, trial, fact, chain.bytes()])?;
    }
    Ok(chain)
}

/// Reads facts in their order, and checks that none is missing or changed.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    path: &'a Path,
    /// The last one that was read.
    pub(super) seq: u64,
    /// The last one to read.
    until: u64,
    /// The chain up to it; none where facts have no chain.
    pub(super) chain: Option<Chain>,
    /// Those of the last trial: the next ones have the same names.
    params: Option<Params>,
}

/// So many facts are in memory at once where all of them are written elsewhere.
const CHUNK: usize = 1000;

/// There are no more.
const END: u64 = i64::MAX.cast_unsigned();

impl<'a> Facts<'a> {
    /// Of a journal of an earlier form.
    pub(super) const fn unchecked(path: &'a Path) -> Self {
        Self { path, seq: 0, until: END, chain: None, params: None }
    }

    /// From the first one on.
    pub(super) const fn all(path: &'a Path, begin: Chain) -> Self {
        Self { path, seq: 0, until: END, chain: Some(begin), params: None }
    }

    /// The same up to a place: what comes after is not looked at.
    pub(super) fn until(self, until: u64) -> Self {
        Self { until, ..self }
    }

    /// From a place on. What comes before is not checked again.
    pub(super) fn after(path: &'a Path, from: u64, connection: &Connection) -> Result<Self, Error> {
        let chain = match from {
            0 => Some(Chain::begin(sqlite::study_id(connection, path)?)),
            from => chain_at(connection, from).map_err(|source| Error::sqlite("read", path, source))?,
        };
        Ok(Self { path, seq: from, until: END, chain, params: None })
    }

    /// Calls `take` with one fact after the other, until that fails.
    pub(super) fn read<E: From<Error>>(
        &mut self,
        connection: &Connection,
        mut take: impl FnMut(JournalEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |source| Error::sqlite("read", self.path, source);
        let mut statement = connection.prepare(&self.query()).map_err(failed)?;
        let places = [self.seq.cast_signed(), self.until.cast_signed()];
        let mut rows = statement.query(places).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (mut entry, chain) = self.entry(row)?;
            (self.seq, self.chain) = (self.seq + 1, chain);
            if let Fact::TrialCreated { params, .. } = &mut entry.fact {
                let own = std::mem::take(params);
                *params = self.params.iter().fold(own, Params::sharing_names);
                self.params = Some(params.clone());
            }
            take(entry)?;
        }
        Ok(())
    }

    /// The same with facts that must lead to this.
    pub(super) fn read_to<E: From<Error>>(
        &mut self,
        Claim { facts, chain }: Claim,
        connection: &Connection,
        take: impl FnMut(JournalEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read(connection, take)?;
        if facts >= self.seq && self.chain != Some(chain) {
            let problem = format!("it has {} of {facts} facts", self.seq);
            return Err(Error::not_whole(self.path, problem).into());
        }
        Ok(())
    }

    /// Calls `take` with many facts at once.
    pub(super) fn read_chunks<E: From<Error>>(
        &mut self,
        connection: &Connection,
        mut take: impl FnMut(&[JournalEntry]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut chunk = Vec::with_capacity(CHUNK);
        self.read::<E>(connection, |entry| {
            chunk.push(entry);
            if chunk.len() < CHUNK {
                return Ok(());
            }
            take(&chunk)?;
            chunk.clear();
            Ok(())
        })?;
        if chunk.is_empty() { Ok(()) } else { take(&chunk) }
    }

    /// The next fact, if there is one.
    pub(super) fn first(&self, connection: &Connection) -> Result<Option<JournalEntry>, Error> {
        let failed = |source| Error::sqlite("read", self.path, source);
        let mut statement = connection.prepare(&self.query()).map_err(failed)?;
        let places = [self.seq.cast_signed(), self.until.cast_signed()];
        let mut rows = statement.query(places).map_err(failed)?;
        rows.next().map_err(failed)?.map(|row| Ok(self.entry(row)?.0)).transpose()
    }

    fn query(&self) -> String {
        let chain = if self.chain.is_some() { "chain" } else { "NULL" };
        format!(
            "SELECT seq, v, at_s, kind, trial, fact, {chain} FROM facts WHERE seq > ? AND seq <= ? ORDER BY seq"
        )
    }

    fn entry(&self, row: &Row<'_>) -> Result<(JournalEntry, Option<Chain>), Error> {
        let wanted = self.seq + 1;
        let damaged =
            |problem: String| Error::not_whole(self.path, format!("fact {wanted} cannot be read: {problem}"));
        let read = || -> rusqlite::Result<_> {
            let raw = RawFact {
                seq: row.get::<_, i64>(0)?.cast_unsigned(),
                v: row.get(1)?,
                at_s: row.get(2)?,
                kind: row.get_ref(3)?.as_str()?,
                trial: row.get(4)?,
                fact: row.get_ref(5)?.as_str()?,
            };
            let chain =
                self.chain.map(|_| row.get_ref(6)?.as_blob().map_err(rusqlite::Error::from)).transpose()?;
            Ok((raw, chain))
        };
        let (raw, stored) = read().map_err(|error| damaged(error.to_string()))?;
        if raw.seq != wanted {
            return Err(damaged(format!("the next one is fact {}", raw.seq)));
        }
        let chain = self.chain.map(|chain| chain.next(&raw));
        if chain.as_ref().map(Chain::bytes) != stored {
            return Err(damaged("it is not what was written".to_owned()));
        }
        if raw.v > JournalEntry::VERSION {
            return Err(sqlite::newer(self.path, raw.v));
        }
        let fact = serde_json::from_str(raw.fact).map_err(|error| damaged(error.to_string()))?;
        Ok((JournalEntry { at_s: raw.at_s, fact }, chain))
    }

    /// All facts that are left.
    pub(super) fn collect(mut self, connection: &Connection) -> Result<Vec<JournalEntry>, Error> {
        let mut entries = Vec::new();
        self.read::<Error>(connection, |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(entries)
    }
}

/// Writes the facts of a journal into a new one, with the tables that follow from them.
pub(super) fn copy(
    facts: &mut Facts<'_>,
    from: &Connection,
    to: &mut Connection,
    study: StudyId,
) -> Result<Claim, Problem> {
    sqlite::begin(to, study)?;
    let transaction = to.transaction()?;
    let mut projection = Projection::begin(study);
    facts.read_chunks::<Problem>(from, |entries| {
        let Claim { facts, chain } = projection.claim();
        let chain = insert(&transaction, facts + 1, chain, entries)?;
        projection.apply(&transaction, entries, chain)
    })?;
    transaction.commit()?;
    Ok(projection.claim())
}

/// The chain up to a fact; none if it is not there.
pub(super) fn chain_at(connection: &Connection, seq: u64) -> rusqlite::Result<Option<Chain>> {
    let one = "SELECT chain FROM facts WHERE seq = ?";
    let chain =
        connection.prepare_cached(one)?.query_row([seq.cast_signed()], |row| row.get::<_, Vec<u8>>(0));
    Ok(chain.optional()?.and_then(|bytes| Chain::from_bytes(&bytes)))
}

/// Whether a journal of the present form holds what its seal says.
pub(super) fn check_seal(connection: &Connection, path: &Path, seal: Option<&Seal>) -> Result<(), Error> {
    let failed = |source| Error::sqlite("read", path, source);
    let count = "SELECT coalesce(max(seq), 0) FROM facts";
    let count: i64 = connection.query_row(count, [], |row| row.get(0)).map_err(failed)?;
    let study = sqlite::study_id(connection, path)?;
    let Some(seal) = seal else {
        // A journal that was made a moment ago has none yet.
        let problem = "journal.seal, which says what it must hold, is missing".to_owned();
        return if count == 0 { Ok(()) } else { Err(Error::not_whole(path, problem)) };
    };
    if seal.study != study {
        let problem = format!("it is that of the study {study}, and journal.seal that of {}", seal.study);
        return Err(Error::not_whole(path, problem));
    }
    for Claim { facts, chain } in seal.claims() {
        let there = if facts == 0 {
            Some(Chain::begin(study))
        } else {
            chain_at(connection, facts).map_err(failed)?
        };
        if there != Some(chain) {
            let problem = if count.cast_unsigned() < facts {
                format!("it has {count} of {facts} facts")
            } else {
                format!("fact {facts} is not what was written")
            };
            return Err(Error::not_whole(path, problem));
        }
    }
    Ok(())
}
