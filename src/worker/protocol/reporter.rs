//! When the first rank of a group reports and saves.

use crate::trials::group::{Evaluation, Task};

/// Moments that are this close are the same: clocks are rounded.
const ROUNDING_S: f64 = 1e-6;

/// What only the first rank of a group does, and when it did so last.
#[derive(Debug)]
pub(super) struct RankZeroReporter {
    report_every_s: f64,
    checkpoint_every_s: f64,
    reported_at_s: f64,
    saved_at_s: f64,
    /// Steps in the last report.
    reported_steps: Option<u64>,
    /// Evaluations that were not reported yet.
    evaluations: Vec<Evaluation>,
}

impl RankZeroReporter {
    pub(super) const fn new(task: &Task, now_s: f64) -> Self {
        Self {
            report_every_s: task.report_every_s,
            checkpoint_every_s: task.checkpoint_every_s,
            reported_at_s: now_s,
            saved_at_s: now_s,
            reported_steps: None,
            evaluations: Vec::new(),
        }
    }

    /// When something is due next.
    pub(super) fn wake_s(&self) -> f64 {
        self.report_due_s().min(self.checkpoint_due_s())
    }

    fn report_due_s(&self) -> f64 {
        self.reported_at_s + self.report_every_s
    }

    fn checkpoint_due_s(&self) -> f64 {
        self.saved_at_s + self.checkpoint_every_s
    }

    /// Evaluations to report. The one at the end may be that of the last epoch, which counts once.
    pub(super) fn evaluated(&mut self, evaluations: impl IntoIterator<Item = Evaluation>) {
        for evaluation in evaluations {
            if self.evaluations.last() != Some(&evaluation) {
                self.evaluations.push(evaluation);
            }
        }
    }

    /// Whether to report now: evaluations at once, all else from time to time.
    pub(super) fn wants_report(&self, now_s: f64) -> bool {
        !self.evaluations.is_empty() || now_s + ROUNDING_S >= self.report_due_s()
    }

    /// Whether there is anything that was not reported.
    pub(super) fn has_unreported(&self, steps: Option<u64>) -> bool {
        !self.evaluations.is_empty() || self.reported_steps.is_none_or(|reported| steps > Some(reported))
    }

    /// A report is on its way. Gives the evaluations that belong to it.
    pub(super) fn reported(&mut self, now_s: f64, steps: u64) -> Vec<Evaluation> {
        self.reported_at_s = now_s;
        self.reported_steps = Some(steps);
        std::mem::take(&mut self.evaluations)
    }

    pub(super) fn wants_checkpoint(&self, now_s: f64) -> bool {
        now_s + ROUNDING_S >= self.checkpoint_due_s()
    }

    /// A checkpoint is being written.
    pub(super) const fn saving(&mut self, now_s: f64) {
        self.saved_at_s = now_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TrialId;

    #[test]
    fn the_last_evaluation_is_reported_once() {
        let mut reporter = RankZeroReporter::new(&Task::new(TrialId(0), "toy"), 0.0);
        let evaluation = |epochs| Evaluation { epochs, values: [("loss".to_owned(), 0.5)].into() };
        reporter.evaluated([evaluation(1.0), evaluation(2.0)]);
        reporter.evaluated([evaluation(2.0)]);
        assert_eq!(reporter.reported(1.0, 10), [evaluation(1.0), evaluation(2.0)]);
    }
}
