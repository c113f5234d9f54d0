//! The one form of what `--json` prints of studies: docs/json.md describes it.

use serde_json::{Value, json};

use crate::{
    space::{Objective, Params},
    store::{Annotation, TrialRow},
    trials::{Trial, engine::Metrics},
};

/// It grows when something that was there changes its meaning or goes. What is added does not count.
const VERSION: u32 = 1;

/// The text of an object, with the version of its form.
pub(super) fn object(mut fields: Value) -> String {
    if let Value::Object(fields) = &mut fields {
        fields.insert("version".to_owned(), json!(VERSION));
    }
    fields.to_string()
}

/// What a trial tries: each value by the name of its parameter, with its type.
pub(super) fn params(params: &Params) -> Value {
    json!(params)
}

/// What was measured: each number by its name; `null` is one that is not finite.
pub(super) fn metrics(metrics: &Metrics) -> Value {
    json!(metrics)
}

/// The result of a trial: each value by the name of its objective.
pub(super) fn values(objectives: &[Objective], values: &[f64]) -> Value {
    let names = objectives.iter().map(|objective| objective.metric.clone());
    Value::Object(names.zip(values.iter().map(|value| json!(value))).collect())
}

/// A trial. Times are in seconds since the study began.
pub(super) fn trial(
    objectives: &[Objective],
    row: &TrialRow,
    times: &Times,
    annotation: &Annotation,
) -> Value {
    json!({
        "id": row.trial.0,
        "state": row.state.name(),
        "params": params(&row.params),
        "epochs": row.epochs,
        "metrics": metrics(&row.metrics),
        "values": row.values.as_ref().map(|all| values(objectives, all)),
        "reason": row.reason,
        "slots": row.slots,
        "batch": row.batch,
        "slot_seconds": row.slot_s,
        "generation": row.generation,
        "start": times.start_s(row),
        "end": times.end_s(row),
        "duration": times.duration_s(row),
        "tags": annotation.tags,
        "note": annotation.note,
    })
}

/// A trial with a result, in the order of results.
pub(super) fn ranked(objectives: &[Objective], trial: &Trial) -> Value {
    let values = values(objectives, trial.values().unwrap_or_default());
    json!({"id": trial.id.0, "params": params(&trial.params), "values": values})
}

/// When a study began, and up to when it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) created_s: f64,
    pub(super) at_s: f64,
}

impl Times {
    /// When a trial was created.
    pub(super) fn start_s(&self, row: &TrialRow) -> f64 {
        row.created_s - self.created_s
    }

    /// When it ended, if it has.
    pub(super) fn end_s(&self, row: &TrialRow) -> Option<f64> {
        row.ended_s.map(|end_s| end_s - self.created_s)
    }

    /// How long it has lasted, with the time in which it waited.
    pub(super) fn duration_s(&self, row: &TrialRow) -> f64 {
        (row.ended_s.unwrap_or(self.at_s) - row.created_s).max(0.0)
    }
}
