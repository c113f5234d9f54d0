//! When something that went wrong is tried again: trials after failures of machines, the study after failures of what all
//! trials share.

use crate::ids::TrialId;

/// A trial fails for good after more failures than this in a row, if no trial has made progress meanwhile.
pub(super) const FAILURES_MAX: u32 = 3;

/// The first pause; each one is twice as long as the one before.
const FIRST_S: f64 = 1.0;
/// The longest pause of a trial.
const LONGEST_OF_TRIAL_S: f64 = 60.0;
/// The longest pause of a study.
const LONGEST_OF_STUDY_S: f64 = 30.0;

/// The pause after this many failures.
fn pause_s(failures: u32, longest_s: f64) -> f64 {
    (FIRST_S * 2f64.powi(failures.clamp(1, 31).cast_signed() - 1)).min(longest_s)
}

/// What machines and processes did to a trial since it last made progress.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Failures {
    /// How often it failed since any trial last made progress: with too many of them, it is the trial's own fault.
    pub count: u32,
    /// How often it failed since it made progress itself: the pause grows with it.
    pub retries: u32,
    /// The last time, if ever.
    pub last: String,
    /// It is not launched again before this time.
    pub retry_s: f64,
    /// The progress of the study at the last failure.
    progress: u64,
}

impl Failures {
    /// Takes note of a failure, at some progress of the study. What fails during a pause is part of the same accident.
    pub(super) fn add(&mut self, at_s: f64, reason: &str, progress: u64) {
        reason.clone_into(&mut self.last);
        if at_s < self.retry_s {
            return;
        }
        let same_streak = self.count > 0 && self.progress == progress;
        self.count = if same_streak { self.count + 1 } else { 1 };
        self.progress = progress;
        self.retries += 1;
        self.retry_s = at_s + pause_s(self.retries, LONGEST_OF_TRIAL_S);
    }

    /// Takes note of a loss that is nobody's failure.
    pub(super) fn excuse(&mut self, reason: &str) {
        reason.clone_into(&mut self.last);
    }

    /// The trial has made progress.
    pub(super) const fn forgive(&mut self) {
        (self.count, self.retries) = (0, 0);
    }
}

/// The study waits: what all trials share is broken, such as a full disk. Trials that run continue; one at a time is launched
/// to find out whether it was mended.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// What is broken.
    pub reason: String,
    /// Since when.
    pub since_s: f64,
    /// How often it was found broken.
    pub tries: u32,
    /// When to try again.
    pub retry_s: f64,
    /// The trial that finds out.
    pub probe: Option<TrialId>,
}

impl Wait {
    /// The longest time between two tries, in seconds.
    pub const LONGEST_S: f64 = LONGEST_OF_STUDY_S;

    /// It was found broken, for the first time or again.
    pub(super) fn again(before: Option<&Self>, at_s: f64, reason: &str) -> Self {
        let (since_s, tries) = before.map_or((at_s, 1), |wait| (wait.since_s, wait.tries.saturating_add(1)));
        let retry_s = at_s + pause_s(tries, LONGEST_OF_STUDY_S);
        Self { reason: reason.to_owned(), since_s, tries, retry_s, probe: None }
    }

    /// Whether a trial may be launched to find out.
    pub(super) fn is_due(&self, now_s: f64) -> bool {
        self.probe.is_none() && now_s >= self.retry_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pauses = [0, 1, 2, 3, 6, 7, 8, u32::MAX].map(|failures| pause_s(failures, 60.0).to_string());
        assert_eq!(pauses, ["1", "1", "2", "4", "32", "60", "60", "60"]);
    }

    #[test]
    fn failures_at_once_are_one_accident_and_progress_of_anybody_ends_a_streak() {
        let mut failures = Failures::default();
        for _ in 0..9 {
            failures.add(10.0, "killed", 5);
        }
        assert_eq!((failures.count, failures.retries, failures.retry_s), (1, 1, 11.0));
        failures.add(11.0, "killed", 5);
        assert_eq!((failures.count, failures.retries, failures.retry_s), (2, 2, 13.0));
        failures.add(13.0, "killed again", 6);
        assert_eq!(
            (failures.count, failures.retries, failures.retry_s),
            (1, 3, 17.0),
            "another one got ahead"
        );
        failures.forgive();
        failures.add(20.0, "killed", 6);
        assert_eq!((failures.count, failures.retries, failures.retry_s), (1, 1, 21.0), "it got ahead itself");
        assert_eq!(failures.last, "killed");
    }
}
