use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{
    Allocation, Error, Problem,
    instance::{Instance, Row, gpus_of},
};
use crate::{
    goodput::Tier,
    ids::{NodeId, TrialId},
};

/// Why a trial has the GPUs it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It is pinned to its GPUs.
    Pinned,
    /// Nothing better was found than the GPUs it has.
    Kept,
    /// It waited, and now runs.
    Started,
    /// It got more GPUs.
    Grown,
    /// Others make better use of some of its GPUs.
    Shrunk,
    /// As many GPUs elsewhere, or GPUs of another type or island.
    Moved,
    /// Others make better use of all of its GPUs.
    Preempted,
    /// No GPUs are left for it.
    Waiting,
    /// Its minimum number of GPUs is more than any pool of one GPU type has.
    TooLarge,
    /// It cannot run on any GPU type of the cluster.
    CannotRun,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pinned => "pinned to its GPUs",
            Self::Kept => "keeps its GPUs",
            Self::Started => "started",
            Self::Grown => "makes good use of more GPUs",
            Self::Shrunk => "others make better use of some of its GPUs",
            Self::Moved => "moved to other GPUs",
            Self::Preempted => "others make better use of its GPUs",
            Self::Waiting => "no GPUs are left",
            Self::TooLarge => "needs more GPUs than there are of any one type",
            Self::CannotRun => "cannot run on any GPU type of the cluster",
        })
    }
}

/// The decision for one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialPlacement {
    /// The trial.
    pub trial: TrialId,
    /// The GPUs it gets.
    pub allocation: Allocation,
    /// Its goodput against that of the fair share, with the re-allocation factor.
    pub speedup: f64,
    /// Why.
    pub reason: Reason,
}

/// The answer of a policy: an allocation and a reason for every trial, in the order of the problem.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// One decision for each trial.
    pub placements: Vec<TrialPlacement>,
    /// FITNESS of the plan.
    pub fitness: f64,
    /// No plan has a FITNESS above this; none where the policy does not know.
    pub fitness_bound: Option<f64>,
}

#[derive(Default)]
struct NodeLoad {
    gpus: u32,
    distributed: u32,
    /// One of the distributed trials is not pinned, so the policy put it there.
    movable: bool,
}

impl Plan {
    /// How far FITNESS may be below the best possible, as a share of the bound: 0 is proven optimal, up to rounding.
    #[must_use]
    pub fn gap(&self) -> Option<f64> {
        let gap = |bound: f64| if bound > 0.0 { 1.0 - self.fitness / bound } else { 0.0 };
        self.fitness_bound.map(gap).map(|gap| if gap < 1e-8 { 0.0 } else { gap })
    }

    /// The decision for one trial.
    #[must_use]
    pub fn get(&self, trial: TrialId) -> Option<&TrialPlacement> {
        self.placements.iter().find(|placement| placement.trial == trial)
    }

    /// Whether the plan keeps all rules: every trial answered once, no GPU given twice, no GPU that is not there,
    /// one GPU type and island per trial, at most one distributed trial on a node where that is asked for, limits
    /// kept, pinned trials unmoved, and every figure a number.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        let broken = |text: String| Err(Error::BrokenPlan(text));
        if self.placements.len() != problem.trials.len() {
            return broken(format!("{} trials, {} answers", problem.trials.len(), self.placements.len()));
        }
        if !self.fitness.is_finite() || self.fitness_bound.is_some_and(f64::is_nan) {
            return broken(format!("fitness {}, bound {:?}", self.fitness, self.fitness_bound));
        }
        let mut used: BTreeMap<NodeId, NodeLoad> = BTreeMap::new();
        for (trial, placement) in problem.trials.iter().zip(&self.placements) {
            let (id, gpus) = (trial.id, placement.allocation.gpus());
            if placement.trial != id || !placement.speedup.is_finite() {
                return broken(format!("trial {id}: answered {placement:?}"));
            }
            if gpus != 0
                && placement.reason != Reason::Pinned
                && !(trial.min_gpus..=trial.max_gpus).contains(&gpus)
            {
                return broken(format!("trial {id}: {gpus} GPUs outside its limits"));
            }
            let mut home = None;
            for (node_id, gpus) in placement.allocation.iter() {
                let Some(node) = problem.cluster.get(node_id) else {
                    return broken(format!("trial {id}: node {node_id} is not there"));
                };
                let pool = (&node.gpu_type, node.island);
                if *home.get_or_insert(pool) != pool {
                    return broken(format!("trial {id} mixes GPU types or islands"));
                }
                let load = used.entry(node_id).or_default();
                load.gpus += gpus;
                if placement.allocation.is_distributed() {
                    load.distributed += 1;
                    load.movable |= placement.reason != Reason::Pinned;
                }
                if load.gpus > node.gpus {
                    return broken(format!(
                        "node {node_id}: more than its {} GPUs are given away",
                        node.gpus
                    ));
                }
                if problem.avoid_interference && load.distributed > 1 && load.movable {
                    return broken(format!("node {node_id}: two distributed trials"));
                }
            }
            if placement.reason == Reason::Pinned && placement.allocation != trial.current {
                return broken(format!("trial {id} is pinned and was moved"));
            }
        }
        Ok(())
    }

    /// Turns the rows of a policy into a checked plan.
    pub(crate) fn from_rows(
        problem: &Problem,
        instance: &Instance,
        rows: &[Row],
        utility_bound: Option<f64>,
    ) -> Result<Self, Error> {
        let placements = rows
            .iter()
            .enumerate()
            .map(|(trial, row)| TrialPlacement {
                trial: instance.trials[trial].id,
                allocation: instance.allocation(row),
                speedup: instance.speedup(trial, row),
                reason: reason(problem, instance, trial, row),
            })
            .collect();
        let total = instance.total_utility(rows);
        let fitness_bound = utility_bound.map(|bound| instance.fitness(bound.max(total)));
        let plan = Self { placements, fitness: instance.fitness(total), fitness_bound };
        plan.check(problem)?;
        Ok(plan)
    }
}

fn reason(problem: &Problem, instance: &Instance, trial: usize, row: &Row) -> Reason {
    let (before, data) = (&problem.trials[trial].current, &instance.trials[trial]);
    let (old, new) = (before.gpus(), gpus_of(row));
    let pool = |node: usize| instance.nodes[node].pool;
    let left_home = match (data.current.first(), row.first()) {
        (Some(&(before, _)), Some(&(after, _))) => pool(before) != pool(after),
        _ => false,
    };
    match (old, new) {
        _ if data.pinned => Reason::Pinned,
        (_, 0) if instance.pools.iter().all(|pool| pool.gpus < data.min) => Reason::TooLarge,
        (_, 0) if !can_run(instance, trial) => Reason::CannotRun,
        (0, 0) => Reason::Waiting,
        (_, 0) => Reason::Preempted,
        (0, _) => Reason::Started,
        _ if *row == data.current => Reason::Kept,
        _ if left_home || new == old => Reason::Moved,
        _ if new > old => Reason::Grown,
        _ => Reason::Shrunk,
    }
}

fn can_run(instance: &Instance, trial: usize) -> bool {
    let data = &instance.trials[trial];
    (0..instance.pools.len()).any(|pool| {
        Tier::ALL
            .iter()
            .any(|&tier| (1..=data.largest(pool, tier)).any(|gpus| data.speedup(pool, tier, gpus) > 0.0))
    })
}
