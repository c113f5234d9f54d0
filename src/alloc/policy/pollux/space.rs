//! What is searched: the trials that may move, in order of priority, and what any row is worth.

use super::super::{
    instance::{Instance, Row},
    rules::SearchRules,
};
use crate::goodput::Tier;

/// What a trial's GPUs are worth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// Weighted utility, with the re-allocation factor.
    pub(super) utility: f64,
    /// Speedup, without the re-allocation factor.
    pub(super) speedup: f64,
}

/// What the rows of one trial may be, and what they are worth.
pub(super) struct RowRules {
    pub(super) min: u32,
    /// The largest number of GPUs it can use, by pool.
    pub(super) cap: Vec<u32>,
    /// By pool and tier, of GPUs - 1.
    moved: Vec<[Vec<Worth>; Tier::COUNT]>,
    idle: Worth,
    /// Of the GPUs it has; none while it waits.
    current: Option<Worth>,
}

impl RowRules {
    fn new(instance: &Instance, trial: usize) -> Self {
        let data = &instance.trials[trial];
        let worth =
            |speedup: f64, factor: f64| Worth { utility: instance.utility(trial, speedup * factor), speedup };
        let moved = |pool, tier| {
            (1..=data.largest(pool, tier))
                .map(|gpus| worth(data.speedup(pool, tier, gpus), data.moved_factor))
                .collect()
        };
        let pools = 0..instance.pools.len();
        let running = !data.current.is_empty();
        Self {
            min: data.min,
            cap: pools.clone().map(|pool| data.largest_in(pool)).collect(),
            moved: pools.map(|pool| Tier::ALL.map(|tier| moved(pool, tier))).collect(),
            idle: worth(0.0, 1.0),
            current: running.then(|| worth(instance.steady_speedup(trial, &data.current), 1.0)),
        }
    }

    pub(super) fn idle(&self) -> Worth {
        self.idle
    }

    /// Worth of the GPUs it has, if `row` are these.
    pub(super) fn kept(&self, row: &[u16], current: &[u16]) -> Option<Worth> {
        self.current.filter(|_| row == current)
    }

    pub(super) fn moved(&self, pool: usize, tier: Tier, gpus: u32) -> Worth {
        self.moved[pool][tier.index()].get(gpus as usize - 1).copied().unwrap_or(self.idle)
    }
}

/// An instance as the search sees it. A matrix is flat: the GPUs of row `r` on node `n` are at `r * width +
/// n`.
pub(super) struct Space {
    /// Positions in the instance of the trials that may move. The order is the priority in repairs: least
    /// served first, then by age, as the authors have it.
    pub(super) trials: Vec<usize>,
    pub(super) rules: Vec<RowRules>,
    /// By which rules matrices are repaired.
    pub(super) search_rules: &'static dyn SearchRules,
    /// How many nodes there are.
    pub(super) width: usize,
    pub(super) pools: usize,
    pub(super) pool_of: Vec<usize>,
    /// GPUs of each node.
    pub(super) gpus: Vec<u32>,
    /// GPUs of each node that pinned trials leave.
    pub(super) capacity: Vec<u16>,
    pub(super) avoid_interference: bool,
    /// Nodes where a pinned trial is distributed, if interference is to be avoided.
    pub(super) network_taken: Vec<bool>,
    /// The matrix of what trials have now; not always valid, because nodes may have lost GPUs.
    pub(super) current: Vec<u16>,
    /// What pinned trials add to the objectives.
    pub(super) pinned: Worth,
}

impl Space {
    pub(super) fn new(instance: &Instance) -> Self {
        let all = 0..instance.trials.len();
        let mut trials: Vec<usize> = all.clone().filter(|&trial| !instance.trials[trial].pinned).collect();
        let served = |trial: usize| instance.trials[trial].attained_gpu_s;
        trials.sort_by(|&a, &b| served(a).total_cmp(&served(b)));
        let width = instance.nodes.len();
        let mut capacity: Vec<u32> = instance.nodes.iter().map(|slot| slot.gpus).collect();
        let mut network_taken = vec![false; width];
        let mut pinned = Worth { utility: 0.0, speedup: 0.0 };
        for trial in all.filter(|&trial| instance.trials[trial].pinned) {
            let row = &instance.trials[trial].current;
            let speedup = instance.speedup(trial, row);
            pinned.utility += instance.utility(trial, speedup);
            pinned.speedup += speedup;
            for &(node, gpus) in row {
                capacity[node] -= gpus;
                network_taken[node] |= instance.avoid_interference && row.len() > 1;
            }
        }
        let mut current = vec![0; trials.len() * width];
        for (&trial, cells) in trials.iter().zip(current.chunks_exact_mut(width.max(1))) {
            instance.trials[trial].current.iter().for_each(|&(node, gpus)| cells[node] = narrow(gpus));
        }
        Self {
            rules: trials.iter().map(|&trial| RowRules::new(instance, trial)).collect(),
            trials,
            search_rules: instance.rules,
            width,
            pools: instance.pools.len(),
            pool_of: instance.nodes.iter().map(|slot| slot.pool).collect(),
            gpus: instance.nodes.iter().map(|slot| slot.gpus).collect(),
            capacity: capacity.into_iter().map(narrow).collect(),
            avoid_interference: instance.avoid_interference,
            network_taken,
            current,
            pinned,
        }
    }

    /// Cells of one matrix.
    pub(super) fn cells(&self) -> usize {
        self.current.len()
    }

    /// The rows of all trials of the instance: from the matrix, or for pinned trials what they have. GPUs
    /// that do not speed up their trial are left free.
    pub(super) fn rows_of(&self, instance: &Instance, cells: &[u16]) -> Vec<Row> {
        let mut rows: Vec<Row> = instance
            .trials
            .iter()
            .map(|data| if data.pinned { data.current.clone() } else { Row::new() })
            .collect();
        for (&trial, cells) in self.trials.iter().zip(cells.chunks_exact(self.width.max(1))) {
            let used = cells.iter().enumerate().filter(|(_, gpus)| **gpus > 0);
            let row: Row = used.map(|(node, &gpus)| (node, u32::from(gpus))).collect();
            if instance.steady_speedup(trial, &row) > 0.0 {
                rows[trial] = row;
            }
        }
        rows
    }
}

/// A node of more than 65,535 GPUs is not to be expected; its other GPUs stay idle.
fn narrow(gpus: u32) -> u16 {
    u16::try_from(gpus).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{
            instance::gpus_of,
            placement::tests::{problem, running, trial},
        },
        *,
    };
    use crate::alloc::TrialRequest;

    #[test]
    fn worth_agrees_with_the_instance() {
        let moved = TrialRequest { age_s: 90.0, realloc_delay_s: 30.0, ..running(1, 1, &[(0, 1), (1, 2)]) };
        let question = problem("2x4xt4,1x2xa100", vec![trial(0, 1), moved]);
        let instance = Instance::new(&question).unwrap();
        let space = Space::new(&instance);
        for row in [vec![(0, 1)], vec![(0, 4)], vec![(0, 1), (1, 2)], vec![(0, 4), (1, 4)], vec![(2, 2)]] {
            for trial in 0..2 {
                let mut cells = vec![0; 3];
                for &(node, gpus) in &row {
                    cells[node] = narrow(gpus);
                }
                let rules = &space.rules[trial];
                let kept = rules.kept(&cells, &space.current[trial * 3..][..3]);
                let gpus = gpus_of(&row);
                let worth = kept
                    .unwrap_or_else(|| rules.moved(space.pool_of[row[0].0], Tier::spanning(row.len()), gpus));
                let expected = instance.utility(trial, instance.speedup(trial, &row));
                assert!((worth.utility - expected).abs() < 1e-12, "trial {trial}, {row:?}");
            }
        }
    }

    #[test]
    fn pinned_trials_take_their_gpus_out_of_the_search() {
        let pinned = TrialRequest { pinned: true, ..running(0, 1, &[(0, 1), (1, 3)]) };
        let question = problem("3x4xt4", vec![pinned, trial(1, 1)]);
        let instance = Instance::new(&question).unwrap();
        let space = Space::new(&instance);
        assert_eq!((&space.trials[..], &space.capacity[..]), (&[1][..], &[3, 1, 4][..]));
        assert_eq!(space.network_taken, [true, true, false]);
        assert_eq!(space.rows_of(&instance, &[0, 0, 2]), [vec![(0, 1), (1, 3)], vec![(2, 2)]]);
    }
}
