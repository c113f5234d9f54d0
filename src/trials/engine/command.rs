use super::{Checkpoint, snapshot::AllocationSnapshot};
use crate::{
    goodput::BatchPlan,
    ids::{SlotId, TrialId},
    space::Params,
};

/// What to do now. Commands follow from the facts, and are not journaled: after a restart one
/// [`Tick`](super::Input::Tick) brings back those that still matter.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Choose parameters for a new trial: [`SuggestService::ask`](super::SuggestService::ask).
    Ask {
        /// To be repeated in the answer.
        revision: u64,
        /// The number of the trial.
        trial: TrialId,
    },
    /// Find out how fast a trial is: [`FitService::fit`](super::FitService::fit).
    Fit {
        /// To be repeated in the answer.
        revision: u64,
        /// The trial.
        trial: TrialId,
    },
    /// Divide the GPUs: [`SolveService::solve`](super::SolveService::solve).
    Solve {
        /// To be repeated in the answer.
        revision: u64,
        /// All that counts.
        question: Box<AllocationSnapshot>,
    },
    /// Start the group of a trial that has none.
    Launch {
        /// The trial.
        trial: TrialId,
        /// The first generation, or the first one since the last group was lost.
        generation: u32,
        /// Where.
        slots: Vec<SlotId>,
        /// What it tries.
        params: Params,
        /// What each member does in a step; none for trials that are not elastic.
        batch: Option<BatchPlan>,
        /// Where to go on from; none at the beginning.
        checkpoint: Option<Checkpoint>,
    },
    /// Let the group of a trial become another one, at a step boundary.
    Reshape {
        /// The trial.
        trial: TrialId,
        /// The new generation.
        generation: u32,
        /// Its members.
        slots: Vec<SlotId>,
        /// Slots that have the state of the trial, those among the members too.
        holders: Vec<SlotId>,
        /// What each member does in a step.
        batch: Option<BatchPlan>,
        /// Where to go on from if no holder can hand its state over.
        checkpoint: Option<Checkpoint>,
    },
    /// Change the batch of a group at a step boundary.
    Retune {
        /// The trial.
        trial: TrialId,
        /// The generation.
        generation: u32,
        /// What each member does in a step.
        batch: BatchPlan,
    },
    /// End the group of a trial.
    Stop {
        /// The trial.
        trial: TrialId,
        /// Its last generation.
        generation: u32,
        /// Whether to write its state first, and to say so with [`Paused`](super::Input::Paused). If not, its slots are
        /// free at once: another group may be sent there right after this.
        keep: bool,
    },
    /// Send a [`Tick`](super::Input::Tick) at this time, instead of at the one named before.
    WakeAt {
        /// In seconds, on the clock of the inputs.
        at_s: f64,
    },
    /// Nothing more will happen.
    Finished(Outcome),
}

/// How a study ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All trials were run.
    Done,
    /// It was asked to stop, and can go on.
    Stopped,
    /// It could not go on, and why. Trials that were running have ended.
    Failed(String),
}
