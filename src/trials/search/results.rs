//! What a search has found.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Error, Search, Trial};
use crate::{
    space::Objective,
    tpe::{
        importance,
        pareto::{non_dominated_ranks, pareto_front},
    },
};

/// The best `count` results, the best first; with several objectives by the number of fronts before them.
/// Those that are equally good stay in their order.
///
/// ```
/// use pollux_tune::space::{Direction, Objective};
/// let objective = Objective { metric: "accuracy".to_owned(), direction: Direction::Maximize };
/// let results = [("a", &[0.5][..]), ("b", &[0.9]), ("c", &[0.7])];
/// assert_eq!(pollux_tune::trials::best(&[objective], results, 2), ["b", "c"]);
/// ```
pub fn best<'a, T>(
    objectives: &[Objective],
    results: impl IntoIterator<Item = (T, &'a [f64])>,
    count: usize,
) -> Vec<T> {
    let mut ranked: Vec<(T, Vec<f64>)> =
        results.into_iter().map(|(trial, values)| (trial, losses(objectives, values))).collect();
    if objectives.len() == 1 {
        let loss = |losses: &[f64]| losses.first().copied().unwrap_or(f64::INFINITY);
        ranked.sort_by(|(_, a), (_, b)| loss(a).total_cmp(&loss(b)));
        return ranked.into_iter().take(count).map(|(trial, _)| trial).collect();
    }
    let (trials, losses): (Vec<T>, Vec<Vec<f64>>) = ranked.into_iter().unzip();
    let mut by_front: Vec<(Option<usize>, T)> =
        non_dominated_ranks(&losses).into_iter().zip(trials).collect();
    by_front.sort_by_key(|(rank, _)| *rank);
    by_front.into_iter().take(count).map(|(_, trial)| trial).collect()
}

/// Values of which less is better.
pub(super) fn losses(objectives: &[Objective], values: &[f64]) -> Vec<f64> {
    objectives.iter().zip(values).map(|(objective, value)| objective.loss(*value)).collect()
}

impl Search {
    /// The best trials that ran to their end: see [`best`].
    #[must_use]
    pub fn best(&self, count: usize) -> Vec<&Trial> {
        let done = self.trials.values().filter_map(|trial| Some((trial, trial.values()?)));
        best(&self.study.objectives, done, count)
    }

    /// The trials that ran to their end and that no other beats in all objectives, in the order of their numbers.
    #[must_use]
    pub fn pareto_front(&self) -> Vec<&Trial> {
        let (trials, losses) = self.done();
        pareto_front(&losses).into_iter().map(|place| trials[place]).collect()
    }

    /// How much of an objective's variance each parameter explains, the most important first. Fixed parameters have
    /// no part in it.
    ///
    /// The objectives are numbered from 0 in the order of the study. Only trials that ran to their end count.
    pub fn importance(&self, objective: usize) -> Result<Vec<(&str, f64)>, Error> {
        let (trials, losses) = self.done();
        let points: Vec<_> = trials.iter().map(|trial| trial.point.clone()).collect();
        let values: Vec<f64> = losses.iter().filter_map(|loss| loss.get(objective).copied()).collect();
        let rng = &mut ChaCha8Rng::seed_from_u64(self.study.search.seed);
        let shares = importance(&self.dims, &points, &values, rng)?;
        let mut named: Vec<(&str, f64)> =
            (0..).zip(shares).map(|(dim, share)| (self.study.space.name(dim), share)).collect();
        named.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(named)
    }

    /// Trials that ran to their end, with values of which less is better.
    fn done(&self) -> (Vec<&Trial>, Vec<Vec<f64>>) {
        let with_values = |trial| Some((trial, losses(&self.study.objectives, Trial::values(trial)?)));
        self.trials.values().filter_map(with_values).unzip()
    }
}
