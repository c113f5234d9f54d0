use super::{
    Error, Fairness, Problem,
    instance::{Instance, TrialData},
};

/// How the speed of a trial is taken to grow with its GPUs, `k^ALPHA`, when trials are weighed.
const ALPHA: f64 = 0.75;
/// The power of times left whose sum stands for the largest of them.
const MAKESPAN_NORM: i32 = 4;
/// A place never costs more than so many times all GPUs, and its price is found in so many steps.
const PLACE_PRICE_MAX: f64 = 16.0;
const BISECTIONS: usize = 30;

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
        let left_s = self.left_s()?;
        let mut longest_first: Vec<usize> = (0..self.trials.len()).collect();
        longest_first.sort_by(|&a, &b| left_s[b].total_cmp(&left_s[a]));
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

    /// The same question, with weights and p such that policies that maximise FITNESS aim at an early end of the last trial: for when
    /// no more trials come.
    ///
    /// With w the time that a trial would still take on its fair share, it takes `w / SPEEDUP`. Weights `w^4` and p = -4
    /// minimise the sum of the fourth powers of these times, which is close to their largest. Trials of which it is unknown
    /// count as the longest.
    pub fn aim_at_makespan(mut self) -> Result<Self, Error> {
        let left_s = self.left_s()?;
        let longest_s = left_s.iter().fold(0.0_f64, |longest, left_s| longest.max(*left_s));
        for (trial, left_s) in self.trials.iter_mut().zip(left_s) {
            let share = if left_s > 0.0 { left_s / longest_s } else { 1.0 };
            let weight = trial.weight * share.powi(MAKESPAN_NORM);
            trial.weight = weight.clamp(super::TrialRequest::WEIGHT_MIN, super::TrialRequest::WEIGHT_MAX);
        }
        self.fairness = Fairness::new(-f64::from(MAKESPAN_NORM))?;
        Ok(self)
    }

    /// The same question, with weights and p such that policies that maximise FITNESS aim at the progress of all trials together: what a
    /// study wants whose next trials take the places of those that end.
    ///
    /// If a place for a trial costs as much as n GPUs, the progress of a trial is worth the smallest `(k + n) / SPEEDUP(k)` over
    /// all numbers k of GPUs: less has to be paid for it nowhere. The sum of SPEEDUP times worth is what is maximised, with the n at
    /// which as many GPUs are wanted as there are. So trials get GPUs where these bring most, and none is left without: its place would
    /// be paid for nothing. GPUs of a pool cost in proportion to how fast one of them is for the trials that are here. Weights that
    /// trials have already are kept as factors.
    pub fn aim_at_progress(mut self) -> Result<Self, Error> {
        let instance = Instance::new(&self)?;
        let market = Market::new(&instance);
        let place = market.place_price();
        for (index, trial) in self.trials.iter_mut().enumerate() {
            if let Some((worth, _)) = market.choice(index, place) {
                let weight = trial.weight * worth;
                trial.weight = weight.clamp(super::TrialRequest::WEIGHT_MIN, super::TrialRequest::WEIGHT_MAX);
            }
        }
        self.fairness = Fairness::new(1.0)?;
        Ok(self)
    }

    /// How long each trial would still take on its fair share, in a unit that all share; 0 where that is unknown.
    fn left_s(&self) -> Result<Vec<f64>, Error> {
        let left_s = |data: &TrialData| {
            let known = data.fair_goodput > 0.0 && data.remaining > 0.0;
            if known { data.remaining / data.fair_goodput } else { 0.0 }
        };
        Ok(Instance::new(self)?.trials.iter().map(left_s).collect())
    }
}

/// GPUs and places for trials, and what they cost.
struct Market<'a> {
    instance: &'a Instance,
    /// Of a GPU, by pool; 1 in the most expensive one.
    prices: Vec<f64>,
    /// Of all GPUs.
    supply: f64,
}

impl<'a> Market<'a> {
    fn new(instance: &'a Instance) -> Self {
        let trials = 0..instance.trials.len();
        let speed = |pool| trials.clone().map(|trial| instance.packed_speedup(trial, pool, 1)).sum::<f64>();
        let speeds: Vec<f64> = (0..instance.pools.len()).map(speed).collect();
        let fastest = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let prices: Vec<f64> = speeds.iter().map(|speed| speed / fastest).collect();
        let supply =
            instance.pools.iter().zip(&prices).map(|(pool, price)| f64::from(pool.gpus) * price).sum();
        Self { instance, prices, supply }
    }

    /// What the progress of a trial costs where that is cheapest, and its GPUs there, if a place has a price. None if it runs nowhere.
    fn choice(&self, trial: usize, place: f64) -> Option<(f64, f64)> {
        let mut best: Option<(f64, f64)> = None;
        for (pool, price) in self.prices.iter().enumerate() {
            for number in 1..=self.instance.trials[trial].largest_in(pool) {
                let gpus = price * f64::from(number);
                let cost = (gpus + place) / self.instance.packed_speedup(trial, pool, number);
                if cost.is_finite() && best.is_none_or(|(cheapest, _)| cost < cheapest) {
                    best = Some((cost, gpus));
                }
            }
        }
        best
    }

    /// The price of a place at which just as many GPUs are wanted as there are: the more it costs, the faster trials should be done.
    fn place_price(&self) -> f64 {
        let wanted = |place| {
            let trials = 0..self.instance.trials.len();
            trials.filter_map(|trial| self.choice(trial, place)).map(|(_, gpus)| gpus).sum::<f64>()
        };
        let (mut low, mut high) = (0.0, PLACE_PRICE_MAX * self.supply);
        for _ in 0..BISECTIONS {
            let middle = f64::midpoint(low, high);
            if wanted(middle) > self.supply {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use crate::{
        alloc::{
            GoodputPolicy, Policy, RemainingWork, TrialRequest,
            policy::placement::tests::{problem, trial},
        },
        goodput::{Curve, GoodputTable},
        ids::{GpuType, TrialId},
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
    fn the_longest_trial_weighs_most_when_all_should_end_together() {
        let left =
            |id, examples| TrialRequest { remaining: RemainingWork::Examples(examples), ..trial(id, 1) };
        let heavy = TrialRequest { weight: 2.0, ..left(2, 500.0) };
        let question =
            problem("1x4xt4", vec![left(0, 1000.0), left(1, 0.0), heavy]).aim_at_makespan().unwrap();
        let weights: Vec<f64> = question.trials.iter().map(|trial| trial.weight).collect();
        for (weight, expected) in weights.iter().zip([1.0, 1.0, 2.0 / 16.0]) {
            assert!((weight - expected).abs() < 1e-12, "{weights:?}");
        }
        assert!((question.fairness.p() + 4.0).abs() < 1e-12);
    }

    /// SPEEDUP is sqrt(k / 2) for the first on its fair share of 2, and 1 however many for the second: `(k + n) / sqrt(k / 2)` is
    /// smallest at k = n, and the second wants one GPU. With 4 GPUs, n is 3: worths of 6 / sqrt(3/2), and of 4.
    #[test]
    fn progress_is_worth_what_it_costs_where_it_is_cheapest() {
        let curve =
            |exponent: f64| Curve::build(4, 4, |shape| f64::from(shape.gpus()).powf(exponent)).unwrap();
        let table = |exponent| GoodputTable::from([(GpuType::new("t4").unwrap(), curve(exponent))]);
        let trials = vec![
            TrialRequest::new(TrialId(0), table(0.5)),
            TrialRequest { weight: 2.0, ..TrialRequest::new(TrialId(1), table(0.0)) },
        ];
        let question = problem("1x4xt4", trials).aim_at_progress().unwrap();
        let weights: Vec<f64> = question.trials.iter().map(|trial| trial.weight).collect();
        let between = |at: f64, low: f64, high: f64| (low..=high).contains(&at);
        // Whole GPUs: 3 are wanted from about n = 2.45 to 3.46.
        assert!(
            between(weights[0], 5.45 / 1.225, 6.5 / 1.224) && between(weights[1], 2.0 * 3.4, 2.0 * 4.5),
            "{weights:?}"
        );
        let rng = &mut ChaCha8Rng::seed_from_u64(0);
        let plan = GoodputPolicy::default().allocate(&question, rng).unwrap();
        let gpus: Vec<u32> = plan.placements.iter().map(|placement| placement.allocation.gpus()).collect();
        assert_eq!(gpus, [3, 1]);
    }

    #[test]
    fn no_trials_are_no_problem() {
        assert!(problem("1x4xt4", Vec::new()).aim_at_progress().unwrap().trials.is_empty());
        assert!(problem("1x4xt4", Vec::new()).aim_at_makespan().unwrap().trials.is_empty());
        assert!(problem("1x4xt4", Vec::new()).aim_at_completion().unwrap().trials.is_empty());
    }
}
