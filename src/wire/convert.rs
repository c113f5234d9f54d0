//! Between the messages of this crate and those of protobuf. All messages can be sent; what is received may be invalid.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use super::{
    Error, Hello,
    proto::{self, command::Kind as CommandKind, event::Kind as EventKind},
};
use crate::{
    goodput::{self, GradientStats, Observation, Shape},
    ids::{InvalidStudyId, NodeId, Round, SlotId, TrialId},
    trials::{
        engine::FailureCause,
        group::{
            Activity, Batch, Evaluation, FinalState, Form, Member, MemoryLimit, Pause, Task, WorkerCommand,
            WorkerEvent, WorkerReport,
        },
    },
};

/// A part that a message must have.
pub(super) fn part<T>(part: Option<T>, of: &'static str, name: &str) -> Result<T, Error> {
    part.ok_or_else(|| Error::Message { what: of, problem: format!("it has no {name}") })
}

/// The first message of a worker.
pub(super) fn hello(event: &proto::Event) -> Result<Hello, Error> {
    match event.kind {
        Some(EventKind::Hello(proto::Hello { version, node, slot, pid })) => {
            Ok(Hello { version, slot: slot_id(node, slot), pid })
        }
        _ => Err(Error::Message {
            what: "the first message of a worker",
            problem: "it is not a hello".to_owned(),
        }),
    }
}

pub(super) const fn slot_id(node: u32, index: u32) -> SlotId {
    SlotId { node: NodeId(node), index }
}

impl From<Hello> for proto::Event {
    fn from(Hello { version, slot, pid }: Hello) -> Self {
        let hello = proto::Hello { version, node: slot.node.0, slot: slot.index, pid };
        Self { kind: Some(EventKind::Hello(hello)) }
    }
}

impl From<WorkerCommand> for proto::Command {
    fn from(command: WorkerCommand) -> Self {
        let kind = match command {
            WorkerCommand::Prepare(task) => CommandKind::Prepare((*task).into()),
            WorkerCommand::Form(form) => CommandKind::Form(form.into()),
            WorkerCommand::Retune { trial, round, batch } => CommandKind::Retune(proto::Retune {
                trial: trial.0,
                round: round.0,
                batch: Some(batch.into()),
            }),
            WorkerCommand::Release { trial, state } => {
                CommandKind::Release(proto::Release { trial: trial.0, save: state == FinalState::Saved })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::Command> for WorkerCommand {
    type Error = Error;

    fn try_from(command: proto::Command) -> Result<Self, Error> {
        Ok(match part(command.kind, "a command", "kind that is known")? {
            CommandKind::Prepare(task) => Self::Prepare(Box::new(task.try_into()?)),
            CommandKind::Form(form) => Self::Form(form.try_into()?),
            CommandKind::Retune(proto::Retune { trial, round, batch }) => {
                let (trial, round) = (TrialId(trial), Round(round));
                Self::Retune { trial, round, batch: part(batch, "Retune", "batch")?.into() }
            }
            CommandKind::Release(proto::Release { trial, save }) => {
                let state = if save { FinalState::Saved } else { FinalState::Discarded };
                Self::Release { trial: TrialId(trial), state }
            }
        })
    }
}

impl From<WorkerEvent> for proto::Event {
    fn from(event: WorkerEvent) -> Self {
        let kind = match event {
            WorkerEvent::Prepared { trial, rendezvous_addr } => {
                EventKind::Prepared(proto::Prepared { trial: trial.0, rendezvous_addr })
            }
            WorkerEvent::Formed { trial, round, steps, pause } => EventKind::Formed(proto::Formed {
                trial: trial.0,
                round: round.0,
                steps,
                pause: Some(pause.into()),
            }),
            WorkerEvent::Broken { trial, round, steps, reason } => {
                EventKind::Broken(proto::Broken { trial: trial.0, round: round.0, steps, reason })
            }
            WorkerEvent::Progress { trial, round, steps, longest_step_s, activity } => {
                let (trial, round, activity) = (trial.0, round.0, proto::Activity::from(activity).into());
                EventKind::Progress(proto::Progress { trial, round, steps, longest_step_s, activity })
            }
            WorkerEvent::Reported(report) => EventKind::Reported((*report).into()),
            WorkerEvent::Checkpointed { trial, steps } => {
                EventKind::Checkpointed(proto::Checkpointed { trial: trial.0, steps })
            }
            WorkerEvent::CheckpointFailed { trial, reason } => {
                EventKind::CheckpointFailed(proto::CheckpointFailed { trial: trial.0, reason })
            }
            WorkerEvent::OutOfMemory { trial, memory: MemoryLimit { failed, limit } } => {
                EventKind::OutOfMemory(proto::OutOfMemory { trial: trial.0, failed, limit })
            }
            WorkerEvent::Finished { trial, round, metrics } => {
                EventKind::Finished(proto::Finished { trial: trial.0, round: round.0, metrics })
            }
            WorkerEvent::Released { trial } => EventKind::Released(proto::Released { trial: trial.0 }),
            WorkerEvent::Failed { trial, reason, cause } => {
                let cause = proto::FailureCause::from(cause).into();
                EventKind::Failed(proto::Failed { trial: trial.0, reason, cause })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::Event> for WorkerEvent {
    type Error = Error;

    fn try_from(event: proto::Event) -> Result<Self, Error> {
        Ok(match part(event.kind, "an event", "kind that is known")? {
            EventKind::Hello(_) => {
                let problem = "it comes again, after the first message".to_owned();
                return Err(Error::Message { what: "Hello", problem });
            }
            EventKind::Prepared(proto::Prepared { trial, rendezvous_addr }) => {
                Self::Prepared { trial: TrialId(trial), rendezvous_addr }
            }
            EventKind::Formed(proto::Formed { trial, round, steps, pause }) => Self::Formed {
                trial: TrialId(trial),
                round: Round(round),
                steps,
                pause: part(pause, "Formed", "pause")?.into(),
            },
            EventKind::Broken(proto::Broken { trial, round, steps, reason }) => {
                Self::Broken { trial: TrialId(trial), round: Round(round), steps, reason }
            }
            EventKind::Progress(progress) => {
                let (activity, longest_step_s) = (progress.activity().into(), progress.longest_step_s);
                let proto::Progress { trial, round, steps, .. } = progress;
                Self::Progress { trial: TrialId(trial), round: Round(round), steps, longest_step_s, activity }
            }
            EventKind::Reported(report) => Self::Reported(Box::new(report.try_into()?)),
            EventKind::Checkpointed(proto::Checkpointed { trial, steps }) => {
                Self::Checkpointed { trial: TrialId(trial), steps }
            }
            EventKind::CheckpointFailed(proto::CheckpointFailed { trial, reason }) => {
                Self::CheckpointFailed { trial: TrialId(trial), reason }
            }
            EventKind::OutOfMemory(proto::OutOfMemory { trial, failed, limit }) => {
                Self::OutOfMemory { trial: TrialId(trial), memory: MemoryLimit { failed, limit } }
            }
            EventKind::Finished(proto::Finished { trial, round, metrics }) => {
                Self::Finished { trial: TrialId(trial), round: Round(round), metrics }
            }
            EventKind::Released(proto::Released { trial }) => Self::Released { trial: TrialId(trial) },
            EventKind::Failed(failed) => {
                let cause = failed.cause().into();
                Self::Failed { trial: TrialId(failed.trial), reason: failed.reason, cause }
            }
        })
    }
}

/// Lists that have the same names on both sides.
macro_rules! same_names {
    ($name:ident { $($variant:ident),+ }) => {
        impl From<$name> for proto::$name {
            fn from(value: $name) -> Self {
                match value {
                    $($name::$variant => Self::$variant,)+
                }
            }
        }

        impl From<proto::$name> for $name {
            fn from(value: proto::$name) -> Self {
                match value {
                    $(proto::$name::$variant => Self::$variant,)+
                }
            }
        }
    };
}

pub(super) use same_names;

same_names! { FailureCause { Trial, Infrastructure, Environment } }
same_names! { Activity { Training, Joining, Evaluating, Saving, Idle } }

impl From<Task> for proto::Task {
    fn from(task: Task) -> Self {
        Self {
            study: task.study.to_string(),
            trial: task.trial.0,
            trainable: task.trainable,
            params_json: serde_json::Value::Object(task.params).to_string(),
            seed: task.seed,
            epochs: task.epochs,
            initial_batch: task.initial_batch,
            lr_rule: task.lr_rule,
            checkpoint: task.checkpoint.as_os_str().as_bytes().to_vec(),
            checkpoint_every_s: task.checkpoint_every_s,
            report_every_s: task.report_every_s,
            evaluate_every: task.evaluate_every,
            measure_noise: task.measure_noise,
            mixed_precision: task.mixed_precision,
        }
    }
}

impl TryFrom<proto::Task> for Task {
    type Error = Error;

    fn try_from(task: proto::Task) -> Result<Self, Error> {
        let params = serde_json::from_str(&task.params_json).map_err(|error| Error::Message {
            what: "Task",
            problem: format!("its parameters are no JSON object: {error}"),
        })?;
        let study = task
            .study
            .parse()
            .map_err(|error: InvalidStudyId| Error::Message { what: "Task", problem: error.to_string() })?;
        Ok(Self {
            study,
            trial: TrialId(task.trial),
            trainable: task.trainable,
            params,
            seed: task.seed,
            epochs: task.epochs,
            initial_batch: task.initial_batch,
            lr_rule: task.lr_rule,
            checkpoint: OsString::from_vec(task.checkpoint).into(),
            checkpoint_every_s: task.checkpoint_every_s,
            report_every_s: task.report_every_s,
            evaluate_every: task.evaluate_every,
            measure_noise: task.measure_noise,
            mixed_precision: task.mixed_precision,
        })
    }
}

/// All of a list, converted.
pub(super) fn each<T, U: From<T>>(list: Vec<T>) -> Vec<U> {
    list.into_iter().map(U::from).collect()
}

impl From<Form> for proto::Form {
    fn from(Form { trial, round, members, donors, batch, broken }: Form) -> Self {
        let (members, donors) = (each(members), each(donors));
        Self { trial: trial.0, round: round.0, members, donors, batch: Some(batch.into()), broken }
    }
}

impl TryFrom<proto::Form> for Form {
    type Error = Error;

    fn try_from(form: proto::Form) -> Result<Self, Error> {
        let proto::Form { trial, round, members, donors, batch, broken } = form;
        let (members, donors) = (each(members), each(donors));
        let (trial, round) = (TrialId(trial), Round(round));
        Ok(Self { trial, round, members, donors, batch: part(batch, "Form", "batch")?.into(), broken })
    }
}

impl From<WorkerReport> for proto::Report {
    fn from(report: WorkerReport) -> Self {
        Self {
            trial: report.trial.0,
            round: report.round.0,
            steps: report.steps,
            examples: report.examples,
            epochs: report.epochs,
            loss: report.loss,
            learning_rate: report.learning_rate,
            batch: report.batch.map(Into::into),
            step_times: each(report.step_times),
            noise: report.noise.map(Into::into),
            noise_batch: report.noise_batch,
            evaluations: each(report.evaluations),
        }
    }
}

impl TryFrom<proto::Report> for WorkerReport {
    type Error = Error;

    fn try_from(report: proto::Report) -> Result<Self, Error> {
        Ok(Self {
            trial: TrialId(report.trial),
            round: Round(report.round),
            steps: report.steps,
            examples: report.examples,
            epochs: report.epochs,
            loss: report.loss,
            learning_rate: report.learning_rate,
            batch: report.batch.map(Into::into),
            step_times: report.step_times.into_iter().map(Observation::try_from).collect::<Result<_, _>>()?,
            noise: report.noise.map(Into::into),
            noise_batch: report.noise_batch,
            evaluations: each(report.evaluations),
        })
    }
}

impl From<Observation> for proto::Observation {
    fn from(Observation { shape, per_gpu, accumulation, iter_time_s, steps }: Observation) -> Self {
        Self { gpus: shape.gpus(), nodes: shape.nodes(), per_gpu, accumulation, iter_time_s, steps }
    }
}

impl TryFrom<proto::Observation> for Observation {
    type Error = Error;

    fn try_from(seen: proto::Observation) -> Result<Self, Error> {
        let proto::Observation { gpus, nodes, per_gpu, accumulation, iter_time_s, steps } = seen;
        let wrong =
            |error: goodput::Error| Error::Message { what: "Observation", problem: error.to_string() };
        Ok(Self { shape: Shape::new(gpus, nodes).map_err(wrong)?, per_gpu, accumulation, iter_time_s, steps })
    }
}

impl From<Member> for proto::Member {
    fn from(Member { slot, rendezvous_addr }: Member) -> Self {
        Self { slot: slot.index, node: slot.node.0, rendezvous_addr }
    }
}

impl From<proto::Member> for Member {
    fn from(proto::Member { slot, node, rendezvous_addr }: proto::Member) -> Self {
        Self { slot: slot_id(node, slot), rendezvous_addr }
    }
}

/// Messages that have the same fields on both sides.
macro_rules! alike {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl From<$name> for proto::$name {
            fn from($name { $($field),+ }: $name) -> Self {
                Self { $($field),+ }
            }
        }

        impl From<proto::$name> for $name {
            fn from(proto::$name { $($field),+ }: proto::$name) -> Self {
                Self { $($field),+ }
            }
        }
    )+};
}

pub(super) use alike;

alike! {
    Batch { total, accumulation }
    Pause { total_s, form_s, hand_over_s }
    GradientStats { sqr, var }
    Evaluation { epochs, values }
}
