//! Makes a matrix valid, and rates it, in one walk over the trials in order of priority.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::space::{Space, Worth};
use crate::goodput::Tier;

/// What the search knows of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Score {
    /// First objective: the sum of utilities, which orders matrices as FITNESS does.
    pub(super) utility: f64,
    /// Second objective: the sum of speedups per GPU of the nodes in use.
    pub(super) efficiency: f64,
    /// The same for equal matrices, and next to never for others.
    pub(super) hash: u64,
    /// Fronts that must be taken away before nothing dominates it.
    pub(super) rank: usize,
    /// Distance to its neighbours in its front.
    pub(super) crowding: f64,
}

/// Cells of a row that are looked at together.
const PART: usize = 8;

/// Repair, with the memory it needs.
pub(super) struct Repair {
    free: Vec<u16>,
    network_taken: Vec<bool>,
    /// Nodes of the current row.
    used: Vec<usize>,
    pool_gpus: Vec<u32>,
}

impl Repair {
    pub(super) fn new(space: &Space) -> Self {
        Self {
            free: vec![0; space.width],
            network_taken: vec![false; space.width],
            used: Vec::with_capacity(space.width),
            pool_gpus: vec![0; space.pools],
        }
    }

    /// Each row in turn loses GPUs of all pools but one, GPUs on nodes where another distributed trial is,
    /// GPUs above the trial's limit, GPUs that rows before it have, and what is left below the trial's minimum.
    ///
    /// The authors take each step for all rows before the next step. In one walk a row that a later step
    /// shrinks to one node no longer keeps other distributed trials from the nodes it left.
    pub(super) fn apply(&mut self, space: &Space, cells: &mut [u16], rng: &mut ChaCha8Rng) -> Score {
        self.free.copy_from_slice(&space.capacity);
        self.network_taken.copy_from_slice(&space.network_taken);
        let walks = !space.search_rules.repair(&mut Matrix { space, cells, rng, repair: self });
        let (mut total, mut hash) = (space.pinned, 0_u64);
        for (index, row) in cells.chunks_exact_mut(space.width).enumerate() {
            let rules = &space.rules[index];
            self.find_used(row);
            let pool = self.keep_one_pool(space, row);
            if walks && self.used.len() > 1 {
                self.leave_taken_networks(row);
            }
            if walks {
                self.cap_row(row, rules.cap[pool], rng);
            }
            let gpus = self.cap_nodes(row, rules.min);
            let tier = Tier::spanning(self.used.len());
            for &node in &self.used {
                self.free[node] -= row[node];
                self.network_taken[node] |= tier == Tier::Node && space.avoid_interference;
                hash = hash.wrapping_add(mix((index * space.width + node) as u64, row[node]));
            }
            let current = &space.current[index * space.width..][..space.width];
            let worth = match gpus {
                0 => rules.idle(),
                _ => rules.kept(row, current).unwrap_or_else(|| rules.moved(pool, tier, gpus)),
            };
            total.utility += worth.utility;
            total.speedup += worth.speedup;
        }
        self.score(space, total, hash)
    }

    /// Nodes where a row has GPUs. Most rows have few, so that cells are passed over several at a time.
    fn find_used(&mut self, row: &[u16]) {
        self.used.clear();
        for (part, cells) in row.chunks(PART).enumerate() {
            if cells.iter().fold(0, |all, cell| all | cell) > 0 {
                let used = cells.iter().enumerate().filter(|(_, cell)| **cell > 0);
                self.used.extend(used.map(|(node, _)| part * PART + node));
            }
        }
    }

    fn score(&self, space: &Space, total: Worth, hash: u64) -> Score {
        let in_use = |&node: &usize| u32::from(self.free[node]) < space.gpus[node];
        let gpus: f64 = (0..space.width).filter(in_use).map(|node| f64::from(space.gpus[node])).sum();
        let efficiency = if gpus > 0.0 { total.speedup / gpus } else { 0.0 };
        Score { utility: total.utility, efficiency, hash, ..Score::default() }
    }

    /// The pool with most of a row's GPUs; the others are emptied.
    fn keep_one_pool(&mut self, space: &Space, row: &mut [u16]) -> usize {
        let Some(&first) = self.used.first() else { return 0 };
        if space.pools == 1 {
            return 0;
        }
        let pool = space.pool_of[first];
        if self.used.iter().all(|&node| space.pool_of[node] == pool) {
            return pool;
        }
        self.pool_gpus.fill(0);
        for &node in &self.used {
            self.pool_gpus[space.pool_of[node]] += u32::from(row[node]);
        }
        let max = self.pool_gpus.iter().copied().max();
        let pool = self.pool_gpus.iter().position(|&gpus| Some(gpus) == max).unwrap_or(pool);
        self.used.retain(|&node| {
            let stays = space.pool_of[node] == pool;
            if !stays {
                row[node] = 0;
            }
            stays
        });
        pool
    }

    /// Interference avoidance (section 4.2) for a distributed row.
    fn leave_taken_networks(&mut self, row: &mut [u16]) {
        self.used.retain(|&node| {
            let stays = !self.network_taken[node];
            if !stays {
                row[node] = 0;
            }
            stays
        });
    }

    /// The GPUs beyond the limit go from nodes at random.
    fn cap_row(&mut self, row: &mut [u16], cap: u32, rng: &mut ChaCha8Rng) {
        let gpus: u32 = self.used.iter().map(|&node| u32::from(row[node])).sum();
        if gpus <= cap {
            return;
        }
        self.used.shuffle(rng);
        let mut left = cap;
        for &node in &self.used {
            row[node] = left.min(u32::from(row[node])) as u16;
            left -= u32::from(row[node]);
        }
    }

    /// What rows before left of the nodes, or nothing if that is less than `min`; the GPUs that remain.
    fn cap_nodes(&mut self, row: &mut [u16], min: u32) -> u32 {
        let mut gpus = 0;
        self.used.retain(|&node| {
            row[node] = row[node].min(self.free[node]);
            gpus += u32::from(row[node]);
            row[node] > 0
        });
        if gpus < min {
            self.used.drain(..).for_each(|node| row[node] = 0);
            return 0;
        }
        gpus
    }
}

/// A matrix that other rules than ours repair in an order of their own.
pub(crate) struct Matrix<'a> {
    space: &'a Space,
    cells: &'a mut [u16],
    rng: &'a mut ChaCha8Rng,
    repair: &'a mut Repair,
}

impl Matrix<'_> {
    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.space.width
    }

    /// Whether distributed trials are kept apart.
    pub(crate) fn avoids_interference(&self) -> bool {
        self.space.avoid_interference
    }

    /// The GPUs of each trial by node, in order of priority.
    pub(crate) fn rows(&mut self) -> impl Iterator<Item = &mut [u16]> {
        self.cells.chunks_exact_mut(self.space.width)
    }

    /// Leaves each row GPUs of one pool only, and no more than its trial can use.
    pub(crate) fn limit_rows(&mut self) {
        let Self { space, cells, rng, repair } = self;
        for (row, rules) in cells.chunks_exact_mut(space.width).zip(&space.rules) {
            // In one pool a row within its limit stays.
            if space.pools == 1 && row.iter().map(|cell| u32::from(*cell)).sum::<u32>() <= rules.cap[0] {
                continue;
            }
            repair.find_used(row);
            let pool = repair.keep_one_pool(space, row);
            repair.cap_row(row, rules.cap[pool], rng);
        }
    }
}

/// A well-spread number for one cell (the finalizer of `SplitMix64`). Sums of them tell matrices apart.
fn mix(cell: u64, gpus: u16) -> u64 {
    let mut bits = ((cell << 16) | u64::from(gpus)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{
        super::super::{
            instance::Instance,
            placement::tests::{problem, running, trial},
        },
        *,
    };
    use crate::{
        alloc::{Problem, TrialRequest},
        sim::osdi21::AuthorsSearch,
    };

    fn repaired(problem: &Problem, cells: &[u16]) -> (Vec<u16>, Score) {
        let instance = Instance::new(problem).unwrap();
        let space = Space::new(&instance);
        let mut cells = cells.to_vec();
        let score = Repair::new(&space).apply(&space, &mut cells, &mut ChaCha8Rng::seed_from_u64(0));
        let rows = space.rows_of(&instance, &cells);
        assert!((score.utility - instance.total_utility(&rows)).abs() < 1e-9);
        (cells, score)
    }

    fn trials(count: u32) -> Vec<TrialRequest> {
        (0..count).map(|id| trial(id, 1)).collect()
    }

    #[test]
    fn a_valid_matrix_stays() {
        let cells = [2, 0, 2, 1, 0, 3];
        assert_eq!(repaired(&problem("2x4xt4", trials(3)), &cells).0, cells);
    }

    #[test]
    fn nodes_are_filled_in_order_of_priority() {
        let mut question = problem("2x4xt4", trials(3));
        assert_eq!(repaired(&question, &[3, 0, 3, 0, 3, 4]).0, [3, 0, 1, 0, 0, 4]);
        question.trials[0].attained_gpu_s = 9.0;
        // Now trial 0 is the last row.
        assert_eq!(repaired(&question, &[3, 0, 0, 0, 3, 0]).0, [3, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn only_distributed_trials_are_moved_out_of_the_way() {
        let mut question = problem("3x4xt4", trials(3));
        let cells = [1, 1, 0, 0, 1, 1, 0, 2, 0];
        assert_eq!(repaired(&question, &cells).0, [1, 1, 0, 0, 0, 1, 0, 2, 0]);
        question.avoid_interference = false;
        assert_eq!(repaired(&question, &cells).0, cells);
    }

    #[test]
    fn the_authors_also_evict_bystanders() {
        let question = problem("3x4xt4", trials(3));
        let instance = Instance::with_rules(&question, &AuthorsSearch).unwrap();
        let space = Space::new(&instance);
        let mut cells = [1, 1, 0, 0, 1, 1, 0, 2, 0];
        Repair::new(&space).apply(&space, &mut cells, &mut ChaCha8Rng::seed_from_u64(0));
        assert_eq!(cells, [1, 1, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_pinned_distributed_trial_keeps_others_from_its_nodes() {
        let pinned = TrialRequest { pinned: true, ..running(9, 1, &[(0, 1), (1, 1)]) };
        let question = problem("3x4xt4", vec![pinned, trial(0, 1), trial(1, 1)]);
        assert_eq!(repaired(&question, &[0, 2, 2, 4, 0, 0]).0, [0, 0, 2, 3, 0, 0]);
    }

    #[test]
    fn limits_are_kept() {
        let mut question = problem("2x4xt4", trials(2));
        question.trials[0].max_gpus = 5;
        let (cells, _) = repaired(&question, &[4, 4, 0, 0]);
        assert_eq!(cells[0] + cells[1], 5);
        question.trials[1].min_gpus = 3;
        assert_eq!(repaired(&question, &[2, 0, 4, 0]).0, [2, 0, 0, 0]);
    }

    #[test]
    fn of_a_mixed_row_the_pool_with_most_gpus_stays() {
        let question = problem("2x2xt4,1x4xa100", trials(1));
        assert_eq!(repaired(&question, &[2, 1, 4]).0, [0, 0, 4]);
        assert_eq!(repaired(&question, &[2, 1, 3]).0, [2, 1, 0]);
    }

    #[test]
    fn efficiency_counts_the_gpus_of_nodes_in_use() {
        let question = problem("2x4xt4", trials(2));
        let (one, two) = (repaired(&question, &[2, 0, 2, 0]).1, repaired(&question, &[2, 0, 0, 2]).1);
        assert!((one.efficiency - 2.0 * two.efficiency).abs() < 1e-12 && one.hash != two.hash);
        assert!(repaired(&question, &[0; 4]).1.efficiency.abs() < 1e-12);
    }
}
