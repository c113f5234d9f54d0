//! What Prometheus scrapes: figures of all studies, in its text format.

use std::fmt::Write;

use super::{model::Speed, studies::View};
use crate::{
    ids::TrialId,
    store::TrialState,
    trials::engine::{ActiveTrial, Phase},
};

/// The version of the format, for the answer's header.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const STATES: [TrialState; 8] = [
    TrialState::Waiting,
    TrialState::Forming,
    TrialState::Running,
    TrialState::Pausing,
    TrialState::Done,
    TrialState::Stopped,
    TrialState::Failed,
    TrialState::Cancelled,
];

/// A kind of figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Running,
    Trials,
    Wanted,
    Best,
    Slots,
    InUse,
    SlotSeconds,
    Steps,
    Examples,
    Goodput,
    Elapsed,
    Facts,
}

impl Family {
    /// In the order of the answer, with name, type and meaning.
    const ALL: [(Self, &'static str, &'static str, &'static str); 12] = [
        (Self::Running, "study_running", "gauge", "1 while a process runs the study."),
        (Self::Trials, "trials", "gauge", "Trials by state."),
        (Self::Wanted, "trials_wanted", "gauge", "Trials that the study is to have."),
        (Self::Best, "best_value", "gauge", "The best result so far of an objective."),
        (Self::Slots, "slots", "gauge", "Slots with a worker."),
        (Self::InUse, "slots_in_use", "gauge", "Slots that trials have."),
        (Self::SlotSeconds, "slot_seconds_total", "counter", "Seconds times slots that trials have had."),
        (
            Self::Steps,
            "steps_per_second",
            "gauge",
            "Optimizer steps per second of all elastic trials that train.",
        ),
        (
            Self::Examples,
            "examples_per_second",
            "gauge",
            "Examples per second of all elastic trials that train.",
        ),
        (
            Self::Goodput,
            "goodput_examples_per_second",
            "gauge",
            "Examples per second times statistical efficiency of all elastic trials that train.",
        ),
        (Self::Elapsed, "study_seconds_total", "counter", "Seconds in which the study was run."),
        (Self::Facts, "journal_facts_total", "counter", "Facts in the journal of the study."),
    ];
}

/// One number.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    family: Family,
    /// Names and values.
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// The figures of a study.
pub(super) fn of_study(view: &View<'_>) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut add = |family, labels: &[(&'static str, String)], value: f64| {
        let labels = std::iter::once(("study", view.key.to_owned())).chain(labels.iter().cloned()).collect();
        samples.push(Sample { family, labels, value });
    };
    let model = view.model;
    add(Family::Running, &[], f64::from(u8::from(view.is_run)));
    for state in STATES {
        let count = model.ids().filter(|trial| model.state_of(*trial) == state).count();
        add(Family::Trials, &[("state", state.to_string())], count as f64);
    }
    if let Some(study) = &model.study {
        add(Family::Wanted, &[], study.search.trials.into());
        for (place, objective) in study.objectives.iter().enumerate() {
            let values = model.ids().filter_map(|trial| model.values(trial)?.get(place).copied());
            if let Some(best) = values.min_by(|a, b| objective.loss(*a).total_cmp(&objective.loss(*b))) {
                let labels =
                    [("metric", objective.metric.clone()), ("direction", objective.direction.to_string())];
                add(Family::Best, &labels, best);
            }
        }
    }
    let slots: usize = model.state.nodes.values().map(|node| node.up.len()).sum();
    add(Family::Slots, &[], if view.is_run { slots as f64 } else { 0.0 });
    add(Family::InUse, &[], if view.is_run { model.state.reserved().len() as f64 } else { 0.0 });
    let ended: f64 = model.state.ended.values().map(|ended| ended.slot_s).sum();
    let active: f64 = model.state.active.values().map(|active| active.usage.slot_s).sum();
    add(Family::SlotSeconds, &[], ended + active);
    let is_training = |active: &ActiveTrial| view.is_run && matches!(active.phase, Phase::Running(_));
    let training = model.state.active.iter().filter(|(_, active)| is_training(active));
    let speeds: Vec<Speed> = training.filter_map(|(trial, _)| speed(view, *trial)).collect();
    let sum = |of: fn(&Speed) -> Option<f64>| speeds.iter().filter_map(of).sum::<f64>();
    add(Family::Steps, &[], sum(|speed| Some(speed.throughput? / speed.batch as f64)));
    add(Family::Examples, &[], sum(|speed| speed.throughput));
    add(Family::Goodput, &[], sum(Speed::goodput));
    add(Family::Elapsed, &[], model.clock.now_s);
    add(Family::Facts, &[], model.state.facts as f64);
    samples
}

/// The last speed of a trial.
fn speed(view: &View<'_>, trial: TrialId) -> Option<Speed> {
    view.model.trials.get(trial.0 as usize)?.speed.last()
}

/// All figures as text, those of a kind together.
pub(super) fn text(samples: &[Sample]) -> String {
    let mut text = String::new();
    for (family, name, kind, help) in Family::ALL {
        _ = write!(text, "# HELP pollux_tune_{name} {help}\n# TYPE pollux_tune_{name} {kind}\n");
        for sample in samples.iter().filter(|sample| sample.family == family) {
            let labels: Vec<String> = sample
                .labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            _ = writeln!(text, "pollux_tune_{name}{{{}}} {}", labels.join(","), sample.value);
        }
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_kind_are_together_whoever_they_are_of() {
        let sample =
            |study: &str, family, value| Sample { family, labels: vec![("study", study.to_owned())], value };
        let samples = [
            sample("a", Family::Slots, 4.0),
            sample("a", Family::SlotSeconds, 1e-7),
            sample("odd \"name\"\\\n", Family::Slots, 2.5),
        ];
        let text = text(&samples);
        assert!(
            text.contains(
                "# TYPE pollux_tune_slots gauge\npollux_tune_slots{study=\"a\"} 4\n\
                 pollux_tune_slots{study=\"odd \\\"name\\\"\\\\\\n\"} 2.5\n# HELP pollux_tune_slots_in_use "
            ),
            "{text}"
        );
        assert!(text.contains("pollux_tune_slot_seconds_total{study=\"a\"} 0.0000001\n"), "{text}");
    }
}
