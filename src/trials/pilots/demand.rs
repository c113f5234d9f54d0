//! What one more node would bring.

use std::collections::BTreeSet;

use crate::{
    alloc::{self, Allocation, Cluster, Node},
    goodput::NoiseScale,
    ids::{GpuType, NodeId, TrialId},
    space::{Parallel, Study},
    trials::engine::{AllocationSnapshot, Engine, SolveService, TrialKind, TrialSnapshot},
};

/// What a study has to do, now.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Its trials, and the machines that it has.
    pub snapshot: AllocationSnapshot,
    /// Trials that would begin if there were room for them.
    pub to_come: u32,
    /// Nodes with trials.
    pub busy: BTreeSet<NodeId>,
    /// The study has come to its end, or is to stop.
    pub is_over: bool,
}

/// Nodes of one kind that could be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What their slots are.
    pub gpu_type: GpuType,
    /// How many each has.
    pub slots: u32,
    /// Nodes that are on their way.
    pub coming: u32,
}

/// How many times as fast a study would be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// With one more node than all that are here and on their way; infinite if there is none.
    pub more: f64,
    /// With the last one of those that are on their way, against without it; none if there is none.
    pub last: Option<f64>,
}

impl Engine {
    /// What the study has to do.
    #[must_use]
    pub fn demand(&self, now_s: f64) -> Demand {
        let (state, search) = (self.state(), &self.study().search);
        let left = (search.trials as usize).saturating_sub(state.created());
        let left = if state.search_ended.is_some() { 0 } else { left };
        // How many pay off depends on the machines that there are: more of them would bear more.
        let parallel = match search.parallel {
            Parallel::Fixed(number) => number as usize,
            Parallel::Auto => usize::MAX,
        };
        let room = parallel.saturating_sub(state.active.len());
        let mut snapshot = self.snapshot(now_s);
        let is_paused = state.paused_s.is_some();
        if is_paused {
            // Nothing that waits is launched, however many machines there are.
            snapshot.trials.clear();
        }
        Demand {
            snapshot,
            to_come: if is_paused { 0 } else { left.min(room) as u32 },
            busy: state.reserved().keys().map(|slot| slot.node).collect(),
            // When nothing is left to do, the end is about to be told.
            is_over: state.done || state.stopping || (left == 0 && state.active.is_empty()),
        }
    }
}

impl Demand {
    /// The same without some nodes.
    #[must_use]
    pub fn without(mut self, nodes: &BTreeSet<NodeId>) -> Self {
        for node in nodes {
            // It may be gone already.
            let _ = self.snapshot.cluster.remove(*node);
        }
        self
    }

    /// What one more node of each kind would bring, by the policy of the study.
    #[must_use]
    pub fn gains(&self, study: &Study, offers: &[Offer]) -> Vec<Gain> {
        let speed = |counts: &[u32]| self.speed(study, offers, counts).unwrap_or(0.0);
        let coming: Vec<u32> = offers.iter().map(|offer| offer.coming).collect();
        let now = speed(&coming);
        let one = |kind: usize| {
            let (mut more, mut less) = (coming.clone(), coming.clone());
            more[kind] += 1;
            let last = less[kind].checked_sub(1).map(|fewer| {
                less[kind] = fewer;
                ratio(now, speed(&less))
            });
            Gain { more: ratio(speed(&more), now), last }
        };
        (0..offers.len()).map(one).collect()
    }

    /// Progress of all trials per second with so many more nodes of each kind. Trials of a study have as much to do as each other, so
    /// that their goodputs add up.
    fn speed(&self, study: &Study, offers: &[Offer], counts: &[u32]) -> Result<f64, alloc::Error> {
        let cluster = self.cluster(offers, counts)?;
        let slots = cluster.total_gpus();
        if TrialKind::of(study) == TrialKind::Rigid {
            let trials = self.snapshot.trials.len() as u32 + self.to_come;
            let at_a_time: u32 = cluster.iter().map(|(_, node)| node.gpus / study.trial.slots()).sum();
            return Ok(f64::from(at_a_time.min(trials)));
        }
        let room = slots / study.trial.min_gpus.max(1);
        let fresh = room.saturating_sub(self.snapshot.trials.len() as u32).min(self.to_come);
        let snapshot = AllocationSnapshot {
            cluster,
            trials: self.trials(study, fresh),
            batch_limits: self.snapshot.batch_limits.clone(),
            to_come: self.snapshot.to_come.max(1),
        };
        let problem = snapshot.problem(study)?;
        // A policy of its own: what that of the study remembers is none of this question's business.
        let plan = SolveService::new(study)?.solve(0, &snapshot)?;
        let goodput = |allocation: &Allocation, trial: &alloc::TrialRequest| {
            let first = allocation.iter().next()?.0;
            let curve = trial.table.get(&snapshot.cluster.get(first)?.gpu_type)?;
            Some(curve.goodput(allocation.shape()?))
        };
        let each = plan.placements.iter().zip(&problem.trials);
        Ok(each.filter_map(|(placement, trial)| goodput(&placement.allocation, trial)).sum())
    }

    /// The machines, and so many more of each kind, in the island of those of their kind.
    fn cluster(&self, offers: &[Offer], counts: &[u32]) -> Result<Cluster, alloc::Error> {
        let mut cluster = self.snapshot.cluster.clone();
        let mut number = cluster.iter().map(|(id, _)| id.0).max().map_or(0, |last| last + 1);
        for (Offer { gpu_type, slots, .. }, count) in offers.iter().zip(counts) {
            let island = cluster.iter().find(|(_, node)| node.gpu_type == *gpu_type);
            let island = island.or_else(|| cluster.iter().next()).map_or(0, |(_, node)| node.island);
            for _ in 0..*count {
                cluster.add(NodeId(number), Node { gpu_type: gpu_type.clone(), gpus: *slots, island })?;
                number += 1;
            }
        }
        Ok(cluster)
    }

    /// All trials, and so many that have not begun. Of those that are not known one expects what is known of others; and a node stays
    /// longer than it takes to move there.
    fn trials(&self, study: &Study, fresh: u32) -> Vec<TrialSnapshot> {
        let known = self.snapshot.trials.iter().rev().find(|trial| trial.fit.is_some()).cloned();
        let mut trials: Vec<TrialSnapshot> = self.snapshot.trials.clone();
        let next = trials.iter().map(|trial| trial.id.0).max().map_or(0, |last| last + 1);
        for number in next..next.saturating_add(fresh) {
            trials.push(TrialSnapshot {
                id: TrialId(number),
                fit: None,
                noise: NoiseScale::ZERO.into(),
                current: Allocation::none(),
                age_s: 0.0,
                reallocations: 0,
                delay_s: 0.0,
                horizon_s: 0.0,
                attained_gpu_s: 0.0,
                promise: 1.0,
                remaining_epochs: study.trial.epochs,
                pace: None,
            });
        }
        for trial in &mut trials {
            if let Some(known) = known.as_ref().filter(|_| trial.fit.is_none()) {
                (trial.fit, trial.noise) = (known.fit.clone(), known.noise);
            }
            trial.delay_s = 0.0;
        }
        trials
    }
}

fn ratio(more: f64, less: f64) -> f64 {
    if less > 0.0 {
        more / less
    } else if more > 0.0 {
        f64::INFINITY
    } else {
        1.0
    }
}
