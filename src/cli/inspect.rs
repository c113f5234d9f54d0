//! `pollux-tune status` and `show`: a study in its folder, while it runs and after.

use std::{collections::BTreeSet, io::Write, path::Path};

use crate::{
    alloc::Reason,
    cli,
    goodput::BatchPlan,
    ids::{NodeId, SlotId, TrialId},
    space::{Objective, Study, Value},
    store::{Annotation, Annotations, Reader, Status, TrialRow, TrialState},
    trials::engine::{Fact, JournalEntry, Metrics},
};
use serde_json::json;
use thiserror::Error;

use super::{
    annotate,
    json::{self, Times},
    output::{Format, pluralize, table},
    slurm,
    sparkline::sparkline,
    terminal::folded,
};

/// What can be wrong with a question about a study.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("there is no trial {trial} in {folder}, {count} so far", count = pluralize(*.count, "trial"))]
    NoTrial { trial: u32, folder: String, count: usize },
}

/// How the study stands, in a few lines.
pub(crate) fn status(folder: &Path, format: Format, out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (study, status) = (reader.study()?, reader.status()?);
    let best = reader.best(1)?.pop();
    let notes = Annotations::read(reader.folder())?;
    let emulated = reader.folder().emulated();
    let pilots = study.machines.as_ref().filter(|_| emulated.is_none() && !status.done);
    let pilots = pilots.map_or(&[][..], |machines| &machines.slurm);
    let jobs = slurm::summary(&reader, pilots, status.is_run);
    let text = match format {
        Format::Json => {
            let mut object = status_json(&study, &status, best.as_ref(), &notes);
            object["emulated"] = json!(emulated);
            object["slurm"] = json!(jobs);
            json::object(object)
        }
        Format::Text => {
            let mut text = status_text(folder, &study, &status, best.as_ref());
            text.extend(annotate::lines(&notes.study).iter().map(|line| format!("\n{line}")));
            text.extend(emulated.map(|devices| format!("\n  {}", of_emulation(&devices))));
            text.extend(jobs.iter().map(|line| format!("\n  slurm   {line}")));
            folded(&text)
        }
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

/// Shown wherever results of emulated devices are.
pub(crate) fn of_emulation(devices: &str) -> String {
    format!("emulated devices ({devices}): times are modelled, metrics are synthetic")
}

/// Its name.
const fn state(status: &Status) -> &'static str {
    match (status.done, status.is_run, status.stopping) {
        (true, ..) => "done",
        (false, true, true) => "stopping",
        (false, true, false) if status.paused => "paused",
        (false, true, false) => "running",
        (false, false, _) => "stopped",
    }
}

const fn times(status: &Status) -> Times {
    Times { created_s: status.created_s, at_s: status.at_s }
}

fn status_json(
    study: &Study,
    status: &Status,
    best: Option<&TrialRow>,
    notes: &Annotations,
) -> serde_json::Value {
    let trials: serde_json::Map<_, _> =
        status.trials.iter().map(|(state, count)| (state.name().to_owned(), json!(count))).collect();
    json!({
        "state": state(status),
        "paused": status.paused,
        "wanted": status.wanted,
        "trials": trials,
        "slots": status.slots,
        "busy": status.busy,
        "seconds": status.at_s - status.created_s,
        "facts": status.facts,
        "ended": status.ended,
        "waiting": waits(status),
        "best": best.map(|row| json::trial(&study.objectives, row, &times(status), &notes.trial(row.trial))),
        "tags": notes.study.tags,
        "note": notes.study.note,
    })
}

/// What has to be mended before all of the study goes on.
fn waits(status: &Status) -> Vec<String> {
    let text = |(node, reason): &(Option<NodeId>, String)| match node {
        None => reason.clone(),
        Some(node) => format!("node {node} cannot start workers: {reason}"),
    };
    status.waits.iter().map(text).collect()
}

fn status_text(folder: &Path, study: &Study, status: &Status, best: Option<&TrialRow>) -> String {
    let remedy = if state(status) == "stopped" { ": run it again to resume" } else { "" };
    let mut lines = vec![format!("{} is {}{remedy}", folder.display(), state(status))];
    if status.paused && !status.done {
        lines.push(format!("  paused  no trial is launched until: pollux-tune resume {}", folder.display()));
    }
    let ended = status.trials.iter().filter(|(state, _)| state.is_end());
    let ended: u32 = ended.map(|(_, count)| count).sum();
    let states = status.trials.iter().map(|(state, count)| format!("{count} {state}"));
    let states = states.collect::<Vec<_>>().join(", ");
    let states = if states.is_empty() { states } else { format!(" ({states})") };
    lines.push(format!("  trials  {ended} of {} ended{states}", status.wanted));
    if !status.done {
        lines.push(format!("  slots   {} of {} in use", status.busy, status.slots));
    }
    if let Some(best) = best {
        lines.push(format!("  best    trial {}: {}, {}", best.trial, result(study, best), best.params));
    }
    lines.push(format!("  time    {}", duration(status.at_s - status.created_s)));
    lines.extend(waits(status).iter().map(|reason| format!("  waits   {reason}")));
    lines.extend(status.ended.iter().map(|reason| format!("  no more trials: {reason}")));
    lines.join("\n")
}

fn result(study: &Study, row: &TrialRow) -> String {
    let values = row.values.iter().flatten();
    let named = study.objectives.iter().zip(values);
    let shown =
        named.map(|(Objective { metric, .. }, value)| format!("{metric} {}", Value::from(*value).short()));
    shown.collect::<Vec<_>>().join(", ")
}

/// All that is known of one trial, and what happened to it.
pub(crate) fn show(
    folder: &Path,
    trial: u32,
    format: Format,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let study = reader.study()?;
    let Some(row) = reader.trial(TrialId(trial))? else {
        let (folder, count) = (folder.display().to_string(), reader.trials()?.len());
        return Err(Error::NoTrial { trial, folder, count }.into());
    };
    let status = reader.status()?;
    let annotation = Annotations::read(reader.folder())?.trial(row.trial);
    let created_s = status.created_s;
    let (mut events, mut reports): (Vec<(f64, String)>, Vec<ShownReport>) = (Vec::new(), Vec::new());
    // Most plans leave a trial as it is, and would hide what has happened to it.
    let (mut kept, mut planned) = (0, Vec::new());
    reader.replay(|entry| -> Result<(), cli::Error> {
        if format == Format::Text && is_no_news(&entry, row.trial, &mut planned) {
            kept += 1;
        } else {
            events.extend(event(&entry, row.trial).map(|event| (entry.at_s - created_s, event)));
        }
        reports.extend(ShownReport::of(&entry, row.trial, created_s));
        Ok(())
    })?;
    let text = match format {
        Format::Json => {
            let events = events.iter().map(|(at_s, event)| json!({"seconds": at_s, "event": event}));
            let mut object = json::trial(&study.objectives, &row, &times(&status), &annotation);
            object["events"] = events.collect();
            object["reports"] = reports.iter().map(ShownReport::json).collect();
            json::object(object)
        }
        Format::Text => {
            let note = reader.folder().emulated().map(|devices| format!("\n{}", of_emulation(&devices)));
            let plans = pluralize(kept, "other plan");
            let kept = if kept == 0 { String::new() } else { format!("\n  {plans} changed nothing for it") };
            folded(&format!(
                "{}{kept}{}",
                show_text(&study, &row, &annotation, &events, &reports),
                note.unwrap_or_default()
            ))
        }
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

/// Something that a trial has measured.
struct ShownReport {
    at_s: f64,
    generation: u32,
    epochs: f64,
    metrics: Metrics,
}

impl ShownReport {
    /// The report in a fact, if it is one of the trial and has metrics.
    fn of(JournalEntry { at_s, fact }: &JournalEntry, of: TrialId, created_s: f64) -> Option<Self> {
        let Fact::Measured { trial, generation, epochs, metrics, .. } = fact else { return None };
        let is_its = *trial == of && !metrics.is_empty();
        is_its.then(|| Self {
            at_s: at_s - created_s,
            generation: generation.0,
            epochs: *epochs,
            metrics: metrics.clone(),
        })
    }

    fn json(&self) -> serde_json::Value {
        let Self { at_s, generation, epochs, metrics } = self;
        json!({"seconds": at_s, "generation": generation, "epochs": epochs, "metrics": json::metrics(metrics)})
    }
}

/// A line for each metric that was reported more than once, those of the objectives first.
fn curves(study: &Study, reports: &[ShownReport]) -> Vec<String> {
    let objectives = study.objectives.iter().map(|objective| &objective.metric);
    let others: BTreeSet<&String> = reports.iter().flat_map(|report| report.metrics.keys()).collect();
    let others = others.into_iter().filter(|name| study.objectives.iter().all(|it| it.metric != **name));
    let names: Vec<&String> = objectives.chain(others).take(CURVES).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(6);
    let mut lines = Vec::new();
    for name in names {
        let point = |report: &ShownReport| Some((report.epochs, report.metrics.get(name)?.value()));
        let mut points: Vec<(f64, f64)> =
            reports.iter().filter_map(point).filter(|(_, y)| y.is_finite()).collect();
        // What was reported again after a restart comes where it belongs.
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let [(_, first), .., (_, last)] = points[..] {
            let short = |value: f64| Value::from(value).short();
            let drawn = sparkline(&points, CURVE_WIDTH);
            lines.push(format!("  {name:width$}  {drawn}  {} to {}", short(first), short(last)));
        }
    }
    lines
}

/// So many curves are drawn.
const CURVES: usize = 8;
/// And so wide: with names and values, that fits into 80 columns.
const CURVE_WIDTH: usize = 40;

fn show_text(
    study: &Study,
    row: &TrialRow,
    annotation: &Annotation,
    events: &[(f64, String)],
    reports: &[ShownReport],
) -> String {
    let mut lines = vec![format!("trial {}: {}", row.trial, row.params)];
    let result = match (row.state, &row.reason) {
        (TrialState::Done, _) => format!(", {}", result(study, row)),
        (_, Some(reason)) => format!(": {reason}"),
        (_, None) => String::new(),
    };
    lines.push(format!("  state   {}{result}", row.state));
    lines.push(format!("  epochs  {:.2} of {}", row.epochs, Value::from(study.trial.epochs).short()));
    let batch = row.batch.map_or_else(String::new, |batch| format!(", batch {batch}"));
    let used = format!("{} slot-seconds", row.slot_s.round());
    lines.push(if row.state.is_end() {
        format!("  slots   {used}")
    } else {
        format!("  slots   {}{batch}; {used} so far", row.slots)
    });
    lines.extend(annotate::lines(annotation));
    lines.extend(curves(study, reports));
    let rows: Vec<_> = events.iter().map(|(at_s, event)| vec![duration(*at_s), event.clone()]).collect();
    lines.extend(table(&rows));
    lines.join("\n")
}

/// Whether it is a plan that means no other slots for a trial than it has, or than those of the plan before.
fn is_no_news(entry: &JournalEntry, trial: TrialId, planned: &mut Vec<SlotId>) -> bool {
    let Fact::PlanAdopted { targets, .. } = &entry.fact else {
        // What has lost its slots is planned for anew.
        if matches!(&entry.fact, Fact::TrialPaused { trial: of, .. } | Fact::TrialInterrupted { trial: of, .. } if *of == trial)
        {
            planned.clear();
        }
        return false;
    };
    let Some(target) = targets.iter().find(|target| target.trial == trial) else { return false };
    let is_same = *planned == target.slots;
    planned.clone_from(&target.slots);
    target.reason == Reason::Kept || (is_same && !target.slots.is_empty())
}

/// What a fact means for a trial; none where it means nothing to its user.
pub(crate) fn event(entry: &JournalEntry, trial: TrialId) -> Option<String> {
    let on = |slots: &[SlotId]| slots.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    if let Fact::PlanAdopted { targets, .. } = &entry.fact {
        let target = targets.iter().find(|target| target.trial == trial)?;
        return Some(format!("planned for slots [{}]: {}", on(&target.slots), target.reason));
    }
    if entry.fact.trial() != Some(trial) {
        return None;
    }
    Some(match &entry.fact {
        Fact::TrialCreated { .. } => "created".to_owned(),
        Fact::TrialStarted { slots, batch, holders, .. } => {
            let batch = batch
                .map_or_else(String::new, |batch| format!(", batch {}", batch.total(slots.len() as u32)));
            let how = if holders.is_empty() { "launched on" } else { "moved to" };
            format!("{how} slots [{}]{batch}", on(slots))
        }
        Fact::GroupFormed { .. } => "trains".to_owned(),
        Fact::Retuned { batch, .. } => retuned(*batch),
        Fact::CheckpointFailed { reason, .. } => format!("warning: {reason}"),
        Fact::BatchLimited { gpu_type, limit, failed, .. } => {
            format!(
                "passes of {failed} examples do not fit into the memory of {gpu_type}: at most {limit} from now on"
            )
        }
        Fact::Checkpointed { checkpoint, .. } => format!("checkpoint at epoch {:.2}", checkpoint.epochs),
        Fact::TrialPausing { .. } => "asked to leave its slots".to_owned(),
        Fact::TrialPaused { checkpoint, .. } => format!("paused at epoch {:.2}", checkpoint.epochs),
        Fact::TrialInterrupted { reason, .. } => format!("interrupted: {reason}"),
        Fact::TrialDone { .. } => "done".to_owned(),
        Fact::TrialStopped { reason, .. } => format!("stopped: {reason}"),
        Fact::TrialFailed { reason, .. } => format!("failed: {reason}"),
        Fact::TrialRetried { .. } => "will run again".to_owned(),
        Fact::TrialCancelled { reason, .. } => format!("cancelled: {reason}"),
        _ => return None,
    })
}

/// What each slot does in a step.
fn retuned(batch: BatchPlan) -> String {
    let examples = pluralize(batch.total(1) as usize, "example");
    match batch.accumulation {
        0 => format!("changes its batch to {examples} on each slot"),
        more => format!("changes its batch to {examples} on each slot, in {} passes", more + 1),
    }
}

/// Seconds for people.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds:.1} s"),
        (0, minutes) => format!("{minutes} min {} s", whole % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_for_people() {
        let shown = [0.04, 59.94, 60.0, 3599.9, 3600.0, 90_061.0].map(duration);
        assert_eq!(shown, ["0.0 s", "59.9 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "25 h 1 min"]);
    }
}
