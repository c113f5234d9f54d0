//! Messages between a head and the workers of a trial.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{
    goodput::{GradientStats, Observation},
    ids::{NodeId, Round, SlotId, StudyId, TrialId},
    trials::engine::FailureCause,
};

/// What is trained: the same for all workers of a trial, and for as long as it lives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The study it belongs to.
    pub study: StudyId,
    /// The trial's number.
    pub trial: TrialId,
    /// The trainable's name in the worker's registry.
    pub trainable: String,
    /// Hyper-parameters: numbers, texts and truth values.
    pub params: serde_json::Map<String, serde_json::Value>,
    /// Decides the initial weights, the order of the examples and their augmentation.
    pub seed: u64,
    /// Statistical epochs to train for.
    pub epochs: f64,
    /// The total batch that the learning rate is meant for, M0.
    pub initial_batch: u32,
    /// The learning-rate rule, by name.
    pub lr_rule: String,
    /// The folder that checkpoints go to, and from which a lost trial resumes.
    pub checkpoint: PathBuf,
    /// Seconds from checkpoint to checkpoint.
    pub checkpoint_every_s: f64,
    /// Seconds from report to report, and from one sign of progress to the next.
    pub report_every_s: f64,
    /// Statistical epochs from evaluation to evaluation.
    pub evaluate_every: f64,
    /// Measure the noise of the gradient. Without it only a fixed batch makes sense, and steps are a little faster.
    pub measure_noise: bool,
    /// Compute in half precision where a GPU gains by it.
    pub mixed_precision: bool,
}

impl Task {
    /// A trial of a trainable with plain settings: for one epoch, with a batch of 128, seed 0 and no parameters.
    #[must_use]
    pub fn new(trial: TrialId, trainable: &str) -> Self {
        Self {
            study: StudyId::default(),
            trial,
            trainable: trainable.to_owned(),
            params: serde_json::Map::new(),
            seed: 0,
            epochs: 1.0,
            initial_batch: 128,
            lr_rule: "adascale".to_owned(),
            checkpoint: PathBuf::from(format!("trial-{trial}")),
            checkpoint_every_s: 60.0,
            report_every_s: 1.0,
            evaluate_every: 1.0,
            measure_noise: true,
            mixed_precision: false,
        }
    }
}

/// The examples of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Over all workers and passes.
    pub total: u32,
    /// Passes before the one that synchronizes.
    pub accumulation: u32,
}

/// A worker of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The slot it runs on.
    pub slot: SlotId,
    /// The rendezvous address, if it is the first of a group.
    pub rendezvous_addr: String,
}

/// A new generation of a trial's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// The trial.
    pub trial: TrialId,
    /// Higher than all before.
    pub round: Round,
    /// Who trains, by rank.
    pub members: Vec<Member>,
    /// Who has the state and hands it over, but trains no longer.
    pub donors: Vec<Member>,
    /// What a step takes.
    pub batch: Batch,
    /// The generation before has lost a member: do not wait for its next step.
    pub broken: bool,
}

impl Form {
    /// How many machines those who train are on.
    #[must_use]
    pub fn machines(&self) -> u32 {
        let nodes: BTreeSet<NodeId> = self.members.iter().map(|member| member.slot.node).collect();
        nodes.len() as u32
    }
}

/// What becomes of the state of a trial when its workers leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalState {
    /// One of them writes a checkpoint to resume from.
    Saved,
    /// Nobody needs it.
    Discarded,
}

/// What a worker is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerCommand {
    /// Make the model and open the data of a trial, but do not train.
    Prepare(Box<Task>),
    /// Leave the present group together with all its members, and form the next one. Who is in no list forgets the trial.
    Form(Form),
    /// Use another batch from the next step on that all members can agree on.
    Retune {
        /// The trial.
        trial: TrialId,
        /// The group that is meant.
        round: Round,
        /// What a step takes from then on.
        batch: Batch,
    },
    /// Leave the group together with all its members, and forget the trial.
    Release {
        /// The trial.
        trial: TrialId,
        /// What becomes of its state.
        state: FinalState,
    },
}

/// What has happened at a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEvent {
    /// A trial could start.
    Prepared {
        /// The trial.
        trial: TrialId,
        /// Its rendezvous address, if it is the first of a group.
        rendezvous_addr: String,
    },
    /// The group is together and trains.
    Formed {
        /// The trial.
        trial: TrialId,
        /// The group.
        round: Round,
        /// Optimizer steps that the state has behind it.
        steps: u64,
        /// How long the training stood still.
        pause: Pause,
    },
    /// The group has lost a member or could not be formed. The state is that after the last whole step.
    Broken {
        /// The trial.
        trial: TrialId,
        /// The group.
        round: Round,
        /// Optimizer steps that the state has behind it; none if there is no state.
        steps: Option<u64>,
        /// What happened.
        reason: String,
    },
    /// A sign that the thread that trains does not stand still: from every rank, after steps but not after each of them, and whenever
    /// its activity changes.
    Progress {
        /// The trial.
        trial: TrialId,
        /// The group.
        round: Round,
        /// Optimizer steps that the state has behind it.
        steps: u64,
        /// The longest step since the last sign, in seconds on the clock of the worker.
        longest_step_s: f64,
        /// What it does from now on.
        activity: Activity,
    },
    /// What was measured since the last report; from the first rank only.
    Reported(Box<WorkerReport>),
    /// A checkpoint is on disk.
    Checkpointed {
        /// The trial.
        trial: TrialId,
        /// Optimizer steps that it has behind it.
        steps: u64,
    },
    /// A checkpoint could not be written, or one that is there cannot be used. The training continues.
    CheckpointFailed {
        /// The trial.
        trial: TrialId,
        /// What is wrong, and what happens instead.
        reason: String,
    },
    /// A pass did not fit into the memory of the worker's device, or of its share of it. The step was, or will be, taken in smaller ones.
    OutOfMemory {
        /// The trial.
        trial: TrialId,
        /// What was learned.
        memory: MemoryLimit,
    },
    /// The trial has reached its last epoch.
    Finished {
        /// The trial.
        trial: TrialId,
        /// The group.
        round: Round,
        /// The last evaluation.
        metrics: BTreeMap<String, f64>,
    },
    /// The worker has forgotten the trial and is free.
    Released {
        /// The trial.
        trial: TrialId,
    },
    /// The worker cannot continue with the trial, and has forgotten it.
    Failed {
        /// The trial.
        trial: TrialId,
        /// Why.
        reason: String,
        /// Whose fault it is.
        cause: FailureCause,
    },
}

impl WorkerEvent {
    /// The trial that it is about.
    #[must_use]
    pub fn trial(&self) -> TrialId {
        match self {
            Self::Prepared { trial, .. }
            | Self::Formed { trial, .. }
            | Self::Broken { trial, .. }
            | Self::Progress { trial, .. }
            | Self::Checkpointed { trial, .. }
            | Self::CheckpointFailed { trial, .. }
            | Self::OutOfMemory { trial, .. }
            | Self::Finished { trial, .. }
            | Self::Released { trial }
            | Self::Failed { trial, .. } => *trial,
            Self::Reported(report) => report.trial,
        }
    }
}

/// How many examples fit into the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// A pass with so many did not fit.
    pub failed: u32,
    /// The largest pass from now on.
    pub limit: u32,
}

/// What the thread of a worker does that trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It takes steps.
    Training,
    /// It has left the group before and meets the members of this one.
    Joining,
    /// It evaluates, together with all members.
    Evaluating,
    /// It waits until a checkpoint is on disk.
    Saving,
    /// It waits for the next command.
    Idle,
}

/// How long a training stood still, and what for, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Pause {
    /// From the last whole step to the first one of the new group.
    pub total_s: f64,
    /// Connecting the members.
    pub form_s: f64,
    /// Handing over the state.
    pub hand_over_s: f64,
}

/// What was measured since the last report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The trial.
    pub trial: TrialId,
    /// The group.
    pub round: Round,
    /// Optimizer steps so far.
    pub steps: u64,
    /// Examples so far.
    pub examples: u64,
    /// Statistical epochs so far.
    pub epochs: f64,
    /// The mean loss of the steps since the last report.
    pub loss: Option<f64>,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// What a step takes.
    pub batch: Option<Batch>,
    /// Step times, folded by configuration.
    pub step_times: Vec<Observation>,
    /// The gradient's statistics, once there are any.
    pub noise: Option<GradientStats>,
    /// The total batch that they belong to. None from workers of earlier versions: then it is taken for that of the last steps.
    #[serde(default)]
    pub noise_batch: Option<f64>,
    /// Evaluations since the last report.
    pub evaluations: Vec<Evaluation>,
}

/// An evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Statistical epochs at the time.
    pub epochs: f64,
    /// Means over the test data, by name.
    pub values: BTreeMap<String, f64>,
}
