//! What pages ask, answered from a model as JSON. Times are in seconds since the study began.

mod analysis;
mod overview;
mod timeline;
mod trial;
mod trials;

use serde_json::{Map, Value, json};

pub(super) use self::{
    analysis::{analysis, importance},
    overview::{MAX_COMPARED, Which, best_trials, history, overview, progress, summary},
    timeline::{Window, timeline},
    trial::{compare_trials, running, trial},
    trials::trials,
};
use super::studies::View;
use crate::{
    ids::TrialId,
    space::{Objective, Params},
    store::Annotation,
    trials::End,
};

/// An answer, or why there is none.
pub(super) type Answer = Result<Value, Problem>;

/// Why a question has no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// What is asked for is not there.
    Missing(String),
    /// This is no question.
    Bad(String),
    /// It cannot be done now.
    Refused(String),
}

/// What a study optimizes; nothing if its file cannot be read.
fn objectives<'a>(view: &View<'a>) -> &'a [Objective] {
    view.model.study.as_ref().map_or(&[], |study| &study.objectives)
}

fn params_json(params: Option<&Params>) -> Value {
    params.map_or(Value::Null, |params| json!(params))
}

/// The value of an objective: the result, else what was measured last.
fn value_of(view: &View<'_>, trial: TrialId, objective: usize) -> Option<f64> {
    if let Some(values) = view.model.values(trial) {
        return values.get(objective).copied();
    }
    let metric = &objectives(view).get(objective)?.metric;
    Some(view.model.trials.get(trial.0 as usize)?.curves.get(metric)?.last()?.value)
}

/// A trial in one row.
fn trial_row(view: &View<'_>, trial: TrialId) -> Value {
    let model = view.model;
    let (active, ended) = (model.state.active.get(&trial), model.state.ended.get(&trial));
    let times = model.trials.get(trial.0 as usize);
    let state = model.state_of(trial);
    let values: Map<String, Value> = objectives(view)
        .iter()
        .enumerate()
        .map(|(place, objective)| (objective.metric.clone(), json!(value_of(view, trial, place))))
        .collect();
    let slots = active.map_or(0, |active| active.slots().len());
    let group = active.and_then(|active| active.phase.group());
    let batch = group.and_then(|group| Some(group.batch?.total(group.slots.len() as u32)));
    let (started_s, ended_s) = times.map_or((None, None), |times| (times.started_s, times.ended_s));
    let until_s = ended_s.unwrap_or(model.clock.now_s);
    json!({
        "id": trial.0,
        "state": state.name(),
        "params": params_json(model.params(trial)),
        "values": values,
        "epochs": ended.map(|ended| ended.epochs).or_else(|| active.map(|active| active.epochs)),
        "slots": slots,
        "batch": batch,
        "created": times.map(|times| times.created_s),
        "started": started_s,
        "ended": ended_s,
        "duration": started_s.map(|started_s| (until_s - started_s).max(0.0)),
        "slot_seconds": ended.map(|ended| ended.slot_s).or_else(|| active.map(|active| active.usage.slot_s)),
        "reason": ended.and_then(|ended| reason(&ended.end)),
    })
}

/// An answer with what people have written about its study or trial.
fn annotated(mut answer: Value, annotation: &Annotation) -> Value {
    answer["tags"] = json!(annotation.tags);
    answer["note"] = json!(annotation.note);
    answer
}

/// Why a trial has no result.
fn reason(end: &End) -> Option<String> {
    match end {
        End::Done(_) => None,
        End::Stopped(reason) => Some(reason.to_string()),
        End::Failed(reason) | End::Cancelled(reason) => Some(reason.clone()),
    }
}
