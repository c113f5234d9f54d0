use super::{Error, Fairness, Problem, instance::Instance};

/// How the speed of a trial is taken to grow with its GPUs, `k^ALPHA`, when trials are weighed.
const ALPHA: f64 = 0.75;

impl Problem {
    /// The same question, with weights and p such that policies that maximise FITNESS aim at a low mean completion time
    /// instead of equal speedups.
    ///
    /// The trial that is done first should have most: among trials whose speed grows as `k^a`, the mean completion time is minimal
    /// if the i-th longest of m trials gets the share `(i/m)^b - ((i-1)/m)^b` of the GPUs, with `b = 1 / (1 - a)` (heSRPT,
    /// Berg, Vesilo and Harchol-Balter 2020). That is what maximises the sum of `w_i k_i^a` with weights `w_i` equal to the
    /// share to the power of `1 - a`; real trials bring their own speedups instead of `k_i^a`. Weights that trials
    /// have already are kept as factors.
    ///
    /// Trials are sorted by [`remaining`](super::TrialRequest::remaining) over the goodput of their fair
    /// share; where the former is unknown, they count as shortest.
    ///
    /// ```
    /// use pollux_tune::{alloc::*, goodput::*, ids::*};
    /// use rand::SeedableRng;
    /// let curve = Curve::build(8, 8, |shape| f64::from(shape.gpus()).sqrt())?;
    /// let table = GoodputTable::from([(GpuType::new("t4")?, curve)]);
    /// let trial = |id, left| TrialRequest { remaining: RemainingWork::Examples(left), ..TrialRequest::new(TrialId(id), table.clone()) };
    /// let problem = Problem::new(Cluster::parse("1x8xt4")?, vec![trial(0, 1e6), trial(1, 1e4)]);
    /// let rng = &mut rand_chacha::ChaCha8Rng::seed_from_u64(0);
    /// let plan = GoodputPolicy::default().allocate(&problem.clone().aim_at_completion()?, rng)?;
    /// assert!(plan.placements[0].allocation.gpus() < plan.placements[1].allocation.gpus());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn aim_at_completion(mut self) -> Result<Self, Error> {
        let instance = Instance::new(&self)?;
        let left_s = |trial: usize| {
            let data = &instance.trials[trial];
            let known = data.fair_goodput > 0.0 && data.remaining > 0.0;
            if known { data.remaining / data.fair_goodput } else { 0.0 }
        };
        let mut longest_first: Vec<usize> = (0..self.trials.len()).collect();
        longest_first.sort_by(|&a, &b| left_s(b).total_cmp(&left_s(a)));
        let count = self.trials.len() as f64;
        let share_upto = |rank: usize| libm::pow(rank as f64 / count, 1.0 / (1.0 - ALPHA));
        for (rank, trial) in longest_first.into_iter().enumerate() {
            let share = share_upto(rank + 1) - share_upto(rank);
            let weight = self.trials[trial].weight * libm::pow(share, 1.0 - ALPHA);
            self.trials[trial].weight =
                weight.clamp(super::TrialRequest::WEIGHT_MIN, super::TrialRequest::WEIGHT_MAX);
        }
        self.fairness = Fairness::new(ALPHA)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use crate::alloc::{
        RemainingWork, TrialRequest,
        policy::placement::tests::{problem, trial},
    };

    #[test]
    fn weights_follow_the_rank_of_the_time_left() {
        let left =
            |id, examples| TrialRequest { remaining: RemainingWork::Examples(examples), ..trial(id, 1) };
        let heavy = TrialRequest { weight: 2.0, ..left(2, 500.0) };
        let question =
            problem("1x4xt4", vec![left(0, 1e9), left(1, 0.0), heavy]).aim_at_completion().unwrap();
        let weights: Vec<f64> = question.trials.iter().map(|trial| trial.weight).collect();
        // Shares of 1/81, 80/81 less the second one, and 15/81 of the fourth powers; then fourth roots.
        let expected = [1.0 / 3.0, (65.0_f64 / 81.0).powf(0.25), 2.0 * (15.0_f64 / 81.0).powf(0.25)];
        for (weight, expected) in weights.iter().zip(expected) {
            assert!((weight - expected).abs() < 1e-12, "{weights:?}");
        }
        assert!((question.fairness.p() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn no_trials_are_no_problem() {
        assert!(problem("1x4xt4", Vec::new()).aim_at_completion().unwrap().trials.is_empty());
    }
}
