//! A [`Problem`] in dense form: nodes, pools and trials are positions, goodput tables are speedups.

use std::collections::BTreeMap;

use super::{
    Allocation, Error, Fairness, Problem, TrialRequest,
    rules::{OwnRules, SearchRules},
};
use crate::{
    goodput::{Curve, Tier},
    ids::{GpuType, NodeId, TrialId},
};

/// GPUs of one trial by node position, sorted, without zeros.
pub(crate) type Row = Vec<(usize, u32)>;

/// All GPUs of a row.
pub(crate) fn gpus_of(row: &[(usize, u32)]) -> u32 {
    row.iter().map(|&(_, gpus)| gpus).sum()
}

pub(crate) struct NodeSlot {
    pub(crate) id: NodeId,
    pub(crate) pool: usize,
    pub(crate) gpus: u32,
}

/// Nodes that one trial may span: one GPU type, one island.
pub(crate) struct Pool {
    pub(crate) gpu_type: GpuType,
    pub(crate) nodes: Vec<usize>,
    pub(crate) gpus: u32,
    pub(crate) largest: u32,
}

pub(crate) struct TrialData {
    pub(crate) id: TrialId,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) weight: f64,
    /// Speedup of any allocation but the current one is scaled by this.
    pub(crate) moved_factor: f64,
    /// Empty when the trial waits, or when some of its GPUs are gone.
    pub(crate) current: Row,
    pub(crate) pinned: bool,
    /// Examples per second of the fair share: a speedup times this is a goodput.
    pub(crate) fair_goodput: f64,
    pub(crate) attained_gpu_s: f64,
    pub(crate) requested_gpus: u32,
    /// In the unit of the problem; 0 if unknown.
    pub(crate) remaining: f64,
    /// Speedup without the re-allocation factor by pool, tier and GPUs - 1; 0 where the trial cannot run.
    speedups: Vec<[Vec<f64>; Tier::COUNT]>,
}

impl TrialData {
    /// Speedup of `gpus` GPUs in a pool before the re-allocation factor; 0 where limits or the model forbid
    /// it.
    pub(crate) fn speedup(&self, pool: usize, tier: Tier, gpus: u32) -> f64 {
        if gpus < self.min || gpus > self.max || gpus == 0 {
            return 0.0;
        }
        self.speedups[pool][tier.index()].get(gpus as usize - 1).copied().unwrap_or(0.0)
    }

    /// The largest number of GPUs it could use in a pool at a tier.
    pub(crate) fn largest(&self, pool: usize, tier: Tier) -> u32 {
        self.speedups[pool][tier.index()].len() as u32
    }

    /// The largest number of GPUs it could use in a pool.
    pub(crate) fn largest_in(&self, pool: usize) -> u32 {
        Tier::ALL.map(|tier| self.largest(pool, tier)).into_iter().max().unwrap_or(0)
    }
}

pub(crate) struct Instance {
    pub(crate) nodes: Vec<NodeSlot>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) trials: Vec<TrialData>,
    pub(crate) fairness: Fairness,
    pub(crate) avoid_interference: bool,
    pub(crate) rules: &'static dyn SearchRules,
}

impl Instance {
    pub(crate) fn new(problem: &Problem) -> Result<Self, Error> {
        Self::with_rules(problem, &OwnRules)
    }

    pub(crate) fn with_rules(problem: &Problem, rules: &'static dyn SearchRules) -> Result<Self, Error> {
        problem.check()?;
        let mut pools: Vec<Pool> = Vec::new();
        let mut pool_of = BTreeMap::new();
        let mut nodes = Vec::with_capacity(problem.cluster.len());
        for (id, node) in problem.cluster.iter() {
            let pool = *pool_of.entry((node.gpu_type.clone(), node.island)).or_insert_with(|| {
                pools.push(Pool { gpu_type: node.gpu_type.clone(), nodes: Vec::new(), gpus: 0, largest: 0 });
                pools.len() - 1
            });
            pools[pool].nodes.push(nodes.len());
            pools[pool].gpus = pools[pool].gpus.saturating_add(node.gpus);
            pools[pool].largest = pools[pool].largest.max(node.gpus);
            nodes.push(NodeSlot { id, pool, gpus: node.gpus });
        }
        let fair_gpus = problem.cluster.total_gpus().div_ceil(problem.trials.len().max(1) as u32);
        let mut trials: Vec<_> =
            problem.trials.iter().map(|trial| compile(trial, &nodes, &pools, fair_gpus, rules)).collect();
        release_impossible_pins(&mut trials, &nodes);
        let (fairness, avoid_interference) = (problem.fairness, problem.avoid_interference);
        Ok(Self { nodes, pools, trials, fairness, avoid_interference, rules })
    }

    /// Speedup of a trial with these GPUs, including the re-allocation factor.
    pub(crate) fn speedup(&self, trial: usize, row: &[(usize, u32)]) -> f64 {
        let (data, speedup) = (&self.trials[trial], self.steady_speedup(trial, row));
        if row == data.current { speedup } else { speedup * data.moved_factor }
    }

    /// Speedup of a trial with these GPUs once it runs there, without the re-allocation factor.
    pub(crate) fn steady_speedup(&self, trial: usize, row: &[(usize, u32)]) -> f64 {
        let Some(&(first, _)) = row.first() else { return 0.0 };
        let tier = Tier::spanning(row.len());
        self.trials[trial].speedup(self.nodes[first].pool, tier, gpus_of(row))
    }

    /// Speedup of `gpus` GPUs of an empty pool on as few nodes as hold them, without the re-allocation
    /// factor.
    pub(crate) fn packed_speedup(&self, trial: usize, pool: usize, gpus: u32) -> f64 {
        let tier = if gpus > self.pools[pool].largest { Tier::Node } else { Tier::Local };
        self.trials[trial].speedup(pool, tier, gpus)
    }

    /// The pool where a trial has its GPUs; none while it waits.
    pub(crate) fn home(&self, trial: usize) -> Option<usize> {
        self.trials[trial].current.first().map(|&(node, _)| self.nodes[node].pool)
    }

    /// Weighted utility of a trial at a speedup.
    pub(crate) fn utility(&self, trial: usize, speedup: f64) -> f64 {
        self.trials[trial].weight * self.fairness.utility(speedup)
    }

    /// The sum that orders plans.
    pub(crate) fn total_utility(&self, rows: &[Row]) -> f64 {
        rows.iter().enumerate().map(|(trial, row)| self.utility(trial, self.speedup(trial, row))).sum()
    }

    /// FITNESS of a sum of utilities.
    pub(crate) fn fitness(&self, total_utility: f64) -> f64 {
        self.fairness.fitness(total_utility, self.trials.iter().map(|trial| trial.weight).sum())
    }

    pub(crate) fn allocation(&self, row: &[(usize, u32)]) -> Allocation {
        row.iter().map(|&(node, gpus)| (self.nodes[node].id, gpus)).collect()
    }
}

fn compile(
    trial: &TrialRequest,
    nodes: &[NodeSlot],
    pools: &[Pool],
    fair_gpus: u32,
    rules: &dyn SearchRules,
) -> TrialData {
    let fair = fair_goodput(trial, pools, fair_gpus, rules);
    let speedups = pools
        .iter()
        .map(|pool| {
            let curve = trial.table.get(&pool.gpu_type);
            Tier::ALL.map(|tier| {
                let room = if tier == Tier::Local { pool.largest } else { pool.gpus };
                let Some(curve) = curve.filter(|_| fair > 0.0) else { return Vec::new() };
                let largest = room.min(trial.max_gpus).min(curve.max_gpus(tier));
                (1..=largest).map(|gpus| curve.at(tier, gpus) / fair).collect()
            })
        })
        .collect();
    let position = |id| nodes.binary_search_by_key(&id, |slot| slot.id).ok();
    let current: Option<Row> = trial
        .current
        .iter()
        .map(|(id, gpus)| position(id).filter(|&node| nodes[node].gpus >= gpus).map(|node| (node, gpus)))
        .collect();
    let one_pool = |row: &Row| row.windows(2).all(|pair| nodes[pair[0].0].pool == nodes[pair[1].0].pool);
    let current = current.filter(one_pool).unwrap_or_default();
    TrialData {
        id: trial.id,
        min: trial.min_gpus,
        max: trial.max_gpus,
        weight: trial.weight,
        moved_factor: rules.moved_factor(trial, current.is_empty()),
        pinned: trial.pinned && !current.is_empty(),
        current,
        fair_goodput: fair,
        attained_gpu_s: trial.attained_gpu_s,
        requested_gpus: trial.requested_gpus,
        remaining: trial.remaining.amount(),
        speedups,
    }
}

/// Where pinned trials together hold more GPUs than a node has left, the later ones cannot stay.
fn release_impossible_pins(trials: &mut [TrialData], nodes: &[NodeSlot]) {
    let mut free: Vec<u32> = nodes.iter().map(|slot| slot.gpus).collect();
    for trial in trials.iter_mut().filter(|trial| trial.pinned) {
        if trial.current.iter().all(|&(node, gpus)| free[node] >= gpus) {
            trial.current.iter().for_each(|&(node, gpus)| free[node] -= gpus);
        } else {
            trial.pinned = false;
            trial.current.clear();
            trial.moved_factor = 1.0;
        }
    }
}

/// Goodput of the fair share, an exclusive 1/J of the cluster (section 4.2): `fair_gpus` GPUs, averaged over
/// the types the trial can run on by how many GPUs there are of each.
fn fair_goodput(trial: &TrialRequest, pools: &[Pool], fair_gpus: u32, rules: &dyn SearchRules) -> f64 {
    let wanted = fair_gpus.max(trial.min_gpus);
    let (mut sum, mut share) = (0.0, 0.0);
    for pool in pools {
        let Some(curve) = trial.table.get(&pool.gpu_type) else { continue };
        let goodput = goodput_beyond(curve, wanted.min(pool.gpus), rules.fair_node_gpus(pool.largest));
        if goodput > 0.0 {
            sum += goodput * f64::from(pool.gpus);
            share += f64::from(pool.gpus);
        }
    }
    if share > 0.0 { sum / share } else { 0.0 }
}

/// The curve at `gpus` packed onto as few nodes as hold them; beyond its end it continues in proportion,
/// because what was not explored is believed to scale.
fn goodput_beyond(curve: &Curve, gpus: u32, node_gpus: u32) -> f64 {
    let tier = if gpus <= node_gpus { Tier::Local } else { Tier::Node };
    let largest_with = |tier| {
        (1..=gpus.min(curve.max_gpus(tier))).rev().map(|k| (k, curve.at(tier, k))).find(|&(_, g)| g > 0.0)
    };
    // A trial may need more memory than its fair share has: then the smallest number it can run on is scaled down in proportion.
    let smallest_with = |tier| {
        (gpus..=curve.max_gpus(tier)).map(|k| (k, curve.at(tier, k))).find(|&(_, goodput)| goodput > 0.0)
    };
    let known = largest_with(tier)
        .or_else(|| largest_with(Tier::Local))
        .or_else(|| largest_with(Tier::Node))
        .or_else(|| smallest_with(Tier::Local))
        .or_else(|| smallest_with(Tier::Node))
        .filter(|_| gpus > 0);
    known.map_or(0.0, |(k, goodput)| goodput * f64::from(gpus) / f64::from(k))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        alloc::{
            policy::placement::tests::{problem, running, trial},
            rules::MOVED_FACTOR_MIN,
        },
        sim::osdi21::AuthorsSearch,
    };

    #[test]
    fn a_move_costs_its_part_of_the_horizon() {
        let moved = |horizon_s, realloc_delay_s| {
            let age_s = 270.0;
            let trial = TrialRequest { age_s, realloc_delay_s, horizon_s, ..running(0, 1, &[(0, 1)]) };
            Instance::new(&problem("2x4xt4", vec![trial])).unwrap().trials[0].moved_factor
        };
        assert!((moved(None, 30.0) - 0.9).abs() < 1e-12);
        assert!((moved(Some(10.0), 30.0) - 0.25).abs() < 1e-12);
        assert!((moved(Some(0.0), 0.0) - 1.0).abs() < 1e-12);
        assert!((moved(Some(0.0), 30.0) - MOVED_FACTOR_MIN).abs() < 1e-12);
    }

    #[test]
    fn the_rules_of_osdi21_know_one_node_and_charge_the_first_start() {
        let waiting = TrialRequest { age_s: 60.0, realloc_delay_s: 30.0, ..trial(0, 1) };
        let question = problem("2x4xt4", vec![waiting]);
        let fair = |rules: &'static dyn SearchRules| {
            Instance::with_rules(&question, rules).unwrap().trials[0].fair_goodput
        };
        assert!((fair(&OwnRules) - 0.9 * 8f64.powf(0.8)).abs() < 1e-12);
        assert!((fair(&AuthorsSearch) - 8f64.powf(0.8)).abs() < 1e-12);
        let factor = |rules: &'static dyn SearchRules| {
            Instance::with_rules(&question, rules).unwrap().trials[0].moved_factor
        };
        assert!((factor(&OwnRules) - 1.0).abs() < 1e-12);
        assert!((factor(&AuthorsSearch) - 60.0 / 90.0).abs() < 1e-12);
    }
}
