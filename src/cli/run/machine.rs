//! The slots of this machine.

use crate::{
    agent::devices::{self, Devices, Readings, Request, SlotsWanted, TooFew},
    alloc::ClusterSpec,
    cli::output::pluralize,
    trials::agent::AgentNode,
};

/// The slots that there are for programs that are not ours: GPUs, else so many shares of the cores.
pub(super) fn program_nodes(request: &Request, shares: u32) -> Result<Vec<AgentNode>, TooFew> {
    let readings = Readings::read(None);
    let Devices { nodes, .. } = devices::decide(&readings, request)?;
    if request.slots.is_some() || has_gpus(&nodes) {
        return Ok(nodes);
    }
    let slots = Some(SlotsWanted { count: shares, gpu_type: None });
    Ok(devices::decide(&readings, &Request { slots, ..request.clone() })?.nodes)
}

/// Whether they are GPUs, and not shares of the cores.
pub(super) fn has_gpus(nodes: &[AgentNode]) -> bool {
    nodes.iter().flat_map(|node| &node.slots).any(|slot| slot.device.is_some())
}

/// The slots that trainings can use.
pub(super) struct Slots {
    pub(super) nodes: Vec<AgentNode>,
    /// What the user should know.
    notes: Vec<String>,
}

impl Slots {
    /// Nothing of this machine.
    pub(super) const fn none() -> Self {
        Self { nodes: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn describe(&self) -> String {
        let node = |AgentNode { gpu_type, slots }: &AgentNode| {
            let (count, first) = (slots.len(), slots.first());
            if first.is_some_and(|slot| slot.device.is_some()) {
                return format!("{} ({gpu_type})", pluralize(count, "GPU"));
            }
            let threads = pluralize(first.map_or(1, |slot| slot.threads) as usize, "CPU thread");
            let each = if count == 1 { "" } else { " each" };
            format!("{} of {threads}{each}", pluralize(count, "slot"))
        };
        if self.nodes.is_empty() {
            return "no slots of this machine".to_owned();
        }
        self.nodes.iter().map(node).chain(self.notes.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

/// Why there are no slots.
pub(super) enum NoSlots {
    /// The user has asked for others than there are.
    Asked(TooFew),
    /// The study file describes others than there are.
    Described { wanted: String, there: String },
}

/// The slots that were asked for, else those of the study file, else one for each GPU, else two. `usable` are the GPUs that this program can
/// train on, if it is the one who trains.
pub(super) fn slots(
    request: &Request,
    described: Option<&ClusterSpec>,
    usable: Option<u32>,
) -> Result<Slots, NoSlots> {
    let readings = Readings::read(usable);
    let mut request = request.clone();
    let described = described.filter(|_| request.slots.is_none());
    let other =
        |cluster: &ClusterSpec, there: String| NoSlots::Described { wanted: cluster.to_string(), there };
    if let Some(cluster) = described {
        let one = match &cluster.node_sets[..] {
            [set] if set.nodes == 1 => {
                Some(SlotsWanted { count: set.gpus, gpu_type: Some(set.gpu_type.clone()) })
            }
            _ => None,
        };
        // What the file calls GPUs does not become cores.
        let one = one.filter(|one| !request.cpu || one.is_cpu());
        request.slots = Some(one.ok_or_else(|| other(cluster, devices::there(&readings, &request)))?);
    }
    let decided = devices::decide(&readings, &request);
    let Devices { nodes, notes } = decided.map_err(|few| match described {
        Some(cluster) => other(cluster, few.there),
        None => NoSlots::Asked(few),
    })?;
    Ok(Slots { nodes, notes })
}
