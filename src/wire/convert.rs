//! Between the messages of this crate and those of protobuf. Whatever can be said can be sent; what comes may make no sense.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use super::{
    Batch, Command, Error, Event, Form, Hello, Member, Metric, Noise, Pause, Report, StepTime, Task,
    proto::{self, command::Kind as ToDo, event::Kind as Happened},
};

/// A part that a message must have.
fn part<T>(part: Option<T>, of: &'static str, name: &str) -> Result<T, Error> {
    part.ok_or_else(|| Error::Message { what: of, problem: format!("it has no {name}") })
}

/// The first words of a worker.
pub(super) fn hello(event: proto::Event) -> Result<Hello, Error> {
    match event.kind {
        Some(Happened::Hello(proto::Hello { version, node, slot, pid, store })) => {
            Ok(Hello { version, node, slot, pid, store })
        }
        _ => Err(Error::Message {
            what: "the first message of a worker",
            problem: "it is not a hello".to_owned(),
        }),
    }
}

impl From<Hello> for proto::Event {
    fn from(Hello { version, node, slot, pid, store }: Hello) -> Self {
        Self { kind: Some(Happened::Hello(proto::Hello { version, node, slot, pid, store })) }
    }
}

impl From<Command> for proto::Command {
    fn from(command: Command) -> Self {
        let kind = match command {
            Command::Prepare(task) => ToDo::Prepare((*task).into()),
            Command::Form(form) => ToDo::Form(form.into()),
            Command::Retune { trial, generation, batch } => {
                ToDo::Retune(proto::Retune { trial, generation, batch: Some(batch.into()) })
            }
            Command::Release { trial, save } => ToDo::Release(proto::Release { trial, save }),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::Command> for Command {
    type Error = Error;

    fn try_from(command: proto::Command) -> Result<Self, Error> {
        Ok(match part(command.kind, "a command", "kind that is known")? {
            ToDo::Prepare(task) => Self::Prepare(Box::new(task.try_into()?)),
            ToDo::Form(form) => Self::Form(form.try_into()?),
            ToDo::Retune(proto::Retune { trial, generation, batch }) => {
                Self::Retune { trial, generation, batch: part(batch, "Retune", "batch")?.into() }
            }
            ToDo::Release(proto::Release { trial, save }) => Self::Release { trial, save },
        })
    }
}

impl From<Event> for proto::Event {
    fn from(event: Event) -> Self {
        let kind = match event {
            Event::Prepared { trial } => Happened::Prepared(proto::Prepared { trial }),
            Event::Formed { trial, generation, steps, pause } => {
                Happened::Formed(proto::Formed { trial, generation, steps, pause: Some(pause.into()) })
            }
            Event::Broken { trial, generation, steps, reason } => {
                Happened::Broken(proto::Broken { trial, generation, steps, reason })
            }
            Event::Reported(report) => Happened::Reported((*report).into()),
            Event::Checkpointed { trial, steps } => {
                Happened::Checkpointed(proto::Checkpointed { trial, steps })
            }
            Event::Finished { trial, generation, metrics } => {
                Happened::Finished(proto::Finished { trial, generation, metrics })
            }
            Event::Released { trial } => Happened::Released(proto::Released { trial }),
            Event::Failed { trial, reason } => Happened::Failed(proto::Failed { trial, reason }),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::Event> for Event {
    type Error = Error;

    fn try_from(event: proto::Event) -> Result<Self, Error> {
        Ok(match part(event.kind, "an event", "kind that is known")? {
            Happened::Hello(_) => {
                let problem = "it comes again, after the first message".to_owned();
                return Err(Error::Message { what: "Hello", problem });
            }
            Happened::Prepared(proto::Prepared { trial }) => Self::Prepared { trial },
            Happened::Formed(proto::Formed { trial, generation, steps, pause }) => {
                Self::Formed { trial, generation, steps, pause: part(pause, "Formed", "pause")?.into() }
            }
            Happened::Broken(proto::Broken { trial, generation, steps, reason }) => {
                Self::Broken { trial, generation, steps, reason }
            }
            Happened::Reported(report) => Self::Reported(Box::new(report.into())),
            Happened::Checkpointed(proto::Checkpointed { trial, steps }) => {
                Self::Checkpointed { trial, steps }
            }
            Happened::Finished(proto::Finished { trial, generation, metrics }) => {
                Self::Finished { trial, generation, metrics }
            }
            Happened::Released(proto::Released { trial }) => Self::Released { trial },
            Happened::Failed(proto::Failed { trial, reason }) => Self::Failed { trial, reason },
        })
    }
}

impl From<Task> for proto::Task {
    fn from(task: Task) -> Self {
        Self {
            trial: task.trial,
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
        Ok(Self {
            trial: task.trial,
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
fn each<T, U: From<T>>(list: Vec<T>) -> Vec<U> {
    list.into_iter().map(U::from).collect()
}

impl From<Form> for proto::Form {
    fn from(Form { trial, generation, members, donors, batch, broken }: Form) -> Self {
        let (members, donors) = (each(members), each(donors));
        Self { trial, generation, members, donors, batch: Some(batch.into()), broken }
    }
}

impl TryFrom<proto::Form> for Form {
    type Error = Error;

    fn try_from(form: proto::Form) -> Result<Self, Error> {
        let proto::Form { trial, generation, members, donors, batch, broken } = form;
        let (members, donors) = (each(members), each(donors));
        Ok(Self { trial, generation, members, donors, batch: part(batch, "Form", "batch")?.into(), broken })
    }
}

impl From<Report> for proto::Report {
    fn from(report: Report) -> Self {
        Self {
            trial: report.trial,
            generation: report.generation,
            steps: report.steps,
            examples: report.examples,
            epochs: report.epochs,
            loss: report.loss,
            learning_rate: report.learning_rate,
            batch: report.batch.map(Into::into),
            step_times: each(report.step_times),
            noise: report.noise.map(Into::into),
            metrics: each(report.metrics),
        }
    }
}

impl From<proto::Report> for Report {
    fn from(report: proto::Report) -> Self {
        Self {
            trial: report.trial,
            generation: report.generation,
            steps: report.steps,
            examples: report.examples,
            epochs: report.epochs,
            loss: report.loss,
            learning_rate: report.learning_rate,
            batch: report.batch.map(Into::into),
            step_times: each(report.step_times),
            noise: report.noise.map(Into::into),
            metrics: each(report.metrics),
        }
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

alike! {
    Batch { total, accumulation }
    Member { slot, node, store }
    Pause { total_s, form_s, hand_over_s }
    StepTime { replicas, nodes, per_gpu, accumulation, seconds, steps }
    Noise { sqr, var }
    Metric { epochs, values }
}
