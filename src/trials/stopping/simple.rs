//! Rules that look at one trial alone.

use std::collections::BTreeMap;

use super::{
    Reason,
    record::{Rule, Sample, reached},
};
use crate::ids::TrialId;

/// Stops nothing.
pub(super) struct Never;

impl Rule for Never {
    fn name(&self) -> &'static str {
        "none"
    }

    fn judge(&mut self, _trial: TrialId, _before: Option<Sample>, _now: Sample) -> Option<Reason> {
        None
    }

    fn promise(&self, _trial: TrialId, _now: Sample) -> f64 {
        1.0
    }
}

/// Stops a trial that is worse than a bound once it has had its grace.
pub(super) struct Threshold {
    pub(super) grace: f64,
    /// Smaller is better.
    pub(super) bound: f64,
}

impl Rule for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn judge(&mut self, _trial: TrialId, _before: Option<Sample>, now: Sample) -> Option<Reason> {
        let Sample { progress, value } = now;
        (value > self.bound && reached(progress, self.grace)).then_some(Reason::Threshold { progress })
    }

    fn promise(&self, _trial: TrialId, _now: Sample) -> f64 {
        1.0
    }
}

/// Stops a trial that has not become better for some epochs.
pub(super) struct Patience {
    grace: f64,
    /// Epochs that a trial may continue without becoming better.
    limit: f64,
    best: BTreeMap<TrialId, Sample>,
}

impl Patience {
    pub(super) fn new(grace: f64, limit: f64) -> Self {
        Self { grace, limit, best: BTreeMap::new() }
    }
}

impl Rule for Patience {
    fn name(&self) -> &'static str {
        "patience"
    }

    fn judge(&mut self, trial: TrialId, _before: Option<Sample>, now: Sample) -> Option<Reason> {
        let best = self.best.entry(trial).or_insert(now);
        if now.value < best.value {
            *best = now;
        }
        let (best_at, progress) = (best.progress, now.progress);
        let over = reached(progress - best_at, self.limit) && reached(progress, self.grace);
        over.then_some(Reason::Patience { best_at, progress })
    }

    /// The share of its patience that is left.
    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        let best_at = self.best.get(&trial).map_or(now.progress, |best| best.progress);
        (1.0 - (now.progress - best_at) / self.limit).clamp(0.0, 1.0)
    }

    fn end(&mut self, trial: TrialId) {
        self.withdraw(trial);
    }

    fn withdraw(&mut self, trial: TrialId) {
        self.best.remove(&trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_by_hand() {
        let mut rule = Patience::new(4.0, 2.0);
        let mut judge = |progress: f64, value: f64| rule.judge(TrialId(0), None, Sample { progress, value });
        assert_eq!(judge(1.0, 5.0), None);
        assert_eq!(judge(3.0, 5.0), None, "within its grace");
        assert_eq!(judge(4.0, 4.9), None, "better");
        assert_eq!(judge(5.5, 4.9), None, "no better, for a while");
        assert_eq!(judge(6.0, 4.9), Some(Reason::Patience { best_at: 4.0, progress: 6.0 }));
        let promise = rule.promise(TrialId(0), Sample { progress: 5.5, value: 4.9 });
        assert!((promise - 0.25).abs() < 1e-12);
    }

    #[test]
    fn the_bound_itself_is_good_enough() {
        let mut rule = Threshold { grace: 2.0, bound: 0.5 };
        let mut judge = |progress: f64, value: f64| rule.judge(TrialId(0), None, Sample { progress, value });
        assert_eq!((judge(1.0, 0.6), judge(2.0, 0.5)), (None, None));
        assert_eq!(judge(2.5, 0.51), Some(Reason::Threshold { progress: 2.5 }));
    }
}
