//! When the thread that trains gives a sign of it.

use crate::trials::group::Task;

/// Signs of progress of one rank of a group. There is none without a step: whoever hears nothing knows that the training stands still.
#[derive(Debug)]
pub(super) struct Heartbeat {
    every_s: f64,
    /// When the next one is due, after a step.
    due_s: f64,
    /// When the last step ended, and how many there were then.
    stepped_at_s: f64,
    steps: Option<u64>,
    /// The longest step since the last sign; none if there was no step.
    longest_step_s: Option<f64>,
}

impl Heartbeat {
    /// The first one comes with the first step.
    pub(super) const fn new(task: &Task, now_s: f64, steps: Option<u64>) -> Self {
        Self { every_s: task.report_every_s, due_s: now_s, stepped_at_s: now_s, steps, longest_step_s: None }
    }

    pub(super) const fn due_s(&self) -> f64 {
        self.due_s
    }

    /// Steps were taken, or nothing has happened.
    pub(super) fn stepped(&mut self, now_s: f64, steps: Option<u64>) {
        let count = steps.unwrap_or(0).saturating_sub(self.steps.unwrap_or(0));
        if count > 0 {
            let step_s = (now_s - self.stepped_at_s) / count as f64;
            self.longest_step_s = Some(self.longest_step_s.map_or(step_s, |longest_s| longest_s.max(step_s)));
            (self.stepped_at_s, self.steps) = (now_s, steps);
        }
    }

    /// The longest step since the last sign, if another one is due.
    pub(super) fn take_due(&mut self, now_s: f64) -> Option<f64> {
        (self.longest_step_s.is_some() && now_s >= self.due_s).then(|| self.take(now_s))
    }

    /// The longest step since the last sign, which is given now.
    pub(super) fn take(&mut self, now_s: f64) -> f64 {
        self.due_s = now_s + self.every_s;
        self.longest_step_s.take().unwrap_or(0.0)
    }

    /// Something else than steps took until now.
    pub(super) const fn resume(&mut self, now_s: f64) {
        self.stepped_at_s = now_s;
    }
}
