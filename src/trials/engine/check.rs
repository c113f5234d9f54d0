//! The rules that hold after every input.

use std::collections::BTreeMap;

use super::{ActiveTrial, Engine, Phase, TrialKind};
use crate::ids::{Generation, SlotId, TrialId};

impl Engine {
    /// Whether everything is as it must be; if not, what is wrong.
    ///
    /// - No slot is used by two trials, none is planned for two, and each of them has a worker.
    /// - A trial with a group has slots and, if it is elastic, a batch; one without has neither.
    /// - Trials that are not elastic have their slots on one machine, and as many as the study says.
    /// - Numbers of trials are consecutive, and there are no more than the study allows.
    /// - Nothing is left half decided.
    ///
    /// That ended trials do not change, that generations only grow and that no trial ends twice is seen to by
    /// [`apply`](Self::apply), which refuses such facts.
    pub fn check(&self) -> Result<(), String> {
        let (mut used, mut planned) = (BTreeMap::new(), BTreeMap::new());
        for (&trial, active) in &self.state.active {
            if self.state.ended.contains_key(&trial) {
                return Err(format!("trial {trial} has ended, and runs"));
            }
            self.check_trial(trial, active)?;
            for slot in active.reserved() {
                self.claim(&mut used, slot, trial)?;
            }
            for slot in &active.target {
                self.claim(&mut planned, *slot, trial)?;
            }
        }
        let last = [self.state.active.keys().next_back(), self.state.ended.keys().next_back()];
        let count = self.state.created();
        if last.into_iter().flatten().max().is_some_and(|last| last.0 as usize + 1 != count) {
            return Err(format!("{count} trials do not have the numbers from 0 on"));
        }
        Ok(())
    }

    fn check_trial(&self, trial: TrialId, active: &ActiveTrial) -> Result<(), String> {
        let (phase, slots) = (active.phase.name(), active.slots().len());
        let batch = match &active.phase {
            Phase::Waiting => return Ok(()),
            Phase::Broken { .. } => {
                return Err(format!("trial {trial} has lost workers, and nothing was decided"));
            }
            Phase::Forming { group, .. } | Phase::Running(group) | Phase::Pausing(group) => group.batch,
        };
        if slots == 0 || active.generation == Generation::NONE {
            return Err(format!("trial {trial} is {phase} with {slots} slots"));
        }
        match self.kind {
            TrialKind::Elastic if batch.is_none() => Err(format!("trial {trial} is {phase} without a batch")),
            TrialKind::Elastic => Ok(()),
            TrialKind::Rigid | TrialKind::Restarted => {
                let least = self.study.trial.slots() as usize;
                let is_right = match self.kind {
                    TrialKind::Rigid => slots == least,
                    // What it loses while it ends makes no difference.
                    _ => slots >= least || matches!(active.phase, Phase::Pausing(_)),
                };
                let first = active.slots().first().map(|slot| slot.node);
                let is_together = active.slots().iter().all(|slot| Some(slot.node) == first);
                if is_right && is_together && batch.is_none() {
                    return Ok(());
                }
                Err(format!("trial {trial} is a program, and has {:?}, {batch:?}", active.slots()))
            }
        }
    }

    fn claim(
        &self,
        claimed: &mut BTreeMap<SlotId, TrialId>,
        slot: SlotId,
        trial: TrialId,
    ) -> Result<(), String> {
        if !self.state.is_up(slot) {
            return Err(format!("trial {trial} has slot {slot}, which has no worker"));
        }
        match claimed.insert(slot, trial) {
            Some(other) => Err(format!("slot {slot} belongs to the trials {other} and {trial}")),
            None => Ok(()),
        }
    }
}
