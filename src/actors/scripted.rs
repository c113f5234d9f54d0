//! Slots by script instead of by a policy.

use std::sync::{Arc, Mutex, PoisonError};

use super::allocator::AllocatorService;
use crate::{
    alloc::{Allocation, Plan, Reason, TrialPlacement},
    ids::{NodeId, TrialId},
    space::Study,
    trials::{
        engine::{
            AllocationSnapshot, AllocatorRequest, Error, FitService, Input, JournalEntry, TrialSnapshot,
        },
        group::Batch,
    },
};

/// Which slots the running trial is to have. Each slot is a node of its own, so that a plan can name it.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) wanted: Arc<Mutex<Vec<u32>>>,
    /// No task begins before this many slots are there.
    pub(crate) slots: u32,
    /// Whether the batch follows from what is measured.
    pub(crate) is_adaptive: bool,
}

/// What whoever writes the script wants at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Steering {
    /// The script has changed.
    Replan,
    /// Another batch, until the group changes.
    Retune { trial: TrialId, batch: Batch },
}

/// Answers with what a script says.
pub(super) struct ScriptedAllocator {
    script: Script,
    /// None if the batch is fixed: then nobody needs to know how fast a trial is.
    fit: Option<FitService>,
}

impl ScriptedAllocator {
    pub(super) fn new(study: &Study, script: Script, entries: &[JournalEntry]) -> Result<Self, Error> {
        let fit = script.is_adaptive.then(|| FitService::new(study));
        let mut allocator = Self { script, fit };
        entries.iter().try_for_each(|entry| allocator.apply(entry))?;
        Ok(allocator)
    }

    fn plan(&self, snapshot: &AllocationSnapshot) -> Plan {
        let wanted = self.script.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_up = |node: &NodeId| snapshot.cluster.get(*node).is_some_and(|node| node.gpus > 0);
        let there: Allocation =
            wanted.iter().map(|slot| NodeId(*slot)).filter(is_up).map(|node| (node, 1)).collect();
        let all_are_there = snapshot.cluster.total_gpus() >= self.script.slots;
        let may_run = |trial: &&TrialSnapshot| all_are_there || trial.attained_gpu_s > 0.0;
        let placements = snapshot.trials.iter().take(1).filter(may_run).map(|trial| {
            // Where all that are wanted have died, the trial trains on with what it has until they are back.
            let allocation = if there.is_empty() { trial.current.clone() } else { there.clone() };
            TrialPlacement { trial: trial.id, allocation, speedup: 1.0, reason: Reason::Pinned }
        });
        Plan { placements: placements.collect(), fitness: 1.0, fitness_bound: None }
    }
}

impl AllocatorService for ScriptedAllocator {
    fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.fit.as_mut().map_or(Ok(()), |fit| fit.apply(entry))
    }

    fn answer(&mut self, request: &AllocatorRequest) -> Input {
        match *request {
            AllocatorRequest::Fit { revision, trial } => {
                Input::FitDone { revision, trial, answer: self.fit.as_mut().and_then(|fit| fit.fit(trial)) }
            }
            AllocatorRequest::Solve { revision, ref snapshot } => {
                Input::PlanSolved { revision, answer: Ok(self.plan(snapshot)) }
            }
        }
    }
}
