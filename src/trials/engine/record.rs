//! What the engine remembers of trials beside their state: the best value so far, and how fast programs are.

use super::{Engine, Fact, JournalEntry, Metrics, Pace, TrialKind};
use crate::{ids::TrialId, space::Objective};

/// What is remembered of an active trial.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The best value of the first objective so far.
    pub(super) best: Option<f64>,
    pub(super) pace: Pace,
    /// It is being restarted with other slots: the seconds that this took so far, and since when the present part of it lasts.
    restart: Option<(f64, f64)>,
}

impl Record {
    /// Takes note of the objective; whatever is no number is not the best.
    fn measure(&mut self, objective: &Objective, metrics: &Metrics) {
        let value = metrics.get(&objective.metric).map(|number| number.value());
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        if self.best.is_none_or(|best| objective.loss(value) < objective.loss(best)) {
            self.best = Some(value);
        }
    }
}

/// What the programs of a study have shown together.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The serial parts of programs that have ended: their number, and all of them together.
    serial: (u32, f64),
    /// The largest number of GPUs on which the speed of a program is known.
    pub(super) widest: u32,
    /// Restarts with other slots: their number, and the seconds of all of them.
    pub(super) restarts: (u32, f64),
}

impl Engine {
    /// Takes note of a fact that is true now.
    pub(super) fn remember(&mut self, JournalEntry { at_s, fact }: &JournalEntry) {
        if matches!(fact, Fact::HeadStarted {}) {
            for record in self.records.values_mut() {
                record.pace.end();
                record.restart = None;
            }
        }
        let Some(trial) = fact.trial() else { return };
        if fact.end().is_some() {
            let serial = self.records.remove(&trial).and_then(|record| record.pace.serial());
            if let Some(serial) = serial {
                self.shown.serial = (self.shown.serial.0 + 1, self.shown.serial.1 + serial);
            }
            return;
        }
        let record = self.records.entry(trial).or_default();
        if let (Fact::Measured { metrics, .. }, Some(objective)) = (fact, self.study.objectives.first()) {
            record.measure(objective, metrics);
        }
        if self.kind == TrialKind::Restarted {
            self.remember_restart(*at_s, trial, fact);
        }
    }

    /// Follows a program from its end to the first report of its next start.
    fn remember_restart(&mut self, at_s: f64, trial: TrialId, fact: &Fact) {
        let Some(record) = self.records.get_mut(&trial) else { return };
        match fact {
            Fact::TrialPausing { .. } => record.restart = Some((0.0, at_s)),
            Fact::TrialInterrupted { .. } => {
                record.pace.end();
                // What it waits for is not the cost of a restart.
                record.restart = record.restart.map(|(spent_s, since_s)| (spent_s + at_s - since_s, at_s));
            }
            Fact::TrialStarted { .. } => {
                record.restart = record.restart.map(|(spent_s, _)| (spent_s, at_s));
            }
            Fact::Measured { epochs, .. } => {
                if let Some((spent_s, since_s)) = record.restart.take() {
                    let (count, seconds) = self.shown.restarts;
                    self.shown.restarts = (count + 1, seconds + spent_s + at_s - since_s);
                }
                let slots = self.state.active.get(&trial).map_or(&[][..], |active| active.slots());
                if let Some(gpu_type) = self.state.gpu_type(slots) {
                    record.pace.report(at_s, *epochs, gpu_type, slots.len() as u32);
                    self.shown.widest = self.shown.widest.max(record.pace.widest());
                }
            }
            _ => {}
        }
    }

    /// On how many kinds and numbers of GPUs the speed of a program is known.
    pub(super) fn known_paces(&self, trial: TrialId) -> usize {
        self.records.get(&trial).map_or(0, |record| record.pace.count())
    }

    /// The part of an epoch on one GPU that more GPUs do not make shorter, as programs of the study have shown it.
    pub(super) fn serial_part(&self) -> Option<f64> {
        let shown = self.records.values().filter_map(|record| record.pace.serial());
        let (count, sum) = shown.fold(self.shown.serial, |(count, sum), serial| (count + 1, sum + serial));
        (count > 0).then(|| sum / f64::from(count))
    }
}
