//! What each trial could be given, as utilities: the separable form of FITNESS.

use crate::{
    alloc::instance::{Instance, gpus_of},
    goodput::Tier,
};

/// The utilities of one trial.
pub(super) struct Menu {
    /// Without GPUs.
    pub(super) idle: f64,
    /// On exactly the GPUs it has, if it has any that it may keep.
    pub(super) keep: Option<f64>,
    pub(super) pools: Vec<PoolMenu>,
}

pub(super) struct PoolMenu {
    /// On other GPUs than now, by tier and GPUs - 1; negative infinity where the trial cannot run.
    utility: [Vec<f64>; Tier::COUNT],
    /// By tier and GPUs - 1, the best number of GPUs up to that one; 0 if none.
    best_upto: [Vec<u32>; Tier::COUNT],
    /// Upper concave envelope of utility over GPUs, from no GPUs on.
    hull: Vec<(f64, f64)>,
    /// Slopes of the envelope, falling.
    slopes: Vec<f64>,
}

impl Menu {
    /// `None` for a pinned trial: there is nothing to choose.
    pub(super) fn new(instance: &Instance, trial: usize) -> Option<Self> {
        let data = &instance.trials[trial];
        if data.pinned {
            return None;
        }
        let idle = instance.utility(trial, 0.0);
        let keep = Some(instance.speedup(trial, &data.current)).filter(|&speedup| speedup > 0.0);
        let keep = keep.map(|speedup| instance.utility(trial, speedup));
        let pools = (0..instance.pools.len())
            .map(|pool| {
                let utility = Tier::ALL.map(|tier| {
                    (1..=data.largest(pool, tier))
                        .map(|gpus| match data.speedup(pool, tier, gpus) * data.moved_factor {
                            speedup if speedup > 0.0 => instance.utility(trial, speedup),
                            _ => f64::NEG_INFINITY,
                        })
                        .collect::<Vec<f64>>()
                });
                let home = data.current.first().is_some_and(|&(node, _)| instance.nodes[node].pool == pool);
                let kept = keep.filter(|_| home).map(|utility| (gpus_of(&data.current), utility));
                let hull = hull(idle, &utility, kept);
                let slopes =
                    hull.windows(2).map(|step| (step[1].1 - step[0].1) / (step[1].0 - step[0].0)).collect();
                PoolMenu {
                    best_upto: [prefix_best(&utility[0]), prefix_best(&utility[1])],
                    utility,
                    hull,
                    slopes,
                }
            })
            .collect();
        Some(Self { idle, keep, pools })
    }

    /// The best pool and number of GPUs at these prices, with utility minus price. Ties go to fewer GPUs.
    pub(super) fn choose(&self, prices: &[f64]) -> (Option<(usize, u32)>, f64) {
        let mut best = (None, self.idle);
        for (pool, (menu, &price)) in self.pools.iter().zip(prices).enumerate() {
            let (gpus, utility) = menu.demand(price);
            let reduced = price.mul_add(-gpus, utility);
            if gpus > 0.0 && reduced > best.1 {
                best = (Some((pool, gpus as u32)), reduced);
            }
        }
        best
    }
}

impl PoolMenu {
    pub(super) fn utility(&self, tier: Tier, gpus: u32) -> f64 {
        match gpus.checked_sub(1) {
            Some(index) => {
                self.utility[tier.index()].get(index as usize).copied().unwrap_or(f64::NEG_INFINITY)
            }
            None => f64::NEG_INFINITY,
        }
    }

    /// The best number of GPUs at a tier when at most `room` can be had; 0 if none will do.
    pub(super) fn best_upto(&self, tier: Tier, room: u32) -> u32 {
        let best = &self.best_upto[tier.index()];
        best.get((room as usize).min(best.len()).wrapping_sub(1)).copied().unwrap_or(0)
    }

    /// The vertex of the envelope that is best at a price per GPU.
    pub(super) fn demand(&self, price: f64) -> (f64, f64) {
        self.hull[self.slopes.partition_point(|&slope| slope > price)]
    }

    /// The price above which nobody would take a GPU.
    pub(super) fn top_price(&self) -> f64 {
        self.slopes.first().copied().unwrap_or(0.0)
    }
}

fn prefix_best(utility: &[f64]) -> Vec<u32> {
    let mut best = 0;
    utility
        .iter()
        .enumerate()
        .map(|(index, value)| {
            if *value > f64::NEG_INFINITY && (best == 0 || *value > utility[best - 1]) {
                best = index + 1;
            }
            best as u32
        })
        .collect()
}

fn hull(idle: f64, utility: &[Vec<f64>; Tier::COUNT], keep: Option<(u32, f64)>) -> Vec<(f64, f64)> {
    let mut hull = vec![(0.0, idle)];
    for index in 0..utility[0].len().max(utility[1].len()) {
        let mut best =
            utility.iter().filter_map(|tier| tier.get(index)).copied().fold(f64::NEG_INFINITY, f64::max);
        if let Some((gpus, kept)) = keep.filter(|&(gpus, _)| gpus as usize == index + 1) {
            debug_assert!(gpus > 0, "an empty allocation is not kept");
            best = best.max(kept);
        }
        let point = ((index + 1) as f64, best);
        if hull.last().is_some_and(|last| best <= last.1) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let rising = (b.1 - a.1) * (point.0 - b.0) <= (point.1 - b.1) * (b.0 - a.0);
            if !rising {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}
