//! `pollux`: the population search of the paper (section 4.2), for comparison with `goodput`.
//!
//! NSGA-II over matrices of trials by nodes. The first objective is FITNESS, whose best is applied; the
//! second, speedup per GPU of the nodes in use, only keeps the population diverse. [`space`] holds the
//! problem in the form the search needs, [`genome`] crossover and mutation, [`repair`] makes a matrix valid
//! and rates it, [`nsga`] is the search itself.
//!
//! *Architecture invariant:* every matrix of a population is valid, so the search may stop anywhere.

mod genome;
mod nsga;
mod repair;
mod space;

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;

pub(crate) use self::repair::Matrix;
use self::{
    nsga::{Population, Search},
    space::Space,
};
use super::{
    Error, Plan, Policy, Problem,
    instance::Instance,
    rules::{OwnRules, SearchRules},
};
use crate::ids::{NodeId, TrialId};

/// How much the search of [`PolluxPolicy`] may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolluxOptions {
    /// Matrices kept from one generation to the next, and new ones tried in each; less than 2 counts as 2.
    pub population: usize,
    /// Generations including the initial one; 0 counts as 1.
    pub generations: u32,
}

impl Default for PolluxOptions {
    /// The authors' figures.
    fn default() -> Self {
        Self { population: 100, generations: 100 }
    }
}

/// `pollux`: the search of Pollux (OSDI'21 section 4.2) as the authors' simulator runs it.
///
/// It departs from their code where that was a mistake or where a product needs more:
/// - What survives from one question to the next is matched by trial and node; theirs matches by position, so
///   trials inherited each other's GPUs.
/// - The current allocation is always in the initial population, so the plan is never worse than keeping it.
/// - Interference avoidance takes GPUs from distributed trials only, not from others on one node.
/// - Speedups are those of all our policies: a fair share larger than a node spans nodes, a first start is not a move, and
///   the re-allocation factor is at least 0.01.
/// - Repair is one walk over the trials, the least served first, and a generation that brings nothing new for five rounds
///   of breeding ends the search.
/// - Trials have a minimum number of GPUs, may be pinned, and keep to one GPU type and island: of a mixed row
///   the pool with most of its GPUs stays.
///
/// Simulations that repeat their results follow their code in all of this but the last two points.
#[derive(Debug, Clone)]
pub struct PolluxPolicy {
    options: PolluxOptions,
    rules: &'static dyn SearchRules,
    memory: Memory,
}

/// The non-dominated matrices of the last question.
#[derive(Debug, Clone, Default)]
struct Memory {
    trials: Vec<TrialId>,
    nodes: Vec<NodeId>,
    cells: Vec<u16>,
}

impl PolluxPolicy {
    /// A search with these limits.
    #[must_use]
    pub fn new(options: PolluxOptions) -> Self {
        Self { options, rules: &OwnRules, memory: Memory::default() }
    }

    /// The same search by other rules than ours.
    pub(crate) fn with_rules(self, rules: &'static dyn SearchRules) -> Self {
        Self { rules, ..self }
    }
}

impl Default for PolluxPolicy {
    fn default() -> Self {
        Self::new(PolluxOptions::default())
    }
}

impl Policy for PolluxPolicy {
    fn name(&self) -> &'static str {
        "pollux"
    }

    fn allocate(&mut self, problem: &Problem, rng: &mut ChaCha8Rng) -> Result<Plan, Error> {
        let instance = Instance::with_rules(problem, self.rules)?;
        let space = Space::new(&instance);
        if space.cells() == 0 {
            return Plan::from_rows(problem, &instance, &space.rows_of(&instance, &[]), None);
        }
        let mut search = Search::new(&space, self.options, rng);
        let remembered = self.memory.recall(&instance, &space);
        if self.rules.starts_from_current(!remembered.is_empty()) {
            search.seed(&space.current);
        }
        for cells in remembered.chunks_exact(space.cells()) {
            search.seed(cells);
        }
        let front = search.run();
        let rows = space.rows_of(&instance, front.best());
        self.memory = Memory::keep(&instance, &space, front);
        Plan::from_rows(problem, &instance, &rows, None)
    }
}

impl Memory {
    fn keep(instance: &Instance, space: &Space, front: Population) -> Self {
        Self {
            trials: space.trials.iter().map(|&trial| instance.trials[trial].id).collect(),
            nodes: instance.nodes.iter().map(|slot| slot.id).collect(),
            cells: front.into_cells(),
        }
    }

    /// The remembered matrices with the trials and nodes of today: zeros for new ones.
    fn recall(&self, instance: &Instance, space: &Space) -> Vec<u16> {
        let old_stride = self.trials.len() * self.nodes.len();
        if old_stride == 0 {
            return Vec::new();
        }
        let trial_of: BTreeMap<TrialId, usize> = self.trials.iter().copied().zip(0..).collect();
        let columns: Vec<Option<usize>> =
            instance.nodes.iter().map(|slot| self.nodes.binary_search(&slot.id).ok()).collect();
        let mut rows: Vec<Option<usize>> =
            space.trials.iter().map(|&trial| trial_of.get(&instance.trials[trial].id).copied()).collect();
        instance.rules.inherit(&mut rows);
        let mut cells = Vec::with_capacity(self.cells.len() / old_stride * space.cells());
        for matrix in self.cells.chunks_exact(old_stride) {
            for row in &rows {
                let old = row.map(|row| &matrix[row * self.nodes.len()..][..self.nodes.len()]);
                let cell = |column: &Option<usize>| old.zip(*column).map_or(0, |(old, column)| old[column]);
                cells.extend(columns.iter().map(cell));
            }
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{
        super::placement::tests::{at, problem, running, shown, trial},
        *,
    };
    use crate::{
        alloc::{Reason, TrialRequest},
        sim::osdi21::AuthorsSearch,
    };

    fn small() -> PolluxPolicy {
        PolluxPolicy::new(PolluxOptions { population: 20, generations: 20 })
    }

    fn solve(policy: &mut PolluxPolicy, problem: &Problem) -> Plan {
        policy.allocate(problem, &mut ChaCha8Rng::seed_from_u64(1)).unwrap()
    }

    #[test]
    fn equal_trials_share_equally() {
        let plan = solve(&mut small(), &problem("2x4xt4", (0..4).map(|id| trial(id, 1)).collect()));
        for decision in &plan.placements {
            assert_eq!((decision.allocation.gpus(), decision.allocation.is_distributed()), (2, false));
        }
        assert!((plan.fitness - 1.0).abs() < 0.01, "{}", plan.fitness);
    }

    #[test]
    fn a_good_allocation_is_kept_when_moving_is_dear() {
        let costly = |trial| TrialRequest { age_s: 60.0, reallocations: 1, realloc_delay_s: 30.0, ..trial };
        let trials = vec![costly(running(0, 1, &[(0, 4)])), costly(running(1, 1, &[(1, 4)]))];
        let plan = solve(&mut small(), &problem("2x4xt4", trials));
        assert_eq!(shown(&plan), "4@0 | 4@1");
    }

    #[test]
    fn pinned_trials_stay_and_lose_no_gpus() {
        let pinned = TrialRequest { pinned: true, ..running(0, 1, &[(0, 1), (1, 1)]) };
        let plan = solve(&mut small(), &problem("2x2xt4", vec![pinned, trial(1, 1)]));
        assert_eq!(plan.placements[0].reason, Reason::Pinned);
        assert_eq!(plan.placements[1].allocation.gpus(), 1, "two GPUs would span the pinned trial's nodes");
    }

    #[test]
    fn survivors_keep_their_own_rows() {
        let mut question = problem("3x2xt4", vec![trial(5, 1), trial(6, 1), trial(7, 1)]);
        let memory = Memory {
            trials: vec![TrialId(7), TrialId(5), TrialId(9)],
            nodes: vec![NodeId(0), NodeId(2), NodeId(8)],
            cells: vec![1, 2, 3, 4, 5, 6, 7, 8, 9],
        };
        question.trials[0].attained_gpu_s = 1.0;
        let instance = Instance::new(&question).unwrap();
        let space = Space::new(&instance);
        assert_eq!(space.trials, [1, 2, 0], "the least served first");
        assert_eq!(memory.recall(&instance, &space), [0, 0, 0, 1, 0, 2, 4, 0, 5]);
        // The authors' code gives the first survivor the first row, no matter which trial had it.
        question.trials[2].attained_gpu_s = 2.0;
        let instance = Instance::with_rules(&question, &AuthorsSearch).unwrap();
        let space = Space::new(&instance);
        assert_eq!(space.trials, [1, 0, 2]);
        assert_eq!(memory.recall(&instance, &space), [0, 0, 0, 1, 0, 2, 4, 0, 5]);
    }

    #[test]
    fn the_next_question_starts_from_the_last_answer() {
        let mut question = problem("2x4xt4", (0..3).map(|id| trial(id, 1)).collect());
        let mut policy = small();
        let first = solve(&mut policy, &question);
        policy.options.generations = 1;
        // Nothing runs yet, so only the memory can make the answer as good without a search.
        let second = solve(&mut policy, &question);
        assert!((first.fitness - second.fitness).abs() < 1e-12);
        question.cluster.remove(NodeId(0)).unwrap();
        question.trials.remove(1);
        question.trials[0].current = at(&[(0, 4)]);
        assert!(solve(&mut policy, &question).fitness > 0.0);
    }
}
