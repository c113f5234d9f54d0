//! Where GPUs are free, for the policies that first decide how many GPUs a trial gets and then where.

use std::cmp::Reverse;

use super::instance::{Instance, Row};

/// Free GPUs by node while trials are placed one after another. Pinned trials are placed from the start.
pub(crate) struct Placer<'a> {
    instance: &'a Instance,
    free: Vec<u32>,
    /// Nodes that no further distributed trial may use (section 4.2, interference avoidance).
    network_taken: Vec<bool>,
    rows: Vec<Row>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(instance: &'a Instance) -> Self {
        let mut placer = Self {
            instance,
            free: instance.nodes.iter().map(|slot| slot.gpus).collect(),
            network_taken: vec![false; instance.nodes.len()],
            rows: vec![Row::new(); instance.trials.len()],
        };
        for (trial, data) in instance.trials.iter().enumerate().filter(|(_, data)| data.pinned) {
            placer.give(trial, data.current.clone());
        }
        placer
    }

    /// Whether a trial has its GPUs already.
    pub(crate) fn has(&self, trial: usize) -> bool {
        !self.rows[trial].is_empty()
    }

    pub(crate) fn free_by_pool(&self) -> Vec<u32> {
        self.instance.pools.iter().map(|pool| pool.nodes.iter().map(|&node| self.free[node]).sum()).collect()
    }

    /// Leaves a trial the GPUs it has. False if they are taken, or of no use to it.
    pub(crate) fn keep(&mut self, trial: usize) -> bool {
        self.offer(trial, self.instance.trials[trial].current.clone())
    }

    /// Places a trial on the nodes with most free GPUs, lowest number first among equals: one node where it
    /// holds them all. False if there is no such place.
    pub(crate) fn spread(&mut self, trial: usize, pool: usize, gpus: u32) -> bool {
        let mut nodes = self.instance.pools[pool].nodes.clone();
        nodes.sort_by_key(|&node| Reverse(self.free[node]));
        if nodes.first().is_some_and(|&node| self.free[node] < gpus) {
            nodes.retain(|&node| !self.network_taken[node]);
        }
        let row = self.fill(&nodes, gpus);
        self.offer(trial, row)
    }

    /// Places a trial on the fullest node that still holds it, or, if it is larger than any node of the pool,
    /// on nodes that are wholly free, as few as possible. False if there is no such place.
    pub(crate) fn pack(&mut self, trial: usize, pool: usize, gpus: u32) -> bool {
        let (instance, pool) = (self.instance, &self.instance.pools[pool]);
        let nodes: Vec<usize> = if gpus <= pool.largest {
            let holds = pool.nodes.iter().copied().filter(|&node| self.free[node] >= gpus);
            holds.min_by_key(|&node| self.free[node]).into_iter().collect()
        } else {
            let whole =
                pool.nodes.iter().copied().filter(|&node| self.free[node] == instance.nodes[node].gpus);
            let mut whole: Vec<usize> = whole.collect();
            whole.sort_by_key(|&node| Reverse(self.free[node]));
            whole
        };
        let row = self.fill(&nodes, gpus);
        self.offer(trial, row)
    }

    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    /// Takes free GPUs from nodes in this order; empty if there are not enough.
    fn fill(&self, nodes: &[usize], gpus: u32) -> Row {
        let (mut row, mut missing) = (Row::new(), gpus);
        for &node in nodes {
            let taken = self.free[node].min(missing);
            if taken > 0 {
                row.push((node, taken));
                missing -= taken;
            }
        }
        if missing > 0 {
            row.clear();
        }
        row.sort_unstable();
        row
    }

    fn offer(&mut self, trial: usize, row: Row) -> bool {
        let distributed = row.len() > 1;
        let fits = |&(node, gpus): &(usize, u32)| {
            self.free[node] >= gpus && !(distributed && self.network_taken[node])
        };
        let accepted = self.instance.steady_speedup(trial, &row) > 0.0 && row.iter().all(fits);
        if accepted {
            self.give(trial, row);
        }
        accepted
    }

    fn give(&mut self, trial: usize, row: Row) {
        let takes_network = self.instance.avoid_interference && row.len() > 1;
        for &(node, gpus) in &row {
            self.free[node] -= gpus;
            self.network_taken[node] |= takes_network;
        }
        self.rows[trial] = row;
    }
}

/// The GPUs that a trial's user asks for, within its limits, lowered to the most that some pool could give
/// it; and the pools that could. None if it cannot run at all.
pub(crate) fn request(instance: &Instance, trial: usize) -> Option<(u32, Vec<usize>)> {
    let data = &instance.trials[trial];
    let wanted = data.requested_gpus.clamp(data.min, data.max);
    let runs = |pool, gpus| instance.packed_speedup(trial, pool, gpus) > 0.0;
    let max = |pool: usize| {
        let largest = wanted.min(data.largest_in(pool));
        (data.min..=largest).rev().find(|&gpus| runs(pool, gpus))
    };
    let pools = 0..instance.pools.len();
    let gpus = pools.clone().filter_map(max).max()?;
    Some((gpus, pools.filter(|&pool| runs(pool, gpus)).collect()))
}

/// Sorts pools in the order in which a trial considers them: the one where it has GPUs, then those with most
/// GPUs left.
pub(crate) fn sort_pools(instance: &Instance, trial: usize, pools: &mut [usize], left: &[u32]) {
    let home = instance.home(trial);
    pools.sort_by_key(|&pool| (home != Some(pool), Reverse(left[pool])));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        alloc::{Allocation, Cluster, Plan, Problem, TrialRequest},
        goodput::{Curve, GoodputTable},
        ids::{GpuType, NodeId, TrialId},
    };

    /// Goodput `gpus^0.8` on types `t4` and `a100`, where GPUs of several nodes do 0.9 of that.
    pub(crate) fn table(max_gpus: u32) -> GoodputTable {
        let goodput = |shape: crate::goodput::Shape| {
            f64::from(shape.gpus()).powf(0.8) * if shape.nodes() > 1 { 0.9 } else { 1.0 }
        };
        let curve = Curve::build(max_gpus, max_gpus, goodput).unwrap();
        ["t4", "a100"].into_iter().map(|name| (GpuType::new(name).unwrap(), curve.clone())).collect()
    }

    pub(crate) fn trial(id: u32, requested_gpus: u32) -> TrialRequest {
        TrialRequest { requested_gpus, ..TrialRequest::new(TrialId(id), table(64)) }
    }

    pub(crate) fn running(id: u32, requested_gpus: u32, current: &[(u32, u32)]) -> TrialRequest {
        TrialRequest { current: at(current), ..trial(id, requested_gpus) }
    }

    pub(crate) fn at(nodes: &[(u32, u32)]) -> Allocation {
        nodes.iter().map(|&(node, gpus)| (NodeId(node), gpus)).collect()
    }

    pub(crate) fn problem(cluster: &str, trials: Vec<TrialRequest>) -> Problem {
        Problem::new(Cluster::parse(cluster).unwrap(), trials)
    }

    /// The plan as text, such as `4@0 | none`.
    pub(crate) fn shown(plan: &Plan) -> String {
        let texts: Vec<_> = plan.placements.iter().map(|decision| decision.allocation.to_string()).collect();
        texts.join(" | ")
    }

    #[test]
    fn spread_takes_the_emptiest_nodes_and_pack_the_fullest() {
        let pinned = TrialRequest { pinned: true, ..running(0, 1, &[(1, 1)]) };
        let problem = problem("3x4xt4", vec![pinned, trial(1, 1), trial(2, 1), trial(3, 6)]);
        let instance = Instance::new(&problem).unwrap();
        let mut placer = Placer::new(&instance);
        assert!(placer.spread(1, 0, 1) && placer.pack(2, 0, 1));
        assert!(!placer.pack(3, 0, 6), "only one node is wholly free");
        assert!(placer.spread(3, 0, 6));
        assert_eq!(placer.into_rows(), [vec![(1, 1)], vec![(0, 1)], vec![(0, 1)], vec![(1, 2), (2, 4)]]);
    }

    #[test]
    fn spread_leaves_a_second_distributed_trial_out_only_when_asked() {
        let mut problem = problem("2x4xt4", vec![trial(0, 6), trial(1, 2), trial(2, 2)]);
        for (avoid, answer) in [(true, false), (false, true)] {
            problem.avoid_interference = avoid;
            problem.trials[1].current = at(&[(0, 1), (1, 1)]);
            let instance = Instance::new(&problem).unwrap();
            let mut placer = Placer::new(&instance);
            assert!(placer.keep(1));
            assert_eq!(placer.spread(0, 0, 6), answer);
            assert!(placer.spread(2, 0, 2) || !avoid, "a trial on one node never interferes");
        }
    }

    #[test]
    fn a_request_is_lowered_to_what_the_largest_pool_can_give() {
        let problem = problem("2x4xt4,1x4xa100", vec![trial(0, 100), trial(1, 3)]);
        let instance = Instance::new(&problem).unwrap();
        assert_eq!(request(&instance, 0), Some((8, vec![0])));
        assert_eq!(request(&instance, 1), Some((3, vec![0, 1])));
    }
}
