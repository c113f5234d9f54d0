//! How many trials should be active at a time.
//!
//! A place for one more trial has a price, as a GPU has: many small trials use GPUs better than few large ones, but a search that has to
//! choose more trials before it knows how the others did needs more of them.

use super::{Error, Problem, instance::Instance};

impl Problem {
    /// The number of trials that should be active, if each of them costs the search as much as `cost` trials, and `left` trials are
    /// still to be trained: that which makes `(left + cost n) / rate(n)` smallest. None if nothing is known of any trial.
    ///
    /// `rate(n)` is what n trials like the mean of those that are here achieve together. With g(k), the concave envelope of the mean
    /// speedup on k GPUs of a pool with G of them, n trials there achieve `n g(G / n)`. That is concave in n, so pools get their
    /// trials one after the other, each where it brings most: the rate that it adds is the price of a place.
    ///
    /// ```
    /// use pollux_tune::{alloc::*, goodput::*, ids::*};
    /// // Twice the GPUs make a trial 1.4 times as fast: many small trials are best, as long as there are enough of them.
    /// let curve = Curve::build(8, 8, |shape| f64::from(shape.gpus()).sqrt())?;
    /// let table = GoodputTable::from([(GpuType::new("t4")?, curve)]);
    /// let trials = (0..2).map(|id| TrialRequest::new(TrialId(id), table.clone())).collect();
    /// let problem = Problem::new(Cluster::parse("1x8xt4")?, trials);
    /// assert_eq!(problem.places(100.0, 0.3)?, Some(8));
    /// assert_eq!(problem.places(0.5, 0.3)?, Some(2)); // sqrt(n) / (0.5 + 0.3 n) is largest for n = 5/3
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn places(&self, left: f64, cost: f64) -> Result<Option<u32>, Error> {
        let instance = Instance::new(self)?;
        let pools: Vec<Envelope> = (0..instance.pools.len())
            .map(|pool| Envelope::of_mean(&instance, pool))
            .filter(|envelope| envelope.value(f64::from(envelope.gpus)) > 0.0)
            .collect();
        let min_gpus = self.trials.iter().map(|trial| trial.min_gpus).min().unwrap_or(1).max(1);
        let most = pools.iter().map(|pool| pool.gpus / min_gpus).sum::<u32>();
        let mut counts = vec![0_u32; pools.len()];
        let (mut rate, mut best) = (0.0, None::<(f64, u32)>);
        for places in 1..=most {
            let gain = |pool: usize| pools[pool].rate(counts[pool] + 1) - pools[pool].rate(counts[pool]);
            let open = (0..pools.len()).filter(|pool| counts[*pool] < pools[*pool].gpus / min_gpus);
            let Some(pool) = open.max_by(|a, b| gain(*a).total_cmp(&gain(*b))) else { break };
            rate += gain(pool);
            counts[pool] += 1;
            let time = cost.mul_add(f64::from(places), left) / rate;
            // Ties, up to rounding, go to fewer trials.
            if best.is_none_or(|(shortest, _)| time < shortest * (1.0 - 1e-9)) {
                best = Some((time, places));
            }
        }
        Ok(best.map(|(_, places)| places))
    }
}

/// The upper concave envelope of the mean speedup of all trials over the GPUs of a pool.
struct Envelope {
    /// Those of the pool.
    gpus: u32,
    /// Its corners, from no GPUs on.
    corners: Vec<(f64, f64)>,
}

impl Envelope {
    fn of_mean(instance: &Instance, pool: usize) -> Self {
        let gpus = instance.pools[pool].gpus;
        let count = instance.trials.len().max(1) as f64;
        let mut corners: Vec<(f64, f64)> = vec![(0.0, 0.0)];
        for number in 1..=gpus {
            let speedup = |trial| instance.packed_speedup(trial, pool, number);
            let mean = (0..instance.trials.len()).map(speedup).sum::<f64>() / count;
            let point = (f64::from(number), mean);
            // Corners below the line to the new point are none.
            while let [.., before, last] = corners[..]
                && (last.1 - before.1) * (point.0 - last.0) <= (point.1 - last.1) * (last.0 - before.0)
            {
                corners.pop();
            }
            corners.push(point);
        }
        // More GPUs are never worse: some may stay idle.
        let top = corners.iter().map(|corner| corner.1).fold(0.0, f64::max);
        let last = corners.iter().position(|corner| corner.1 >= top).unwrap_or(0);
        corners.truncate(last + 1);
        Self { gpus, corners }
    }

    fn value(&self, gpus: f64) -> f64 {
        let above = self.corners.partition_point(|corner| corner.0 < gpus);
        match (above.checked_sub(1).and_then(|below| self.corners.get(below)), self.corners.get(above)) {
            (Some(from), Some(to)) => (to.1 - from.1).mul_add((gpus - from.0) / (to.0 - from.0), from.1),
            (None, Some(corner)) | (Some(corner), None) => corner.1,
            (None, None) => 0.0,
        }
    }

    /// What so many trials achieve together.
    fn rate(&self, trials: u32) -> f64 {
        if trials == 0 {
            0.0
        } else {
            f64::from(trials) * self.value(f64::from(self.gpus) / f64::from(trials))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{
        alloc::{Cluster, Problem, TrialRequest},
        goodput::{Curve, GoodputTable},
        ids::{GpuType, TrialId},
    };

    fn table(types: &[(&str, f64, f64)]) -> GoodputTable {
        let curve = |speed: f64, exponent: f64| {
            Curve::build(16, 16, |shape| speed * f64::from(shape.gpus()).powf(exponent)).unwrap()
        };
        types
            .iter()
            .map(|(name, speed, exponent)| (GpuType::new(name).unwrap(), curve(*speed, *exponent)))
            .collect()
    }

    fn problem(cluster: &str, table: &GoodputTable) -> Problem {
        let trials = (0..3).map(|id| TrialRequest::new(TrialId(id), table.clone())).collect();
        Problem::new(Cluster::parse(cluster).unwrap(), trials)
    }

    #[test]
    fn trials_that_scale_perfectly_run_one_by_one() {
        let perfect = table(&[("t4", 1.0, 1.0)]);
        assert_eq!(problem("1x16xt4", &perfect).places(100.0, 0.3).unwrap(), Some(1));
        let limited = Problem::new(Cluster::parse("1x16xt4").unwrap(), Vec::new());
        assert_eq!(limited.places(100.0, 0.3).unwrap(), None);
    }

    /// The largest of `sqrt(16 n) / (left + n / 2)` is at n = 2 left.
    #[test]
    fn fewer_and_larger_trials_when_few_are_left() {
        let problem = problem("1x16xt4", &table(&[("t4", 1.0, 0.5)]));
        let places = |left| problem.places(left, 0.5).unwrap().unwrap();
        assert_eq!((places(1.0), places(2.0), places(8.0), places(100.0)), (2, 4, 16, 16));
    }

    #[test]
    fn more_gpus_of_another_type_are_more_places() {
        let both = table(&[("a100", 5.0, 0.7), ("t4", 1.0, 0.7)]);
        let places = |cluster| problem(cluster, &both).places(100.0, 0.3).unwrap().unwrap();
        assert!(places("1x16xa100,1x16xt4") > places("1x16xa100"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_number_is_in_range_and_falls_with_its_cost(
            exponent in 0.0..1.2_f64, left in 0.0..200.0_f64, cost in 0.01..2.0_f64, more in 0.0..2.0_f64,
        ) {
            let problem = problem("2x8xt4", &table(&[("t4", 3.0, exponent)]));
            let places = |cost| problem.places(left, cost).unwrap().unwrap();
            prop_assert!((1..=16).contains(&places(cost)));
            prop_assert!(places(cost + more) <= places(cost));
        }
    }
}
