//! What no scheduler can beat: a lower bound on the time that trials of a study take.
//!
//! Linear-programming duality: if a GPU of type t costs `l_t` a second and a place for a trial `m`, then each piece of a training costs at
//! least the smallest `(l_t k + m) / rate_t(k)` over all k GPUs of all types, with the best batch for each. All that a cluster and its
//! places could sell in T seconds is worth `T (sum of l_t G_t + m P)`. So T is at least the cost of all pieces over that sum, whatever the
//! prices; the best prices give the bound. Moves are free in it, everything is known, and nodes have no borders but in step times.

use std::collections::BTreeMap;

use super::super::Modelled;
use crate::{
    alloc::Cluster,
    goodput::BatchPlan,
    ids::GpuType,
    space::{Study, TrialSettings},
};

/// Totals of batches that are tried in an octave.
const BATCHES_PER_OCTAVE: f64 = 16.0;
/// Steps of a golden-section search, and rounds over all pairs of prices.
const SECTIONS: usize = 30;
const ROUNDS: usize = 4;
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Seconds that these trials take at least, each trained for some epochs, with so many places at a time (no limit if none). 0 if
/// nothing was measured on any of the GPUs.
pub(super) fn lower_bound_s(
    study: &Study,
    cluster: &Cluster,
    places: Option<u32>,
    trained: &[(Modelled, f64)],
) -> f64 {
    let mut kinds: BTreeMap<u64, Kind> = BTreeMap::new();
    for (modelled, epochs) in trained {
        let kind = kinds.entry(modelled.kind()).or_insert_with(|| Kind::new(study, cluster, modelled));
        kind.add(*epochs, study.trial.epochs);
    }
    let gpus: Vec<f64> = pools(cluster).iter().map(|pool| f64::from(pool.gpus)).collect();
    let mut supply = gpus;
    supply.extend(places.map(f64::from));
    let all: Vec<Kind> = kinds.into_values().collect();
    let longest_s = all.iter().map(|kind| kind.longest_s).fold(0.0, f64::max);
    best_prices(&supply, |prices| all.iter().map(|kind| kind.cost(prices, places.is_some())).sum())
        .max(longest_s)
}

/// GPUs of one type that could be used together.
struct Pool {
    gpu_type: GpuType,
    gpus: u32,
    node: u32,
}

fn pools(cluster: &Cluster) -> Vec<Pool> {
    let rooms = cluster.room(u32::MAX);
    rooms.map(|(gpu_type, node, gpus)| Pool { gpu_type, gpus, node }).collect()
}

/// Trials that train at the same speeds.
struct Kind {
    /// By piece of the training, pool and GPUs - 1: epochs a second with the best batch.
    rates: Vec<Vec<Vec<f64>>>,
    /// Epochs that are trained in each piece, by all of them.
    work: Vec<f64>,
    /// The shortest time of the longest of them, alone on the cluster.
    longest_s: f64,
}

impl Kind {
    fn new(study: &Study, cluster: &Cluster, modelled: &Modelled) -> Self {
        let pieces = modelled.application().epochs();
        let mut rates = vec![Vec::new(); pieces];
        for pool in pools(cluster) {
            let on_pool = pool_rates(&study.trial, &pool, modelled, pieces);
            rates.iter_mut().zip(on_pool).for_each(|(rates, on_pool)| rates.push(on_pool));
        }
        Self { rates, work: vec![0.0; pieces], longest_s: 0.0 }
    }

    fn add(&mut self, epochs: f64, epochs_max: f64) {
        let piece = epochs_max / self.work.len() as f64;
        let mut alone_s = 0.0;
        for (number, work) in self.work.iter_mut().enumerate() {
            let part = (epochs - number as f64 * piece).clamp(0.0, piece);
            *work += part;
            let fastest = self.rates[number].iter().flatten().copied().fold(0.0, f64::max);
            alone_s += if part > 0.0 && fastest > 0.0 { part / fastest } else { 0.0 };
        }
        self.longest_s = self.longest_s.max(alone_s);
    }

    /// What all their training costs at least, at a price for each pool and perhaps one for a place.
    fn cost(&self, prices: &[f64], with_places: bool) -> f64 {
        let place = if with_places { prices.last().copied().unwrap_or(0.0) } else { 0.0 };
        let cheapest = |rates: &Vec<Vec<f64>>| {
            let mut cheapest = f64::INFINITY;
            for (pool, rates) in rates.iter().enumerate() {
                for (index, rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
                    cheapest = cheapest.min(prices[pool].mul_add(index as f64 + 1.0, place) / rate);
                }
            }
            if cheapest.is_finite() { cheapest } else { 0.0 }
        };
        self.rates.iter().zip(&self.work).map(|(rates, work)| work * cheapest(rates)).sum()
    }
}

/// By piece and GPUs - 1, epochs a second on a pool with the best batch.
fn pool_rates(trial: &TrialSettings, pool: &Pool, modelled: &Modelled, pieces: usize) -> Vec<Vec<f64>> {
    let (low, high) = (f64::from(trial.initial_batch), f64::from(trial.max_batch));
    let count = ((high / low).log2() * BATCHES_PER_OCTAVE).ceil().max(0.0) as u32;
    let totals: Vec<u32> = (0..=count)
        .map(|step| (low * (f64::from(step) / BATCHES_PER_OCTAVE).exp2()).min(high).round() as u32)
        .collect();
    let per_gpu_max = trial.max_batch_per_gpu.unwrap_or(trial.max_batch);
    let mut rates = vec![Vec::new(); pieces];
    let most = trial.max_gpus.unwrap_or(u32::MAX).min(pool.gpus);
    for gpus in 1..=most {
        // Examples a second, by total batch.
        let speeds: Vec<(u32, f64)> = totals
            .iter()
            .filter(|total| gpus >= trial.min_gpus && **total >= gpus)
            .filter_map(|total| {
                let plan = BatchPlan::split(*total, gpus, per_gpu_max, 1);
                let total = plan.total(gpus) as u32;
                let step_s = placements(gpus, pool.node)
                    .filter_map(|placement| {
                        let per_gpu = f64::from(plan.per_gpu);
                        modelled.step_time_s(&pool.gpu_type, &placement, per_gpu, plan.accumulation)
                    })
                    .fold(f64::INFINITY, f64::min);
                step_s.is_finite().then(|| (total, f64::from(total) / step_s))
            })
            .collect();
        for (piece, rates) in rates.iter_mut().enumerate() {
            let epochs = (piece as f64 + 0.5) / pieces as f64 * trial.epochs;
            let goodput = |(total, speed): &(u32, f64)| {
                speed * modelled.noise_at(epochs, *total).efficiency(low, f64::from(*total))
            };
            let best = speeds.iter().map(goodput).fold(0.0, f64::max);
            rates.push(best / modelled.examples_per_epoch() as f64);
        }
    }
    rates
}

/// Ways to place GPUs on as few nodes as possible: full nodes first, or as evenly as possible.
fn placements(gpus: u32, node: u32) -> impl Iterator<Item = Vec<u32>> {
    let nodes = gpus.div_ceil(node.max(1)).max(1);
    let full = (0..nodes).map(|number| node.min(gpus - number * node)).collect();
    let even = (0..nodes).map(|number| gpus / nodes + u32::from(number < gpus % nodes)).collect();
    [full, even].into_iter().take(if nodes > 1 { 2 } else { 1 })
}

/// The largest value of a concave function of prices, all of whose supply is worth 1: by sections between pairs of them.
fn best_prices(supply: &[f64], value: impl Fn(&[f64]) -> f64) -> f64 {
    let count = supply.len();
    if count == 0 {
        return 0.0;
    }
    // What each supply is worth in all.
    let mut worth = vec![1.0 / count as f64; count];
    let at = |worth: &[f64]| {
        value(&worth.iter().zip(supply).map(|(worth, supply)| worth / supply).collect::<Vec<_>>())
    };
    for _ in 0..if count > 1 { ROUNDS } else { 0 } {
        for first in 0..count {
            for second in first + 1..count {
                let sum = worth[first] + worth[second];
                let mut with = |share: f64| {
                    (worth[first], worth[second]) = (share * sum, (1.0 - share) * sum);
                    at(&worth)
                };
                let (mut low, mut high) = (0.0, 1.0);
                for _ in 0..SECTIONS {
                    let (a, b) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
                    if with(a) > with(b) {
                        high = b;
                    } else {
                        low = a;
                    }
                }
                with(f64::midpoint(low, high));
            }
        }
    }
    at(&worth)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two machines, one twice as fast for half of the work: by hand, all is done after 2/3 of the time.
    #[test]
    fn prices_of_two_supplies_by_hand() {
        // One unit of work, 1 second on a unit of either supply: the cheaper one is taken, so both cost the same.
        let value = |prices: &[f64]| prices[0].min(prices[1]);
        assert!((best_prices(&[2.0, 1.0], value) - 1.0 / 3.0).abs() < 1e-6);
        assert!((best_prices(&[4.0], |prices: &[f64]| 8.0 * prices[0]) - 2.0).abs() < 1e-12);
    }

    fn study(change: &str) -> Study {
        let yaml = format!(
            "{{space: {{lr: {{log: [1e-3, 1]}}}}, objective: {{maximize: accuracy}}, \
             trial: {{trainable: cifar10, epochs: 100, max_batch: 4Ki, max_batch_per_gpu: 1Ki{change}}}}}"
        );
        Study::from_yaml("study.yaml", &yaml).unwrap()
    }

    fn trials(count: usize) -> Vec<(Modelled, f64)> {
        let one = Modelled::new("cifar10", &serde_json::Map::new(), 0, 100.0).unwrap();
        vec![(one, 100.0); count]
    }

    /// 205 s is what `Modelled` says of four A100 with the best batch of each epoch.
    #[test]
    fn one_trial_with_a_fixed_number_of_gpus_takes_as_long_as_it_takes() {
        let study = study(", min_gpus: 4, max_gpus: 4");
        let bound = |count, places| {
            lower_bound_s(&study, &Cluster::parse("1x8xa100").unwrap(), places, &trials(count))
        };
        assert!((bound(1, Some(1)) / 205.0 - 1.0).abs() < 0.01, "{}", bound(1, Some(1)));
        assert!((bound(6, Some(1)) / bound(1, Some(1)) - 6.0).abs() < 1e-3);
        assert!((bound(6, None) / bound(1, Some(1)) - 3.0).abs() < 1e-3, "two at a time fit");
    }

    #[test]
    fn places_and_gpus_only_ever_help() {
        let study = study("");
        let bound = |cluster: &str, places| {
            lower_bound_s(&study, &Cluster::parse(cluster).unwrap(), places, &trials(20))
        };
        let by_places = [Some(1), Some(2), Some(4), Some(16), None].map(|places| bound("2x8xa100", places));
        assert!(by_places.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-6)), "{by_places:?}");
        assert!(bound("2x8xa100,4x4xt4", None) < bound("2x8xa100", None));
    }
}
