//! A study in a few figures, and how its best value came about.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Problem, annotated, objectives, trial_row};
use crate::{
    dashboard::{Commands, studies::View, thin::spread},
    ids::{NodeId, TrialId},
    store::TrialState,
    trials::best,
};

/// How many of the best trials are shown.
const BEST: usize = 10;
/// The most points of a history.
const POINTS: usize = 3000;
/// The most studies or trials that are compared at a time.
pub(in crate::dashboard) const MAX_COMPARED: usize = 12;

/// Its name.
const fn state(view: &View<'_>) -> &'static str {
    let state = &view.model.state;
    match (state.done, view.is_run, state.stopping, view.model.has_head()) {
        (true, ..) => "done",
        (false, true, true, _) => "stopping",
        (false, true, false, _) if state.paused_s.is_some() => "paused",
        (false, true, false, _) => "running",
        (false, false, _, true) => "stopped",
        // Others run its trials, who come and go.
        (false, false, _, false) => "open",
    }
}

fn counts(view: &View<'_>) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::new();
    for trial in view.model.ids() {
        *counts.entry(view.model.state_of(trial).name()).or_default() += 1;
    }
    counts
}

/// The best trials that ran to their end, the best first.
pub(in crate::dashboard) fn best_trials(view: &View<'_>, count: usize) -> Vec<TrialId> {
    let done = view.model.ids().filter_map(|trial| Some((trial, view.model.values(trial)?)));
    best(objectives(view), done, count)
}

/// A study in a row.
pub(in crate::dashboard) fn summary(view: &View<'_>) -> Value {
    let model = view.model;
    let answer = json!({
        "key": view.key,
        "folder": view.folder.root().display().to_string(),
        "state": state(view),
        "problem": view.problem,
        "wanted": model.study.as_ref().map(|study| study.search.trials),
        "trials": counts(view),
        "objectives": objectives(view).iter().map(|objective| {
            json!({"metric": objective.metric, "direction": objective.direction.to_string()})
        }).collect::<Vec<_>>(),
        "best": best_trials(view, 1).first().map(|trial| trial_row(view, *trial)),
        "seconds": model.clock.now_s,
        "emulated": view.folder.emulated(),
        "facts": model.state.facts,
    });
    annotated(answer, &view.notes().study)
}

/// All that the first page of a study says.
pub(in crate::dashboard) fn overview(view: &View<'_>, commands: &dyn Commands, actions: bool) -> Value {
    let state = &view.model.state;
    let slots: usize = state.nodes.values().map(|node| node.up.len()).sum();
    let parameters = view.model.study.iter().flat_map(|study| study.space.parameters());
    let parameters: Vec<Value> = parameters
        .map(|parameter| {
            let domain = parameter.domain().to_string();
            let fixed = parameter.dim().is_none();
            json!({"name": parameter.name(), "log": domain.contains("log"), "domain": domain, "fixed": fixed})
        })
        .collect();
    let waiting = state.waiting.as_ref().filter(|_| view.is_run).map(|wait| wait.reason.clone());
    let blocked = state.blocked.iter().filter(|_| view.is_run);
    let blocked =
        blocked.map(|(node, reason): (&NodeId, _)| format!("{}: {reason}", state.node_label(*node)));
    let trials = counts(view);
    let is_failed = trials.contains_key(TrialState::Failed.name());
    // Whoever asks and tells runs the trials: there is nobody who hears more than that it is to end.
    let has_program = view.model.study.as_ref().is_some_and(|study| study.trial.program.is_some());
    let is_told = !has_program && !view.folder.control().exists();
    let can_act = actions && view.model.has_head();
    let hears = can_act && !is_told;
    let mut answer = summary(view);
    let more = json!({
        "told": is_told,
        "parameters": parameters,
        "best_trials": best_trials(view, BEST).into_iter().map(|trial| trial_row(view, trial)).collect::<Vec<_>>(),
        "slots": slots,
        "busy": state.reserved().len(),
        "waits": waiting.into_iter().chain(blocked).collect::<Vec<_>>(),
        "ended": state.search_ended.as_ref().map(|end| &end.reason),
        "policy": view.model.study.as_ref().map(|study| study.scheduler.policy.to_string()),
        "epochs": view.model.study.as_ref().map(|study| study.trial.epochs),
        "elastic": view.model.trials.iter().any(|trial| trial.speed.last().is_some()),
        "yaml": state.yaml,
        "resume": (view.model.has_head() && !view.is_run && !state.done).then(|| commands.resume(view.folder.root())),
        "paused": state.paused_s.is_some() && !state.done,
        "enqueued": state.queue.len(),
        "annotated": !view.notes().trials.is_empty(),
        "can": {
            "pause": hears && state.paused_s.is_none() && !state.done,
            "resume": hears && state.paused_s.is_some() && !state.done,
            "enqueue": hears || (can_act && !view.is_run),
            "stop": can_act && view.is_run && !state.stopping,
            "stop_trial": hears && view.is_run,
            "retry": can_act && !view.is_run && is_failed,
        },
    });
    if let (Value::Object(answer), Value::Object(more)) = (&mut answer, more) {
        answer.extend(more);
    }
    answer
}

/// Which objective.
#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Which {
    #[serde(default)]
    pub(in crate::dashboard) objective: usize,
}

impl Which {
    pub(super) fn check(&self, view: &View<'_>) -> Result<(), Problem> {
        let count = objectives(view).len();
        let problem =
            || Problem::Missing(format!("there is no objective {}, {count} in all", self.objective));
        if self.objective < count { Ok(()) } else { Err(problem()) }
    }
}

/// Results in the order in which trials ended: number, seconds, value, and the best value until then.
fn results(view: &View<'_>, objective: usize) -> Vec<(TrialId, f64, f64, f64)> {
    let Some(goal) = objectives(view).get(objective) else { return Vec::new() };
    let mut results: Vec<(TrialId, f64, f64, f64)> = view
        .model
        .ids()
        .filter_map(|trial| {
            let value = *view.model.values(trial)?.get(objective)?;
            Some((trial, view.model.trials.get(trial.0 as usize)?.ended_s?, value, value))
        })
        .collect();
    results.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut best: Option<f64> = None;
    for result in &mut results {
        let value = match best {
            Some(best) if goal.loss(best) <= goal.loss(result.2) => best,
            _ => result.2,
        };
        best = Some(value);
        result.3 = value;
    }
    results
}

/// All results if they are few; else some, evenly spread, and each one that was the best so far.
fn thinned(results: &[(TrialId, f64, f64, f64)]) -> Vec<Value> {
    let mut places = spread(results.len(), POINTS);
    let is_new_best =
        |place: &usize| *place == 0 || results[*place].3.to_bits() != results[*place - 1].3.to_bits();
    places.extend((0..results.len()).filter(is_new_best));
    places.sort_unstable();
    places.dedup();
    places
        .into_iter()
        .map(|place| &results[place])
        .map(|(trial, at_s, value, best)| json!([trial.0, at_s, value, best]))
        .collect()
}

/// How the results of an objective came about.
pub(in crate::dashboard) fn history(view: &View<'_>, which: &Which) -> Answer {
    which.check(view)?;
    let results = results(view, which.objective);
    let stopped = view.model.ids().filter(|trial| view.model.state_of(*trial) == TrialState::Stopped);
    let stopped: Vec<(TrialId, f64, f64)> = stopped
        .filter_map(|trial| {
            let value = super::value_of(view, trial, which.objective)?;
            Some((trial, view.model.trials.get(trial.0 as usize)?.ended_s?, value))
        })
        .collect();
    let places = spread(stopped.len(), POINTS / 3);
    let stopped: Vec<Value> = places
        .into_iter()
        .map(|place| &stopped[place])
        .map(|(trial, at_s, value)| json!([trial.0, at_s, value]))
        .collect();
    Ok(json!({"done": results.len(), "points": thinned(&results), "stopped": stopped}))
}

/// For the comparison of studies: what each has, and how its best value came about.
pub(in crate::dashboard) fn progress(view: &View<'_>) -> Value {
    let slot_s = |trial: TrialId| {
        let ended = view.model.state.ended.get(&trial).map(|ended| ended.slot_s);
        ended.or_else(|| Some(view.model.state.active.get(&trial)?.usage.slot_s)).unwrap_or_default()
    };
    let mut answer = summary(view);
    answer["points"] = thinned(&results(view, 0)).into();
    answer["slot_seconds"] = json!(view.model.ids().map(slot_s).sum::<f64>());
    answer
}
