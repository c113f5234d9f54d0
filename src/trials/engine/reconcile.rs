//! Who has which slots, and in which order slots change owners.
//!
//! A plan gives every trial the slots it should have. Getting there takes steps, because a slot is free only when the
//! generation that used it has given it up:
//!
//! 1. A trial that only gives slots up does so at once.
//! 2. A trial that gets some waits until all of them are free, and then changes once.
//! 3. Where all wait for each other, the first in the cycle that has slots to give up does so; if those are all it has, it
//!    writes its state to disk and leaves. There is one: a slot that is waited for belongs to a trial that will not keep it.
//!
//! Each step makes one trial's slots its target or frees some, so it ends.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ActiveTrial, Command, Engine, Fact, Failures, GroupCommand, Launch, Phase, Severity, StepBuilder, Target,
    TrialKind, retry::FAILURES_MAX, snapshot,
};
use crate::{
    alloc::Plan,
    ids::{NodeId, SlotId, TrialId},
    trials::group::FinalState,
};

/// What one trial does next.
enum Move {
    /// A generation of these slots; the state comes from holders if there are any.
    Form(Vec<SlotId>),
    Pause,
    Interrupt(String),
    Fail,
}

impl Engine {
    /// Takes steps until nothing more can be done now.
    pub(super) fn reconcile(&mut self, step: &mut StepBuilder) {
        while let Some((trial, next)) = self.next_move(step.now_s) {
            match next {
                Move::Form(slots) => self.form(step, trial, slots),
                Move::Pause => {
                    self.emit(step, Fact::TrialPausing { trial });
                    step.command(Command::Group { trial, command: GroupCommand::Stop(FinalState::Saved) });
                }
                Move::Interrupt(reason) => {
                    self.stop_group(step, trial);
                    self.emit(step, Fact::TrialInterrupted { trial, reason, severity: Severity::Normal });
                    self.pending.dirty = true;
                }
                Move::Fail => {
                    let active = &self.state.active[&trial];
                    let Failures { count, last, .. } = &active.failures;
                    let reason =
                        format!("{count} failures without progress of any trial, the last one: {last}");
                    self.stop_and_end(step, Fact::TrialFailed { trial, reason }, trial);
                }
            }
        }
    }

    fn form(&mut self, step: &mut StepBuilder, trial: TrialId, slots: Vec<SlotId>) {
        let active = &self.state.active[&trial];
        let generation = active.generation.next();
        let batch = snapshot::batch(active, &slots, self);
        let holders = active.phase.holders().to_vec();
        let to = slots.clone();
        let total = batch.map(|plan| snapshot::in_all(plan, slots.len(), &self.study.trial));
        let command = match total {
            Some(batch) if !holders.is_empty() => GroupCommand::Reshape { generation, slots: to, batch },
            _ => {
                let (params, checkpoint) = (active.params.clone(), active.checkpoint.clone());
                GroupCommand::Launch(Launch { generation, slots: to, params, batch: total, checkpoint })
            }
        };
        step.command(Command::Group { trial, command });
        self.emit(step, Fact::TrialStarted { trial, generation, slots, batch, holders });
    }

    fn next_move(&self, now_s: f64) -> Option<(TrialId, Move)> {
        let mut blocked = None;
        let reserved = self.state.reserved();
        // What was lost has to end before others may use its slots, if they are here again.
        for (&trial, active) in &self.state.active {
            if active.failures.count > FAILURES_MAX {
                return Some((trial, Move::Fail));
            }
            if let Phase::Broken { slots, holders, .. } = &active.phase {
                return Some((trial, self.recover(now_s, active, slots, holders)));
            }
        }
        for (&trial, active) in &self.state.active {
            let next = match &active.phase {
                _ if self.state.stopping => self.stop(active),
                _ if self.state.paused_s.is_some() => self.rest(active),
                Phase::Waiting if now_s < active.failures.retry_s || !self.state.may_launch(now_s) => None,
                Phase::Waiting if self.kind == TrialKind::Rigid => {
                    self.free_slots(&reserved, self.study.trial.slots() as usize).map(Move::Form)
                }
                Phase::Running(_) if self.kind == TrialKind::Elastic && self.has_nowhere_to_go(active) => {
                    Some(Move::Pause)
                }
                Phase::Waiting | Phase::Running(_) if self.kind.is_planned() => {
                    if self.is_outdated(active) {
                        continue;
                    }
                    let next = self.towards_target(trial, active, &reserved);
                    if next.is_none() && matches!(active.phase, Phase::Running(_)) && has_surplus(active) {
                        blocked = blocked.or(Some(trial));
                    }
                    next
                }
                _ => None,
            };
            if let Some(next) = next {
                return Some((trial, next));
            }
        }
        if self.state.stopping || self.state.active.values().any(|active| active.phase.in_transition()) {
            return None;
        }
        let trial = blocked?;
        let active = &self.state.active[&trial];
        let kept: Vec<SlotId> =
            active.slots().iter().filter(|slot| active.target.contains(slot)).copied().collect();
        let next = if self.is_enough(&kept) { self.form_or_end(active, kept) } else { Move::Pause };
        Some((trial, next))
    }

    /// Free slots of one machine, the first that has so many.
    fn free_slots(&self, reserved: &BTreeMap<SlotId, TrialId>, count: usize) -> Option<Vec<SlotId>> {
        let mut free: Vec<SlotId> = Vec::with_capacity(count);
        for slot in self.state.open_slots().filter(|slot| !reserved.contains_key(slot)) {
            if free.first().is_some_and(|first| first.node != slot.node) {
                free.clear();
            }
            free.push(slot);
            if free.len() == count {
                return Some(free);
            }
        }
        None
    }

    /// How a trial gets other slots: a program has to end first.
    fn form_or_end(&self, active: &ActiveTrial, slots: Vec<SlotId>) -> Move {
        let is_program = self.kind == TrialKind::Restarted && matches!(active.phase, Phase::Running(_));
        if is_program { Move::Pause } else { Move::Form(slots) }
    }

    /// Whether a trial was to get slots of a machine that has begun to leave meanwhile. It stays as it is until the next plan.
    fn is_outdated(&self, active: &ActiveTrial) -> bool {
        let is_new = |slot: &&SlotId| !active.slots().contains(slot);
        active.target.iter().filter(is_new).any(|slot| !self.state.is_open(*slot))
    }

    fn is_enough(&self, slots: &[SlotId]) -> bool {
        !slots.is_empty() && slots.len() >= self.study.trial.min_gpus as usize
    }

    /// A trial that has lost workers continues with those it has. If they are too few, they write its state first; if all that had it
    /// are gone, it restarts from its checkpoint.
    fn recover(&self, now_s: f64, active: &ActiveTrial, slots: &[SlotId], holders: &[SlotId]) -> Move {
        let lost = holders.is_empty();
        let may_launch = self.state.is_launching() && self.state.may_launch(now_s);
        // From disk it begins where it can stay.
        let usable: Vec<SlotId> =
            slots.iter().copied().filter(|slot| !lost || self.state.is_open(*slot)).collect();
        let slots = if self.is_enough(&usable) { &usable } else { holders };
        if self.kind == TrialKind::Elastic && !lost && !self.is_enough(slots) {
            return Move::Pause;
        }
        if self.kind != TrialKind::Elastic || !self.is_enough(slots) || (lost && !may_launch) {
            return Move::Interrupt(active.failures.last.clone());
        }
        Move::Form(slots.to_vec())
    }

    /// What a trial does when the study is to stop. State in memory is kept: a generation that gets its state from holders
    /// forms first.
    fn stop(&self, active: &ActiveTrial) -> Option<Move> {
        let elastic = self.kind == TrialKind::Elastic;
        match &active.phase {
            Phase::Running(_) if elastic => Some(Move::Pause),
            Phase::Forming { holders, .. } if elastic && !holders.is_empty() => None,
            Phase::Forming { .. } | Phase::Running(_) => {
                Some(Move::Interrupt("the study is stopping".to_owned()))
            }
            _ => None,
        }
    }

    /// What a trial does while the study is paused. Elastic ones leave with their state, as soon as a generation has it; programs run
    /// to their end, but those that can be started again leave, too.
    fn rest(&self, active: &ActiveTrial) -> Option<Move> {
        match &active.phase {
            Phase::Running(_) if self.kind.is_planned() => Some(Move::Pause),
            Phase::Forming { holders, .. } if self.kind == TrialKind::Elastic && holders.is_empty() => {
                Some(Move::Interrupt("the study is paused".to_owned()))
            }
            _ => None,
        }
    }

    fn towards_target(
        &self,
        trial: TrialId,
        active: &ActiveTrial,
        reserved: &BTreeMap<SlotId, TrialId>,
    ) -> Option<Move> {
        let free = |slot: &SlotId| reserved.get(slot).is_none_or(|owner| *owner == trial);
        if at_target(active) {
            return None;
        }
        if !self.is_enough(&active.target) {
            return (matches!(active.phase, Phase::Running(_))).then_some(Move::Pause);
        }
        active.target.iter().all(free).then(|| self.form_or_end(active, active.target.clone()))
    }

    /// Makes a plan the target, as far as its trials and slots are still here.
    pub(super) fn adopt(&mut self, step: &mut StepBuilder, plan: &Plan) {
        if !self.state.is_launching() {
            return;
        }
        let targets = self.targets(plan);
        let same = |target: &Target| {
            let now: BTreeSet<_> = self.state.active[&target.trial].target.iter().collect();
            now == target.slots.iter().collect()
        };
        if !targets.iter().all(same) {
            let (fitness, bound) = (plan.fitness, plan.fitness_bound.filter(|bound| bound.is_finite()));
            self.emit(step, Fact::PlanAdopted { targets, fitness, bound });
        }
    }

    /// Chooses slots. Trials keep what they have on a node; what they get there is free already, where possible.
    fn targets(&self, plan: &Plan) -> Vec<Target> {
        let mut targets = Vec::new();
        let mut missing = Vec::new();
        let mut taken = BTreeSet::new();
        for decision in &plan.placements {
            let trial = decision.trial;
            let Some(active) = self.state.active.get(&trial) else { continue };
            let mut slots = Vec::new();
            for (node, count) in decision.allocation.iter() {
                let own =
                    active.slots().iter().filter(|slot| slot.node == node && self.state.is_open(**slot));
                let kept: Vec<SlotId> = own.take(count as usize).copied().collect();
                missing.push((targets.len(), node, count as usize - kept.len()));
                slots.extend(kept);
            }
            taken.extend(slots.iter().copied());
            targets.push(Target { trial, slots, speedup: decision.speedup, reason: decision.reason });
        }
        let reserved = self.state.reserved();
        for (place, node, count) in missing {
            let on_node = self.state.open_slots().filter(|slot| slot.node == node);
            let mut open: Vec<SlotId> = on_node.filter(|slot| !taken.contains(slot)).collect();
            open.sort_by_key(|slot| (reserved.contains_key(slot), *slot));
            open.truncate(count);
            taken.extend(open.iter().copied());
            targets[place].slots.extend(open);
            targets[place].slots.sort_unstable();
        }
        if self.kind == TrialKind::Restarted {
            for target in &mut targets {
                keep_one_node(&mut target.slots);
            }
        }
        targets
    }
}

/// A program cannot leave its machine: not all policies know that.
fn keep_one_node(slots: &mut Vec<SlotId>) {
    let mut counts = BTreeMap::<NodeId, usize>::new();
    for slot in &*slots {
        *counts.entry(slot.node).or_default() += 1;
    }
    let largest = counts.into_iter().max_by_key(|(node, count)| (*count, std::cmp::Reverse(*node)));
    slots.retain(|slot| largest.is_some_and(|(node, _)| slot.node == node));
}

/// Whether a trial has slots that it should not have.
fn has_surplus(active: &ActiveTrial) -> bool {
    active.slots().iter().any(|slot| !active.target.contains(slot))
}

/// Whether a trial has the slots it should have.
fn at_target(active: &ActiveTrial) -> bool {
    active.slots().len() == active.target.len()
        && active.slots().iter().all(|slot| active.target.contains(slot))
}
