//! Slots by script instead of by a policy.

use std::sync::{Arc, Mutex, PoisonError};

use super::allocator::AllocatorService;
use crate::{
    alloc::{Allocation, Plan, Reason, TrialPlacement},
    goodput::{Compared, Comparison},
    ids::{NodeId, TrialId},
    trials::{
        engine::{
            AllocateService, AllocationSnapshot, AllocatorRequest, Error, Input, JournalEntry, TrialSnapshot,
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

/// Divides the slots as a script says; all else is left to the service of the study.
pub(super) struct ScriptedAllocator {
    script: Script,
    service: AllocateService,
}

impl ScriptedAllocator {
    /// With a service that has seen all facts so far.
    pub(super) const fn new(script: Script, service: AllocateService) -> Self {
        Self { script, service }
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
        // With a fixed batch, nobody needs to know how fast a trial is.
        if self.script.is_adaptive { self.service.apply(entry) } else { Ok(()) }
    }

    fn answer(&mut self, request: &AllocatorRequest) -> Input {
        match *request {
            AllocatorRequest::Fit { .. } if self.script.is_adaptive => self.service.answer(request),
            AllocatorRequest::Fit { revision, trial } => Input::FitDone { revision, trial, answer: None },
            AllocatorRequest::Solve { revision, ref snapshot } => {
                Input::PlanSolved { revision, answer: Ok(self.plan(snapshot)), places: None }
            }
        }
    }

    fn comparison(&mut self) -> Option<Comparison> {
        self.service.comparison()
    }

    fn learn(&mut self, compared: Compared) {
        self.service.learn(compared);
    }
}
