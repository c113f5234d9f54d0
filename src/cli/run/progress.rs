//! How far a study is at one moment.

use super::view::Cell;
use crate::{
    cli::output::{brief, brief_params, pluralize},
    ids::{SlotId, TrialId},
    space::{Objective, Params},
    trials::{
        End, best,
        engine::{ActiveTrial, Engine, Fact, JournalEntry, Phase},
    },
};

/// What the moving lines show.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Progress {
    pub(super) ended: u64,
    pub(super) wanted: u64,
    /// The part of the study that is done, with what running trials have done.
    pub(in crate::cli) part: f64,
    /// Slots that trials have, and all with a worker.
    pub(super) busy: usize,
    pub(super) slots: usize,
    /// On the clock of the study, since this head has started.
    pub(super) seconds: f64,
    /// Why no trial is launched, if that is so.
    pub(super) notice: Option<String>,
    pub(super) best: Option<String>,
    pub(super) machines: Vec<MachineStrip>,
    /// Those that have slots first.
    pub(super) running: Vec<TrialLine>,
}

/// A machine, and who has its slots.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MachineStrip {
    pub(super) label: String,
    pub(super) cells: Vec<Cell>,
}

/// A trial that runs or waits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrialLine {
    pub(super) trial: TrialId,
    pub(super) part: f64,
    pub(super) metric: String,
    pub(super) place: String,
    pub(super) params: String,
}

impl Progress {
    pub(in crate::cli) fn of(engine: &Engine, best: &Best) -> Self {
        let (state, study) = (engine.state(), engine.study());
        let reserved = state.reserved();
        let epochs = study.trial.epochs;
        let part = |active: &ActiveTrial| (active.epochs / epochs).clamp(0.0, 1.0);
        let line = |(trial, active): (&TrialId, &ActiveTrial)| TrialLine {
            trial: *trial,
            part: part(active),
            metric: metric(active, &study.objectives),
            place: place(active),
            params: brief_params(&active.params),
        };
        let mut running: Vec<TrialLine> = state.active.iter().map(line).collect();
        running
            .sort_by_key(|line| state.active.get(&line.trial).is_none_or(|active| active.slots().is_empty()));
        let wanted = u64::from(study.search.trials);
        let done = state.ended.len() as f64 + state.active.values().map(part).sum::<f64>();
        let machines = state.nodes.iter().map(|(&node, known)| {
            let cell = |index: u32| match reserved.get(&SlotId { node, index }) {
                Some(trial) => Cell::Of(trial.0),
                None if known.up.contains(&index) => Cell::Free,
                None => Cell::Down,
            };
            let name = if known.name.is_empty() { node.to_string() } else { known.name.clone() };
            let label = if name.ends_with(known.gpu_type.name()) {
                name
            } else {
                format!("{name} {}", known.gpu_type)
            };
            MachineStrip { label, cells: (0..known.slots).map(cell).collect() }
        });
        let paused =
            state.paused_s.map(|_| "paused: no trial is launched until `pollux-tune resume`".to_owned());
        let stopping = state.stopping.then(|| "stopping: running trials save their state".to_owned());
        Self {
            ended: state.ended.len() as u64,
            wanted,
            part: done / wanted.max(1) as f64,
            busy: reserved.len(),
            slots: state.slot_count(),
            seconds: state.at_s - state.started_s,
            notice: stopping.or(paused),
            best: study.objectives.first().and_then(|objective| best.text(objective)),
            machines: machines.collect(),
            running,
        }
    }

    /// Whether it is to be expected that it comes to its end in the way it proceeds.
    pub(in crate::cli) const fn proceeds(&self) -> bool {
        self.notice.is_none()
    }
}

/// The last value of the first objective that has one.
fn metric(active: &ActiveTrial, objectives: &[Objective]) -> String {
    let shown = objectives.iter().find_map(|Objective { metric, .. }| {
        let value = active.metrics.get(metric)?.value();
        Some(format!("{metric} {}", brief(value)))
    });
    shown.unwrap_or_default()
}

/// The best result so far, of a study with one objective.
#[derive(Default)]
pub(in crate::cli) struct Best(Option<(TrialId, Vec<f64>, Params)>);

impl Best {
    pub(in crate::cli) fn update(&mut self, engine: &Engine, entries: &[JournalEntry]) {
        let objectives = &engine.study().objectives;
        if objectives.len() != 1 {
            return;
        }
        let ended = &engine.state().ended;
        // A study that is resumed has results from before.
        let before = ended.iter().filter(|_| self.0.is_none());
        let before = before.filter_map(|(trial, ended)| match &ended.end {
            End::Done(values) => Some((*trial, &values[..])),
            _ => None,
        });
        let new = entries.iter().filter_map(|entry| match &entry.fact {
            Fact::TrialDone { trial, values } => Some((*trial, &values[..])),
            _ => None,
        });
        let known = self.0.iter().map(|(trial, values, _)| (*trial, &values[..]));
        let results = known.chain(before).chain(new).map(|(trial, values)| ((trial, values), values));
        let found = best(objectives, results, 1).pop();
        self.0 = found.map(|(trial, values)| {
            let params = ended.get(&trial).map(|ended| ended.params.clone()).unwrap_or_default();
            (trial, values.to_vec(), params)
        });
    }

    fn text(&self, objective: &Objective) -> Option<String> {
        let (trial, values, params) = self.0.as_ref()?;
        let value = brief(*values.first()?);
        Some(format!("best {} {value} (trial {trial}): {}", objective.metric, brief_params(params)))
    }
}

/// Where a trial stands, and on how many slots: which ones, the strips of the machines show.
fn place(active: &ActiveTrial) -> String {
    let slots = active.slots().len();
    let slots = pluralize(slots, "slot");
    let batch = batch(active).map_or_else(String::new, |batch| format!(", {batch}"));
    match &active.phase {
        Phase::Waiting => "waits".to_owned(),
        Phase::Forming { .. } | Phase::Broken { .. } => format!("{slots}, starts"),
        Phase::Pausing(_) => format!("{slots}, saves"),
        Phase::Running(_) => format!("{slots}{batch}"),
    }
}

fn batch(active: &ActiveTrial) -> Option<String> {
    let group = active.phase.group()?;
    let total = group.batch?.total(group.slots.len() as u32);
    Some(format!("batch {total}"))
}
