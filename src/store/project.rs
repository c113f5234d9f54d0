//! Tables that follow from the state of a study, brought up to date in the transaction of its facts.
//!
//! *Architecture invariant:* a row is made from the engine's [`State`] after a fact, never from the fact. A fact only decides which
//! rows may have changed: those of its trial, or else all that are not over.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Params, params};

use super::{Error, TrialState};
use crate::{
    ids::{Generation, NodeId, SlotId, TrialId},
    trials::{
        End,
        engine::{self, ActiveTrial, EndedTrial, Fact, JournalEntry, Metrics, NodeState, Phase, State},
    },
};

/// Why tables cannot be brought up to date.
#[derive(Debug)]
pub(super) enum Problem {
    Fact(engine::Error),
    Sqlite(rusqlite::Error),
    Json(serde_json::Error),
}

impl Problem {
    pub(super) fn of(self, path: &std::path::Path) -> Error {
        match self {
            Self::Fact(source) => Error::OutOfPlace { path: path.to_owned(), source },
            Self::Sqlite(source) => Error::sqlite("write", path, source),
            Self::Json(error) => Error::Damaged { path: path.to_owned(), problem: error.to_string() },
        }
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
#[derive(Debug, Default)]
pub(super) struct Projection {
    pub(super) state: State,
    nodes: BTreeMap<NodeId, NodeState>,
    /// Spans that last: the generation and the slots of a trial.
    spans: BTreeMap<TrialId, (Generation, Vec<SlotId>)>,
    waits: Vec<(Option<NodeId>, String)>,
}

impl Projection {
    /// What tables hold that are up to date with these facts.
    pub(super) fn replay(entries: &[JournalEntry]) -> Result<Self, engine::Error> {
        let mut state = State::default();
        entries.iter().try_for_each(|entry| state.apply(entry))?;
        let spans = state.active.iter().filter_map(|(&trial, active)| Some((trial, span(active)?))).collect();
        Ok(Self { nodes: state.nodes.clone(), spans, waits: waits(&state), state })
    }

    /// Applies facts, and brings the tables up to date with the state after them.
    pub(super) fn apply(&mut self, to: &Connection, entries: &[JournalEntry]) -> Result<(), Problem> {
        let (mut changed, mut study) = (BTreeSet::new(), false);
        for entry in entries {
            let before_s = self.state.at_s;
            self.state.apply(entry).map_err(Problem::Fact)?;
            // What ran, ran until the last fact of the head before this one.
            let until_s = if matches!(entry.fact, Fact::HeadStarted {}) { before_s } else { entry.at_s };
            let trials = entry.fact.trial().map_or_else(
                || self.state.active.keys().chain(self.spans.keys()).copied().collect(),
                |trial| vec![trial],
            );
            study |= entry.fact.trial().is_none() || matches!(entry.fact, Fact::TrialRetried { .. });
            for trial in trials {
                self.write_spans(to, trial, until_s, entry.at_s)?;
                changed.insert(trial);
            }
        }
        for trial in changed {
            self.write_trial(to, trial)?;
        }
        if study {
            self.write_nodes(to)?;
            self.write_study(to)?;
            self.write_waits(to)?;
        }
        Ok(())
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
        if let Some((generation, slots)) = before {
            for slot in slots.iter().filter(|slot| !lasts(now.as_ref(), *generation, slot)) {
                let end =
                    "UPDATE spans SET to_s = ? WHERE to_s IS NULL AND trial = ? AND node = ? AND slot = ?";
                run(to, end, params![until_s, trial.0, slot.node.0, slot.index])?;
            }
        }
        if let Some((generation, slots)) = &now {
            for slot in slots.iter().filter(|slot| !lasts(before, *generation, slot)) {
                let add = "INSERT INTO spans (node, slot, trial, generation, from_s) VALUES (?, ?, ?, ?, ?)";
                run(to, add, params![slot.node.0, slot.index, trial.0, generation.0, at_s])?;
            }
        }
        match now {
            Some(now) => self.spans.insert(trial, now),
            None => self.spans.remove(&trial),
        };
        Ok(())
    }

    fn write_trial(&self, to: &Connection, trial: TrialId) -> Result<(), Problem> {
        if let Some(active) = self.state.active.get(&trial) {
            write_active(to, trial, active)
        } else if let Some(ended) = self.state.ended.get(&trial) {
            write_ended(to, trial, ended)
        } else {
            Ok(())
        }
    }

    fn write_nodes(&mut self, to: &Connection) -> Result<(), Problem> {
        let State { nodes, .. } = &self.state;
        if *nodes == self.nodes {
            return Ok(());
        }
        for (id, _) in self.nodes.iter().filter(|(id, node)| nodes.get(id) != Some(node)) {
            run(to, "DELETE FROM slots WHERE node = ?", [id.0])?;
        }
        for (id, node) in nodes.iter().filter(|(id, node)| self.nodes.get(id) != Some(node)) {
            for slot in 0..node.slots {
                let add = "INSERT INTO slots (node, slot, gpu_type, up) VALUES (?, ?, ?, ?)";
                run(to, add, params![id.0, slot, node.gpu_type.name(), node.up.contains(&slot)])?;
            }
        }
        self.nodes.clone_from(nodes);
        Ok(())
    }

    fn write_waits(&mut self, to: &Connection) -> Result<(), Problem> {
        let now = waits(&self.state);
        if now == self.waits {
            return Ok(());
        }
        run(to, "DELETE FROM waits", [])?;
        for (node, reason) in &now {
            run(
                to,
                "INSERT INTO waits (node, reason) VALUES (?, ?)",
                params![node.map(|node| node.0), reason],
            )?;
        }
        self.waits = now;
        Ok(())
    }

    fn write_study(&self, to: &Connection) -> Result<(), Problem> {
        let State { yaml, stopping, done, search_ended, .. } = &self.state;
        let ended = search_ended.as_ref().map(|end| &end.reason);
        let set = "UPDATE study SET yaml = ?, stopping = ?, done = ?, ended = ?";
        run(to, set, params![yaml, stopping, done, ended])
    }
}

/// What has to be mended, of the study and of nodes.
fn waits(state: &State) -> Vec<(Option<NodeId>, String)> {
    let study = state.waiting.iter().map(|wait| (None, wait.reason.clone()));
    study.chain(state.blocked.iter().map(|(node, reason)| (Some(*node), reason.clone()))).collect()
}

fn run(to: &Connection, sql: &str, values: impl Params) -> Result<(), Problem> {
    to.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn span(active: &ActiveTrial) -> Option<(Generation, Vec<SlotId>)> {
    (!active.slots().is_empty()).then(|| (active.generation, active.slots().to_vec()))
}

fn write_active(to: &Connection, trial: TrialId, active: &ActiveTrial) -> Result<(), Problem> {
    let state = match active.phase {
        Phase::Waiting => TrialState::Waiting,
        Phase::Forming { .. } | Phase::Broken { .. } => TrialState::Forming,
        Phase::Running(_) => TrialState::Running,
        Phase::Pausing(_) => TrialState::Pausing,
    };
    let slots = active.slots().len() as u32;
    let batch = active.phase.group().and_then(|group| group.batch);
    let batch = batch.map(|batch| batch.total(slots).cast_signed());
    let set = "INSERT INTO trials (trial, state, params, created_s, epochs, metrics, generation, slots, batch, slot_s, counted_s) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (trial) DO UPDATE SET state = excluded.state, \
               ended_s = NULL, result = NULL, value = NULL, reason = NULL, \
               epochs = excluded.epochs, metrics = excluded.metrics, generation = excluded.generation, \
               slots = excluded.slots, batch = excluded.batch, slot_s = excluded.slot_s, counted_s = excluded.counted_s";
    let values = params![
        trial.0,
        state.name(),
        serde_json::to_string(&active.params)?,
        active.created_s,
        active.epochs,
        finite(&active.metrics)?,
        active.generation.0,
        slots,
        batch,
        active.usage.slot_s,
        active.usage.until_s,
    ];
    run(to, set, values)
}

fn write_ended(to: &Connection, trial: TrialId, ended: &EndedTrial) -> Result<(), Problem> {
    let (state, values, reason) = match &ended.end {
        End::Done(values) => (TrialState::Done, Some(values), None),
        End::Stopped(reason) => (TrialState::Stopped, None, Some(reason.to_string())),
        End::Failed(reason) => (TrialState::Failed, None, Some(reason.clone())),
        End::Cancelled(reason) => (TrialState::Cancelled, None, Some(reason.clone())),
    };
    let set = "INSERT OR REPLACE INTO trials \
               (trial, state, params, created_s, ended_s, epochs, metrics, result, value, reason, generation, slot_s, counted_s) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values = params![
        trial.0,
        state.name(),
        serde_json::to_string(&ended.params)?,
        ended.created_s,
        ended.ended_s,
        ended.epochs,
        finite(&ended.metrics)?,
        values.map(serde_json::to_string).transpose()?,
        values.and_then(|values| values.first()),
        reason,
        ended.generation.0,
        ended.slot_s,
        ended.ended_s,
    ];
    run(to, set, values)
}

/// Metrics as JSON, without those that are no numbers.
fn finite(metrics: &Metrics) -> Result<String, serde_json::Error> {
    let finite: BTreeMap<_, _> = metrics.iter().filter(|(_, value)| value.value().is_finite()).collect();
    serde_json::to_string(&finite)
}
