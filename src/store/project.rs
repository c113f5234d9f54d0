//! Tables that follow from the facts, kept up to date with them in the same transaction.

use rusqlite::{Connection, Params, Result, ToSql, params};

use crate::trials::engine::{Entry, Fact, SlotId};

/// Brings the tables up to date with a fact.
pub(super) fn entry(to: &Connection, entry: &Entry) -> Result<()> {
    let Entry { at_s, fact } = entry;
    match fact.trial() {
        Some(trial) => of_trial(to, *at_s, trial.0, fact)?,
        None => of_study(to, *at_s, fact)?,
    }
    run(to, "UPDATE study SET at_s = ?", [at_s])
}

fn run(to: &Connection, sql: &str, values: impl Params) -> Result<()> {
    to.prepare_cached(sql)?.execute(values).map(|_| ())
}

fn of_study(to: &Connection, at_s: f64, fact: &Fact) -> Result<()> {
    match fact {
        Fact::StudyCreated { yaml } => {
            run(to, "UPDATE study SET yaml = ?, created_s = ?", params![yaml, at_s])
        }
        Fact::StudyChanged { yaml } => run(to, "UPDATE study SET yaml = ?", [yaml]),
        Fact::HeadStarted {} => {
            // What ran, ran until the last word of the head before this one.
            let before_s: f64 = to.query_row("SELECT at_s FROM study", [], |row| row.get(0))?;
            run(to, "UPDATE spans SET to_s = ? WHERE to_s IS NULL", [before_s])?;
            count(to, before_s, "slots > 0", [])?;
            run(
                to,
                "UPDATE trials SET state = 'waiting', slots = 0, batch = NULL WHERE ended_s IS NULL",
                [],
            )?;
            run(to, "DELETE FROM slots", [])?;
            run(to, "UPDATE study SET stopping = 0, done = 0", [])
        }
        Fact::NodeJoined { node, gpu_type, slots, .. } => {
            for slot in 0..*slots {
                let add = "INSERT INTO slots (node, slot, gpu_type, up) VALUES (?, ?, ?, 1)";
                run(to, add, params![node.0, slot, gpu_type.name()])?;
            }
            Ok(())
        }
        Fact::NodeLost { node, .. } => {
            run(to, "DELETE FROM slots WHERE node = ?", [node.0])?;
            run(to, "UPDATE spans SET to_s = ? WHERE to_s IS NULL AND node = ?", params![at_s, node.0])
        }
        Fact::SlotJoined { slot } => set_up(to, *slot, true),
        Fact::SlotLost { slot, .. } => {
            set_up(to, *slot, false)?;
            let close = "UPDATE spans SET to_s = ? WHERE to_s IS NULL AND node = ? AND slot = ?";
            run(to, close, params![at_s, slot.node.0, slot.index])
        }
        Fact::SuggestionsEnded { reason, .. } => run(to, "UPDATE study SET ended = ?", [reason]),
        Fact::StopRequested {} => run(to, "UPDATE study SET stopping = 1", []),
        Fact::StudyDone {} => run(to, "UPDATE study SET done = 1", []),
        // What is planned shows when it happens.
        _ => Ok(()),
    }
}

fn set_up(to: &Connection, slot: SlotId, up: bool) -> Result<()> {
    let set = "UPDATE slots SET up = ? WHERE node = ? AND slot = ?";
    run(to, set, params![up, slot.node.0, slot.index])
}

/// Adds up the time that trials have had their slots.
fn count(to: &Connection, at_s: f64, which: &str, value: impl IntoIterator<Item = u32>) -> Result<()> {
    let sql = format!(
        "UPDATE trials SET slot_s = slot_s + slots * max(0, ?1 - counted_s), counted_s = ?1 WHERE {which}"
    );
    let value: Vec<u32> = value.into_iter().collect();
    let mut all: Vec<&dyn ToSql> = vec![&at_s];
    all.extend(value.iter().map(|value| value as &dyn ToSql));
    run(to, &sql, all.as_slice())
}

fn of_trial(to: &Connection, at_s: f64, trial: u32, fact: &Fact) -> Result<()> {
    match fact {
        Fact::TrialCreated { params, .. } => {
            let add = "INSERT INTO trials (trial, state, params, created_s, counted_s) VALUES (?1, 'waiting', ?2, ?3, ?3)";
            run(to, add, params![trial, json(params)?, at_s])
        }
        Fact::TrialStarted { generation, slots, batch, .. } => {
            leave(to, at_s, trial)?;
            let total = batch.map(|batch| batch.total(slots.len() as u32).cast_signed());
            let set =
                "UPDATE trials SET state = 'forming', generation = ?, slots = ?, batch = ? WHERE trial = ?";
            run(to, set, params![generation, slots.len() as u32, total, trial])?;
            for slot in slots {
                let add = "INSERT INTO spans (node, slot, trial, generation, from_s) VALUES (?, ?, ?, ?, ?)";
                run(to, add, params![slot.node.0, slot.index, trial, generation, at_s])?;
            }
            Ok(())
        }
        Fact::GroupFormed { .. } => {
            run(to, "UPDATE trials SET state = 'running' WHERE trial = ? AND state = 'forming'", [trial])
        }
        Fact::Retuned { batch, .. } => {
            let set = "UPDATE trials SET batch = slots * ? WHERE trial = ?";
            run(to, set, params![batch.total(1).cast_signed(), trial])
        }
        Fact::Measured { epochs, metrics, .. } => {
            let set =
                "UPDATE trials SET epochs = max(epochs, ?), metrics = json_patch(metrics, ?) WHERE trial = ?";
            run(to, set, params![epochs, json(metrics)?, trial])
        }
        Fact::TrialPausing { .. } => run(to, "UPDATE trials SET state = 'pausing' WHERE trial = ?", [trial]),
        Fact::TrialPaused { .. } | Fact::TrialInterrupted { .. } => {
            leave(to, at_s, trial)?;
            let set = "UPDATE trials SET state = 'waiting', slots = 0, batch = NULL WHERE trial = ?";
            run(to, set, [trial])
        }
        Fact::TrialDone { values, .. } => {
            end(to, at_s, trial, "done", None)?;
            let set = "UPDATE trials SET result = ?, value = ? WHERE trial = ?";
            run(to, set, params![json(values)?, values.first(), trial])
        }
        Fact::TrialStopped { reason, .. } => end(to, at_s, trial, "stopped", Some(reason)),
        Fact::TrialFailed { reason, .. } => end(to, at_s, trial, "failed", Some(reason)),
        Fact::TrialCancelled { reason, .. } => end(to, at_s, trial, "cancelled", Some(reason)),
        _ => Ok(()),
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// The trial has other slots from now on, or none.
fn leave(to: &Connection, at_s: f64, trial: u32) -> Result<()> {
    count(to, at_s, "trial = ?2", [trial])?;
    run(to, "UPDATE spans SET to_s = ? WHERE to_s IS NULL AND trial = ?", params![at_s, trial])
}

fn end(to: &Connection, at_s: f64, trial: u32, state: &str, reason: Option<&String>) -> Result<()> {
    leave(to, at_s, trial)?;
    let set = "UPDATE trials SET state = ?, ended_s = ?, reason = ?, slots = 0, batch = NULL WHERE trial = ?";
    run(to, set, params![state, at_s, reason, trial])
}
