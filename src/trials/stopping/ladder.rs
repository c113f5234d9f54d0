use std::collections::BTreeMap;

use libm::log1p;

use super::{
    Reason,
    odds::{doubtful, rank_correlation, rank_share, survival},
    record::{Rule, Sample, reached},
};
use crate::ids::TrialId;

/// Rungs of asynchronous successive halving: at each, the best of `reduction` trials continues (Li et al., "A system for massively
/// parallel hyperparameter tuning", 2020), in the variant that stops trials instead of pausing them.
///
/// A trial is compared with those that reached the rung before it, and none waits. So the first trial at a rung always
/// continues, and among the first few the best so far; for later ones all earlier trials set the cut.
///
/// Unlike there, `reduction` may be below 2. Then less is cut at each rung, and rungs do not lie closer: between two of
/// them a curve has to have the time to show something new.
pub(super) struct Ladder {
    name: &'static str,
    reduction: f64,
    rungs: Vec<Rung>,
}

const SPACING_MIN: f64 = 2.0;

struct Rung {
    at: f64,
    /// What each trial had when it passed.
    values: BTreeMap<TrialId, f64>,
    /// The same, the best first.
    sorted: Vec<f64>,
}

impl Ladder {
    /// Rungs at `first` and from there on at a [`spacing`], below the epochs of a full trial.
    pub(super) fn new(name: &'static str, first: f64, reduction: f64, epochs: f64) -> Self {
        let next = |at: &f64| Some(at * spacing(reduction));
        let points = std::iter::successors(Some(first), next).take_while(|at| !reached(*at, epochs));
        let rungs = points.map(|at| Rung { at, values: BTreeMap::new(), sorted: Vec::new() }).collect();
        Self { name, reduction, rungs }
    }

    pub(super) fn has_rungs(&self) -> bool {
        !self.rungs.is_empty()
    }

    /// How many of a number of trials continue.
    fn kept(&self, trials: usize) -> usize {
        // A division may end a little below the whole number that it stands for.
        ((trials as f64 / self.reduction + 1e-9) as usize).max(1)
    }
}

/// How much further than the one before it each rung is.
pub(super) fn spacing(reduction: f64) -> f64 {
    reduction.max(SPACING_MIN)
}

impl Rung {
    /// Takes note of a trial and returns its rank, from 1. Trials alike share the better one.
    fn insert(&mut self, trial: TrialId, value: f64) -> usize {
        let better = self.sorted.partition_point(|other| *other < value);
        self.sorted.insert(better, value);
        self.values.insert(trial, value);
        better + 1
    }

    fn withdraw(&mut self, trial: TrialId) {
        if let Some(value) = self.values.remove(&trial) {
            self.sorted.remove(self.sorted.partition_point(|other| *other < value));
        }
    }
}

/// Where a point lies between two others, from 0 to 1. Values change quickly at first and slowly later, so it is
/// measured on a logarithmic scale.
fn share_between(low: f64, high: f64, point: f64) -> f64 {
    ((log1p(point) - log1p(low)) / (log1p(high) - log1p(low))).clamp(0.0, 1.0)
}

/// Without overflow, whatever the values.
fn between(low: f64, high: f64, share: f64) -> f64 {
    low * (1.0 - share) + high * share
}

/// The value of a trial at a rung that it has passed since its last report. Before its first one nothing else is known.
fn value_at(rung: f64, before: Option<Sample>, now: Sample) -> f64 {
    let Some(before) = before else { return now.value };
    between(before.value, now.value, share_between(before.progress, now.progress, rung))
}

/// What a trial had at a rung, by its reports in their order: progress and value. None if it has not reached it.
#[cfg(feature = "cli")]
pub(crate) fn value_at_rung(reports: impl IntoIterator<Item = (f64, f64)>, rung: f64) -> Option<f64> {
    let mut before: Option<Sample> = None;
    for (progress, value) in reports {
        // As the record of a stopper does: what is not finite or comes again counts for nothing.
        if !value.is_finite() || before.is_some_and(|before| progress <= before.progress) {
            continue;
        }
        let now = Sample { progress, value };
        if reached(progress, rung) {
            return Some(value_at(rung, before, now));
        }
        before = Some(now);
    }
    None
}

impl Rule for Ladder {
    fn name(&self) -> &'static str {
        self.name
    }

    fn judge(&mut self, trial: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason> {
        let passed = self.rungs.partition_point(|rung| reached(now.progress, rung.at));
        for at in 0..passed {
            let rung = &mut self.rungs[at];
            if rung.values.contains_key(&trial) {
                continue;
            }
            let rank = rung.insert(trial, value_at(rung.at, before, now));
            let (rung, trials) = (rung.at, rung.sorted.len());
            let kept = self.kept(trials);
            // One report is one piece of evidence, however many rungs lie between it and the last one.
            if at + 1 == passed && rank > kept {
                return Some(Reason::Rung { rung, rank, trials, kept });
            }
        }
        None
    }

    /// Trials that have passed the next rung show where they were at the present progress, and how much their rank
    /// changed until they were there.
    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        let next = self.rungs.iter().position(|rung| !rung.values.contains_key(&trial));
        let Some((low, high)) =
            next.filter(|&next| next > 0).map(|at| (&self.rungs[at - 1], &self.rungs[at]))
        else {
            return 1.0;
        };
        let share = share_between(low.at, high.at, now.progress);
        let pairs = high.values.iter().filter_map(|(id, &later)| {
            let earlier = low.values.get(id)?;
            Some((between(*earlier, later, share), later))
        });
        let (here, later): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let trials = later.len() + 1;
        let cut = self.kept(trials) as f64 / (trials as f64 + 1.0);
        let likely = survival(rank_share(now.value, &here), cut, rank_correlation(&here, &later));
        doubtful(likely, later.len())
    }

    fn withdraw(&mut self, trial: TrialId) {
        self.rungs.iter_mut().for_each(|rung| rung.withdraw(trial));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(progress: f64, value: f64) -> Sample {
        Sample { progress, value }
    }

    #[test]
    fn rungs_lie_below_the_end() {
        let rungs = |first, reduction, epochs| -> Vec<f64> {
            Ladder::new("asha", first, reduction, epochs).rungs.iter().map(|rung| rung.at).collect()
        };
        assert_eq!(rungs(1.0, 3.0, 81.0), [1.0, 3.0, 9.0, 27.0]);
        assert_eq!(rungs(1.0, 3.0, 82.0), [1.0, 3.0, 9.0, 27.0, 81.0]);
        assert!(rungs(5.0, 4.0, 5.0).is_empty());
    }

    #[test]
    fn a_soft_cut_keeps_the_distance_of_rungs() {
        let mut ladder = Ladder::new("asha", 1.0, 1.25, 9.0);
        assert_eq!(ladder.rungs.iter().map(|rung| rung.at).collect::<Vec<_>>(), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!([1, 2, 4, 5, 9, 10].map(|trials| ladder.kept(trials)), [1, 1, 3, 4, 7, 8]);
        let mut judge = |number: u32, value: f64| ladder.judge(TrialId(number), None, sample(1.0, value));
        let stopped: Vec<bool> = (0..)
            .zip([5.0, 4.0, 6.0, 4.5, 7.0])
            .map(|(number, value)| judge(number, value).is_some())
            .collect();
        assert_eq!(stopped, [false, false, true, false, true]);
    }

    #[test]
    fn values_at_rungs_are_interpolated() {
        // ln 2 lies half-way between ln 1 and ln 4.
        let value = value_at(1.0, Some(sample(0.0, 3.0)), sample(3.0, 1.0));
        assert!((value - 2.0).abs() < 1e-12, "{value}");
        let huge = value_at(1.0, Some(sample(0.0, f64::MAX)), sample(3.0, f64::MIN));
        assert!(huge.abs() < f64::MAX, "{huge}");
        let early = value_at(1.0, None, sample(3.0, 1.0));
        assert!((early - 1.0).abs() < 1e-12, "{early}");
    }

    #[test]
    fn the_best_third_goes_on() {
        let mut ladder = Ladder::new("asha", 1.0, 3.0, 9.0);
        let values = [5.0, 4.0, 6.0, 4.5, 4.5, 4.2, 4.0];
        let stopped: Vec<bool> = (0..)
            .map(TrialId)
            .zip(values)
            .map(|(trial, value)| ladder.judge(trial, None, sample(1.0, value)).is_some())
            .collect();
        // One of up to five continues, then two; the last is as good as the best.
        assert_eq!(stopped, [false, false, true, true, true, false, false]);
    }

    #[test]
    fn a_report_beyond_two_rungs_counts_at_both_and_is_judged_at_the_last() {
        let mut ladder = Ladder::new("asha", 1.0, 3.0, 27.0);
        assert_eq!(ladder.judge(TrialId(0), None, sample(4.0, 1.0)), None);
        assert_eq!(ladder.judge(TrialId(0), Some(sample(4.0, 1.0)), sample(5.0, 0.9)), None);
        assert_eq!(ladder.rungs.iter().map(|rung| rung.sorted.len()).collect::<Vec<_>>(), [1, 1, 0]);
        let reason = ladder.judge(TrialId(1), Some(sample(0.5, 0.0)), sample(4.0, 2.0));
        let expected = Reason::Rung { rung: 3.0, rank: 2, trials: 2, kept: 1 };
        assert_eq!(reason, Some(expected), "better at the first rung, worse at the second");
        let mut later = ladder.judge(TrialId(2), None, sample(3.5, 0.5));
        assert_eq!(later, None);
        later = ladder.judge(TrialId(3), Some(sample(0.5, 2.0)), sample(4.0, 0.0));
        assert_eq!(later, None, "worse at the first rung, better at the second");
    }

    #[test]
    fn nobody_has_to_beat_a_trial_that_has_withdrawn() {
        let mut ladder = Ladder::new("asha", 1.0, 3.0, 9.0);
        let judge = |ladder: &mut Ladder, number: u32, value: f64| {
            ladder.judge(TrialId(number), None, sample(1.0, value)).is_some()
        };
        assert!(!judge(&mut ladder, 0, 1.0) && judge(&mut ladder, 1, 3.0));
        ladder.withdraw(TrialId(0));
        ladder.withdraw(TrialId(7));
        assert_eq!(ladder.rungs[0].sorted, [3.0]);
        assert!(!judge(&mut ladder, 2, 2.0) && judge(&mut ladder, 3, 2.5));
        assert_eq!(ladder.rungs[0].sorted, [2.0, 2.5, 3.0]);
    }

    #[test]
    fn promise_follows_the_rank() {
        let mut ladder = Ladder::new("asha", 1.0, 2.0, 4.0);
        for number in 0..30 {
            let value = f64::from(number % 10);
            ladder.judge(TrialId(number), None, sample(1.0, value));
            ladder.judge(TrialId(number), Some(sample(1.0, value)), sample(2.0, value - 1.0));
        }
        let promise = |number: u32, value: f64, ladder: &mut Ladder| {
            ladder.judge(TrialId(number), None, sample(1.0, value));
            ladder.promise(TrialId(number), sample(1.0, value))
        };
        let promises: Vec<f64> =
            [(50, 0.0), (51, 4.0), (52, 9.0)].map(|(id, value)| promise(id, value, &mut ladder)).into();
        assert!(promises[0] > 0.9 && promises[2] < 0.3, "{promises:?}");
        assert!(promises[0] > promises[1] && promises[1] > promises[2], "{promises:?}");
        let unknown = ladder.promise(TrialId(99), sample(0.5, 9.0));
        assert!((unknown - 1.0).abs() < 1e-12, "before its first rung nothing is known");
    }
}
