use super::{Checkpoint, snapshot::AllocationSnapshot};
use crate::{
    ids::{Generation, NodeId, SlotId, TrialId},
    space::Params,
    trials::group::{Batch, FinalState},
};

/// What to do now. Commands follow from the facts, and are not journaled: after a restart one
/// [`Tick`](super::Input::Tick) brings back those that still matter.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Choose parameters for a new trial.
    Suggest(SuggestRequest),
    /// Find out how fast a trial is, or divide the GPUs.
    Allocate(AllocatorRequest),
    /// For the group of a trial.
    Group {
        /// The trial.
        trial: TrialId,
        /// What it is to do.
        command: GroupCommand,
    },
    /// Let a machine go that drains: nothing of a trial is there any more, or its time is over.
    ReleaseNode {
        /// Its number.
        node: NodeId,
    },
    /// Send a [`Tick`](super::Input::Tick) at this time, instead of at the one named before.
    WakeAt {
        /// In seconds, on the clock of the inputs.
        at_s: f64,
    },
    /// Nothing more will happen.
    Finished(Outcome),
}

/// A question for [`SuggestService`](super::SuggestService), answered by [`Suggested`](super::Input::Suggested).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuggestRequest {
    /// To be repeated in the answer.
    pub revision: u64,
    /// The number of the trial.
    pub trial: TrialId,
}

/// A question for those who divide the GPUs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AllocatorRequest {
    /// Find out how fast a trial is: [`FitService::fit`](super::FitService::fit), answered by
    /// [`FitDone`](super::Input::FitDone).
    Fit {
        /// To be repeated in the answer.
        revision: u64,
        /// The trial.
        trial: TrialId,
    },
    /// Divide the GPUs: [`SolveService::solve`](super::SolveService::solve), answered by
    /// [`PlanSolved`](super::Input::PlanSolved).
    Solve {
        /// To be repeated in the answer.
        revision: u64,
        /// All that counts.
        snapshot: Box<AllocationSnapshot>,
    },
}

/// What the group of a trial is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupCommand {
    /// Start, for a trial that has no group.
    Launch(Launch),
    /// Become another group, at a step boundary.
    Reshape {
        /// The new generation.
        generation: Generation,
        /// Its members.
        slots: Vec<SlotId>,
        /// What a step takes.
        batch: Batch,
    },
    /// Change the batch at a step boundary.
    Retune {
        /// What a step takes.
        batch: Batch,
    },
    /// End. If the state is to be saved, that is answered by [`Paused`](super::GroupEvent::Paused). If not, the slots are free
    /// at once: another group may be sent there right after this.
    Stop(FinalState),
}

/// The start of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The first generation, or the first one since the last group was lost.
    pub generation: Generation,
    /// Where.
    pub slots: Vec<SlotId>,
    /// What it tries.
    pub params: Params,
    /// What a step takes; none for trials that are not elastic.
    pub batch: Option<Batch>,
    /// Where to resume from; none at the beginning.
    pub checkpoint: Option<Checkpoint>,
}

/// How a study ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All trials were run.
    Done,
    /// It was asked to stop, and can be resumed.
    Stopped,
    /// It could not be completed, and why. Trials that were running have ended.
    Failed(String),
}
