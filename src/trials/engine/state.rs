//! What is true of a study: all of it follows from the facts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Checkpoint, Metrics, Refit};
use crate::{
    alloc::{Allocation, Cluster, Node},
    goodput::{BatchPlan, NoiseScale, Shape},
    ids::{GpuType, NodeId, SlotId, TrialId},
    space::{Params, Point},
    trials::End,
};

/// A study at one moment. Two engines that were shown the same facts have equal states.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// The study file.
    pub yaml: String,
    /// How many facts there were.
    pub facts: u64,
    /// When the last fact became true.
    pub at_s: f64,
    /// When this head started, and for how long those before it were up.
    pub started_s: f64,
    /// Seconds that earlier heads were up.
    pub up_s: f64,
    /// The machines that are here.
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// How many results of earlier studies are known.
    pub imported: u32,
    /// Parameters that are to be tried before others, the next one first.
    pub queue: VecDeque<Params>,
    /// Trials that run or wait.
    pub active: BTreeMap<TrialId, ActiveTrial>,
    /// Trials that are over.
    pub ended: BTreeMap<TrialId, EndedTrial>,
    /// Why there will be no more trials, and whether that is a failure.
    pub search_ended: Option<(String, bool)>,
    /// The user wants to go on later.
    pub stopping: bool,
    /// All is over.
    pub done: bool,
    /// How long groups took to form again: their number, and seconds in all.
    pub reshapes: (u32, f64),
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    /// The type of its GPUs.
    pub gpu_type: GpuType,
    /// Its network island.
    pub group: u32,
    /// How many slots it has.
    pub slots: u32,
    /// Those with a worker.
    pub up: BTreeSet<u32>,
}

/// Where a trial stands with its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It has no slots.
    Waiting,
    /// Its generation is still to come together.
    Forming,
    /// Its generation trains.
    Running,
    /// It has lost workers, and nothing is decided yet.
    Broken,
    /// It writes its state, and will leave its slots.
    Pausing,
}

/// A trial that runs or waits.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveTrial {
    /// What it tries.
    pub params: Params,
    /// The same as the suggester sees it.
    pub point: Point,
    /// When it was created.
    pub created_s: f64,
    /// Where it stands.
    pub phase: Phase,
    /// The last generation of its group; 0 if there was none.
    pub generation: u32,
    /// The members of that generation.
    pub slots: Vec<SlotId>,
    /// Slots that have its state in memory: the last generation that came together.
    pub holders: Vec<SlotId>,
    /// The slots it should have.
    pub target: Vec<SlotId>,
    /// What each member does in a step.
    pub batch: Option<BatchPlan>,
    /// Its state on disk.
    pub checkpoint: Option<Checkpoint>,
    /// The farthest it came, in statistical epochs.
    pub epochs: f64,
    /// The last value of each metric.
    pub metrics: Metrics,
    /// The number of the last report of this generation.
    pub reported: u32,
    /// The generation that became this one while it trained, and the number of its last report: what it has measured may
    /// still be on its way.
    pub previous_generation: Option<(u32, u32)>,
    /// The noise scale it reported last.
    pub noise: Option<NoiseScale>,
    /// What is known of its speed.
    pub fit: Option<Refit>,
    /// Failures since it last made progress.
    pub failures: u32,
    /// The last of them.
    pub last_failure: String,
    /// How often its group changed while it ran.
    pub reallocations: u32,
    /// When its last generation was to form.
    pub started_s: f64,
    /// Since when `slot_s` and `ran_s` were not brought up to date.
    pub accounted_until_s: f64,
    /// Seconds times slots it has had.
    pub slot_s: f64,
    /// Seconds it has had slots.
    pub ran_s: f64,
}

/// A trial that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTrial {
    /// What it tried.
    pub params: Params,
    /// When it was created.
    pub created_s: f64,
    /// When it ended.
    pub ended_s: f64,
    /// How.
    pub end: End,
    /// How far it came.
    pub epochs: f64,
    /// Its last generation.
    pub generation: u32,
    /// The last value of each metric.
    pub metrics: Metrics,
    /// Seconds times slots it has had.
    pub slot_s: f64,
}

impl ActiveTrial {
    pub(super) fn new(params: Params, point: Point, at_s: f64) -> Self {
        Self {
            params,
            point,
            created_s: at_s,
            phase: Phase::Waiting,
            generation: 0,
            slots: Vec::new(),
            holders: Vec::new(),
            target: Vec::new(),
            batch: None,
            checkpoint: None,
            epochs: 0.0,
            metrics: Metrics::new(),
            reported: 0,
            previous_generation: None,
            noise: None,
            fit: None,
            failures: 0,
            last_failure: String::new(),
            reallocations: 0,
            started_s: at_s,
            accounted_until_s: at_s,
            slot_s: 0.0,
            ran_s: 0.0,
        }
    }

    /// All slots that nobody else may use: those of its generation, and those that still have its state.
    pub fn reserved(&self) -> impl Iterator<Item = SlotId> {
        let left = self.holders.iter().filter(|slot| !self.slots.contains(slot));
        self.slots.iter().chain(left).copied()
    }

    /// Whether its group is about to change.
    #[must_use]
    pub fn in_transition(&self) -> bool {
        matches!(self.phase, Phase::Forming | Phase::Broken | Phase::Pausing)
    }

    /// Counts the time up to now.
    pub(super) fn count(&mut self, at_s: f64) {
        let passed = (at_s - self.accounted_until_s).max(0.0);
        self.accounted_until_s = at_s;
        if !self.slots.is_empty() {
            self.ran_s += passed;
            self.slot_s += passed * self.slots.len() as f64;
        }
    }

    /// It has no slots from now on.
    pub(super) fn leave(&mut self) {
        self.phase = Phase::Waiting;
        self.slots.clear();
        self.holders.clear();
        self.batch = None;
    }

    /// A worker is gone; whether it mattered to this trial.
    pub(super) fn lose(&mut self, lost: impl Fn(&SlotId) -> bool) -> bool {
        let before = self.slots.len() + self.holders.len();
        for slots in [&mut self.slots, &mut self.holders, &mut self.target] {
            slots.retain(|slot| !lost(slot));
        }
        before > self.slots.len() + self.holders.len()
    }
}

impl State {
    /// Whether there is a worker in a slot.
    #[must_use]
    pub fn is_up(&self, slot: SlotId) -> bool {
        self.nodes.get(&slot.node).is_some_and(|node| node.up.contains(&slot.index))
    }

    /// All slots with a worker.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        let on = |(&node, state): (&NodeId, &NodeState)| {
            state.up.clone().into_iter().map(move |index| SlotId { node, index })
        };
        self.nodes.iter().flat_map(on)
    }

    /// How many slots have a worker.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.nodes.values().map(|node| node.up.len()).sum()
    }

    /// Slots that trials have or are to have, with the trial.
    #[must_use]
    pub fn reserved(&self) -> BTreeMap<SlotId, TrialId> {
        let of = |(&trial, active): (&TrialId, &ActiveTrial)| -> Vec<_> {
            active.reserved().map(|slot| (slot, trial)).collect()
        };
        self.active.iter().flat_map(of).collect()
    }

    /// The machines as the allocator sees them.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new();
        for (&id, node) in &self.nodes {
            let gpus = node.up.len() as u32;
            let node = Node { gpu_type: node.gpu_type.clone(), gpus, group: node.group };
            // Numbers are unique here, and no node joins with too many slots.
            let _ = cluster.add(id, node);
        }
        cluster
    }

    /// How many trials were created.
    #[must_use]
    pub fn created(&self) -> usize {
        self.active.len() + self.ended.len()
    }

    /// The number of the next trial.
    #[must_use]
    pub fn next_trial(&self) -> TrialId {
        TrialId(self.created() as u32)
    }

    /// The type of GPU of some slots.
    #[must_use]
    pub fn gpu_type(&self, slots: &[SlotId]) -> Option<&GpuType> {
        slots.first().and_then(|slot| self.nodes.get(&slot.node)).map(|node| &node.gpu_type)
    }
}

/// How many GPUs on which node.
pub(super) fn allocation(slots: &[SlotId]) -> Allocation {
    slots.iter().map(|slot| (slot.node, 1)).collect()
}

/// What the throughput model sees of slots.
pub(super) fn shape(slots: &[SlotId]) -> Option<Shape> {
    allocation(slots).shape()
}
