use std::collections::{BTreeMap, VecDeque};

use super::{
    Reason,
    odds::{doubtful, rank_share, survival},
    record::{Rule, Sample, reached},
};
use crate::ids::TrialId;

/// With fewer others there is no median.
const OTHERS_MIN: usize = 5;
/// Of reports that are closer than this share of a full trial, not all are kept.
const RESOLUTION: f64 = 1.0 / 256.0;
/// So many trials that have ended are compared with, the last ones: a median of more is no better, and takes memory and time.
const ENDED_MAX: usize = 1024;
/// How ranks at one report correlate with those at the next: a guess, as reports come at any distance.
const CORRELATION: f64 = 0.8;

/// The median rule (Golovin et al., "Google Vizier", KDD 2017): a trial is stopped if its best value is worse than the median of
/// the others' running averages at the same progress. Averages are over progress, not over reports.
pub(super) struct Median {
    grace: f64,
    /// The minimum distance between the points kept of a trial.
    distance: f64,
    curves: BTreeMap<TrialId, Averages>,
    /// Those among them that have ended, in the order of their ends.
    ended: VecDeque<TrialId>,
}

/// The running average of one trial.
struct Averages {
    best: f64,
    points: Vec<Point>,
}

struct Point {
    at: Sample,
    /// Of the values up to here.
    mean: f64,
}

impl Averages {
    fn new() -> Self {
        Self { best: f64::INFINITY, points: Vec::new() }
    }

    fn push(&mut self, now: Sample, distance: f64) {
        self.best = self.best.min(now.value);
        let mean = self.points.last().map_or(now.value, |last| last.mean_at(now));
        // The latest point is always kept, and what was between is in its mean.
        if let [.., anchor, _] = &self.points[..]
            && now.progress - anchor.at.progress < distance
        {
            self.points.pop();
        }
        self.points.push(Point { at: now, mean });
    }

    /// None if the trial has not come so far. Before its first report it is taken to be as good as there.
    fn mean_at(&self, progress: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.at.progress < progress);
        let next = self.points.get(after)?;
        let Some(last) = after.checked_sub(1).map(|at| &self.points[at]) else { return Some(next.mean) };
        let share = (progress - last.at.progress) / (next.at.progress - last.at.progress);
        Some(last.mean * (1.0 - share) + next.mean * share)
    }
}

impl Point {
    /// The running average at the next sample, with a straight line up to there.
    fn mean_at(&self, next: Sample) -> f64 {
        let share = self.at.progress / next.progress;
        self.mean * share + (0.5 * self.at.value + 0.5 * next.value) * (1.0 - share)
    }
}

impl Median {
    pub(super) fn new(grace: f64, epochs: f64) -> Self {
        Self { grace, distance: RESOLUTION * epochs, curves: BTreeMap::new(), ended: VecDeque::new() }
    }

    /// The best value of a trial, and the averages of all others that have come as far.
    fn compare(&self, trial: TrialId, progress: f64) -> (f64, Vec<f64>) {
        let best = self.curves.get(&trial).map_or(f64::INFINITY, |curve| curve.best);
        let others = self.curves.iter().filter(|(id, _)| **id != trial);
        (best, others.filter_map(|(_, curve)| curve.mean_at(progress)).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { 0.5 * values[middle - 1] + 0.5 * values[middle] }
}

impl Rule for Median {
    fn name(&self) -> &'static str {
        "median"
    }

    fn judge(&mut self, trial: TrialId, _before: Option<Sample>, now: Sample) -> Option<Reason> {
        self.curves.entry(trial).or_insert_with(Averages::new).push(now, self.distance);
        if !reached(now.progress, self.grace) {
            return None;
        }
        let (best, others) = self.compare(trial, now.progress);
        let count = others.len();
        (count >= OTHERS_MIN && best > median(others))
            .then_some(Reason::Median { progress: now.progress, others: count })
    }

    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        let (best, others) = self.compare(trial, now.progress);
        if others.len() < OTHERS_MIN {
            return 1.0;
        }
        doubtful(survival(rank_share(best, &others), 0.5, CORRELATION), others.len())
    }

    fn end(&mut self, trial: TrialId) {
        if self.curves.contains_key(&trial) {
            self.ended.push_back(trial);
        }
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.curves.remove(&oldest);
        }
    }

    fn withdraw(&mut self, trial: TrialId) {
        self.curves.remove(&trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn averages(samples: &[(f64, f64)], distance: f64) -> Averages {
        let mut averages = Averages::new();
        for &(progress, value) in samples {
            averages.push(Sample { progress, value }, distance);
        }
        averages
    }

    fn is_mean(averages: &Averages, progress: f64, expected: f64) -> bool {
        averages.mean_at(progress).is_some_and(|mean| (mean / expected - 1.0).abs() < 1e-12)
    }

    #[test]
    fn averages_are_over_progress() {
        let trial = averages(&[(1.0, 4.0), (3.0, 2.0), (4.0, 2.0)], 0.0);
        // 4 up to 1, then 3 in the middle for two epochs, then 2 for one.
        assert!(is_mean(&trial, 3.0, (4.0 + 6.0) / 3.0) && is_mean(&trial, 4.0, 3.0));
        assert!(is_mean(&trial, 0.5, 4.0) && trial.mean_at(4.5).is_none());
        let dense = averages(&(1..=400).map(|i| (f64::from(i) / 100.0, 1.0)).collect::<Vec<_>>(), 0.0);
        assert!(is_mean(&dense, 3.999, 1.0), "more reports do not change it");
    }

    #[test]
    fn close_reports_are_thinned_out() {
        let samples: Vec<(f64, f64)> = (0..5000).map(|i| (f64::from(i), 1.0 / f64::from(1 + i))).collect();
        let (all, thin) = (averages(&samples, 0.0), averages(&samples, 20.0));
        assert!(thin.points.len() <= 502, "{}", thin.points.len());
        assert_eq!(thin.mean_at(4999.0), all.mean_at(4999.0));
        for progress in [100.0, 1000.5, 2500.0] {
            let means = [&all, &thin].map(|averages| averages.mean_at(progress).expect("it came so far"));
            assert!((means[0] / means[1] - 1.0).abs() < 0.01, "{means:?}");
        }
    }

    #[test]
    fn the_last_trials_that_have_ended_are_enough() {
        let mut rule = Median::new(1.0, 10.0);
        let report = |rule: &mut Median, number: u32, value: f64| {
            rule.judge(TrialId(number), None, Sample { progress: 2.0, value })
        };
        assert_eq!(report(&mut rule, 0, 0.5), None);
        for number in 1..3000 {
            // Those that report the same are not stopped.
            assert_eq!(report(&mut rule, number, if number < 1500 { 1.0 } else { 0.0 }), None);
            rule.end(TrialId(number));
            rule.end(TrialId(number + 100_000));
        }
        assert_eq!((rule.curves.len(), rule.ended.len()), (ENDED_MAX + 1, ENDED_MAX));
        assert!(rule.curves.contains_key(&TrialId(0)), "it runs");
        let reason = Reason::Median { progress: 2.0, others: ENDED_MAX + 1 };
        assert_eq!(report(&mut rule, 3000, 0.4), Some(reason), "the median of the last ones is 0");
    }

    #[test]
    fn the_best_value_meets_the_median_of_averages() {
        let mut rule = Median::new(2.0, 10.0);
        let judge = |rule: &mut Median, number: u32, progress: f64, value: f64| {
            rule.judge(TrialId(number), None, Sample { progress, value })
        };
        for (number, value) in (0..5).zip([1.0, 2.0, 3.0, 4.0, 5.0]) {
            assert_eq!(judge(&mut rule, number, 2.0, value), None, "too few others");
        }
        assert_eq!(judge(&mut rule, 5, 1.0, 9.0), None, "within its grace");
        assert_eq!(judge(&mut rule, 5, 2.0, 3.0), None, "as good as the median");
        let reason = Reason::Median { progress: 2.0, others: 6 };
        assert_eq!(judge(&mut rule, 6, 2.0, 5.5), Some(reason));
        rule.withdraw(TrialId(0));
        assert_eq!(judge(&mut rule, 7, 2.0, 3.5), None, "half-way between 3 and 4");
    }
}
