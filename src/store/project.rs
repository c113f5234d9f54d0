//! Tables that follow from the state of a study, brought up to date in the transaction of its facts.
//!
//! *Architecture invariant:* a row is made from the engine's [`State`] after a fact, never from the fact. A fact only decides which
//! rows may have changed: those of its trial, or else all that are not over.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Params, params, params_from_iter, types::Value};

use super::{
    Error, TrialState,
    digest::{Chain, sum_of},
    seal::Claim,
    tables::{PAUSED, SLOTS, SPANS, STOPPING, STUDY, SUMMARY, Summary, TRIALS, Table},
};
use crate::{
    ids::{Generation, NodeId, SlotId, StudyId, TrialId},
    space::Study,
    trials::{
        End,
        engine::{self, ActiveTrial, EndedTrial, Fact, JournalEntry, Metrics, NodeState, State},
    },
};

/// Why tables cannot be brought up to date.
#[derive(Debug)]
pub(super) enum Problem {
    Fact(engine::Error),
    Sqlite(rusqlite::Error),
    Json(serde_json::Error),
    /// A row that must be there.
    NoRow(&'static str),
    /// What they follow from cannot be read.
    Journal(Error),
}

impl Problem {
    pub(super) fn of(self, path: &std::path::Path) -> Error {
        match self {
            Self::Fact(source) => Error::OutOfPlace { path: path.to_owned(), source },
            Self::Sqlite(source) => Error::sqlite("write", path, source),
            Self::Json(error) => Error::not_whole(path, error.to_string()),
            Self::NoRow(table) => Error::not_whole(path, format!("a row of `{table}` is missing")),
            Self::Journal(error) => error,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Journal(error)
    }
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// The state of a study, and what its tables hold of it.
#[derive(Debug)]
pub(super) struct Projection {
    pub(super) state: State,
    /// The study of the state; none if it cannot be read.
    study: Option<Study>,
    nodes: BTreeMap<NodeId, NodeState>,
    /// Spans that last: the generation and the slots of a trial.
    spans: BTreeMap<TrialId, (Generation, Vec<SlotId>)>,
    summary: Summary,
}

impl Projection {
    /// Of a study in which nothing has happened.
    pub(super) fn begin(study: StudyId) -> Self {
        let summary = Summary::begin(Chain::begin(study));
        Self { state: State::default(), study: None, nodes: BTreeMap::new(), spans: BTreeMap::new(), summary }
    }

    /// What tables hold that are up to date with this state, and have this summary.
    pub(super) fn of(state: State, summary: Summary) -> Self {
        let spans = state.active.iter().filter_map(|(&trial, active)| Some((trial, span(active)?))).collect();
        Self { nodes: state.nodes.clone(), spans, study: study_of(&state), state, summary }
    }

    /// How many facts there are, and their chain.
    pub(super) const fn claim(&self) -> Claim {
        Claim { facts: self.summary.facts, chain: self.summary.chain }
    }

    /// Writes what there is of a study in which nothing has happened.
    pub(super) fn write_all(&mut self, to: &Connection) -> Result<(), Problem> {
        self.write_study(to)?;
        self.write_summary(to)
    }

    /// Applies facts, the last of which has this chain, and brings the tables up to date with the state after them.
    pub(super) fn apply(
        &mut self,
        to: &Connection,
        entries: &[JournalEntry],
        chain: Chain,
    ) -> Result<(), Problem> {
        let (mut changed, mut study) = (BTreeMap::new(), false);
        for entry in entries {
            let before_s = self.state.at_s;
            // The state forgets what a trial has measured when it ends.
            let measured = |trial| self.state.active.get(&trial).map(|active| active.metrics.clone());
            let measured = entry.fact.end().and_then(|(trial, _)| measured(trial));
            self.state.apply(entry).map_err(Problem::Fact)?;
            if matches!(entry.fact, Fact::StudyCreated { .. } | Fact::StudyChanged { .. }) {
                self.study = study_of(&self.state);
            }
            // What ran, ran until the last fact of the head before this one.
            let until_s = if matches!(entry.fact, Fact::HeadStarted {}) { before_s } else { entry.at_s };
            let trials = entry.fact.trial().map_or_else(
                || self.state.active.keys().chain(self.spans.keys()).copied().collect(),
                |trial| vec![trial],
            );
            study |= entry.fact.trial().is_none() || matches!(entry.fact, Fact::TrialRetried { .. });
            for trial in trials {
                self.write_spans(to, trial, until_s, entry.at_s)?;
                let last: &mut Option<Metrics> = changed.entry(trial).or_default();
                *last = measured.clone().or_else(|| last.take());
            }
        }
        for (trial, measured) in changed {
            self.write_trial(to, trial, measured.as_ref())?;
        }
        if study {
            self.write_nodes(to)?;
            self.write_study(to)?;
        }
        if let (0, Some(first)) = (self.summary.facts, entries.first()) {
            self.summary.created_s = first.at_s;
        }
        self.summary.facts += entries.len() as u64;
        self.summary.chain = chain;
        self.summary.at_s = self.state.at_s;
        self.summary.slots = self.state.slot_count() as u32;
        self.write_summary(to)
    }

    /// Ends the spans that are over, and begins new ones.
    fn write_spans(
        &mut self,
        to: &Connection,
        trial: TrialId,
        until_s: f64,
        at_s: f64,
    ) -> Result<(), Problem> {
        let now = self.state.active.get(&trial).and_then(span);
        let before = self.spans.get(&trial);
        if before == now.as_ref() {
            return Ok(());
        }
        let lasts = |spans: Option<&(Generation, Vec<SlotId>)>, generation: Generation, slot: &SlotId| {
            spans.is_some_and(|(other, slots)| *other == generation && slots.contains(slot))
        };
        let sums = &mut self.summary.sums.spans;
        if let Some((generation, slots)) = before {
            for slot in slots.iter().filter(|slot| !lasts(now.as_ref(), *generation, slot)) {
                end_span(to, sums, (trial, *slot), until_s)?;
            }
        }
        if let Some((generation, slots)) = &now {
            for slot in slots.iter().filter(|slot| !lasts(before, *generation, slot)) {
                let row = span_row(*slot, trial, *generation, at_s, None);
                *sums = sums.wrapping_add(insert(to, &SPANS, row)?);
            }
        }
        match now {
            Some(now) => self.spans.insert(trial, now),
            None => self.spans.remove(&trial),
        };
        Ok(())
    }

    /// Writes the row of a trial, with what it had measured if it has ended just now.
    fn write_trial(
        &mut self,
        to: &Connection,
        trial: TrialId,
        measured: Option<&Metrics>,
    ) -> Result<(), Problem> {
        let (state, slots, row) = if let Some(active) = self.state.active.get(&trial) {
            (TrialState::of(active), active.slots().len() as u32, active_row(trial, active)?)
        } else if let (Some(ended), Some(measured)) = (self.state.ended.get(&trial), measured) {
            let (state, row) = ended_row(trial, ended, measured)?;
            (state, 0, row)
        } else {
            // What has ended before stays as it is.
            return Ok(());
        };
        let before = "SELECT state, slots, sum FROM trials WHERE trial = ?";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let before: Option<(String, u32, i64)> =
            to.prepare_cached(before)?.query_row([trial.0], read).optional()?;
        let summary = &mut self.summary;
        if let Some((state, slots, sum)) = before {
            let state = TrialState::from_stored(&state).ok_or(Problem::NoRow(TRIALS.name))?;
            summary.leave(state, slots);
            summary.sums.trials = summary.sums.trials.wrapping_sub(sum);
        }
        summary.enter(state, slots);
        summary.sums.trials = summary.sums.trials.wrapping_add(insert(to, &TRIALS, row)?);
        Ok(())
    }

    fn write_nodes(&mut self, to: &Connection) -> Result<(), Problem> {
        let (State { nodes, .. }, sums) = (&self.state, &mut self.summary.sums.slots);
        if *nodes == self.nodes {
            return Ok(());
        }
        for (id, node) in self.nodes.iter().filter(|(id, node)| nodes.get(id) != Some(node)) {
            run(to, "DELETE FROM slots WHERE node = ?", [id.0])?;
            for row in slot_rows(*id, node) {
                *sums = sums.wrapping_sub(sum_of(SLOTS.name, &row));
            }
        }
        for (id, node) in nodes.iter().filter(|(id, node)| self.nodes.get(id) != Some(node)) {
            for row in slot_rows(*id, node) {
                *sums = sums.wrapping_add(insert(to, &SLOTS, row)?);
            }
        }
        self.nodes.clone_from(nodes);
        Ok(())
    }

    fn write_study(&mut self, to: &Connection) -> Result<(), Problem> {
        let State { yaml, stopping, paused_s, done, search_ended, .. } = &self.state;
        let ended = search_ended.as_ref().map(|end| end.reason.clone());
        let waits = serde_json::to_string(&waits(&self.state, self.study.as_ref()))?;
        let stopping = (i64::from(*stopping) * STOPPING) | (i64::from(paused_s.is_some()) * PAUSED);
        let flags = [stopping.into(), (*done).into()];
        let mut row: Vec<Value> = vec![1.into(), yaml.clone().into()];
        row.extend(flags.into_iter().chain([ended.into(), waits.into()]));
        self.summary.sums.study = insert(to, &STUDY, row)?;
        Ok(())
    }

    fn write_summary(&self, to: &Connection) -> Result<(), Problem> {
        insert(to, &SUMMARY, self.summary.row()?)?;
        Ok(())
    }
}

fn run(to: &Connection, sql: &str, values: impl Params) -> Result<(), Problem> {
    to.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

/// Writes a row in place of the one with its key, and returns its checksum.
fn insert(to: &Connection, table: &Table, mut row: Vec<Value>) -> Result<i64, Problem> {
    let sum = sum_of(table.name, &row);
    row.push(sum.into());
    run(to, table.insert, params_from_iter(row))?;
    Ok(sum)
}

fn span_row(slot: SlotId, trial: TrialId, of: Generation, from_s: f64, to_s: Option<f64>) -> Vec<Value> {
    vec![slot.node.0.into(), slot.index.into(), trial.0.into(), of.0.into(), from_s.into(), to_s.into()]
}

fn end_span(
    to: &Connection,
    sums: &mut i64,
    (trial, slot): (TrialId, SlotId),
    until_s: f64,
) -> Result<(), Problem> {
    let lasting = "SELECT rowid, generation, from_s, sum FROM spans WHERE to_s IS NULL AND trial = ? AND node = ? AND slot = ?";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let mut lasting = to.prepare_cached(lasting)?;
    let lasting = lasting.query_row(params![trial.0, slot.node.0, slot.index], read).optional()?;
    let (number, generation, from_s, before): (i64, u32, f64, i64) =
        lasting.ok_or(Problem::NoRow(SPANS.name))?;
    let sum = sum_of(SPANS.name, &span_row(slot, trial, Generation(generation), from_s, Some(until_s)));
    run(to, "UPDATE spans SET to_s = ?, sum = ? WHERE rowid = ?", params![until_s, sum, number])?;
    *sums = sums.wrapping_sub(before).wrapping_add(sum);
    Ok(())
}

fn slot_rows(id: NodeId, node: &NodeState) -> impl Iterator<Item = Vec<Value>> {
    (0..node.slots).map(move |slot| {
        let (gpu_type, up) = (node.gpu_type.name().to_owned(), node.up.contains(&slot));
        vec![id.0.into(), slot.into(), gpu_type.into(), up.into()]
    })
}

fn study_of(state: &State) -> Option<Study> {
    Study::from_yaml("the study in the journal", &state.yaml).ok()
}

/// What the study waits for: that something is mended, of all or of a node, or that there are machines for it.
fn waits(state: &State, study: Option<&Study>) -> Vec<(Option<NodeId>, String)> {
    let broken = state.waiting.iter().map(|wait| (None, wait.reason.clone()));
    let blocked = state.blocked.iter().map(|(node, reason)| (Some(*node), reason.clone()));
    let shortage = study.and_then(|study| state.shortage(study)).map(|reason| (None, reason));
    broken.chain(blocked).chain(shortage).collect()
}

fn span(active: &ActiveTrial) -> Option<(Generation, Vec<SlotId>)> {
    (!active.slots().is_empty()).then(|| (active.generation, active.slots().to_vec()))
}

fn active_row(trial: TrialId, active: &ActiveTrial) -> Result<Vec<Value>, Problem> {
    let slots = active.slots().len() as u32;
    let batch = active.phase.group().and_then(|group| group.batch);
    let batch = batch.map(|batch| batch.total(slots).cast_signed());
    Ok(vec![
        trial.0.into(),
        TrialState::of(active).stored_name().to_owned().into(),
        serde_json::to_string(&active.params)?.into(),
        active.created_s.into(),
        Value::Null,
        active.epochs.into(),
        finite(&active.metrics)?.into(),
        Value::Null,
        Value::Null,
        Value::Null,
        active.generation.0.into(),
        slots.into(),
        batch.into(),
        active.usage.slot_s.into(),
        active.usage.until_s.into(),
    ])
}

fn ended_row(
    trial: TrialId,
    ended: &EndedTrial,
    measured: &Metrics,
) -> Result<(TrialState, Vec<Value>), Problem> {
    let (state, values, reason) = match &ended.end {
        End::Done(values) => (TrialState::Done, Some(values), None),
        End::Stopped(reason) => (TrialState::Stopped, None, Some(reason.to_string())),
        End::Failed(reason) => (TrialState::Failed, None, Some(reason.clone())),
        End::Cancelled(reason) => (TrialState::Cancelled, None, Some(reason.clone())),
    };
    let row = vec![
        trial.0.into(),
        state.stored_name().to_owned().into(),
        serde_json::to_string(&ended.params)?.into(),
        ended.created_s.into(),
        ended.ended_s.into(),
        ended.epochs.into(),
        finite(measured)?.into(),
        values.map(serde_json::to_string).transpose()?.into(),
        values.and_then(|values| values.first().copied()).into(),
        reason.into(),
        ended.generation.0.into(),
        0.into(),
        Value::Null,
        ended.slot_s.into(),
        ended.ended_s.into(),
    ];
    Ok((state, row))
}

/// Metrics as JSON, without those that are no numbers.
fn finite(metrics: &Metrics) -> Result<String, serde_json::Error> {
    let finite: BTreeMap<_, _> = metrics.iter().filter(|(_, value)| value.value().is_finite()).collect();
    serde_json::to_string(&finite)
}
