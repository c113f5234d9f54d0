//! Messages between a head and the agents of its machines.
//!
//! An agent is the head's hand on one machine: it starts processes and programs there, and relays what they say. What is to be done is
//! decided at the head. The machine of the head itself has an agent, too, in the same process.

use core::net::IpAddr;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    engine::GroupEvent,
    group::{WorkerCommand, WorkerEvent},
    node::ProcessFault,
};
use crate::{
    ids::{Generation, GpuType, NodeId, SlotId, StudyId, TrialId},
    space::Params,
};

/// How often each side says that it is there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// An agent that has not heard of its head for so long ends all that it runs.
pub const FENCE: Duration = Duration::from_secs(20);
/// A head that has not heard of an agent for so long takes it for lost. Later than [`FENCE`], so that nothing runs there any more.
pub const LEASE: Duration = Duration::from_secs(30);

/// A slot of a machine: a GPU, or a share of its cores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSlot {
    /// The GPU as the driver names it: a number, or a UUID. None is a share of the cores.
    pub device: Option<String>,
    /// The memory of the GPU, if it is known.
    pub memory_bytes: Option<u64>,
    /// Threads that a worker may use.
    pub threads: u32,
}

/// The slots of one type that a machine has. A machine with GPUs of two types is two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentNode {
    /// Their type.
    pub gpu_type: GpuType,
    /// The slots, in their order.
    pub slots: Vec<AgentSlot>,
}

/// The first message of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentHello {
    /// The program and its version: head and agents must have the same.
    pub build: String,
    /// A random number of this agent's process: another one under the same name is another agent.
    pub incarnation: u64,
    /// The machine, as people call it. An agent that comes again has its name again, and new numbers for its nodes.
    pub name: String,
    /// Where workers of other machines reach those of this one; none if they cannot.
    pub address: Option<IpAddr>,
    /// What it is part of: machines of one island can train together.
    pub island: String,
    /// What it has.
    pub nodes: Vec<AgentNode>,
    /// How many more seconds it has, if its time is limited.
    pub ends_in_s: Option<f64>,
    /// The job that it runs in, if a head has submitted it.
    pub job: Option<String>,
    /// Checkpoints that the head may not have.
    pub held: Vec<HeldCheckpoint>,
}

/// A checkpoint on the disk of an agent that shares no file system with its head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCheckpoint {
    /// Its study.
    pub study: StudyId,
    /// Its trial.
    pub trial: TrialId,
    /// The name of its file.
    pub file: String,
}

/// What the workers of a study are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// One process for each slot, which trains.
    Trainable,
    /// The same, by Python code.
    Python(Box<PythonWork>),
    /// One process for each node, which models training.
    Emulated {
        /// Real seconds in a second of the study.
        time_scale: f64,
    },
    /// Programs of the user: none before a trial has one.
    Programs,
}

/// Python code that trains: an interpreter with the package `pollux_tune` runs it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PythonWork {
    /// What runs it; none for `python3` beside the program of the agent, or else that of the search path.
    pub interpreter: Option<String>,
    /// What the package is to run.
    pub arguments: Vec<String>,
    /// Variables in its environment, beside those that it inherits.
    pub env: BTreeMap<String, String>,
    /// The folder in which it begins; none for that of the agent.
    pub folder: Option<PathBuf>,
}

impl Work {
    /// Real seconds in a second of the study.
    #[must_use]
    pub const fn time_scale(&self) -> f64 {
        match self {
            Self::Emulated { time_scale } => *time_scale,
            Self::Trainable | Self::Python(_) | Self::Programs => 1.0,
        }
    }

    /// How many slots each process of a node serves.
    #[must_use]
    pub fn processes(&self, slots: u32) -> Vec<u32> {
        match self {
            Self::Trainable | Self::Python(_) => vec![1; slots as usize],
            Self::Emulated { .. } => vec![slots],
            Self::Programs => Vec::new(),
        }
    }
}

/// An agent is taken in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The study.
    pub study: StudyId,
    /// A number of this start of the head. The secret of its workers follows from it and the token of the study.
    pub epoch: u64,
    /// The numbers of the agent's nodes, in their order.
    pub nodes: Vec<NodeId>,
    /// What runs there.
    pub work: Work,
    /// The folder of the study on the head's machine.
    pub folder: PathBuf,
    /// What the file `shared` in that folder says. An agent that reads the same there shares the file system.
    pub probe: String,
    /// Checkpoints out of those that the agent holds: the head wants them before anything else.
    pub wanted: Vec<HeldCheckpoint>,
}

/// A program that is to be started for a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramLaunch {
    /// The trial.
    pub trial: TrialId,
    /// Its generation: no two starts have the same.
    pub generation: Generation,
    /// Where: slots of one node, at least one.
    pub slots: Vec<SlotId>,
    /// So many slots share a device.
    pub share: u32,
    /// The program and its arguments. `{name}` stands for a parameter.
    pub words: Vec<String>,
    /// What it tries.
    pub params: Params,
    /// Parameters that other trials have, and this one has not.
    pub absent: Vec<String>,
    /// Variables of its environment, beside those that it inherits.
    pub env: BTreeMap<String, String>,
    /// The folder in which it begins; none for that of the agent.
    pub folder: Option<PathBuf>,
    /// Epochs of a full trial.
    pub epochs: f64,
    /// The metrics of the objectives: what it prints counts if one of them is there.
    pub objectives: Vec<String>,
    /// The longest that it may print nothing.
    pub silence_s: Option<f64>,
    /// How long it may take to end when it is asked to.
    pub grace_s: f64,
}

/// What an agent is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentCommand {
    /// Always the first one.
    Welcome(Box<Welcome>),
    /// Start a process of a node.
    Start {
        /// The node.
        node: NodeId,
        /// Its number on the node.
        process: u32,
    },
    /// End a process at once.
    Kill {
        /// The node.
        node: NodeId,
        /// Its number on the node.
        process: u32,
    },
    /// For the worker of a slot.
    ToWorker {
        /// The slot.
        slot: SlotId,
        /// What it is to do.
        command: WorkerCommand,
    },
    /// Start the program of a trial.
    Launch(Box<ProgramLaunch>),
    /// Ask a program to end, and see to it.
    StopProgram {
        /// The trial.
        trial: TrialId,
        /// Which start.
        generation: Generation,
    },
    /// The report of a program was taken in: it may send the next.
    ReportTaken {
        /// The trial.
        trial: TrialId,
        /// Which start.
        generation: Generation,
    },
    /// Nothing more is to be done: the agent ends.
    Leave {
        /// Why, for people.
        reason: String,
    },
}

/// What has happened at an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// A process has ended, or could not be started.
    Ended {
        /// The node.
        node: NodeId,
        /// Its number on the node.
        process: u32,
        /// How it ended, or why it could not be started.
        how: String,
        /// Whose fault that is.
        fault: ProcessFault,
        /// The last lines that it printed.
        output: String,
    },
    /// A worker is connected.
    WorkerJoined {
        /// Its slot.
        slot: SlotId,
    },
    /// Something has happened at a worker.
    Worker {
        /// Its slot.
        slot: SlotId,
        /// What.
        event: WorkerEvent,
    },
    /// The connection of a worker has ended.
    WorkerLost {
        /// Its slot.
        slot: SlotId,
    },
    /// Something has happened to the program of a trial. A report awaits [`ReportTaken`](AgentCommand::ReportTaken).
    Program {
        /// The trial.
        trial: TrialId,
        /// Which start.
        generation: Generation,
        /// What.
        event: GroupEvent,
    },
    /// Nothing is left of a program.
    ProgramGone {
        /// The trial.
        trial: TrialId,
        /// Which start.
        generation: Generation,
    },
    /// The machine is taken away soon.
    Draining {
        /// In how many seconds.
        within_s: f64,
        /// Why, for people.
        reason: String,
    },
}
