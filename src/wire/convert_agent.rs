//! As [`convert`](super::convert), for the messages between a head and its agents.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::AddrParseError,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use super::{
    Error,
    convert::{each, part, same_names, slot_id},
    proto::{
        self, agent_command::Kind as CommandKind, agent_event::Kind as EventKind,
        group_event::Kind as GroupKind, work::Kind as WorkKind,
    },
};
use crate::{
    goodput::{self, NoiseScale, Observation},
    ids::{EmptyGpuType, Generation, GpuType, InvalidStudyId, NodeId, SlotId, StudyId, TrialId},
    trials::{
        agent::{
            AgentCommand, AgentEvent, AgentHello, AgentNode, AgentSlot, HeldCheckpoint, ProgramLaunch,
            PythonWork, Welcome, Work,
        },
        engine::{Checkpoint, FailureCause, GroupEvent, Metrics, Number, Report},
        group::MemoryLimit,
        node::ProcessFault,
    },
};

/// What one side says to the other: something for those above, or only that it is there.
#[derive(Debug, PartialEq)]
pub(super) enum Said<T> {
    Heartbeat { at_ms: u64 },
    Message(T),
}

/// A part with a value that makes no sense.
fn wrong<E: ToString>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Message { what, problem: error.to_string() }
}

/// The first message of an agent.
pub(super) fn agent_hello(event: proto::AgentEvent) -> Result<AgentHello, Error> {
    match event.kind {
        Some(EventKind::Hello(hello)) => hello.try_into(),
        _ => Err(Error::Message {
            what: "the first message of an agent",
            problem: "it is not a hello".to_owned(),
        }),
    }
}

impl From<AgentHello> for proto::AgentEvent {
    fn from(hello: AgentHello) -> Self {
        let AgentHello { build, incarnation, name, address, island, nodes, ends_in_s, job, held } = hello;
        let (address, nodes, held) = (address.map(|address| address.to_string()), each(nodes), each(held));
        let hello =
            proto::AgentHello { build, incarnation, name, address, island, nodes, ends_in_s, job, held };
        Self { kind: Some(EventKind::Hello(hello)) }
    }
}

impl TryFrom<proto::AgentHello> for AgentHello {
    type Error = Error;

    fn try_from(hello: proto::AgentHello) -> Result<Self, Error> {
        let proto::AgentHello { build, incarnation, name, address, island, nodes, ends_in_s, job, held } =
            hello;
        let address = address.map(|address| address.parse()).transpose();
        let address = address.map_err(wrong::<AddrParseError>("the address of an agent"))?;
        let (nodes, held) = (try_each(nodes)?, try_each(held)?);
        Ok(Self { build, incarnation, name, address, island, nodes, ends_in_s, job, held })
    }
}

/// All of a list, converted, unless one makes no sense.
fn try_each<T, U: TryFrom<T, Error = Error>>(list: Vec<T>) -> Result<Vec<U>, Error> {
    list.into_iter().map(U::try_from).collect()
}

impl From<AgentNode> for proto::AgentNode {
    fn from(AgentNode { gpu_type, slots }: AgentNode) -> Self {
        Self { gpu_type: gpu_type.into(), slots: each(slots) }
    }
}

impl TryFrom<proto::AgentNode> for AgentNode {
    type Error = Error;

    fn try_from(proto::AgentNode { gpu_type, slots }: proto::AgentNode) -> Result<Self, Error> {
        let gpu_type = GpuType::new(&gpu_type).map_err(wrong::<EmptyGpuType>("AgentNode"))?;
        Ok(Self { gpu_type, slots: each(slots) })
    }
}

super::convert::alike! {
    AgentSlot { device, memory_bytes, threads }
    Checkpoint { name, epochs }
}

pub(super) fn study_id(text: &str, what: &'static str) -> Result<StudyId, Error> {
    text.parse().map_err(wrong::<InvalidStudyId>(what))
}

impl From<HeldCheckpoint> for proto::HeldCheckpoint {
    fn from(HeldCheckpoint { study, trial, file }: HeldCheckpoint) -> Self {
        Self { study: study.to_string(), trial: trial.0, file }
    }
}

impl TryFrom<proto::HeldCheckpoint> for HeldCheckpoint {
    type Error = Error;

    fn try_from(proto::HeldCheckpoint { study, trial, file }: proto::HeldCheckpoint) -> Result<Self, Error> {
        Ok(Self { study: study_id(&study, "HeldCheckpoint")?, trial: TrialId(trial), file })
    }
}

impl From<SlotId> for proto::SlotOfNode {
    fn from(SlotId { node, index }: SlotId) -> Self {
        Self { node: node.0, slot: index }
    }
}

impl From<proto::SlotOfNode> for SlotId {
    fn from(proto::SlotOfNode { node, slot }: proto::SlotOfNode) -> Self {
        slot_id(node, slot)
    }
}

fn slot(of: Option<proto::SlotOfNode>, what: &'static str) -> Result<SlotId, Error> {
    Ok(part(of, what, "slot")?.into())
}

const fn process(node: NodeId, process: u32) -> proto::Process {
    proto::Process { node: node.0, process }
}

const fn start(trial: TrialId, generation: Generation) -> proto::ProgramStart {
    proto::ProgramStart { trial: trial.0, generation: generation.0 }
}

const fn of_start(proto::ProgramStart { trial, generation }: proto::ProgramStart) -> (TrialId, Generation) {
    (TrialId(trial), Generation(generation))
}

same_names! { ProcessFault { Own, Killed, Environment } }

impl From<Said<AgentEvent>> for proto::AgentEvent {
    fn from(said: Said<AgentEvent>) -> Self {
        let kind = match said {
            Said::Heartbeat { at_ms } => EventKind::Heartbeat(proto::Heartbeat { at_ms }),
            Said::Message(event) => event.into(),
        };
        Self { kind: Some(kind) }
    }
}

impl From<AgentEvent> for EventKind {
    fn from(event: AgentEvent) -> Self {
        match event {
            AgentEvent::Ended { node, process: number, how, fault, output } => {
                let fault = proto::ProcessFault::from(fault).into();
                Self::Ended(proto::ProcessEnded { process: Some(process(node, number)), how, fault, output })
            }
            AgentEvent::WorkerJoined { slot } => Self::WorkerJoined(slot.into()),
            AgentEvent::Worker { slot, event } => {
                Self::Worker(proto::FromWorker { slot: Some(slot.into()), event: Some(event.into()) })
            }
            AgentEvent::WorkerLost { slot } => Self::WorkerLost(slot.into()),
            AgentEvent::Program { trial, generation, event } => Self::Program(proto::ProgramEvent {
                start: Some(start(trial, generation)),
                event: Some(event.into()),
            }),
            AgentEvent::ProgramGone { trial, generation } => Self::ProgramGone(start(trial, generation)),
            AgentEvent::Draining { within_s, reason } => {
                Self::Draining(proto::AgentDraining { within_s, reason })
            }
        }
    }
}

impl TryFrom<proto::AgentEvent> for Said<AgentEvent> {
    type Error = Error;

    fn try_from(event: proto::AgentEvent) -> Result<Self, Error> {
        Ok(Self::Message(match part(event.kind, "an event of an agent", "kind that is known")? {
            EventKind::Hello(_) => {
                let problem = "it comes again, after the first message".to_owned();
                return Err(Error::Message { what: "AgentHello", problem });
            }
            EventKind::Heartbeat(proto::Heartbeat { at_ms }) => return Ok(Self::Heartbeat { at_ms }),
            EventKind::Ended(ended) => {
                let fault = ended.fault().into();
                let proto::ProcessEnded { process, how, output, .. } = ended;
                let proto::Process { node, process } = part(process, "ProcessEnded", "process")?;
                AgentEvent::Ended { node: NodeId(node), process, how, fault, output }
            }
            EventKind::WorkerJoined(slot) => AgentEvent::WorkerJoined { slot: slot.into() },
            EventKind::Worker(proto::FromWorker { slot: from, event }) => AgentEvent::Worker {
                slot: slot(from, "FromWorker")?,
                event: part(event, "FromWorker", "event")?.try_into()?,
            },
            EventKind::WorkerLost(slot) => AgentEvent::WorkerLost { slot: slot.into() },
            EventKind::Program(proto::ProgramEvent { start, event }) => {
                let (trial, generation) = of_start(part(start, "ProgramEvent", "start")?);
                let event = part(event, "ProgramEvent", "event")?.try_into()?;
                AgentEvent::Program { trial, generation, event }
            }
            EventKind::ProgramGone(start) => {
                let (trial, generation) = of_start(start);
                AgentEvent::ProgramGone { trial, generation }
            }
            EventKind::Draining(proto::AgentDraining { within_s, reason }) => {
                AgentEvent::Draining { within_s, reason }
            }
        }))
    }
}

impl From<Said<AgentCommand>> for proto::AgentCommand {
    fn from(said: Said<AgentCommand>) -> Self {
        let kind = match said {
            Said::Heartbeat { at_ms } => CommandKind::Heartbeat(proto::Heartbeat { at_ms }),
            Said::Message(command) => command.into(),
        };
        Self { kind: Some(kind) }
    }
}

impl From<AgentCommand> for CommandKind {
    fn from(command: AgentCommand) -> Self {
        match command {
            AgentCommand::Welcome(welcome) => Self::Welcome((*welcome).into()),
            AgentCommand::Start { node, process: number } => Self::Start(process(node, number)),
            AgentCommand::Kill { node, process: number } => Self::Kill(process(node, number)),
            AgentCommand::ToWorker { slot, command } => {
                Self::ToWorker(proto::ToWorker { slot: Some(slot.into()), command: Some(command.into()) })
            }
            AgentCommand::Launch(launch) => Self::Launch((*launch).into()),
            AgentCommand::StopProgram { trial, generation } => Self::StopProgram(start(trial, generation)),
            AgentCommand::ReportTaken { trial, generation } => Self::ReportTaken(start(trial, generation)),
            AgentCommand::Leave { reason } => Self::Leave(proto::Leave { reason }),
        }
    }
}

impl TryFrom<proto::AgentCommand> for Said<AgentCommand> {
    type Error = Error;

    fn try_from(command: proto::AgentCommand) -> Result<Self, Error> {
        Ok(Self::Message(match part(command.kind, "a command to an agent", "kind that is known")? {
            CommandKind::Heartbeat(proto::Heartbeat { at_ms }) => return Ok(Self::Heartbeat { at_ms }),
            CommandKind::Welcome(welcome) => AgentCommand::Welcome(Box::new(welcome.try_into()?)),
            CommandKind::Start(proto::Process { node, process }) => {
                AgentCommand::Start { node: NodeId(node), process }
            }
            CommandKind::Kill(proto::Process { node, process }) => {
                AgentCommand::Kill { node: NodeId(node), process }
            }
            CommandKind::ToWorker(proto::ToWorker { slot: to, command }) => AgentCommand::ToWorker {
                slot: slot(to, "ToWorker")?,
                command: part(command, "ToWorker", "command")?.try_into()?,
            },
            CommandKind::Launch(launch) => AgentCommand::Launch(Box::new(launch.try_into()?)),
            CommandKind::StopProgram(start) => {
                let (trial, generation) = of_start(start);
                AgentCommand::StopProgram { trial, generation }
            }
            CommandKind::ReportTaken(start) => {
                let (trial, generation) = of_start(start);
                AgentCommand::ReportTaken { trial, generation }
            }
            CommandKind::Leave(proto::Leave { reason }) => AgentCommand::Leave { reason },
        }))
    }
}

impl From<Welcome> for proto::Welcome {
    fn from(Welcome { study, epoch, nodes, work, folder, probe, wanted }: Welcome) -> Self {
        Self {
            study: study.to_string(),
            epoch,
            nodes: nodes.into_iter().map(|node| node.0).collect(),
            work: Some(work.into()),
            folder: folder.as_os_str().as_bytes().to_vec(),
            probe,
            wanted: each(wanted),
        }
    }
}

impl TryFrom<proto::Welcome> for Welcome {
    type Error = Error;

    fn try_from(welcome: proto::Welcome) -> Result<Self, Error> {
        let proto::Welcome { study, epoch, nodes, work, folder, probe, wanted } = welcome;
        Ok(Self {
            study: study_id(&study, "Welcome")?,
            epoch,
            nodes: nodes.into_iter().map(NodeId).collect(),
            work: part(work, "Welcome", "work")?.try_into()?,
            folder: OsString::from_vec(folder).into(),
            probe,
            wanted: try_each(wanted)?,
        })
    }
}

impl From<Work> for proto::Work {
    fn from(work: Work) -> Self {
        let kind = match work {
            Work::Trainable => WorkKind::Trainable(proto::Nothing {}),
            Work::Emulated { time_scale } => WorkKind::Emulated(time_scale),
            Work::Programs => WorkKind::Programs(proto::Nothing {}),
            Work::Python(work) => {
                let PythonWork { interpreter, arguments, env, folder } = *work;
                let folder = folder.map(|folder| folder.into_os_string().into_vec());
                WorkKind::Python(proto::PythonWork { interpreter, arguments, env, folder })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::Work> for Work {
    type Error = Error;

    fn try_from(work: proto::Work) -> Result<Self, Error> {
        Ok(match part(work.kind, "Work", "kind that is known")? {
            WorkKind::Trainable(proto::Nothing {}) => Self::Trainable,
            WorkKind::Emulated(time_scale) => Self::Emulated { time_scale },
            WorkKind::Programs(proto::Nothing {}) => Self::Programs,
            WorkKind::Python(proto::PythonWork { interpreter, arguments, env, folder }) => {
                let folder = folder.map(|folder| OsString::from_vec(folder).into());
                Self::Python(Box::new(PythonWork { interpreter, arguments, env, folder }))
            }
        })
    }
}

impl From<ProgramLaunch> for proto::ProgramLaunch {
    fn from(launch: ProgramLaunch) -> Self {
        Self {
            start: Some(start(launch.trial, launch.generation)),
            slots: each(launch.slots),
            words: launch.words,
            params_json: serde_json::to_string(&launch.params)
                .expect("names and plain values are always JSON"),
            epochs: launch.epochs,
            silence_s: launch.silence_s,
            grace_s: launch.grace_s,
            share: launch.share,
            absent: launch.absent,
            env: launch.env,
            folder: launch.folder.map(|folder| folder.into_os_string().into_vec()),
            objectives: launch.objectives,
        }
    }
}

impl TryFrom<proto::ProgramLaunch> for ProgramLaunch {
    type Error = Error;

    fn try_from(launch: proto::ProgramLaunch) -> Result<Self, Error> {
        let (trial, generation) = of_start(part(launch.start, "ProgramLaunch", "start")?);
        let slots = launch.slots.into_iter().map(|on| slot(Some(on), "ProgramLaunch"));
        let params = serde_json::from_str(&launch.params_json).map_err(|error| Error::Message {
            what: "ProgramLaunch",
            problem: format!("its parameters make no sense: {error}"),
        })?;
        Ok(Self {
            trial,
            generation,
            slots: slots.collect::<Result<_, _>>()?,
            share: launch.share,
            words: launch.words,
            params,
            absent: launch.absent,
            env: launch.env,
            folder: launch.folder.map(|folder| OsString::from_vec(folder).into()),
            epochs: launch.epochs,
            objectives: launch.objectives,
            silence_s: launch.silence_s,
            grace_s: launch.grace_s,
        })
    }
}

fn numbers(metrics: Metrics) -> BTreeMap<String, f64> {
    metrics.into_iter().map(|(name, number)| (name, number.value())).collect()
}

fn metrics(numbers: BTreeMap<String, f64>) -> Metrics {
    numbers.into_iter().map(|(name, number)| (name, Number::from(number))).collect()
}

impl From<GroupEvent> for proto::GroupEvent {
    fn from(event: GroupEvent) -> Self {
        let kind = match event {
            GroupEvent::Formed => GroupKind::Formed(proto::Nothing {}),
            GroupEvent::Reported(Report { number, epochs, metrics, steps, noise, noise_batch }) => {
                let (metrics, steps, noise) = (numbers(metrics), each(steps), noise.map(NoiseScale::value));
                GroupKind::Reported(proto::TrialReport { number, epochs, metrics, steps, noise, noise_batch })
            }
            GroupEvent::Checkpointed(checkpoint) => GroupKind::Checkpointed(checkpoint.into()),
            GroupEvent::CheckpointFailed(reason) => GroupKind::CheckpointFailed(reason),
            GroupEvent::OutOfMemory { slot, memory: MemoryLimit { failed, limit } } => {
                GroupKind::OutOfMemory(proto::SlotOutOfMemory { slot: Some(slot.into()), failed, limit })
            }
            GroupEvent::Paused(checkpoint) => GroupKind::Paused(checkpoint.into()),
            GroupEvent::Finished(metrics) => {
                GroupKind::Finished(proto::TrialMetrics { metrics: numbers(metrics) })
            }
            GroupEvent::Failed { reason, cause } => {
                let cause = proto::FailureCause::from(cause).into();
                GroupKind::Failed(proto::TrialFailed { reason, cause })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<proto::GroupEvent> for GroupEvent {
    type Error = Error;

    fn try_from(event: proto::GroupEvent) -> Result<Self, Error> {
        Ok(match part(event.kind, "GroupEvent", "kind that is known")? {
            GroupKind::Formed(proto::Nothing {}) => Self::Formed,
            GroupKind::Reported(report) => {
                let proto::TrialReport { number, epochs, metrics: values, steps, noise, noise_batch } =
                    report;
                let steps = steps.into_iter().map(Observation::try_from).collect::<Result<_, _>>()?;
                let noise = noise.map(NoiseScale::new).transpose();
                let noise = noise.map_err(wrong::<goodput::Error>("TrialReport"))?;
                Self::Reported(Report { number, epochs, metrics: metrics(values), steps, noise, noise_batch })
            }
            GroupKind::Checkpointed(checkpoint) => Self::Checkpointed(checkpoint.into()),
            GroupKind::CheckpointFailed(reason) => Self::CheckpointFailed(reason),
            GroupKind::OutOfMemory(proto::SlotOutOfMemory { slot: at, failed, limit }) => {
                let memory = MemoryLimit { failed, limit };
                Self::OutOfMemory { slot: slot(at, "SlotOutOfMemory")?, memory }
            }
            GroupKind::Paused(checkpoint) => Self::Paused(checkpoint.into()),
            GroupKind::Finished(proto::TrialMetrics { metrics: values }) => Self::Finished(metrics(values)),
            GroupKind::Failed(failed) => {
                let cause = FailureCause::from(failed.cause());
                Self::Failed { reason: failed.reason, cause }
            }
        })
    }
}
