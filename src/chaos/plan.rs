//! What a seed stands for: a cluster, a study, and the faults that happen to it.

use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    alloc::PolicyKind,
    ids::{GpuType, NodeId},
    space::Study,
    trials::{engine::TrialKind, node::NodeDescription},
};

/// Everything that can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `kill -9` of a worker process.
    WorkerKilled,
    /// A worker process ends by itself.
    WorkerExits,
    /// The connection of a worker breaks, both ends live.
    ConnectionLost,
    /// A worker process stands still, for a while or until somebody notices.
    WorkerStopped,
    /// The threads of a process that train stand still for ever, while its connections live.
    WorkerStuck,
    /// All processes of a machine die, and cannot be started for a while.
    NodeLost,
    /// A machine is announced to leave, and does so; it comes again later.
    NodeDrains,
    /// A machine is gone without a word, and comes again later.
    NodeRemoved,
    /// A process ends, or stands still, before its workers have connected.
    StartFails,
    /// `kill -9` of the head, at some point between journal and commands.
    HeadKilled,
    /// The machine of head and journal loses power: what was not durable is gone.
    PowerLost,
    /// No space is left for a while, neither for the journal nor for checkpoints.
    DiskFull,
    /// The user stops the study, and resumes it.
    StudyStopped,
    /// The user pauses the study, and lets it continue later.
    StudyPaused,
    /// The clock of the head has jumped, to be seen when it starts or by a moment that comes again.
    ClockJumped,
    /// Messages take seconds for a while.
    SlowMessages,
    /// No plan is found.
    SolverFails,
    /// The suggester has nothing but an error: the study ends with what it has.
    SuggesterFails,
    /// The speed of a trial cannot be fitted.
    FitFails,
    /// A trial fails by its own fault.
    TrialFails,
    /// A collective operation fails though all members live.
    GroupBreaks,
    /// Something that all trials share is amiss.
    EnvironmentFails,
    /// A pass does not fit into the memory of a device, be it before gradients are sent or amid that.
    MemoryExhausted,
}

impl Fault {
    pub(crate) const ALL: [Self; 23] = [
        Self::WorkerKilled,
        Self::WorkerExits,
        Self::ConnectionLost,
        Self::WorkerStopped,
        Self::WorkerStuck,
        Self::NodeLost,
        Self::NodeDrains,
        Self::NodeRemoved,
        Self::StartFails,
        Self::HeadKilled,
        Self::PowerLost,
        Self::DiskFull,
        Self::StudyStopped,
        Self::ClockJumped,
        Self::SlowMessages,
        Self::SolverFails,
        Self::SuggesterFails,
        Self::FitFails,
        Self::TrialFails,
        Self::GroupBreaks,
        Self::EnvironmentFails,
        Self::MemoryExhausted,
        Self::StudyPaused,
    ];

    /// Whether it can happen to trials that are not elastic: they have neither workers nor plans.
    const fn is_for_all(self) -> bool {
        matches!(
            self,
            Self::NodeDrains
                | Self::NodeRemoved
                | Self::HeadKilled
                | Self::PowerLost
                | Self::DiskFull
                | Self::StudyStopped
                | Self::StudyPaused
                | Self::ClockJumped
                | Self::SlowMessages
                | Self::SuggesterFails
                | Self::TrialFails
                | Self::GroupBreaks
                | Self::EnvironmentFails
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // So that widths count.
        f.pad(match self {
            Self::WorkerKilled => "worker killed",
            Self::WorkerExits => "worker exits",
            Self::ConnectionLost => "connection lost",
            Self::WorkerStopped => "worker stopped",
            Self::WorkerStuck => "worker stuck",
            Self::NodeLost => "node lost",
            Self::NodeDrains => "node drains",
            Self::NodeRemoved => "node removed",
            Self::StartFails => "start fails",
            Self::HeadKilled => "head killed",
            Self::PowerLost => "power lost",
            Self::DiskFull => "disk full",
            Self::StudyStopped => "study stopped",
            Self::StudyPaused => "study paused",
            Self::ClockJumped => "clock jumped",
            Self::SlowMessages => "slow messages",
            Self::SolverFails => "solver fails",
            Self::SuggesterFails => "suggester fails",
            Self::FitFails => "fit fails",
            Self::TrialFails => "trial fails",
            Self::GroupBreaks => "group breaks",
            Self::EnvironmentFails => "environment fails",
            Self::MemoryExhausted => "memory exhausted",
        })
    }
}

/// All that follows from a seed before anything has happened.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) study: Study,
    pub(super) kind: TrialKind,
    pub(super) nodes: Vec<NodeDescription>,
    /// The faults of this run: some are left out, so that the others come to something.
    pub(super) faults: Vec<Fault>,
    /// Mean seconds from fault to fault.
    pub(super) every_s: f64,
    /// How long they last.
    pub(super) faults_s: f64,
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Result<Self, String> {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let kind = match rng.random_range(0..10) {
            0 => TrialKind::Restarted,
            1 => TrialKind::Rigid,
            _ => TrialKind::Elastic,
        };
        let nodes = cluster(rng)?;
        let yaml = study(rng, kind, &nodes);
        let study = Study::from_yaml("study.yaml", &yaml).map_err(|error| error.to_string())?;
        let share = rng.random_range(0.2..0.9);
        let possible =
            Fault::ALL.into_iter().filter(|fault| kind == TrialKind::Elastic || fault.is_for_all());
        let mut faults: Vec<Fault> = possible.filter(|_| rng.random_bool(share)).collect();
        if faults.is_empty() {
            faults.push(Fault::HeadKilled);
        }
        let (every_s, faults_s) = (rng.random_range(3.0..40.0), rng.random_range(60.0..400.0));
        Ok(Self { study, kind, nodes, faults, every_s, faults_s })
    }
}

fn cluster(rng: &mut ChaCha8Rng) -> Result<Vec<NodeDescription>, String> {
    let nodes = rng.random_range(1..=3);
    let types = ["t4", "a100"];
    let describe = |number| {
        let name = types[rng.random_range(0..types.len())];
        let gpu_type = GpuType::new(name).map_err(|error| error.to_string())?;
        // A process serves one slot, as with libtorch, or several, as emulated devices do.
        let processes = (0..rng.random_range(1..=3)).map(|_| rng.random_range(1..=2)).collect();
        Ok(NodeDescription { node: NodeId(number), name: String::new(), gpu_type, island: 0, processes })
    };
    (0..nodes).map(describe).collect()
}

fn study(rng: &mut ChaCha8Rng, kind: TrialKind, nodes: &[NodeDescription]) -> String {
    let slots: u32 = nodes.iter().flat_map(|node| &node.processes).sum();
    let min_gpus = if kind == TrialKind::Elastic && slots >= 4 && rng.random_bool(0.2) { 2 } else { 1 };
    let policy = PolicyKind::NAMES[rng.random_range(0..PolicyKind::NAMES.len())];
    let rule = ["none", "none", "asha", "hyperband", "median", "patience"][rng.random_range(0..6)];
    let algorithm = ["random", "halton", "tpe", "grid"][rng.random_range(0..4)];
    let largest = nodes.iter().map(|node| node.processes.iter().sum::<u32>()).max().unwrap_or(1);
    let least = rng.random_range(1..=largest.min(2));
    let program = match kind {
        TrialKind::Elastic => "trainable: modelled, ".to_owned(),
        // Functions, or programs with one slot or two.
        TrialKind::Rigid if rng.random_bool(0.5) => String::new(),
        TrialKind::Rigid => format!("command: train, gpus: {least}, "),
        TrialKind::Restarted => format!("command: train, gpus: {least}..{}, elastic: restart, ", least + 3),
    };
    let (trials, parallel) = (rng.random_range(2..=8), rng.random_range(1..=4));
    let (epochs, seed) = (rng.random_range(2..=5), rng.random_range(0..1_000_000));
    let (saved_s, interval_s) = (rng.random_range(2..=15), rng.random_range(10..=60));
    let is_immediate = rng.random_bool(0.8);
    format!(
        "space: {{x: {{float: [0, 1]}}, lr: {{log: [1e-4, 1]}}}}\n\
         objective: {{minimize: loss}}\n\
         trial: {{{program}epochs: {epochs}, initial_batch: 64, max_batch: 512, min_gpus: {min_gpus}, \
         checkpoint_interval: {saved_s}s}}\n\
         search: {{trials: {trials}, parallel: {parallel}, seed: {seed}, algorithm: {algorithm}, \
         early_stopping: {{rule: {rule}}}}}\n\
         scheduler: {{policy: {policy}, interval: {interval_s}s, immediate: {is_immediate}}}\n"
    )
}
