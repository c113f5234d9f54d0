use super::{
    Reason,
    ladder::{Ladder, spacing},
    record::{Rule, Sample},
};
use crate::ids::TrialId;

/// Hyperband (Li et al., JMLR 2018) without waiting: brackets of asynchronous successive halving that differ in their first rung,
/// so that trials that are slow at first have a chance in some of them.
///
/// A bracket that decides later spends more on each trial, and gets fewer trials, so that all brackets spend about the same.
/// Which bracket a trial belongs to follows from its number.
pub(super) struct Hyperband {
    brackets: Vec<Ladder>,
    /// Up to which share of the trials each bracket takes them.
    shares: Vec<f64>,
}

impl Hyperband {
    pub(super) fn new(grace: f64, reduction: f64, epochs: f64) -> Self {
        let mut brackets = Vec::new();
        let mut first = grace;
        // The last one has no rung at all.
        while brackets.last().is_none_or(Ladder::has_rungs) {
            brackets.push(Ladder::new("hyperband", first, reduction, epochs));
            first *= spacing(reduction);
        }
        // Where Hyperband has reduction^s / (s + 1) trials with s rungs, here it is relative to the first bracket.
        let mut scale = 1.0;
        let weights: Vec<f64> = (1..=brackets.len())
            .rev()
            .map(|parts| {
                let weight = scale / parts as f64;
                scale /= reduction;
                weight
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let shares = weights.iter().map(|weight| {
            sum += weight / total;
            sum
        });
        Self { shares: shares.collect(), brackets }
    }

    /// Reversed, the bits of consecutive numbers spread evenly (van der Corput), so every stretch of trials has its share of
    /// each bracket.
    fn bracket(&self, trial: TrialId) -> usize {
        let spread = f64::from(trial.0.reverse_bits()) / 2f64.powi(32);
        self.shares.partition_point(|share| *share <= spread).min(self.brackets.len() - 1)
    }
}

impl Rule for Hyperband {
    fn name(&self) -> &'static str {
        "hyperband"
    }

    fn judge(&mut self, trial: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason> {
        let bracket = self.bracket(trial);
        self.brackets[bracket].judge(trial, before, now)
    }

    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        self.brackets[self.bracket(trial)].promise(trial, now)
    }

    fn withdraw(&mut self, trial: TrialId) {
        let bracket = self.bracket(trial);
        self.brackets[bracket].withdraw(trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_have_the_numbers_of_the_paper() {
        // Table 1 of the paper, for R = 81 and reduction 3: 81, 27, 9, 6 and 5 trials; 81, 33.75, 15, 7.5 and 5 before rounding.
        let hyperband = Hyperband::new(1.0, 3.0, 81.0);
        let mut counts = [0.0; 5];
        let trials = 1 << 14;
        for number in 0..trials {
            counts[hyperband.bracket(TrialId(number))] += 1.0;
        }
        for (count, expected) in counts.iter().zip([81.0, 33.75, 15.0, 7.5, 5.0]) {
            let share = count / f64::from(trials) * (81.0 + 33.75 + 15.0 + 7.5 + 5.0);
            assert!((share - expected).abs() < 0.2, "{share} instead of {expected}");
        }
    }

    #[test]
    fn every_stretch_of_trials_is_spread_over_the_brackets() {
        let hyperband = Hyperband::new(1.0, 3.0, 27.0);
        for start in [0, 64, 4096 + 128] {
            let mut seen = [0; 4];
            (start..start + 64).for_each(|number| seen[hyperband.bracket(TrialId(number))] += 1);
            assert!(seen.iter().all(|count| *count >= 3), "{seen:?}");
        }
    }

    #[test]
    fn one_bracket_decides_later_than_another() {
        let mut hyperband = Hyperband::new(1.0, 2.0, 4.0);
        let of = |bracket: usize, hyperband: &Hyperband| -> Vec<TrialId> {
            (0..64).map(TrialId).filter(|trial| hyperband.bracket(*trial) == bracket).take(2).collect()
        };
        for (bracket, stops_at) in [(0, Some(1.0)), (1, Some(2.0)), (2, None)] {
            let trials = of(bracket, &hyperband);
            let mut stopped = None;
            for (trial, value) in trials.into_iter().zip([1.0, 2.0]) {
                let mut before = None;
                for progress in [1.0, 2.0, 3.0, 4.0] {
                    let now = Sample { progress, value };
                    let reason = hyperband.judge(trial, before, now);
                    stopped = stopped.or_else(|| reason.map(|_| progress));
                    before = Some(now);
                }
            }
            assert_eq!(stopped, stops_at, "bracket {bracket}");
        }
    }
}
