//! Whose checkpoints are kept.

use super::{End, best};
use crate::{
    ids::TrialId,
    space::{KeepCheckpoints, Objective, Study},
    tpe::pareto::pareto_front,
};

/// Decides whose checkpoints are needed no longer.
///
/// Those of a trial without a result, which has failed or was cancelled, are always needed: it may be tried again. Of those with one, the
/// best keep theirs.
///
/// ```
/// use pollux_tune::{ids::TrialId, space::Study, trials::{End, Retention}};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {x: {float: [0, 1]}}
/// objective: {minimize: loss}
/// trial: {keep_checkpoints: 1}
/// ")?;
/// let mut retention = Retention::new(&study);
/// assert_eq!(retention.ended(TrialId(0), &End::Done(vec![0.5])), []);
/// assert_eq!(retention.ended(TrialId(1), &End::Done(vec![0.4])), [TrialId(0)]);
/// assert_eq!(retention.ended(TrialId(2), &End::Done(vec![0.6])), [TrialId(2)]);
/// assert_eq!(retention.ended(TrialId(3), &End::Failed("no data".to_owned())), []);
/// # Ok::<(), pollux_tune::space::Diagnostics>(())
/// ```
#[derive(Debug, Clone)]
pub struct Retention {
    objectives: Vec<Objective>,
    keep: KeepCheckpoints,
    /// Those that are kept for their results.
    best: Vec<(TrialId, Vec<f64>)>,
}

impl Retention {
    /// That of a study.
    #[must_use]
    pub fn new(study: &Study) -> Self {
        let keep = study.trial.keep_checkpoints;
        Self { objectives: study.objectives.clone(), keep, best: Vec::new() }
    }

    /// A trial has ended: gives those whose checkpoints nobody needs from now on.
    #[must_use]
    pub fn ended(&mut self, trial: TrialId, end: &End) -> Vec<TrialId> {
        let KeepCheckpoints::Best(count) = self.keep else { return Vec::new() };
        match end {
            End::Failed(_) | End::Cancelled(_) => Vec::new(),
            End::Stopped(_) => vec![trial],
            End::Done(values) => {
                self.best.retain(|(other, _)| *other != trial);
                // Of equal ones the first by its number is the best, as everywhere, and not the one that was done first.
                let place = self.best.partition_point(|(other, _)| *other < trial);
                self.best.insert(place, (trial, values.clone()));
                self.drop_all_but(count as usize)
            }
        }
    }

    fn drop_all_but(&mut self, count: usize) -> Vec<TrialId> {
        let count = if self.objectives.len() > 1 && count > 0 { count.max(self.front()) } else { count };
        if self.best.len() <= count {
            return Vec::new();
        }
        let results = self.best.iter().map(|(trial, values)| (*trial, values.as_slice()));
        let kept = best(&self.objectives, results, count);
        let (kept, dropped) =
            std::mem::take(&mut self.best).into_iter().partition(|(trial, _)| kept.contains(trial));
        self.best = kept;
        let dropped: Vec<(TrialId, Vec<f64>)> = dropped;
        dropped.into_iter().map(|(trial, _)| trial).collect()
    }

    /// How many no other beats in all objectives.
    fn front(&self) -> usize {
        let losses = |(_, values): &(TrialId, Vec<f64>)| {
            self.objectives.iter().zip(values).map(|(objective, value)| objective.loss(*value)).collect()
        };
        pareto_front(&self.best.iter().map(losses).collect::<Vec<Vec<f64>>>()).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retention(objective: &str, keep: &str) -> Retention {
        let yaml = format!(
            "space: {{x: {{float: [0, 1]}}}}\nobjective: {objective}\ntrial: {{keep_checkpoints: {keep}}}\n"
        );
        Retention::new(&Study::from_yaml("study.yaml", &yaml).expect("a study"))
    }

    /// Whose checkpoints are removed after each of these results.
    fn dropped(retention: &mut Retention, results: &[&[f64]]) -> Vec<Vec<u32>> {
        let ended = |(trial, values): (u32, &&[f64])| {
            let dropped = retention.ended(TrialId(trial), &End::Done(values.to_vec()));
            dropped.into_iter().map(|trial| trial.0).collect()
        };
        (0..).zip(results).map(ended).collect()
    }

    #[test]
    fn the_best_keep_theirs() {
        let results: [&[f64]; 5] = [&[3.0], &[1.0], &[2.0], &[4.0], &[0.0]];
        let none: [&[u32]; 5] = [&[]; 5];
        for (objective, keep, expected) in [
            ("{minimize: loss}", "2", [&[][..], &[], &[0], &[3], &[2]]),
            ("{maximize: loss}", "2", [&[], &[], &[1], &[2], &[4]]),
            ("{minimize: loss}", "none", [&[0], &[1], &[2], &[3], &[4]]),
            ("{minimize: loss}", "0", [&[0], &[1], &[2], &[3], &[4]]),
            ("{minimize: loss}", "all", none),
            ("{minimize: loss}", "9", none),
        ] {
            assert_eq!(dropped(&mut retention(objective, keep), &results), expected, "{objective}, {keep}");
        }
    }

    #[test]
    fn what_no_other_beats_is_kept() {
        let results: [&[f64]; 4] = [&[1.0, 4.0], &[2.0, 3.0], &[4.0, 1.0], &[1.5, 2.0]];
        let objectives = "[{minimize: loss}, {minimize: time}]";
        assert_eq!(dropped(&mut retention(objectives, "1"), &results), [&[][..], &[], &[], &[1]]);
        assert_eq!(dropped(&mut retention(objectives, "4"), &results), vec![Vec::<u32>::new(); 4]);
        assert_eq!(dropped(&mut retention(objectives, "none"), &results), [[0], [1], [2], [3]]);
    }

    #[test]
    fn only_what_has_a_result_loses_its_checkpoint() {
        let mut retention = retention("{minimize: loss}", "none");
        let trial = TrialId(4);
        assert_eq!(retention.ended(trial, &End::Failed("no".to_owned())), []);
        assert_eq!(retention.ended(trial, &End::Cancelled("no".to_owned())), []);
        assert_eq!(retention.ended(trial, &End::Stopped("rank 2 of 2".to_owned().into())), [trial]);
    }

    #[test]
    fn of_equal_ones_that_with_the_lowest_number_is_the_best() {
        let mut retention = retention("{maximize: accuracy}", "1");
        assert_eq!(retention.ended(TrialId(1), &End::Done(vec![0.8])), []);
        assert_eq!(retention.ended(TrialId(0), &End::Done(vec![0.8])), [TrialId(1)]);
        assert_eq!(retention.ended(TrialId(2), &End::Done(vec![0.8])), [TrialId(2)]);
    }

    #[test]
    fn a_trial_that_ends_again_counts_once() {
        let mut retention = retention("{minimize: loss}", "2");
        for values in [vec![1.0], vec![2.0]] {
            assert_eq!(retention.ended(TrialId(0), &End::Done(values)), []);
        }
        assert_eq!(retention.ended(TrialId(1), &End::Done(vec![3.0])), []);
        assert_eq!(retention.ended(TrialId(2), &End::Done(vec![2.5])), [TrialId(1)]);
    }
}
