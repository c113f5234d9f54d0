//! Which trials count as good, and how much each of them says.

use libm::log;

use super::history::History;

/// More worse trials than this are sampled: the newest half of them stays, and of the others each stands
/// for several. It bounds the cost of a suggestion.
const MAX_WORSE: usize = 256;

/// The weight of a trial that runs. It keeps others away; with that of a bad one, a few of them outweigh all that is known about the best
/// region, which they are in.
const RUNNING: f64 = 0.3;

/// Rows of trials with their weights.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Set {
    pub(super) rows: Vec<usize>,
    pub(super) weights: Vec<f64>,
}

impl Set {
    fn push(&mut self, row: usize, weight: f64) {
        self.rows.push(row);
        self.weights.push(weight);
    }
}

/// The best trials.
///
/// Better ones weigh more: ln((m + 1/2) / (rank + 1/2)) squared, as the parents of an evolution strategy do, so that
/// a larger set keeps exploring without holding back the best. With several objectives it is not squared, since the
/// best are many there. On average the weight is 1.
pub(super) fn better(history: &History, share: f64, max: usize) -> Set {
    let known = history.informative();
    let count = good(known, share, max);
    weighted(history, history.best(count))
}

/// How many of some trials are good.
fn good(known: usize, share: f64, max: usize) -> usize {
    ((share * known as f64).ceil() as usize).clamp(1, max).min(known)
}

/// The best trials first, with their weights.
fn weighted(history: &History, rows: Vec<usize>) -> Set {
    let count = rows.len();
    let weight = |rank: usize| {
        let log_ratio = log((count as f64 + 0.5) / (rank as f64 + 0.5));
        if history.objectives() > 1 { log_ratio } else { log_ratio * log_ratio }
    };
    let mean = (0..count).map(weight).sum::<f64>() / count as f64;
    let mut set = Set::default();
    for (rank, row) in rows.into_iter().enumerate() {
        set.push(row, weight(rank) / mean);
    }
    set
}

/// The same for the trials of an earlier study: the best and the others.
pub(super) fn foreign(history: &History, share: f64, max: usize) -> (Set, Set) {
    let ranked = history.foreign_best();
    let (best, others) = ranked.split_at(good(ranked.len(), share, max));
    let mut others: Vec<usize> = others.iter().map(|&row| row as usize).collect();
    others.sort_unstable();
    let thinned = thin(others.len(), |place| others[place]);
    (weighted(history, best.iter().map(|&row| row as usize).collect()), thinned)
}

/// All other trials in the order they were asked for: finished, stopped, failed, and, with less weight, those that still run, which
/// keeps parallel trials apart. Cancelled ones say nothing.
pub(super) fn worse(history: &History, better: &Set) -> Set {
    let mut left_out = [better.rows.as_slice(), history.cancelled(), history.foreign()].concat();
    left_out.sort_unstable();
    let mut set = thin(history.len() - left_out.len(), |place| nth_other(&left_out, place));
    for (&row, weight) in set.rows.iter().zip(&mut set.weights) {
        if history.merit(row).is_none() {
            *weight *= RUNNING;
        }
    }
    set
}

/// All of some rows, or, if they are many, the newest and some of the others.
fn thin(others: usize, others_at: impl Fn(usize) -> usize) -> Set {
    let newest = others.min(MAX_WORSE).div_ceil(2);
    let old = others - newest;
    let kept = old.min(MAX_WORSE - newest);
    let mut set = Set::default();
    for at in 0..kept {
        let (from, to) = (at * old / kept, (at + 1) * old / kept);
        set.push(others_at(usize::midpoint(from, to)), (to - from) as f64);
    }
    for place in old..others {
        set.push(others_at(place), 1.0);
    }
    set
}

/// The row of this place among those that are not in a sorted list.
fn nth_other(sorted: &[usize], place: usize) -> usize {
    // The number of rows outside the list before its element `at` is `sorted[at] - at`.
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if sorted[middle] - middle <= place {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    place + low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::TrialId,
        space::{Dim, Dims},
        tpe::Outcome,
    };

    /// Trial i has the value (7 i) mod n; the last `running` have none yet.
    fn history(n: u32, running: u32) -> History {
        let mut history = History::new(Dims::flat(vec![Dim::Continuous]).expect("it is a space"));
        for id in 0..n {
            history.insert(TrialId(id), &vec![Some(0.5)]).expect("it is new");
            if id < n - running {
                let value = f64::from(7 * id % n);
                history.tell(TrialId(id), &Outcome::Done(vec![value])).expect("it is running");
            }
        }
        history
    }

    #[test]
    fn the_best_weigh_most() {
        let history = history(20, 2);
        let good = better(&history, 0.15, 25);
        // Values 0, 1 and 2 of 20: 7 * 3 = 21, 7 * 6 = 42.
        assert_eq!(good.rows, [0, 3, 6]);
        assert!(good.weights[0] > good.weights[1] && good.weights[1] > good.weights[2]);
        assert!((good.weights.iter().sum::<f64>() - 3.0).abs() < 1e-12);
        let rest = worse(&history, &good);
        let expected: Vec<usize> = (0..20).filter(|row| !good.rows.contains(row)).collect();
        assert_eq!(rest.rows, expected, "running ones too, in order");
        assert_eq!(rest.weights, [vec![1.0; 15], vec![RUNNING; 2]].concat());
    }

    #[test]
    fn many_worse_trials_are_thinned_out() {
        let history = history(5001, 0);
        let good = better(&history, 0.15, 25);
        assert_eq!(good.rows.len(), 25);
        let rest = worse(&history, &good);
        assert_eq!(rest.rows.len(), MAX_WORSE);
        assert!(rest.rows.is_sorted());
        assert!(rest.rows.iter().all(|row| !good.rows.contains(row)));
        let total: f64 = rest.weights.iter().sum();
        assert!((total - 4976.0).abs() < 1e-9, "{total} stand for all");
    }

    #[test]
    fn failures_are_never_good() {
        let mut history = history(2, 0);
        for id in (2..30).map(TrialId) {
            history.insert(id, &vec![Some(0.1)]).expect("it is new");
            history.tell(id, &Outcome::Failed).expect("it is running");
        }
        assert_eq!(better(&history, 1.0, 25).rows, [0, 1]);
    }
}
