use std::collections::BTreeMap;

use crate::{
    ids::TrialId,
    trials::engine::{Fact, JournalEntry},
};

/// The result of one trial.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct TrialReport {
    /// When it was created, in seconds.
    pub created_s: f64,
    /// When it was over.
    pub ended_s: f64,
    /// GPU-hours it had, those in which it did not train yet included.
    pub gpu_hours: f64,
    /// How often its GPUs were changed after its start.
    pub reallocations: u32,
    /// The values of its objectives; none if it failed or was stopped.
    pub values: Option<Vec<f64>>,
}

/// The results of a study.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StudyReport {
    /// All trials, in their order.
    pub trials: Vec<TrialReport>,
    /// Seconds from the beginning to the end of the last trial.
    pub makespan_s: f64,
    /// Seconds that the same trainings take at least, on the same GPUs and with as many of them at a time: under a scheduler that knows
    /// everything and moves GPUs at no cost.
    pub bound_s: f64,
}

impl StudyReport {
    /// Mean time from the creation of a trial to its end, in seconds.
    #[must_use]
    pub fn avg_jct_s(&self) -> f64 {
        self.mean(|trial| trial.ended_s - trial.created_s)
    }

    /// GPU-hours of all trials.
    #[must_use]
    pub fn gpu_hours(&self) -> f64 {
        self.trials.iter().map(|trial| trial.gpu_hours).sum()
    }

    /// How often the GPUs of a trial were changed, on the mean.
    #[must_use]
    pub fn reallocations(&self) -> f64 {
        self.mean(|trial| f64::from(trial.reallocations))
    }

    /// Mean of the first objective over the trials that have most of it, at most `count`; NaN if none was completed.
    #[must_use]
    pub fn top(&self, count: usize) -> f64 {
        let values = self.trials.iter().filter_map(|trial| trial.values.as_ref()?.first().copied());
        let mut values: Vec<f64> = values.collect();
        values.sort_by(|a, b| b.total_cmp(a));
        values.truncate(count);
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn mean(&self, of: impl Fn(&TrialReport) -> f64) -> f64 {
        self.trials.iter().map(of).sum::<f64>() / self.trials.len() as f64
    }
}

/// Collects the figures from the facts.
#[derive(Default)]
pub(super) struct ReportBuilder {
    trials: BTreeMap<TrialId, TrialReport>,
    /// GPUs that trials have, and since when.
    held: BTreeMap<TrialId, (usize, f64)>,
}

impl ReportBuilder {
    pub(super) fn apply(&mut self, JournalEntry { at_s, fact }: &JournalEntry) {
        let Some(trial) = fact.trial() else { return };
        match fact {
            Fact::TrialCreated { .. } => {
                self.trials.insert(trial, TrialReport { created_s: *at_s, ..TrialReport::default() });
            }
            Fact::TrialStarted { slots, .. } => {
                let moved = self.release(trial, *at_s);
                if let Some(report) = self.trials.get_mut(&trial) {
                    report.reallocations += u32::from(moved);
                }
                self.held.insert(trial, (slots.len(), *at_s));
            }
            Fact::TrialPaused { .. } | Fact::TrialInterrupted { .. } => {
                self.release(trial, *at_s);
            }
            Fact::TrialDone { values, .. } => self.end(trial, *at_s, Some(values.clone())),
            Fact::TrialStopped { .. } | Fact::TrialFailed { .. } | Fact::TrialCancelled { .. } => {
                self.end(trial, *at_s, None);
            }
            _ => {}
        }
    }

    /// Counts the GPU time of a trial up to now; whether it had any GPUs.
    fn release(&mut self, trial: TrialId, at_s: f64) -> bool {
        let held = self.held.remove(&trial);
        if let (Some((gpus, since_s)), Some(report)) = (held, self.trials.get_mut(&trial)) {
            report.gpu_hours += gpus as f64 * (at_s - since_s) / 3600.0;
        }
        held.is_some()
    }

    fn end(&mut self, trial: TrialId, at_s: f64, values: Option<Vec<f64>>) {
        self.release(trial, at_s);
        if let Some(report) = self.trials.get_mut(&trial) {
            (report.ended_s, report.values) = (at_s, values);
        }
    }

    pub(super) fn report(self, now_s: f64, bound_s: f64) -> StudyReport {
        StudyReport { trials: self.trials.into_values().collect(), makespan_s: now_s, bound_s }
    }
}
