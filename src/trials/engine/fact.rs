use serde::{Deserialize, Serialize};

use super::{Checkpoint, Metrics, Refit};
use crate::{
    alloc::Reason,
    goodput::{BatchPlan, NoiseScale, Observation},
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::{Params, Point},
    trials::{End, stopping::StopReason},
};

/// A fact with its time, as a journal keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Seconds, on a clock that only the shell knows. It never goes back.
    pub at_s: f64,
    /// What became true.
    pub fact: Fact,
}

impl JournalEntry {
    /// The form of facts in a journal. It grows with every change that older programs would misunderstand.
    pub const VERSION: u32 = 5;
}

/// What became true. In their order, facts determine the state of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// A study began.
    StudyCreated {
        /// Its file, whole.
        yaml: String,
    },
    /// A head found another study file than the one before it.
    StudyChanged {
        /// The new one.
        yaml: String,
    },
    /// A head has started: nothing runs, and all nodes are still to join.
    HeadStarted {},
    /// A machine joined.
    NodeJoined {
        /// Its number.
        node: NodeId,
        /// What people call it; empty if it has no name.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// The type of its GPUs.
        gpu_type: GpuType,
        /// Its network island.
        #[serde(rename = "group")]
        island: u32,
        /// How many slots it has.
        slots: u32,
    },
    /// A machine is taken away soon.
    NodeDraining {
        /// Its number.
        node: NodeId,
        /// When it will be gone.
        until_s: f64,
        /// Why.
        reason: String,
    },
    /// A machine is gone.
    NodeLost {
        /// Its number.
        node: NodeId,
        /// What is known about it.
        reason: String,
    },
    /// A slot has a worker again.
    SlotJoined {
        /// The slot.
        slot: SlotId,
    },
    /// A slot has lost its worker.
    SlotLost {
        /// The slot.
        slot: SlotId,
        /// What is known about it.
        reason: String,
    },
    /// A machine cannot start workers for now: it has no more processes, files, memory or room on its disk.
    NodeBlocked {
        /// Its number.
        node: NodeId,
        /// What is known about it.
        reason: String,
    },
    /// What all trials share is broken, or still broken: the study waits, and tries again later.
    StudyWaiting {
        /// What is broken.
        reason: String,
    },
    /// It was mended: the study goes on.
    StudyResumed {},
    /// A trial of an earlier study with the same objectives had this result.
    ResultImported {
        /// What it tried.
        params: Params,
        /// How it ended; all values are finite.
        end: End,
        /// Its last report: statistical epochs and the value of the first objective.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<(f64, f64)>,
    },
    /// Known parameters are to be tried before what the search would choose.
    TrialEnqueued {
        /// All of them, fixed ones included.
        params: Params,
    },
    /// A trial is to be run.
    TrialCreated {
        /// Its number.
        trial: TrialId,
        /// What it tries.
        params: Params,
        /// The same as the suggester sees it.
        point: Point,
    },
    /// From now on these are the slots that trials should have.
    PlanAdopted {
        /// For each trial of the plan.
        targets: Vec<Target>,
        /// FITNESS of the plan.
        fitness: f64,
        /// No plan has more, if that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound: Option<f64>,
    },
    /// A generation of a trial's group is to form.
    TrialStarted {
        /// The trial.
        trial: TrialId,
        /// One more than the one before.
        generation: Generation,
        /// Its members.
        slots: Vec<SlotId>,
        /// What each of them does in a step; none for trials that are not elastic.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<BatchPlan>,
        /// Slots of the last generation, one of which hands over its state. If there are none, the state comes from
        /// the last checkpoint.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holders: Vec<SlotId>,
    },
    /// A generation is formed.
    GroupFormed {
        /// The trial.
        trial: TrialId,
        /// The generation.
        generation: Generation,
    },
    /// A generation changes its batch.
    Retuned {
        /// The trial.
        trial: TrialId,
        /// The generation.
        generation: Generation,
        /// What each member does in a step.
        batch: BatchPlan,
    },
    /// A trial has measured something.
    Measured {
        /// The trial.
        trial: TrialId,
        /// By this generation.
        generation: Generation,
        /// The number of the report.
        number: u32,
        /// Statistical epochs so far.
        epochs: f64,
        /// By name.
        #[serde(default, skip_serializing_if = "Metrics::is_empty")]
        metrics: Metrics,
        /// The type of GPU of the steps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu_type: Option<GpuType>,
        /// How long steps took.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        steps: Vec<Observation>,
        /// The noise scale of the gradients.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        noise: Option<NoiseScale>,
        /// The total batch that it belongs to; none is that of the last steps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        noise_batch: Option<f64>,
    },
    /// What is known of the speed of a trial has changed.
    Refitted {
        /// The trial.
        trial: TrialId,
        /// What is known.
        fit: Refit,
    },
    /// The state of a trial is on disk.
    Checkpointed {
        /// The trial.
        trial: TrialId,
        /// Where, and how far.
        checkpoint: Checkpoint,
    },
    /// A checkpoint could not be written, or one that was there could not be used. The training has continued.
    CheckpointFailed {
        /// The trial.
        trial: TrialId,
        /// What is wrong, and what happened instead.
        reason: String,
    },
    /// What fits into the memory of a type of GPU has become known: no trial takes larger passes there from now on.
    BatchLimited {
        /// The type.
        gpu_type: GpuType,
        /// The largest pass on one GPU, in examples.
        limit: u32,
        /// A pass with so many examples did not fit.
        failed: u32,
        /// The trial that has learned it.
        trial: TrialId,
    },
    /// A trial is to write its state and to leave its slots.
    TrialPausing {
        /// The trial.
        trial: TrialId,
    },
    /// It has done so, and waits.
    TrialPaused {
        /// The trial.
        trial: TrialId,
        /// Where its state is.
        checkpoint: Checkpoint,
    },
    /// A trial has lost its group, and waits to resume from its last checkpoint.
    TrialInterrupted {
        /// The trial.
        trial: TrialId,
        /// Why.
        reason: String,
        /// Whether that counts as a failure of the trial.
        #[serde(rename = "failed")]
        severity: Severity,
    },
    /// A trial has finished.
    TrialDone {
        /// The trial.
        trial: TrialId,
        /// A value for each objective; all are finite.
        values: Vec<f64>,
    },
    /// A trial was stopped early because its values were not good enough.
    TrialStopped {
        /// The trial.
        trial: TrialId,
        /// Why.
        reason: StopReason,
    },
    /// A trial has no usable result.
    TrialFailed {
        /// The trial.
        trial: TrialId,
        /// Why.
        reason: String,
    },
    /// A trial that had failed or was cancelled is to run again: with the same parameters, from its checkpoint if there is one.
    TrialRetried {
        /// The trial.
        trial: TrialId,
    },
    /// A trial was ended for a reason that has nothing to do with its parameters.
    TrialCancelled {
        /// The trial.
        trial: TrialId,
        /// Why.
        reason: String,
    },
    /// There will be no more trials.
    SuggestionsEnded {
        /// Why.
        reason: String,
        /// Whether that is a failure of the study.
        #[serde(rename = "failed")]
        severity: Severity,
        /// The limit that was reached, if it was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<SearchLimit>,
    },
    /// The limit that had ended the search is no more: there may be further trials.
    SuggestionsReopened {},
    /// The user wants to resume later.
    StopRequested {},
    /// The user wants no trial to be launched for now. It holds over restarts of the head.
    PauseRequested {},
    /// The user wants trials to be launched again.
    ResumeRequested {},
    /// The study is over.
    StudyDone {},
}

/// A limit of the study file that ends the search. With another one, the study can be continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SearchLimit {
    /// `search.timeout`.
    Timeout,
    /// `search.max_failures`.
    Failures,
}

/// Whether something that ends counts as a failure. Journals have `true` for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Severity {
    /// Something went wrong.
    Failure,
    /// It was meant to be.
    Normal,
}

impl From<bool> for Severity {
    fn from(is_failure: bool) -> Self {
        if is_failure { Self::Failure } else { Self::Normal }
    }
}

impl From<Severity> for bool {
    fn from(severity: Severity) -> Self {
        severity == Severity::Failure
    }
}

/// What a plan means for one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The trial.
    pub trial: TrialId,
    /// The slots it should have; none if it is to wait.
    pub slots: Vec<SlotId>,
    /// Its goodput against that of the fair share.
    pub speedup: f64,
    /// Why.
    pub reason: Reason,
}

impl Fact {
    /// The end of a trial.
    #[must_use]
    pub fn ended(trial: TrialId, end: End) -> Self {
        match end {
            End::Done(values) => Self::TrialDone { trial, values },
            End::Stopped(reason) => Self::TrialStopped { trial, reason },
            End::Cancelled(reason) => Self::TrialCancelled { trial, reason },
            End::Failed(reason) => Self::TrialFailed { trial, reason },
        }
    }

    /// The trial that has no group from this fact on. A group that has reported its own end waits for it.
    #[must_use]
    pub const fn ends_group_of(&self) -> Option<TrialId> {
        match self {
            Self::TrialDone { trial, .. }
            | Self::TrialStopped { trial, .. }
            | Self::TrialFailed { trial, .. }
            | Self::TrialCancelled { trial, .. }
            | Self::TrialInterrupted { trial, .. }
            | Self::TrialPaused { trial, .. } => Some(*trial),
            _ => None,
        }
    }

    /// The name of its kind, as in JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::StudyCreated { .. } => "study_created",
            Self::StudyChanged { .. } => "study_changed",
            Self::HeadStarted {} => "head_started",
            Self::NodeJoined { .. } => "node_joined",
            Self::NodeDraining { .. } => "node_draining",
            Self::NodeLost { .. } => "node_lost",
            Self::SlotJoined { .. } => "slot_joined",
            Self::SlotLost { .. } => "slot_lost",
            Self::NodeBlocked { .. } => "node_blocked",
            Self::StudyWaiting { .. } => "study_waiting",
            Self::StudyResumed {} => "study_resumed",
            Self::ResultImported { .. } => "result_imported",
            Self::TrialEnqueued { .. } => "trial_enqueued",
            Self::TrialCreated { .. } => "trial_created",
            Self::PlanAdopted { .. } => "plan_adopted",
            Self::TrialStarted { .. } => "trial_started",
            Self::GroupFormed { .. } => "group_formed",
            Self::Retuned { .. } => "retuned",
            Self::Measured { .. } => "measured",
            Self::Refitted { .. } => "refitted",
            Self::Checkpointed { .. } => "checkpointed",
            Self::CheckpointFailed { .. } => "checkpoint_failed",
            Self::BatchLimited { .. } => "batch_limited",
            Self::TrialPausing { .. } => "trial_pausing",
            Self::TrialPaused { .. } => "trial_paused",
            Self::TrialInterrupted { .. } => "trial_interrupted",
            Self::TrialDone { .. } => "trial_done",
            Self::TrialStopped { .. } => "trial_stopped",
            Self::TrialFailed { .. } => "trial_failed",
            Self::TrialRetried { .. } => "trial_retried",
            Self::TrialCancelled { .. } => "trial_cancelled",
            Self::SuggestionsEnded { .. } => "suggestions_ended",
            Self::SuggestionsReopened {} => "suggestions_reopened",
            Self::StopRequested {} => "stop_requested",
            Self::PauseRequested {} => "pause_requested",
            Self::ResumeRequested {} => "resume_requested",
            Self::StudyDone {} => "study_done",
        }
    }

    /// Whether it creates or ends a trial or the study: nothing may be done about it before it would survive a loss of power.
    #[must_use]
    pub const fn is_milestone(&self) -> bool {
        matches!(
            self,
            Self::StudyCreated { .. }
                | Self::StudyChanged { .. }
                | Self::ResultImported { .. }
                | Self::TrialEnqueued { .. }
                | Self::TrialCreated { .. }
                | Self::TrialDone { .. }
                | Self::TrialStopped { .. }
                | Self::TrialFailed { .. }
                | Self::TrialRetried { .. }
                | Self::TrialCancelled { .. }
                | Self::SuggestionsEnded { .. }
                | Self::SuggestionsReopened {}
                | Self::PauseRequested {}
                | Self::ResumeRequested {}
                | Self::StudyDone {}
        )
    }

    /// The trial it is about, if it is about one.
    #[must_use]
    pub const fn trial(&self) -> Option<TrialId> {
        match self {
            Self::TrialCreated { trial, .. }
            | Self::TrialStarted { trial, .. }
            | Self::GroupFormed { trial, .. }
            | Self::Retuned { trial, .. }
            | Self::Measured { trial, .. }
            | Self::Refitted { trial, .. }
            | Self::Checkpointed { trial, .. }
            | Self::CheckpointFailed { trial, .. }
            | Self::BatchLimited { trial, .. }
            | Self::TrialPausing { trial }
            | Self::TrialPaused { trial, .. }
            | Self::TrialInterrupted { trial, .. }
            | Self::TrialDone { trial, .. }
            | Self::TrialStopped { trial, .. }
            | Self::TrialFailed { trial, .. }
            | Self::TrialRetried { trial }
            | Self::TrialCancelled { trial, .. } => Some(*trial),
            Self::StudyCreated { .. }
            | Self::StudyChanged { .. }
            | Self::HeadStarted {}
            | Self::NodeJoined { .. }
            | Self::NodeDraining { .. }
            | Self::NodeLost { .. }
            | Self::SlotJoined { .. }
            | Self::SlotLost { .. }
            | Self::NodeBlocked { .. }
            | Self::StudyWaiting { .. }
            | Self::StudyResumed {}
            | Self::ResultImported { .. }
            | Self::TrialEnqueued { .. }
            | Self::PlanAdopted { .. }
            | Self::SuggestionsEnded { .. }
            | Self::SuggestionsReopened {}
            | Self::StopRequested {}
            | Self::PauseRequested {}
            | Self::ResumeRequested {}
            | Self::StudyDone {} => None,
        }
    }
}
