//! The slots of this machine.

use crate::agent::devices::{self, Devices, Readings, Request, TooFew};
#[cfg(feature = "torch")]
use crate::{
    agent::devices::SlotsWanted, alloc::ClusterSpec, ids::GpuType, trials::agent::AgentNode, worker::Slot,
};

/// How many GPUs there are for programs that are not ours.
pub(super) fn gpu_count(request: &Request) -> Result<u32, TooFew> {
    let Devices { nodes, .. } = devices::decide(&Readings::read(None), request)?;
    let gpus = nodes.iter().flat_map(|node| &node.slots).filter(|slot| slot.device.is_some());
    Ok(u32::try_from(gpus.count()).unwrap_or(u32::MAX))
}

/// The slots that trainings can use.
#[cfg(feature = "torch")]
pub(super) struct Slots {
    pub(super) node: AgentNode,
    /// As libtorch counts them.
    pub(super) slots: Vec<Slot>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

#[cfg(feature = "torch")]
impl Slots {
    pub(super) fn describe(&self) -> String {
        let (count, gpu_type) = (self.slots.len(), &self.node.gpu_type);
        let threads = self.slots.first().map_or(1, |slot| slot.threads);
        let slots = match self.slots.first().and_then(|slot| slot.cuda) {
            Some(_) => format!("{count} GPUs ({gpu_type})"),
            None => format!("{count} slots of {threads} CPU threads each"),
        };
        [slots].into_iter().chain(self.notes.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

/// Why there are no slots.
#[cfg(feature = "torch")]
pub(super) enum NoSlots {
    /// The user has asked for others than there are.
    Asked(TooFew),
    /// The study file describes others than there are.
    Described { wanted: String, there: String },
}

/// The slots that were asked for, else those of the study file, else one for each GPU, else two.
#[cfg(feature = "torch")]
pub(super) fn slots(request: &Request, described: Option<&ClusterSpec>) -> Result<Slots, NoSlots> {
    let readings = Readings::read(Some(crate::worker::gpus()));
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
    let Devices { nodes, mut notes } = decided.map_err(|few| match described {
        Some(cluster) => other(cluster, few.there),
        None => NoSlots::Asked(few),
    })?;
    let order = devices::order(&readings);
    let is_mixed = nodes.len() > 1;
    let node = nodes.into_iter().max_by_key(|node| node.slots.len());
    let node = node.unwrap_or_else(|| AgentNode { gpu_type: GpuType::cpu(), slots: Vec::new() });
    if is_mixed {
        notes.push(format!("of the GPUs here those of one type are used, {}", node.gpu_type));
    }
    let slot = |slot: &crate::trials::agent::AgentSlot| {
        let at = slot.device.as_ref().and_then(|device| order.iter().position(|id| id == device));
        Slot { threads: slot.threads, cuda: at.and_then(|at| u32::try_from(at).ok()) }
    };
    let slots = node.slots.iter().map(slot).collect();
    Ok(Slots { node, slots, notes })
}
