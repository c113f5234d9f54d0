use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Checkpoint, Metrics, Report};
use crate::{
    alloc::Plan,
    goodput::{NoiseScale, ThroughputParams},
    ids::{GpuType, NodeId, SlotId, TrialId},
    space::{Params, Point},
};

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A head has started, for the first time or again: nothing runs, and all nodes are still to join.
    Started,
    /// The time has come that a [`WakeAt`](super::Command::WakeAt) named.
    Tick,
    /// A machine has joined, with a worker in each of its slots.
    NodeJoined {
        /// Its number.
        node: NodeId,
        /// The type of its GPUs.
        gpu_type: GpuType,
        /// The network island it belongs to.
        island: u32,
        /// How many slots it has.
        slots: u32,
    },
    /// A machine is gone, with all that ran there.
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
    /// The answer to [`Ask`](super::Command::Ask).
    Suggested {
        /// That of the question.
        revision: u64,
        /// What to try, or why there is nothing.
        answer: Result<Suggestion, NoSuggestion>,
    },
    /// The answer to [`Fit`](super::Command::Fit).
    FitDone {
        /// That of the question.
        revision: u64,
        /// The trial.
        trial: TrialId,
        /// What is known of it now; none if the fit failed.
        answer: Option<Refit>,
    },
    /// The answer to [`Solve`](super::Command::Solve).
    PlanSolved {
        /// That of the question.
        revision: u64,
        /// The plan, or why there is none: the old one stays.
        answer: Result<Plan, String>,
    },
    /// All workers of a generation are together and train.
    WorkersReady {
        /// The trial.
        trial: TrialId,
        /// Of this generation.
        generation: u32,
    },
    /// A trial has measured something.
    Reported {
        /// The trial.
        trial: TrialId,
        /// By this generation.
        generation: u32,
        /// What.
        report: Report,
    },
    /// The state of a trial is on disk; it goes on.
    Checkpointed {
        /// The trial.
        trial: TrialId,
        /// By this generation.
        generation: u32,
        /// Where, and how far.
        checkpoint: Checkpoint,
    },
    /// A trial that was told to leave has written its state and left. If it could not, that is
    /// [`GroupFailed`](Self::GroupFailed).
    Paused {
        /// The trial.
        trial: TrialId,
        /// The generation that left.
        generation: u32,
        /// Where its state is.
        checkpoint: Checkpoint,
    },
    /// A trial has come to its end. A group that is told to reshape after its end forms once more, and says so again.
    TrialFinished {
        /// The trial.
        trial: TrialId,
        /// By this generation.
        generation: u32,
        /// The last values; those that are missing were reported before.
        metrics: Metrics,
    },
    /// The group of a trial cannot go on, though its workers may live.
    GroupFailed {
        /// The trial.
        trial: TrialId,
        /// The generation that failed.
        generation: u32,
        /// Why.
        reason: String,
        /// Whether another try may mend it.
        retry: bool,
    },
    /// The user wants to go on later.
    StopRequested,
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
pub enum NoSuggestion {
    /// Everything was tried.
    Exhausted,
    /// The search cannot go on.
    Failed(String),
}

/// What is known of the speed of a trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Refit {
    /// Its throughput on each type of GPU of which something is known.
    pub models: BTreeMap<GpuType, ThroughputParams>,
    /// The noise scale of its gradients, measured or expected.
    pub noise: Option<NoiseScale>,
    /// The most GPUs it should be given: more were not explored yet.
    pub cap: u32,
}
