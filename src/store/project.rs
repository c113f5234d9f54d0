//! Tables that follow from the facts, kept up to date with them in the same transaction.

use rusqlite::{Connection, Params, Result, params};

use crate::{
    ids::SlotId,
    trials::engine::{Fact, JournalEntry},
};

/// Changes trials from a time on, and adds up the time that they have had their slots. `?1` is the time.
macro_rules! from_now_on {
    ($change:literal) => {
        concat!(
            "UPDATE trials SET slot_s = slot_s + slots * max(0, ?1 - counted_s), counted_s = ?1, ",
            $change
        )
    };
}

/// Brings the tables up to date with facts.
pub(super) fn entries(to: &Connection, entries: &[JournalEntry]) -> Result<()> {
    let mut before_s = None;
    for JournalEntry { at_s, fact } in entries {
        match fact.trial() {
            Some(trial) => of_trial(to, *at_s, trial.0, fact)?,
            None => of_study(to, before_s, *at_s, fact)?,
        }
        before_s = Some(*at_s);
    }
    before_s.map_or(Ok(()), |last_s| run(to, "UPDATE study SET at_s = ?", [last_s]))
}

fn run(to: &Connection, sql: &str, values: impl Params) -> Result<()> {
    to.prepare_cached(sql)?.execute(values).map(|_| ())
}

/// `before_s` is the time of the fact before it, unless that is in another transaction.
fn of_study(to: &Connection, before_s: Option<f64>, at_s: f64, fact: &Fact) -> Result<()> {
    match fact {
        Fact::StudyCreated { yaml } => {
            run(to, "UPDATE study SET yaml = ?, created_s = ?", params![yaml, at_s])
        }
        Fact::StudyChanged { yaml } => run(to, "UPDATE study SET yaml = ?", [yaml]),
        Fact::HeadStarted {} => {
            // What ran, ran until the last word of the head before this one.
            let last_s = || to.query_row("SELECT at_s FROM study", [], |row| row.get::<_, f64>(0));
            let before_s = before_s.map_or_else(last_s, Ok)?;
            run(to, "UPDATE spans SET to_s = ? WHERE to_s IS NULL", [before_s])?;
            let wait = from_now_on!("state = 'waiting', slots = 0, batch = NULL WHERE ended_s IS NULL");
            run(to, wait, [before_s])?;
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
                from_now_on!("state = 'forming', generation = ?2, slots = ?3, batch = ?4 WHERE trial = ?5");
            run(to, set, params![at_s, generation.0, slots.len() as u32, total, trial])?;
            for slot in slots {
                let add = "INSERT INTO spans (node, slot, trial, generation, from_s) VALUES (?, ?, ?, ?, ?)";
                run(to, add, params![slot.node.0, slot.index, trial, generation.0, at_s])?;
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
            let set = from_now_on!("state = 'waiting', slots = 0, batch = NULL WHERE trial = ?2");
            run(to, set, params![at_s, trial])
        }
        Fact::TrialDone { values, .. } => end(to, at_s, trial, "done", None, values),
        Fact::TrialStopped { reason, .. } => end(to, at_s, trial, "stopped", Some(reason), &[]),
        Fact::TrialFailed { reason, .. } => end(to, at_s, trial, "failed", Some(reason), &[]),
        Fact::TrialCancelled { reason, .. } => end(to, at_s, trial, "cancelled", Some(reason), &[]),
        _ => Ok(()),
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// The trial has other slots from now on, or none.
fn leave(to: &Connection, at_s: f64, trial: u32) -> Result<()> {
    run(to, "UPDATE spans SET to_s = ? WHERE to_s IS NULL AND trial = ?", params![at_s, trial])
}

fn end(
    to: &Connection,
    at_s: f64,
    trial: u32,
    state: &str,
    reason: Option<&String>,
    values: &[f64],
) -> Result<()> {
    leave(to, at_s, trial)?;
    let result = if values.is_empty() { None } else { Some(json(&values)?) };
    let set = from_now_on!(
        "state = ?2, ended_s = ?1, reason = ?3, result = ?4, value = ?5, slots = 0, batch = NULL WHERE trial = ?6"
    );
    run(to, set, params![at_s, state, reason, result, values.first(), trial])
}
