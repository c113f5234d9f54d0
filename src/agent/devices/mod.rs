//! The slots that a machine gives: its GPUs inside what this process was given, or shares of its cores.
//!
//! [`decide`] is a function of what was [read](Readings::read), so that machines that are not at hand can be tested.

mod gpus;
mod readings;
#[cfg(test)]
mod tests;
mod visible;

use std::{collections::BTreeMap, fmt, str::FromStr};

use thiserror::Error;

use self::gpus::Gpu;
pub(crate) use self::readings::Readings;
use crate::{
    ids::GpuType,
    trials::agent::{AgentNode, AgentSlot},
};

/// Slots on a machine without GPUs of which nothing else was said.
const CPU_SLOTS: u32 = 2;

/// Slots as a user asks for them: `4`, `4xcpu` or `2xa100`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotsWanted {
    pub(crate) count: u32,
    /// None for whatever there is.
    pub(crate) gpu_type: Option<GpuType>,
}

impl SlotsWanted {
    /// More than any machine has.
    const MAX: u32 = 1024;

    /// Whether shares of the cores are meant.
    pub(crate) fn is_cpu(&self) -> bool {
        self.gpu_type.as_ref().is_some_and(|gpu_type| *gpu_type == GpuType::cpu())
    }
}

impl fmt::Display for SlotsWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gpu_type {
            Some(gpu_type) => write!(f, "{}x{gpu_type}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

/// A text that names no slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("expected a number of slots from 0 to {max} (4), with `xcpu` for shares of the cores (4xcpu), or with a type of GPU (2xa100)", max = SlotsWanted::MAX)]
pub(crate) struct NoSlots;

impl FromStr for SlotsWanted {
    type Err = NoSlots;

    fn from_str(text: &str) -> Result<Self, NoSlots> {
        let (count, gpu_type) = match text.split_once('x') {
            Some((count, name)) => (count, Some(GpuType::new(name).map_err(|_| NoSlots)?)),
            None => (text, None),
        };
        let count =
            count.trim().parse().ok().filter(|count| (0..=Self::MAX).contains(count)).ok_or(NoSlots)?;
        Ok(Self { count, gpu_type })
    }
}

/// What a user asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Request {
    /// None for all GPUs, or a few shares of the cores.
    pub(crate) slots: Option<SlotsWanted>,
    /// Threads of each slot, if not an equal share of the cores.
    pub(crate) threads: Option<u32>,
    /// Use cores even if there are GPUs. A type of GPU in `slots` is then only what they are called.
    pub(crate) cpu: bool,
    /// Rather give nothing than cores.
    pub(crate) only_gpus: bool,
}

/// What a machine gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Devices {
    /// One for each type.
    pub(crate) nodes: Vec<AgentNode>,
    /// What the user should know: GPUs that are there and not used, and why.
    pub(crate) notes: Vec<String>,
}

/// A machine without what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{wanted} were asked for, and this machine has {there}")]
pub(crate) struct TooFew {
    pub(crate) wanted: String,
    pub(crate) there: String,
}

/// The slots that a machine gives to somebody who asks for some.
pub(crate) fn decide(readings: &Readings, request: &Request) -> Result<Devices, TooFew> {
    let mut notes = Vec::new();
    if request.slots.as_ref().is_some_and(|slots| slots.count == 0) {
        return Ok(Devices { nodes: Vec::new(), notes });
    }
    let as_cpu = request.cpu || request.slots.as_ref().is_some_and(SlotsWanted::is_cpu);
    let gpus = if as_cpu { Vec::new() } else { visible::gpus(readings, &mut notes) };
    let there = describe(&gpus);
    let too_few = |wanted: &SlotsWanted| TooFew { wanted: wanted.to_string(), there: there.clone() };
    let chosen = match &request.slots {
        _ if as_cpu => Vec::new(),
        None => gpus,
        // Cores next to GPUs would only slow them down: no more slots than GPUs.
        Some(SlotsWanted { count, gpu_type: None }) => gpus.into_iter().take(*count as usize).collect(),
        Some(wanted @ SlotsWanted { count, gpu_type: Some(gpu_type) }) => {
            let of_type: Vec<Gpu> = gpus.into_iter().filter(|gpu| gpu.kind == *gpu_type).collect();
            if of_type.len() < *count as usize {
                return Err(too_few(wanted));
            }
            of_type.into_iter().take(*count as usize).collect()
        }
    };
    if chosen.is_empty() && request.only_gpus {
        let why = notes.iter().fold(there.clone(), |text, note| text + "; " + note);
        let why =
            format!("{why}; for slots of cores give `--slots 2xcpu`, or `slots: 2xcpu` in the study file");
        return Err(TooFew { wanted: "only GPUs".to_owned(), there: why });
    }
    let nodes =
        if chosen.is_empty() { cpu_nodes(readings, request) } else { gpu_nodes(readings, request, chosen) };
    Ok(Devices { nodes, notes })
}

/// What there is for somebody who asks, for people.
pub(crate) fn there(readings: &Readings, request: &Request) -> String {
    describe(&if request.cpu { Vec::new() } else { visible::gpus(readings, &mut Vec::new()) })
}

/// Threads of each slot, if there are so many.
fn threads(readings: &Readings, request: &Request, slots: usize) -> u32 {
    let share = readings.cores() / u32::try_from(slots).unwrap_or(u32::MAX).max(1);
    request.threads.unwrap_or(share).max(1)
}

fn cpu_nodes(readings: &Readings, request: &Request) -> Vec<AgentNode> {
    let count = request.slots.as_ref().map_or(CPU_SLOTS, |wanted| wanted.count) as usize;
    let named = request.slots.as_ref().and_then(|wanted| wanted.gpu_type.clone());
    let slot = AgentSlot { device: None, memory_bytes: None, threads: threads(readings, request, count) };
    vec![AgentNode { gpu_type: named.unwrap_or_else(GpuType::cpu), slots: vec![slot; count] }]
}

fn gpu_nodes(readings: &Readings, request: &Request, gpus: Vec<Gpu>) -> Vec<AgentNode> {
    let threads = threads(readings, request, gpus.len());
    // In the order in which types come first: that of the numbers of GPUs.
    let mut nodes: Vec<AgentNode> = Vec::new();
    for Gpu { kind: gpu_type, id, memory_bytes, .. } in gpus {
        let slot = AgentSlot { device: Some(id), memory_bytes, threads };
        match nodes.iter_mut().find(|node| node.gpu_type == gpu_type) {
            Some(node) => node.slots.push(slot),
            None => nodes.push(AgentNode { gpu_type, slots: vec![slot] }),
        }
    }
    nodes
}

/// `4 GPUs (3 a100, 1 t4)`.
fn describe(gpus: &[Gpu]) -> String {
    let mut counts = BTreeMap::<&GpuType, usize>::new();
    for gpu in gpus {
        *counts.entry(&gpu.kind).or_default() += 1;
    }
    let each: Vec<String> = match counts.first_key_value() {
        None => return "no GPUs".to_owned(),
        Some((gpu_type, _)) if counts.len() == 1 => vec![gpu_type.to_string()],
        Some(_) => counts.iter().map(|(gpu_type, count)| format!("{count} {gpu_type}")).collect(),
    };
    format!("{} GPUs ({})", gpus.len(), each.join(", "))
}
