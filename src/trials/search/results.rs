//! What a search has found.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Error, Search, Trial};
use crate::tpe::{
    importance,
    pareto::{non_dominated_ranks, pareto_front},
};

impl Search {
    /// The best trials that ran to their end, at most so many, the best first; with several objectives by the number of
    /// fronts before them.
    #[must_use]
    pub fn best(&self, count: usize) -> Vec<&Trial> {
        let (trials, losses) = self.done();
        let mut order: Vec<usize> = (0..trials.len()).collect();
        if self.study.objectives.len() == 1 {
            order.sort_by(|&a, &b| losses[a][0].total_cmp(&losses[b][0]));
        } else {
            let ranks = non_dominated_ranks(&losses);
            order.sort_by_key(|&place| ranks[place]);
        }
        order.into_iter().take(count).map(|place| trials[place]).collect()
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
        let with_values = |trial| Some((trial, self.losses(Trial::values(trial)?)));
        self.trials.values().filter_map(with_values).unzip()
    }
}
