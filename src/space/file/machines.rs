//! Where the machines of a study come from.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    alloc::{ClusterSpec, Node, NodeSet},
    ids::GpuType,
};

/// Where machines come from: `cluster` of a study file or a cluster file as a mapping.
///
/// ```
/// use pollux_tune::space::Machines;
/// let yaml = "
/// cluster:
///   slurm:
///     - {nodes: 1..2, gres: 'gpu:a100:8', partition: gpu, time: 4h}
///     - {nodes: 0..4, gres: 'gpu:t4:4', partition: spot, setup: module load cuda}
///   hosts: [gpu1, user@gpu2, {host: gpu3, slots: 4xcpu}]
/// ";
/// let machines = Machines::from_yaml("cluster.yaml", yaml)?;
/// assert_eq!((machines.slurm[0].nodes.min, machines.slurm[1].nodes.max), (1, 4));
/// assert_eq!(machines.hosts[1].host, "user@gpu2");
/// assert_eq!(machines.most().unwrap().to_string(), "2x8xa100,4x4xt4");
/// # Ok::<(), pollux_tune::space::Diagnostics>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Machines {
    /// Where the head listens for agents: a name or an address, and perhaps a port. By default it chooses by itself.
    pub listen: Option<String>,
    /// Jobs that are submitted to Slurm, each an agent on one node.
    pub slurm: Vec<PilotSpec>,
    /// Machines on which agents are started by ssh.
    pub hosts: Vec<SshHost>,
}

impl Machines {
    /// As many nodes of Slurm as there may be; none if the type of some is not known.
    #[must_use]
    pub fn most(&self) -> Option<ClusterSpec> {
        let sets = self.slurm.iter().filter(|spec| spec.nodes.max > 0).map(|spec| {
            let (gpu_type, gpus) = (spec.gpu_type()?, spec.slots());
            Some(NodeSet { nodes: spec.nodes.max, gpus, gpu_type })
        });
        let node_sets = sets.collect::<Option<Vec<_>>>()?;
        (!node_sets.is_empty()).then_some(ClusterSpec { node_sets })
    }
}

impl fmt::Display for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.slurm.is_empty() {
            let specs: Vec<String> =
                self.slurm.iter().map(|spec| format!("{} of {spec}", spec.nodes)).collect();
            parts.push(format!("nodes of Slurm: {}", specs.join(", ")));
        }
        if !self.hosts.is_empty() {
            let hosts: Vec<&str> = self.hosts.iter().map(|host| host.host.as_str()).collect();
            parts.push(format!("hosts: {}", hosts.join(", ")));
        }
        parts.extend(self.listen.as_ref().map(|listen| format!("agents that come to {listen}")));
        f.write_str(&parts.join("; "))
    }
}

/// How many nodes of a kind a study holds: `2`, or `0..4` for what it can make use of.
///
/// ```
/// use pollux_tune::space::NodeRange;
/// assert_eq!("0..4".parse(), Ok(NodeRange { min: 0, max: 4 }));
/// assert_eq!("2".parse::<NodeRange>()?.to_string(), "2");
/// assert!("4..2".parse::<NodeRange>().is_err());
/// # Ok::<(), pollux_tune::space::InvalidMachines>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRange {
    /// As long as there is work, no fewer are asked for.
    pub min: u32,
    /// Never more; at least 1.
    pub max: u32,
}

impl FromStr for NodeRange {
    type Err = InvalidMachines;

    fn from_str(text: &str) -> Result<Self, InvalidMachines> {
        let number = |text: &str| digits(text, NodeSet::NODES_MAX).ok_or(InvalidMachines);
        let (min, max) = match text.split_once("..") {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        if max == 0 || min > max { Err(InvalidMachines) } else { Ok(Self { min, max }) }
    }
}

impl fmt::Display for NodeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max } = self;
        if min == max { write!(f, "{max}") } else { write!(f, "{min}..{max}") }
    }
}

/// GPUs as Slurm counts them, of one node: `gpu:a100:8` or `gpu:8`.
///
/// ```
/// use pollux_tune::space::Gres;
/// let gres: Gres = "gpu:a100:8".parse()?;
/// assert_eq!((gres.kind.as_deref(), gres.count), (Some("a100"), 8));
/// # Ok::<(), pollux_tune::space::InvalidMachines>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gres {
    /// Their type, as the Slurm of this cluster calls it.
    pub kind: Option<String>,
    /// How many.
    pub count: u32,
}

impl FromStr for Gres {
    type Err = InvalidMachines;

    fn from_str(text: &str) -> Result<Self, InvalidMachines> {
        let rest = text.strip_prefix("gpu:").ok_or(InvalidMachines)?;
        let (kind, count) = match rest.rsplit_once(':') {
            Some((kind, count)) => (Some(kind), count),
            None => (None, rest),
        };
        let count = digits(count, Node::GPUS_MAX).filter(|count| *count > 0).ok_or(InvalidMachines)?;
        if kind.is_some_and(|kind| !is_name(kind)) {
            return Err(InvalidMachines);
        }
        Ok(Self { kind: kind.map(str::to_owned), count })
    }
}

impl fmt::Display for Gres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "gpu:{kind}:{}", self.count),
            None => write!(f, "gpu:{}", self.count),
        }
    }
}

/// What an agent is to say that its machine has, instead of its GPUs: `4xcpu`.
///
/// ```
/// use pollux_tune::space::SlotSet;
/// let slots: SlotSet = "4xcpu".parse()?;
/// assert_eq!((slots.count, slots.gpu_type.name()), (4, "cpu"));
/// # Ok::<(), pollux_tune::space::InvalidMachines>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSet {
    /// How many slots.
    pub count: u32,
    /// What they count as.
    pub gpu_type: GpuType,
}

impl FromStr for SlotSet {
    type Err = InvalidMachines;

    fn from_str(text: &str) -> Result<Self, InvalidMachines> {
        let (count, name) = text.split_once('x').ok_or(InvalidMachines)?;
        let count = digits(count, Node::GPUS_MAX).filter(|count| *count > 0).ok_or(InvalidMachines)?;
        if !is_name(name) {
            return Err(InvalidMachines);
        }
        Ok(Self { count, gpu_type: GpuType::new(name).map_err(|_| InvalidMachines)? })
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.count, self.gpu_type)
    }
}

/// A text that is no number of nodes, no gres or no slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not have the right form")]
pub struct InvalidMachines;

/// Pilots of one kind: jobs of one node each, on which an agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PilotSpec {
    /// How many.
    pub nodes: NodeRange,
    /// The GPUs of each; none for slots of the processor.
    pub gres: Option<Gres>,
    /// Slots instead of the GPUs that the agent finds.
    pub slots: Option<SlotSet>,
    /// Slurm's partition; none for the default one.
    pub partition: Option<String>,
    /// The time limit; none for that of the partition.
    pub time: Option<Duration>,
    /// Lines of shell that come before the agent.
    pub setup: Option<String>,
    /// Who pays.
    pub account: Option<String>,
    /// Slurm's quality of service.
    pub qos: Option<String>,
    /// Cores; none for one for each slot.
    pub cpus: Option<u32>,
    /// Further options of `sbatch`.
    pub extra: Vec<String>,
}

impl PilotSpec {
    /// Slots of a node.
    #[must_use]
    pub fn slots(&self) -> u32 {
        let gpus = self.gres.as_ref().map_or(1, |gres| gres.count);
        self.slots.as_ref().map_or(gpus, |slots| slots.count)
    }

    /// What the slots are, as far as the file says so.
    #[must_use]
    pub fn gpu_type(&self) -> Option<GpuType> {
        let kind = || GpuType::new(self.gres.as_ref()?.kind.as_deref()?).ok();
        self.slots.as_ref().map(|slots| slots.gpu_type.clone()).or_else(kind)
    }

    /// Cores to ask for.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.cpus.unwrap_or_else(|| self.slots())
    }
}

impl fmt::Display for PilotSpec {
    /// For people: `gpu:a100:8 (gpu)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.gres, &self.slots) {
            (Some(gres), _) => write!(f, "{gres}")?,
            (None, Some(slots)) => write!(f, "{slots}")?,
            (None, None) => f.write_str("a node")?,
        }
        self.partition.as_ref().map_or(Ok(()), |partition| write!(f, " ({partition})"))
    }
}

/// A machine that an agent is started on by ssh.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SshHost {
    /// As ssh takes it: `gpu1`, `user@gpu2`, or a name of the user's ssh configuration.
    pub host: String,
    /// This program over there; none for the path that it has here.
    pub program: Option<String>,
    /// Slots instead of the GPUs that the agent finds.
    pub slots: Option<SlotSet>,
}

/// A number that is nothing but digits.
fn digits(text: &str, max: u32) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten().filter(|number| *number <= max)
}

/// A word that needs no quotes anywhere.
pub(super) fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.+".contains(c))
}

/// Names with commas between: Slurm takes the first partition that has room.
pub(super) fn is_name_list(text: &str) -> bool {
    text.split(',').all(is_name)
}

/// What ssh takes as a host, and nothing that it takes as an option.
pub(super) fn is_host(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '[');
    begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.@:[]%".contains(c))
}

/// A name or an address, and perhaps a port.
pub(super) fn is_listen(text: &str) -> bool {
    let port = |text: &str| text.parse::<u16>().is_ok();
    let (host, port_is_right) = match text.rsplit_once(':') {
        // An address of IPv6 without a port has colons, too.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => (text, true),
        Some((host, end)) => (host, port(end)),
        None => (text, true),
    };
    port_is_right
        && (host.is_empty() || is_host(host) || host.contains(':'))
        && !text.contains(char::is_whitespace)
}

/// An option of sbatch as one word, which needs no quotes in a script, and which is not ours.
pub(super) fn is_option(text: &str) -> bool {
    let name = text.split('=').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_graphic() && !"\"'\\#`$".contains(c);
    text.starts_with("--") && text.len() > 2 && text.chars().all(plain) && !OURS.contains(&name)
}

/// Options that a pilot has of its own, or that have a key.
const OURS: [&str; 17] = [
    "--array",
    "--nodes",
    "--ntasks",
    "--cpus-per-task",
    "--gres",
    "--gpus",
    "--partition",
    "--time",
    "--account",
    "--qos",
    "--signal",
    "--output",
    "--error",
    "--open-mode",
    "--requeue",
    "--parsable",
    "--export",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_and_others_are_not() {
        for wrong in ["", "0", "0..0", "3..2", "-1", "+1", "1..", "..2", "1...2", "1..70000", "a"] {
            assert_eq!(wrong.parse::<NodeRange>(), Err(InvalidMachines), "{wrong}");
        }
        for (text, kind, count) in [("gpu:8", None, 8), ("gpu:tesla:2", Some("tesla"), 2)] {
            assert_eq!(text.parse(), Ok(Gres { kind: kind.map(str::to_owned), count }));
            assert_eq!(text.parse::<Gres>().unwrap().to_string(), text);
        }
        for wrong in ["", "gpu", "gpu:", "gpu:a100", "gpu:0", "gpu:a b:1", "gpu:a:b:1", "shard:1", "gpu::2"] {
            assert_eq!(wrong.parse::<Gres>(), Err(InvalidMachines), "{wrong}");
        }
        for wrong in ["", "4", "x", "4x", "0xcpu", "4xa b", "2000xcpu"] {
            assert_eq!(wrong.parse::<SlotSet>(), Err(InvalidMachines), "{wrong}");
        }
    }

    #[test]
    fn nothing_that_ssh_or_a_script_would_take_for_something_else_gets_in() {
        for host in ["gpu1", "user@gpu2.example.org", "[::1]", "10.0.0.1", "ssh://gpu1:22"] {
            assert_eq!(is_host(host), !host.contains('/'), "{host}");
        }
        for host in ["", "-oProxyCommand=x", "a b", "$(reboot)", "a;b", "a\nb"] {
            assert!(!is_host(host), "{host}");
        }
        for option in ["--mem=32G", "--exclusive", "--constraint=a100&nvlink", "--reservation=x"] {
            assert!(is_option(option), "{option}");
        }
        for option in ["mem", "--", "--comment=a b", "--x=$(reboot)", "--array=0-9", "--time=1", "--x=\"\""] {
            assert!(!is_option(option), "{option}");
        }
        for listen in ["0.0.0.0", "0.0.0.0:7000", "head:0", ":7000", "[::]:7000", "::", "fe80::1"] {
            assert!(is_listen(listen), "{listen}");
        }
        for listen in ["head:x", "head:70000", "a b", "-x"] {
            assert!(!is_listen(listen), "{listen}");
        }
    }
}
