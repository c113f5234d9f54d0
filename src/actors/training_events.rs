//! What happens to a training, from what its groups and its engine say.

use std::collections::{BTreeMap, BTreeSet};

use super::group::GroupMessage;
use crate::{
    goodput::Shape,
    ids::{Round, TrialId},
    trials::{
        engine::Fact,
        group::{Batch, Form, MemoryLimit, Pause, WorkerCommand, WorkerEvent, WorkerReport},
    },
};

/// What happens to a training. Slots are numbers; groups are numbered from 1 in each task.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TrainingEvent {
    /// Workers were told to form a new group, all of whom are ready for it. The one before trains until it hears of it.
    Forming {
        /// Its number.
        group: u64,
        /// The slots of its members, by rank.
        slots: Vec<u32>,
    },
    /// A new group trains.
    Formed {
        /// Its number.
        group: u64,
        /// The slots of its members, by rank.
        slots: Vec<u32>,
        /// Optimizer steps behind it.
        steps: u64,
        /// How long the training stood still, as the first rank sees it.
        pause: Pause,
    },
    /// News from the first rank. The round is the number of the group.
    Reported(Box<WorkerReport>),
    /// The batch will be another one, from the next step on that all can agree on.
    Retuned(Batch),
    /// A checkpoint is on disk.
    Checkpointed {
        /// Optimizer steps behind it.
        steps: u64,
    },
    /// A checkpoint could not be written, or one that is there cannot be used. The training continues.
    CheckpointFailed {
        /// What is wrong, and what happens instead.
        reason: String,
    },
    /// A pass did not fit into the memory of a worker's device. The training continues with smaller ones.
    OutOfMemory {
        /// The slot of the worker.
        slot: u32,
        /// What was learned.
        memory: MemoryLimit,
    },
    /// A worker has lost its group.
    Broken {
        /// Its slot.
        slot: u32,
        /// The group.
        group: u64,
        /// Optimizer steps that it has behind it; none if it has no state.
        steps: Option<u64>,
        /// What it has seen.
        reason: String,
    },
    /// A worker's process is gone; another one takes its place.
    Lost {
        /// Its slot.
        slot: u32,
    },
    /// The last epoch of the task is done.
    Finished {
        /// The last evaluation.
        metrics: BTreeMap<String, f64>,
    },
    /// The task cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What was seen of a study.
pub(super) enum Seen {
    Command(u32, WorkerCommand),
    Event(u32, WorkerEvent),
    /// The end of a worker, which the engine will tell of, too.
    Lost,
    Fact(Fact),
}

impl Seen {
    pub(super) fn message(slot: u32, message: GroupMessage<'_>) -> Self {
        match message {
            GroupMessage::Command(command) => Self::Command(slot, command.clone()),
            GroupMessage::Event(event) => Self::Event(slot, event.clone()),
            GroupMessage::Lost => Self::Lost,
        }
    }
}

/// Follows the tasks of a training.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// The task that trains, or the next one.
    trial: TrialId,
    /// The rounds of its groups, in their order.
    rounds: Vec<Round>,
    /// The last of them, and who has said that it trains.
    form: Option<Form>,
    formed: BTreeSet<u32>,
    /// What the first rank has said of its start.
    first: Option<(u64, Pause)>,
    has_told: bool,
    /// The last evaluation of a task that has come to its end.
    finished: Option<BTreeMap<String, f64>>,
}

impl Tracker {
    pub(super) const fn trial(&self) -> TrialId {
        self.trial
    }

    /// The slots of the last group, by rank.
    pub(super) fn members(&self) -> Vec<u32> {
        self.form.iter().flat_map(|form| &form.members).map(|member| member.slot.node.0).collect()
    }

    /// Whether all its members train.
    pub(super) const fn is_formed(&self) -> bool {
        self.has_told
    }

    pub(super) fn take(&mut self, seen: Seen) -> Option<TrainingEvent> {
        match seen {
            Seen::Command(_, WorkerCommand::Form(form)) => {
                if self.rounds.last() == Some(&form.round) {
                    return None;
                }
                self.rounds.push(form.round);
                (self.form, self.first, self.has_told) = (Some(form), None, false);
                self.formed.clear();
                Some(TrainingEvent::Forming { group: self.rounds.len() as u64, slots: self.members() })
            }
            // All members are told the same.
            Seen::Command(slot, WorkerCommand::Retune { batch, .. }) => {
                (self.members().first() == Some(&slot)).then_some(TrainingEvent::Retuned(batch))
            }
            Seen::Event(slot, event) if event.trial() == self.trial => self.on_event(slot, event),
            Seen::Command(..) | Seen::Event(..) | Seen::Lost => None,
            Seen::Fact(fact) => self.on_fact(fact),
        }
    }

    fn group(&self, round: Round) -> u64 {
        self.rounds.iter().position(|of| *of == round).map_or(0, |at| at as u64 + 1)
    }

    fn on_event(&mut self, slot: u32, event: WorkerEvent) -> Option<TrainingEvent> {
        match event {
            WorkerEvent::Formed { round, steps, pause, .. } => self.on_formed(slot, round, steps, pause),
            WorkerEvent::Broken { round, steps, reason, .. } => {
                Some(TrainingEvent::Broken { slot, group: self.group(round), steps, reason })
            }
            WorkerEvent::Reported(mut report) => {
                report.round = Round(self.group(report.round));
                // It is one machine, whatever the engine was told.
                for times in &mut report.step_times {
                    times.shape = Shape::new(times.shape.gpus(), 1).unwrap_or(times.shape);
                }
                Some(TrainingEvent::Reported(report))
            }
            WorkerEvent::CheckpointFailed { reason, .. } => Some(TrainingEvent::CheckpointFailed { reason }),
            WorkerEvent::OutOfMemory { memory, .. } => Some(TrainingEvent::OutOfMemory { slot, memory }),
            WorkerEvent::Checkpointed { steps, .. } => Some(TrainingEvent::Checkpointed { steps }),
            WorkerEvent::Finished { metrics, .. } => {
                self.finished = Some(metrics);
                None
            }
            // The engine tells of its end.
            WorkerEvent::Failed { .. }
            | WorkerEvent::Prepared { .. }
            | WorkerEvent::Progress { .. }
            | WorkerEvent::Released { .. } => None,
        }
    }

    /// A group is formed when all its members are; the first rank tells of the pause.
    fn on_formed(&mut self, slot: u32, round: Round, steps: u64, pause: Pause) -> Option<TrainingEvent> {
        if self.rounds.last() != Some(&round) || self.has_told {
            return None;
        }
        let slots = self.members();
        self.formed.insert(slot);
        if slots.first() == Some(&slot) {
            self.first = Some((steps, pause));
        }
        let (steps, pause) = self.first.filter(|_| slots.iter().all(|slot| self.formed.contains(slot)))?;
        self.has_told = true;
        Some(TrainingEvent::Formed { group: self.group(round), slots, steps, pause })
    }

    fn on_fact(&mut self, fact: Fact) -> Option<TrainingEvent> {
        let reason = match fact {
            Fact::SlotLost { slot, .. } => return Some(TrainingEvent::Lost { slot: slot.node.0 }),
            Fact::TrialDone { .. } => String::new(),
            Fact::TrialFailed { reason, .. } | Fact::TrialCancelled { reason, .. } => reason,
            Fact::TrialStopped { reason, .. } => reason.to_string(),
            _ => return None,
        };
        let next = TrialId(self.trial.0 + 1);
        let Self { finished, .. } = std::mem::replace(self, Self { trial: next, ..Self::default() });
        // Whatever the engine misses in the last evaluation, the task is done.
        Some(match finished {
            Some(metrics) => TrainingEvent::Finished { metrics },
            None => TrainingEvent::Failed { reason },
        })
    }
}
