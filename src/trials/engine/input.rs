use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Checkpoint, Metrics, Report};
use crate::{
    alloc::Plan,
    goodput::{NoiseScale, ThroughputParams},
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::{Params, Point},
    trials::group::MemoryLimit,
};

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// A head has started, for the first time or again: nothing runs, and all nodes are still to join.
    Started,
    /// The time has come that a [`WakeAt`](super::Command::WakeAt) named.
    Tick,
    /// A machine has joined, with a worker in each of its slots.
    NodeJoined {
        /// Its number.
        node: NodeId,
        /// What people call it; empty if it has no name.
        name: String,
        /// The type of its GPUs.
        gpu_type: GpuType,
        /// The network island it belongs to.
        island: u32,
        /// How many slots it has.
        slots: u32,
    },
    /// A machine is taken away soon: nothing new is placed there, and trials that can move do so while it is still here. What stays is
    /// lost with it.
    NodeDraining {
        /// Its number.
        node: NodeId,
        /// When it will be gone at the latest, in seconds on the clock of the inputs; infinite if it goes when nothing runs there.
        until_s: f64,
        /// Why.
        reason: String,
    },
    /// A machine is gone, with all that ran there. No trial is to blame.
    NodeLost {
        /// Its number.
        node: NodeId,
        /// What is known about it.
        reason: String,
    },
    /// There is a fresh worker in a slot.
    WorkerJoined {
        /// Where.
        slot: SlotId,
    },
    /// A worker process is gone.
    WorkerLost {
        /// Where.
        slot: SlotId,
        /// What is known about it.
        reason: String,
    },
    /// A machine cannot start workers for now, through no fault of theirs; it tries again by itself.
    NodeBlocked {
        /// Its number.
        node: NodeId,
        /// What is known about it.
        reason: String,
    },
    /// The answer to [`Suggest`](super::Command::Suggest).
    Suggested {
        /// That of the question.
        revision: u64,
        /// What to try, or why there is nothing.
        answer: Result<Suggestion, NoSuggestion>,
    },
    /// The answer to [`Fit`](super::AllocatorRequest::Fit).
    FitDone {
        /// That of the question.
        revision: u64,
        /// The trial.
        trial: TrialId,
        /// What is known of it now; none if the fit failed.
        answer: Option<Refit>,
    },
    /// The answer to [`Solve`](super::AllocatorRequest::Solve).
    PlanSolved {
        /// That of the question.
        revision: u64,
        /// The plan, or why there is none: the old one stays.
        answer: Result<Plan, String>,
        /// How many trials should be active from now on, where the study leaves that open.
        places: Option<u32>,
    },
    /// Something has happened to the group of a trial.
    Group {
        /// The trial.
        trial: TrialId,
        /// The generation that it happened to.
        generation: Generation,
        /// What happened.
        event: GroupEvent,
    },
    /// The user wants a trial to end, and the study to go on without it.
    TrialStopRequested {
        /// The trial.
        trial: TrialId,
    },
    /// The user wants to resume later.
    StopRequested,
    /// The user wants no trial to be launched for now: elastic ones leave their slots with their state, programs run to their end.
    PauseRequested,
    /// The user wants trials to be launched again.
    ResumeRequested,
    /// The user wants these parameters to be tried before others.
    EnqueueRequested {
        /// Fixed ones may be left out; what the space does not have is not tried.
        params: Params,
    },
    /// Something that the engine does not know of has changed: the GPUs are to be divided again.
    ReplanRequested,
}

impl Input {
    /// What has happened to the group of a trial.
    #[must_use]
    pub const fn group(trial: TrialId, generation: Generation, event: GroupEvent) -> Self {
        Self::Group { trial, generation, event }
    }
}

/// What has happened to the group of a trial.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GroupEvent {
    /// All workers of a generation are together and train.
    Formed,
    /// The trial has measured something.
    Reported(Report),
    /// The state of the trial is on disk; training continues.
    Checkpointed(Checkpoint),
    /// A checkpoint could not be written, or one that is there cannot be used. The training continues.
    CheckpointFailed(String),
    /// A pass did not fit into the memory of a worker's device. The training continues with smaller ones.
    OutOfMemory {
        /// That of the worker.
        slot: SlotId,
        /// What was learned.
        memory: MemoryLimit,
    },
    /// A trial that was asked to save its state and leave has done so. If it could not, that is [`Failed`](Self::Failed).
    Paused(Checkpoint),
    /// The trial has finished, with the last values; those that are missing were reported before. A group that is asked to
    /// reshape after its end reports it again, under the new generation.
    Finished(Metrics),
    /// The group cannot continue, though its workers may live.
    Failed {
        /// Why.
        reason: String,
        /// Whose fault it is.
        cause: FailureCause,
    },
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureCause {
    /// The trial's own: it would fail again.
    Trial,
    /// That of machines or processes: it may succeed the next time.
    Infrastructure,
    /// That of what all trials share, such as a full disk: no trial would succeed before it is mended.
    Environment,
}

/// What a trial is to try.
#[derive(Debug, Clone, PartialEq)]
pub struct Suggestion {
    /// Its parameters.
    pub params: Params,
    /// The same as the suggester sees it, to the last bit.
    pub point: Point,
}

/// Why there is nothing to try.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoSuggestion {
    /// Everything was tried.
    Exhausted,
    /// The search cannot continue.
    Failed(String),
}

/// What is known of the speed of a trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Refit {
    /// Its throughput on each type of GPU of which something is known.
    pub models: BTreeMap<GpuType, ThroughputParams>,
    /// The noise scale of its gradients that is expected at the initial batch.
    pub noise: Option<NoiseScale>,
    /// How fast the noise scale grows with the batch: `d ln phi / d ln M`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub noise_slope: f64,
    /// By how much single measurements of it are off, as a standard deviation of the logarithm, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_scatter: Option<f64>,
    /// The maximum number of GPUs for it: more were not explored yet.
    pub cap: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
