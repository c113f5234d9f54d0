use super::super::Application;

/// The rules of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Rules {
    /// Ours: the policy is asked when a job comes or goes, and at least once in every interval; jobs fit their
    /// models and choose their batches as live ones do.
    #[default]
    Own,
    /// Those of the authors' simulator (Pollux OSDI'21), with their peculiarities: rounds of one interval, epochs that end at
    /// whole seconds, the authors' fit, 50 sampled batches, and NCF on one GPU.
    Osdi21,
    /// The world of Sia's simulator (SOSP'23), with our jobs: rounds and whole seconds as above, restarts and speeds by model,
    /// and before its start a job has tried one GPU of each type. A job pays for other GPUs, but not for other nodes.
    Sosp23,
}

impl Rules {
    /// Whether the policy is asked once in every interval, and only then, and all times are whole seconds.
    pub(in crate::sim) fn in_rounds(self) -> bool {
        self != Self::Own
    }

    /// Whether jobs fit their models, choose their batches and are placed as in the authors' simulator.
    pub(in crate::sim) fn as_authors(self) -> bool {
        self == Self::Osdi21
    }

    /// Whether a job has tried one GPU of each type before its start.
    pub(in crate::sim) fn profiles_first(self) -> bool {
        self == Self::Sosp23
    }

    /// Whether other nodes with the same GPUs come without a restart.
    pub(in crate::sim) fn moves_freely(self) -> bool {
        self == Self::Sosp23
    }

    /// Whether an application only ever runs on one GPU, with its largest batch: the authors' exception for NCF.
    pub(in crate::sim) fn keeps_on_one_gpu(self, application: &Application) -> bool {
        self.as_authors() && application.name() == "ncf"
    }

    /// The minimum number of passes in a step with a fixed batch. On one GPU the authors count with one accumulation pass.
    pub(in crate::sim) fn min_passes(self, gpus: u32) -> u32 {
        if self.as_authors() && gpus == 1 { 2 } else { 1 }
    }

    /// Seconds that a change of a job's GPUs takes, and by how much it trains slower than its step times.
    pub(in crate::sim) fn restart(self, application: &Application, delay_s: f64) -> (f64, f64) {
        match self {
            Self::Sosp23 => sia(application),
            Self::Own | Self::Osdi21 => (delay_s, 1.0),
        }
    }
}

/// What Sia's simulator has for [`Rules::restart`].
fn sia(application: &Application) -> (f64, f64) {
    match application.name() {
        "bert" => (120.0, 1.2),
        "cifar10" => (50.0, 1.8),
        "deepspeech2" => (25.0, 1.2),
        "imagenet" => (250.0, 1.2),
        "ncf" => (15.0, 1.5),
        _ => (80.0, 1.2),
    }
}
