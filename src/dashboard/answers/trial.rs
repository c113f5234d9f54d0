//! One trial in all detail, those that run, and several side by side.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answer, MAX_COMPARED, Problem, annotated, objectives, trial_row};
use crate::{
    dashboard::{
        model::{Decision, Measured, Speed},
        studies::View,
    },
    ids::TrialId,
};

/// The most points of a curve on the page of a trial, and where there are many of them.
const POINTS: usize = 400;
const FEW_POINTS: usize = 60;
/// Where there are very many of them, so many in all, and these of each at least.
const ALL_POINTS: usize = 2400;
const LEAST_POINTS: usize = 24;
/// The most trials whose curves are shown while they run.
const RUNNING: usize = 100;
/// How much of the end of a log is shown, in bytes.
const LOG_TAIL: u64 = 64 << 10;

fn curve(points: &[Measured]) -> Vec<Value> {
    points.iter().map(|point| json!([point.epochs, point.at_s, point.value])).collect()
}

fn curves(view: &View<'_>, trial: TrialId, max: usize, only: Option<&str>) -> Map<String, Value> {
    let known = view.model.trials.get(trial.0 as usize);
    let curves = known.into_iter().flat_map(|known| &known.curves);
    let wanted = curves.filter(|(name, _)| only.is_none_or(|only| *name == only));
    wanted.map(|(name, points)| (name.clone(), curve(&points.pick(max)).into())).collect()
}

/// Columns: seconds, epochs, slots, batch, factor of the learning rate, efficiency, examples per second, goodput.
fn speeds(view: &View<'_>, trial: TrialId, max: usize) -> Vec<Value> {
    let known = view.model.trials.get(trial.0 as usize);
    let points = known.map(|known| known.speed.pick(max)).unwrap_or_default();
    let row = |speed: Speed| {
        let Speed { at_s, epochs, slots, batch, lr_factor, efficiency, throughput } = speed;
        json!([at_s, epochs, slots, batch, lr_factor, efficiency, throughput, speed.goodput()])
    };
    points.into_iter().map(row).collect()
}

fn check(view: &View<'_>, trial: TrialId) -> Result<(), Problem> {
    let count = view.model.trials.len();
    let problem = || Problem::Missing(format!("there is no trial {trial}, {count} so far"));
    if (trial.0 as usize) < count { Ok(()) } else { Err(problem()) }
}

/// All that is known of a trial.
pub(in crate::dashboard) fn trial(view: &View<'_>, trial: TrialId) -> Answer {
    check(view, trial)?;
    let known = &view.model.trials[trial.0 as usize];
    let decision = |decision: &Decision| {
        json!({
            "at": decision.at_s,
            "generation": decision.generation.0,
            "slots": decision.slots.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "batch": decision.batch,
            "reason": decision.reason.map(|(reason, _)| reason.to_string()),
            "speedup": decision.reason.map(|(_, speedup)| speedup),
        })
    };
    let events = known.first_events.iter().chain(&known.last_events);
    let (log, cut) = log_tail(view, trial);
    let mut answer = annotated(trial_row(view, trial), &view.notes().trial(trial));
    answer["curves"] = curves(view, trial, POINTS, None).into();
    answer["speed"] = speeds(view, trial, POINTS).into();
    answer["decisions"] = known.decisions.iter().map(decision).collect::<Vec<_>>().into();
    answer["events"] = events.map(|(at_s, event)| json!([at_s, event])).collect::<Vec<_>>().into();
    answer["log"] = json!(log);
    answer["log_cut"] = json!(cut);
    answer["log_file"] = json!(view.folder.log(trial).display().to_string());
    answer["last"] = json!(view.model.trials.len() - 1);
    Ok(answer)
}

/// The end of what its program has printed, and whether there was more.
fn log_tail(view: &View<'_>, trial: TrialId) -> (Option<String>, bool) {
    let read = || -> io::Result<(String, bool)> {
        let mut file = File::open(view.folder.log(trial))?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LOG_TAIL);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        // It may begin within a line.
        let begin =
            if from == 0 { 0 } else { bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        Ok((String::from_utf8_lossy(&bytes[begin..]).into_owned(), from > 0))
    };
    read().map_or((None, false), |(text, cut)| (Some(text), cut))
}

/// Trials that have slots, with their curves.
pub(in crate::dashboard) fn running(view: &View<'_>) -> Value {
    let metric = objectives(view).first().map(|objective| objective.metric.as_str());
    let active = || {
        let has_head = view.model.has_head();
        let active = view.model.state.active.iter();
        active.filter(move |(_, active)| !active.slots().is_empty() || !has_head).map(|(trial, _)| *trial)
    };
    let found = active().count();
    let points = (ALL_POINTS / found.max(1)).clamp(LEAST_POINTS, FEW_POINTS);
    let shown = active().take(RUNNING).map(|trial| {
        let mut row = trial_row(view, trial);
        row["curves"] = curves(view, trial, points, metric).into();
        row["speed"] = speeds(view, trial, points).into();
        row
    });
    json!({"metric": metric, "found": found, "trials": shown.collect::<Vec<_>>(), "seconds": view.model.clock.now_s})
}

/// Which trials.
#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Chosen {
    trials: String,
}

/// Trials side by side.
pub(in crate::dashboard) fn compare_trials(view: &View<'_>, chosen: &Chosen) -> Answer {
    let mut rows = Vec::new();
    for number in chosen.trials.split(',').filter(|number| !number.is_empty()).take(MAX_COMPARED) {
        let trial = number.trim().parse().map(TrialId);
        let trial = trial.map_err(|_| Problem::Bad(format!("{number:?} is not the number of a trial")))?;
        check(view, trial)?;
        let mut row = trial_row(view, trial);
        row["curves"] = curves(view, trial, POINTS, None).into();
        row["speed"] = speeds(view, trial, POINTS).into();
        rows.push(row);
    }
    Ok(json!({"trials": rows}))
}
