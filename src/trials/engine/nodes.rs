//! Machines that come and go.
//!
//! A machine joins, may be announced to leave (it *drains*), and is lost. From its draining on nothing new is placed there: the allocator does not
//! see it any more, so that elastic trials hand their state over to workers elsewhere, or save it if there is no room. Trials that are not
//! elastic stay until it is gone. Whatever is lost with a machine, or on one that drains, is not held against a trial.

use std::collections::{BTreeMap, BTreeSet};

use super::{ActiveTrial, Command, Engine, Error, Fact, Input, LATEST_S, State, StepBuilder, TrialKind};
use crate::{
    alloc::{Cluster, Node},
    ids::{GpuType, NodeId, SlotId, TrialId},
    space::{Program, Study},
};

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    /// What people call it; empty if it has no name.
    pub name: String,
    /// The type of its GPUs.
    pub gpu_type: GpuType,
    /// Its network island.
    pub island: u32,
    /// How many slots it has.
    pub slots: u32,
    /// Those with a worker.
    pub up: BTreeSet<u32>,
    /// When it joined.
    pub since_s: f64,
    /// It is taken away soon.
    pub draining: Option<Draining>,
}

/// A machine is taken away soon.
#[derive(Debug, Clone, PartialEq)]
pub struct Draining {
    /// Since when that is known.
    pub since_s: f64,
    /// When it will be gone at the latest.
    pub until_s: f64,
    /// Why.
    pub reason: String,
}

impl Draining {
    /// When it will be gone, if it does not go only when nothing runs there any more.
    #[must_use]
    pub fn deadline_s(&self) -> Option<f64> {
        (self.until_s < LATEST_S).then_some(self.until_s)
    }
}

/// A machine that was here under the present head.
#[derive(Debug, Clone, PartialEq)]
pub struct LostNode {
    /// What people call it; empty if it has no name.
    pub name: String,
    /// The type of its GPUs.
    pub gpu_type: GpuType,
    /// How many slots it had.
    pub slots: u32,
    /// When it was lost.
    pub at_s: f64,
    /// What is known about it.
    pub reason: String,
}

impl NodeState {
    /// Whether something new may be placed here.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.draining.is_none()
    }
}

impl State {
    /// Whether there is a worker in a slot.
    #[must_use]
    pub fn is_up(&self, slot: SlotId) -> bool {
        self.nodes.get(&slot.node).is_some_and(|node| node.up.contains(&slot.index))
    }

    /// Whether there is a worker in a slot, and it may be given to a trial.
    #[must_use]
    pub fn is_open(&self, slot: SlotId) -> bool {
        self.nodes.get(&slot.node).is_some_and(|node| node.is_open() && node.up.contains(&slot.index))
    }

    /// All slots that may be given to trials.
    pub fn open_slots(&self) -> impl Iterator<Item = SlotId> {
        let open = self.nodes.iter().filter(|(_, state)| state.is_open());
        open.flat_map(|(&node, state)| state.up.iter().map(move |&index| SlotId { node, index }))
    }

    /// How many slots have a worker.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.nodes.values().map(|node| node.up.len()).sum()
    }

    /// The machines as the allocator sees them: without those that are taken away.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new();
        let apart = self.apart();
        for (&id, node) in self.nodes.iter().filter(|(_, node)| node.is_open()) {
            let gpus = node.up.len() as u32;
            // Real islands have small numbers.
            let island = if apart.contains(&id) { u32::MAX - id.0 } else { node.island };
            let node = Node { gpu_type: node.gpu_type.clone(), gpus, island };
            // Numbers are unique here, and no node joins with too many slots.
            let _ = cluster.add(id, node);
        }
        cluster
    }

    /// A machine for people: its number, and its name if it has one.
    #[must_use]
    pub fn node_label(&self, id: NodeId) -> String {
        let name = self.nodes.get(&id).map(|node| &node.name);
        match name.or_else(|| self.lost.get(&id).map(|node| &node.name)) {
            Some(name) if !name.is_empty() => format!("node {id} ({name})"),
            _ => format!("node {id}"),
        }
    }

    /// Why no machine could take a trial of the study even if no other ran, if that is so.
    #[must_use]
    pub fn shortage(&self, study: &Study) -> Option<String> {
        match study.trial.program.as_ref()? {
            Program::Command(_) => self.shortage_for_programs(study.trial.slots()),
            Program::Trainable(_) | Program::Python(_) => self.shortage_of(study.trial.min_gpus),
        }
    }

    /// The same for a program that needs so many GPUs of one machine.
    fn shortage_for_programs(&self, gpus: u32) -> Option<String> {
        self.shortage_of(1).or_else(|| {
            let largest = self.cluster().iter().map(|(_, node)| node.gpus).max().unwrap_or(0);
            let is_over =
                self.done || !self.is_launching() || (self.search_ended.is_some() && self.active.is_empty());
            let needed =
                format!("programs need {gpus} GPUs of one machine, the most that one has are {largest}");
            (largest < gpus && !is_over).then_some(needed)
        })
    }

    /// The same for a trial that needs so many GPUs.
    pub(super) fn shortage_of(&self, min_gpus: u32) -> Option<String> {
        if self.done || !self.is_launching() || (self.search_ended.is_some() && self.active.is_empty()) {
            return None;
        }
        let (cluster, mut pools) = (self.cluster(), BTreeMap::<(&GpuType, u32), u32>::new());
        for (_, node) in cluster.iter() {
            *pools.entry((&node.gpu_type, node.island)).or_default() += node.gpus;
        }
        let largest = pools.values().copied().max().unwrap_or(0);
        if largest >= min_gpus.max(1) {
            return None;
        }
        Some(match (largest, self.nodes.len()) {
            (0, 0) if self.lost.is_empty() => "no machine has joined yet".to_owned(),
            (0, 0) => "all machines are gone".to_owned(),
            (0, _) if self.nodes.values().all(|node| !node.is_open()) => {
                "all machines are about to leave".to_owned()
            }
            (0, _) => "no machine has a worker".to_owned(),
            _ => format!("trials need {min_gpus} GPUs of one type, the most that are together are {largest}"),
        })
    }

    /// What has become of the machines.
    pub(super) fn apply_to_nodes(&mut self, at_s: f64, fact: &Fact) -> Result<(), Error> {
        match fact {
            Fact::NodeJoined { node, name, gpu_type, island, slots } => {
                if self.nodes.contains_key(node) {
                    return Err(Error::out_of_place(fact, format!("node {node} is here already")));
                }
                let state = NodeState {
                    name: name.clone(),
                    gpu_type: gpu_type.clone(),
                    island: *island,
                    slots: *slots,
                    up: (0..*slots).collect(),
                    since_s: at_s,
                    draining: None,
                };
                self.nodes.insert(*node, state);
                // The same machine may come under another number.
                self.lost.retain(|id, lost| id != node && (lost.name.is_empty() || lost.name != *name));
                self.forget_links(*node);
                self.blocked.remove(node);
            }
            Fact::NodeDraining { node, until_s, reason } => {
                if let Some(state) = self.nodes.get_mut(node) {
                    let since_s = state.draining.as_ref().map_or(at_s, |draining| draining.since_s);
                    state.draining = Some(Draining { since_s, until_s: *until_s, reason: reason.clone() });
                }
            }
            Fact::NodeLost { node, reason } => {
                self.blocked.remove(node);
                self.forget_links(*node);
                if let Some(NodeState { name, gpu_type, slots, .. }) = self.nodes.remove(node) {
                    let lost = LostNode { name, gpu_type, slots, at_s, reason: reason.clone() };
                    self.lost.insert(*node, lost);
                }
                self.lose(at_s, reason, false, |slot| slot.node == *node);
            }
            Fact::SlotJoined { slot } => {
                if let Some(node) = self.nodes.get_mut(&slot.node) {
                    node.up.insert(slot.index);
                }
                self.blocked.remove(&slot.node);
            }
            Fact::SlotLost { slot, reason } => {
                let mut is_failure = true;
                if let Some(node) = self.nodes.get_mut(&slot.node) {
                    node.up.remove(&slot.index);
                    is_failure = node.is_open();
                }
                self.lose(at_s, reason, is_failure, |other| other == slot);
            }
            Fact::NodeBlocked { node, reason } => drop(self.blocked.insert(*node, reason.clone())),
            _ => {}
        }
        Ok(())
    }

    /// Workers are gone, which may count as a failure of the trials that had them.
    fn lose(&mut self, at_s: f64, reason: &str, is_failure: bool, lost: impl Fn(&SlotId) -> bool) {
        for active in self.active.values_mut() {
            active.count(at_s);
            if active.lose(&lost) {
                if is_failure {
                    active.failures.add(at_s, reason, self.progress);
                } else {
                    active.failures.excuse(reason);
                }
            }
        }
    }

    /// Whether a trial has something on a machine that is taken away.
    pub(super) fn has_to_leave(&self, active: &ActiveTrial) -> bool {
        let drains = |slot: SlotId| self.nodes.get(&slot.node).is_some_and(|node| !node.is_open());
        active.reserved().any(drains)
    }
}

impl Engine {
    /// Something has happened to a machine or to a worker on it.
    pub(super) fn on_node_input(&mut self, step: &mut StepBuilder, input: Input) {
        match input {
            Input::NodeJoined { node, name, gpu_type, island, slots } => {
                if self.state.nodes.contains_key(&node) {
                    // Its loss went unnoticed.
                    self.emit(step, Fact::NodeLost { node, reason: "it has joined again".to_owned() });
                }
                let slots = slots.min(Node::GPUS_MAX);
                self.emit(step, Fact::NodeJoined { node, name, gpu_type: gpu_type.clone(), island, slots });
                self.pending.dirty = true;
                self.pending.new_types.insert(gpu_type);
            }
            Input::NodeDraining { node, until_s, reason } => {
                let latest_s = if until_s.is_nan() { step.now_s } else { until_s };
                let until_s = latest_s.clamp(step.now_s, LATEST_S);
                let Some(state) = self.state.nodes.get(&node) else { return };
                let is_known =
                    |known: &Draining| known.until_s.total_cmp(&until_s).is_eq() && known.reason == reason;
                if !state.draining.as_ref().is_some_and(is_known) {
                    self.emit(step, Fact::NodeDraining { node, until_s, reason });
                    // An answer that still counts on it would make trials leave before they know where to go.
                    self.pending.solve = None;
                    self.pending.dirty = true;
                }
            }
            // One that never came so far as to join may be gone, too.
            Input::NodeLost { node, reason }
                if self.state.nodes.contains_key(&node) || self.state.blocked.contains_key(&node) =>
            {
                self.emit(step, Fact::NodeLost { node, reason });
                self.pending.dirty = true;
            }
            Input::WorkerJoined { slot } => {
                let has = |node: &NodeState| slot.index < node.slots && !node.up.contains(&slot.index);
                if self.state.nodes.get(&slot.node).is_some_and(has) {
                    self.emit(step, Fact::SlotJoined { slot });
                    self.pending.dirty = true;
                }
            }
            Input::WorkerLost { slot, reason } if self.state.is_up(slot) => {
                self.emit(step, Fact::SlotLost { slot, reason });
                self.pending.dirty = true;
            }
            Input::NodeBlocked { node, reason } if !self.state.blocked.contains_key(&node) => {
                self.emit(step, Fact::NodeBlocked { node, reason });
            }
            _ => {}
        }
    }

    /// Lets machines go that drain, when nothing of a trial is there or their time is over.
    pub(super) fn release_nodes(&mut self, step: &mut StepBuilder) {
        let state = &self.state;
        self.pending.released.retain(|node| state.nodes.get(node).is_some_and(|node| !node.is_open()));
        let in_use: BTreeSet<NodeId> = state.reserved().keys().map(|slot| slot.node).collect();
        for (&node, state) in &state.nodes {
            let Some(draining) = &state.draining else { continue };
            let may_go = !in_use.contains(&node) || step.now_s >= draining.until_s;
            if may_go && self.pending.released.insert(node) {
                step.command(Command::ReleaseNode { node });
            }
        }
    }

    /// When machines have to go that are still here.
    pub(super) fn drains_end(&self) -> impl Iterator<Item = f64> {
        let waiting = self.state.nodes.iter().filter(|(node, _)| !self.pending.released.contains(node));
        waiting.filter_map(|(_, state)| state.draining.as_ref()?.deadline_s())
    }

    /// Whether trials wait to leave machines that are taken away: the next interval may be too late for them.
    pub(super) fn is_urgent(&self) -> bool {
        self.state.active.values().any(|active| self.state.has_to_leave(active))
    }

    /// How many trials there is room for at a time.
    pub(super) fn room(&self) -> usize {
        let least = self.study.trial.slots().max(1) as usize;
        let open = self.state.nodes.values().filter(|node| node.is_open());
        match self.kind {
            // Programs stay where they are, as long as they can.
            TrialKind::Rigid => {
                let leaving = self.state.active.values().filter(|active| self.state.has_to_leave(active));
                open.map(|node| node.up.len() / least).sum::<usize>() + leaving.count()
            }
            TrialKind::Restarted => open.map(|node| node.up.len() / least).sum(),
            TrialKind::Elastic => open.map(|node| node.up.len()).sum::<usize>() / least,
        }
    }

    /// Trials that run or wait, of whose speed on a type of GPU nothing is known that has come since they were looked at.
    pub(super) fn unknown_on_new_types(&mut self) -> Vec<TrialId> {
        let types = std::mem::take(&mut self.pending.new_types);
        let is_unknown = |active: &ActiveTrial| {
            let models = active.fit.as_ref().map(|fit| &fit.models);
            models.is_some_and(|models| types.iter().any(|gpu_type| !models.contains_key(gpu_type)))
        };
        let unknown = self.state.active.iter().filter(|(_, active)| is_unknown(active));
        unknown.map(|(&trial, _)| trial).collect()
    }

    /// Whether a trial is on a machine that is taken away, and there are no others.
    pub(super) fn has_nowhere_to_go(&self, active: &ActiveTrial) -> bool {
        self.state.has_to_leave(active) && self.state.open_slots().next().is_none()
    }
}
