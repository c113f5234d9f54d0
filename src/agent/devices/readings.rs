//! What a machine says of itself.

use std::{collections::BTreeMap, env, fs, path::Path, process::Command, process::Stdio, thread};

/// Variables of the environment that limit what a process may use.
pub(super) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
pub(super) const ORDINAL: &str = "GPU_DEVICE_ORDINAL";
pub(super) const ORDER: &str = "CUDA_DEVICE_ORDER";
pub(super) const SLURM_STEP: &str = "SLURM_STEP_GPUS";
pub(super) const SLURM_JOB: &str = "SLURM_JOB_GPUS";
pub(super) const SLURM_ID: &str = "SLURM_JOB_ID";
const SLURM_CPUS: &str = "SLURM_CPUS_ON_NODE";

/// Texts as they were read; nothing is decided here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Readings {
    /// Of the environment, those that matter.
    pub(crate) variables: BTreeMap<&'static str, String>,
    /// `nvidia-smi -L`, if it could be run. It lists only what a control group lets this process see.
    pub(crate) listed: Option<String>,
    /// `nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader`.
    pub(crate) queried: Option<String>,
    /// The driver's own files, in the order of the bus: for machines without `nvidia-smi`.
    pub(crate) information: Vec<String>,
    /// Cores that this process may use, by affinity and control group.
    pub(crate) cores: u32,
    /// How many GPUs libtorch can use, if that is what they are for.
    pub(crate) usable: Option<u32>,
}

impl Readings {
    /// Those of this machine. With `usable`, they are for libtorch.
    pub(crate) fn read(usable: Option<u32>) -> Self {
        let names = [VISIBLE, ORDINAL, ORDER, SLURM_STEP, SLURM_JOB, SLURM_ID, SLURM_CPUS];
        let variables = names
            .into_iter()
            .filter_map(|name| Some((name, env::var_os(name)?.to_string_lossy().into_owned())));
        let query = ["--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader"];
        let listed = nvidia_smi(&["-L"]);
        Self {
            variables: variables.collect(),
            queried: listed.as_ref().and_then(|_| nvidia_smi(&query)),
            listed,
            information: information(Path::new("/proc/driver/nvidia/gpus")),
            cores: thread::available_parallelism()
                .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
            usable,
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|text| text.trim())
    }

    /// The cores that this process may use: Slurm does not always see to it.
    pub(super) fn cores(&self) -> u32 {
        let given = self.variable(SLURM_CPUS).and_then(|text| text.parse::<u32>().ok());
        self.cores.min(given.unwrap_or(u32::MAX)).max(1)
    }
}

/// What it prints, if there is a driver to ask.
fn nvidia_smi(arguments: &[&str]) -> Option<String> {
    let printed = Command::new("nvidia-smi").args(arguments).stdin(Stdio::null()).output().ok()?;
    printed.status.success().then(|| String::from_utf8_lossy(&printed.stdout).into_owned())
}

fn information(folder: &Path) -> Vec<String> {
    let mut gpus: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|gpu| gpu.path()).collect();
    gpus.sort();
    gpus.iter().filter_map(|gpu| fs::read_to_string(gpu.join("information")).ok()).collect()
}
