//! What is true of a study: all of it follows from the facts.

use std::collections::{BTreeMap, VecDeque};

use super::{Checkpoint, Failures, LostNode, Metrics, NodeState, Refit, Rift, SearchLimit, Severity, Wait};
use crate::{
    alloc::Allocation,
    goodput::{BatchPlan, NoiseCurve, NoiseScale, Shape},
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::{Params, Point},
    trials::End,
};

/// A study at one moment. Two engines that were shown the same facts have equal states.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct State {
    /// The study file.
    pub yaml: String,
    /// How many facts there were.
    pub facts: u64,
    /// When the last fact became true.
    pub at_s: f64,
    /// When this head started, and for how long those before it were up.
    pub started_s: f64,
    /// Seconds that earlier heads were up. While the study was paused does not count.
    pub up_s: f64,
    /// The machines that are here.
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// Those that were here under this head, and are no more.
    pub lost: BTreeMap<NodeId, LostNode>,
    /// Pairs of machines whose groups have failed though all workers lived, the smaller number first.
    pub rifts: BTreeMap<(NodeId, NodeId), Rift>,
    /// How many results of earlier studies are known.
    pub imported: u32,
    /// Parameters that are to be tried before others, the next one first.
    pub queue: VecDeque<Params>,
    /// Trials that run or wait.
    pub active: BTreeMap<TrialId, ActiveTrial>,
    /// Trials that are over.
    pub ended: BTreeMap<TrialId, EndedTrial>,
    /// Why there will be no more trials.
    pub search_ended: Option<SearchEnd>,
    /// The user wants to resume later.
    pub stopping: bool,
    /// Since when no trial is launched because the user wants it so; none if they are.
    pub paused_s: Option<f64>,
    /// All is over.
    pub done: bool,
    /// The largest pass on one GPU of a type, in examples, as far as one that is too large is known.
    pub batch_limits: BTreeMap<GpuType, u32>,
    /// How long groups took to form again: their number, and seconds in all.
    pub reshapes: (u32, f64),
    /// How often a trial made progress or ended with a result.
    pub progress: u64,
    /// What all trials share is broken, and the study waits.
    pub waiting: Option<Wait>,
    /// Machines that cannot start workers for now, and why.
    pub blocked: BTreeMap<NodeId, String>,
    /// How many trials have ended with a result, or were stopped for the values they had.
    pub finished: u32,
    /// How many have failed.
    pub failed: u32,
}

/// Why there are no more suggestions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchEnd {
    /// As text.
    pub reason: String,
    /// Whether that is a failure of the study.
    pub severity: Severity,
    /// The limit that was reached, if it was one.
    pub limit: Option<SearchLimit>,
}

/// Where a trial stands with its workers.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// It has no slots.
    Waiting,
    /// Its generation is not formed yet.
    Forming {
        /// The generation.
        group: WorkerGroup,
        /// Slots that have its state in memory: the last generation that was formed.
        holders: Vec<SlotId>,
        /// Since when.
        since_s: f64,
        /// The generation that became this one while it trained, and the number of its last report: what it has measured may
        /// still be on its way.
        previous: Option<(Generation, u32)>,
    },
    /// Its generation trains.
    Running(WorkerGroup),
    /// It has lost workers, and nothing is decided yet.
    Broken {
        /// The members that are left.
        slots: Vec<SlotId>,
        /// Those that have its state in memory.
        holders: Vec<SlotId>,
        /// What each worker did in a step.
        batch: Option<BatchPlan>,
        /// The number of the last report.
        reported: u32,
    },
    /// It writes its state, and will leave its slots.
    Pausing(WorkerGroup),
}

/// The workers of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerGroup {
    /// Their slots, by rank.
    pub slots: Vec<SlotId>,
    /// What each of them does in a step; none for trials that are not elastic.
    pub batch: Option<BatchPlan>,
    /// The number of their last report.
    pub reported: u32,
}

impl Phase {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Forming { .. } => "forming",
            Self::Running(_) => "running",
            Self::Broken { .. } => "broken",
            Self::Pausing(_) => "pausing",
        }
    }

    /// The group, where there is a whole one.
    #[must_use]
    pub const fn group(&self) -> Option<&WorkerGroup> {
        match self {
            Self::Forming { group, .. } | Self::Running(group) | Self::Pausing(group) => Some(group),
            Self::Waiting | Self::Broken { .. } => None,
        }
    }

    pub(super) const fn group_mut(&mut self) -> Option<&mut WorkerGroup> {
        match self {
            Self::Forming { group, .. } | Self::Running(group) | Self::Pausing(group) => Some(group),
            Self::Waiting | Self::Broken { .. } => None,
        }
    }

    /// The slots of the members.
    #[must_use]
    pub fn slots(&self) -> &[SlotId] {
        match self {
            Self::Waiting => &[],
            Self::Forming { group, .. } | Self::Running(group) | Self::Pausing(group) => &group.slots,
            Self::Broken { slots, .. } => slots,
        }
    }

    /// Slots that have the state of the trial in memory.
    #[must_use]
    pub fn holders(&self) -> &[SlotId] {
        match self {
            Self::Waiting => &[],
            Self::Forming { holders, .. } | Self::Broken { holders, .. } => holders,
            Self::Running(group) | Self::Pausing(group) => &group.slots,
        }
    }

    /// Whether the group is about to change.
    #[must_use]
    pub const fn in_transition(&self) -> bool {
        matches!(self, Self::Forming { .. } | Self::Broken { .. } | Self::Pausing(_))
    }

    /// The number of the last report of the present generation.
    pub(super) fn reported(&self) -> u32 {
        match self {
            Self::Broken { reported, .. } => *reported,
            phase => phase.group().map_or(0, |group| group.reported),
        }
    }

    /// Workers are gone; whether that matters to the trial. Those that are leaving continue without them, as long as there are any.
    pub(super) fn lose(&mut self, lost: impl Fn(&SlotId) -> bool) -> bool {
        if !self.slots().iter().chain(self.holders()).any(&lost) {
            return false;
        }
        let left = |slots: &[SlotId]| slots.iter().copied().filter(|slot| !lost(slot)).collect::<Vec<_>>();
        let (slots, holders, reported) = (left(self.slots()), left(self.holders()), self.reported());
        match self {
            Self::Pausing(group) if !slots.is_empty() => group.slots = slots,
            _ => {
                let batch = self.group().and_then(|group| group.batch);
                *self = Self::Broken { slots, holders, batch, reported };
            }
        }
        true
    }

    /// Those who are to write the state and to leave; none if there is nobody.
    pub(super) fn leaving(&self) -> Option<WorkerGroup> {
        let Self::Broken { slots, holders, batch, reported } = self else { return self.group().cloned() };
        let others = slots.iter().filter(|slot| !holders.contains(slot));
        let slots: Vec<SlotId> = holders.iter().chain(others).copied().collect();
        (!slots.is_empty()).then_some(WorkerGroup { slots, batch: *batch, reported: *reported })
    }
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
    /// Where it stands with its workers.
    pub phase: Phase,
    /// The last generation of its group.
    pub generation: Generation,
    /// The slots it should have.
    pub target: Vec<SlotId>,
    /// Its state on disk.
    pub checkpoint: Option<Checkpoint>,
    /// Its furthest progress, in statistical epochs.
    pub epochs: f64,
    /// The last value of each metric.
    pub metrics: Metrics,
    /// The noise scale it reported last.
    pub noise: Option<NoiseScale>,
    /// The total batch that this noise belongs to; none before the first steps.
    pub noise_batch: Option<f64>,
    /// What is known of its speed.
    pub fit: Option<Refit>,
    /// What went wrong since it last made progress.
    pub failures: Failures,
    /// How often its group changed while it ran.
    pub reallocations: u32,
    /// What it has used.
    pub usage: Usage,
}

/// The slots that a trial has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Until when they are counted.
    pub until_s: f64,
    /// Seconds times slots it has had.
    pub slot_s: f64,
    /// Seconds it has had slots.
    pub ran_s: f64,
    /// Those of them in which nothing had begun to run yet.
    pub waited_s: f64,
}

impl Usage {
    /// Counts the time up to now, with this many slots.
    pub(super) fn count(&mut self, at_s: f64, slots: usize, waits: bool) {
        let passed_s = (at_s - self.until_s).max(0.0);
        self.until_s = at_s;
        if slots > 0 {
            self.ran_s += passed_s;
            self.waited_s += if waits { passed_s } else { 0.0 };
            self.slot_s += passed_s * slots as f64;
        }
    }

    /// What it will be at a later time, with this many slots.
    pub(super) fn at(mut self, at_s: f64, slots: usize) -> Self {
        self.count(at_s, slots, false);
        self
    }
}

/// A trial that is over. A study has very many of them, so there is no more than decisions need: what it has measured is in the journal.
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
    /// Its progress.
    pub epochs: f64,
    /// Its last generation.
    pub generation: Generation,
    /// Seconds times slots it has had.
    pub slot_s: f64,
    /// What it takes to run it again, if it failed or was cancelled.
    pub unfinished: Option<Box<Unfinished>>,
}

/// What it takes to run a trial again.
#[derive(Debug, Clone, PartialEq)]
pub struct Unfinished {
    /// What it tries, as the suggester sees it.
    pub point: Point,
    /// Its state on disk.
    pub checkpoint: Option<Checkpoint>,
}

impl ActiveTrial {
    pub(super) fn new(params: Params, point: Point, at_s: f64) -> Self {
        Self {
            params,
            point,
            created_s: at_s,
            phase: Phase::Waiting,
            generation: Generation::NONE,
            target: Vec::new(),
            checkpoint: None,
            epochs: 0.0,
            metrics: Metrics::new(),
            noise: None,
            noise_batch: None,
            fit: None,
            failures: Failures::default(),
            reallocations: 0,
            usage: Usage { until_s: at_s, slot_s: 0.0, ran_s: 0.0, waited_s: 0.0 },
        }
    }

    /// The slots of its group.
    #[must_use]
    pub fn slots(&self) -> &[SlotId] {
        self.phase.slots()
    }

    /// All slots that nobody else may use: those of its generation, and those that still have its state.
    pub fn reserved(&self) -> impl Iterator<Item = SlotId> {
        let others = self.phase.holders().iter().filter(|slot| !self.slots().contains(slot));
        self.slots().iter().chain(others).copied()
    }

    /// Counts the time up to now.
    pub(super) fn count(&mut self, at_s: f64) {
        let (slots, waits) = (self.slots().len(), self.waits());
        self.usage.count(at_s, slots, waits);
    }

    /// The noise scale over the batch: what it has measured, with the slope that is known of the study; else what is expected of it
    /// at the initial batch; 0 if nothing is known.
    pub(super) fn noise_curve(&self, initial_batch: u32) -> NoiseCurve {
        let initial = f64::from(initial_batch);
        let slope = self.fit.as_ref().map_or(0.0, |fit| fit.noise_slope);
        let measured = self.noise.map(|scale| (scale, self.noise_batch.unwrap_or(initial)));
        let expected = self.fit.as_ref().and_then(|fit| fit.noise).map(|scale| (scale, initial));
        let (scale, batch) = measured.or(expected).unwrap_or((NoiseScale::ZERO, initial));
        NoiseCurve::new(scale, batch, slope).unwrap_or_else(|_| NoiseCurve::constant(scale))
    }

    /// Whether it has slots, but nothing runs in them yet.
    pub(super) fn waits(&self) -> bool {
        matches!(&self.phase, Phase::Forming { holders, .. } if holders.is_empty())
    }

    /// Workers are gone; whether that matters to this trial.
    pub(super) fn lose(&mut self, lost: impl Fn(&SlotId) -> bool) -> bool {
        self.target.retain(|slot| !lost(slot));
        self.phase.lose(lost)
    }
}

impl State {
    /// Slots that trials have or are to have, with the trial.
    #[must_use]
    pub fn reserved(&self) -> BTreeMap<SlotId, TrialId> {
        let of = |(&trial, active): (&TrialId, &ActiveTrial)| -> Vec<_> {
            active.reserved().map(|slot| (slot, trial)).collect()
        };
        self.active.iter().flat_map(of).collect()
    }

    /// Whether trials without a group may be launched now, as far as what they share is concerned.
    #[must_use]
    pub fn may_launch(&self, now_s: f64) -> bool {
        self.waiting.as_ref().is_none_or(|wait| wait.is_due(now_s))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of them are kept for each of perhaps 100 000 trials.
    #[test]
    fn a_trial_that_is_over_is_small() {
        assert!(size_of::<EndedTrial>() <= 128, "{} bytes", size_of::<EndedTrial>());
    }
}
