//! The slots of this machine.

use std::fs;

#[cfg(feature = "torch")]
use crate::{alloc::ClusterSpec, ids::GpuType, worker::Slot};

/// How many GPUs the driver knows of; for programs that are not ours.
pub(super) fn gpu_count() -> u32 {
    fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, |gpus| gpus.flatten().count() as u32)
}

/// The slots that trainings can use.
#[cfg(feature = "torch")]
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    pub(super) gpu_type: GpuType,
}

#[cfg(feature = "torch")]
impl Slots {
    pub(super) fn describe(&self) -> String {
        let (count, gpu_type) = (self.slots.len(), &self.gpu_type);
        let threads = self.slots.first().map_or(1, |slot| slot.threads);
        match self.slots.first().and_then(|slot| slot.cuda.as_ref()) {
            Some(_) => format!("{count} GPUs ({gpu_type})"),
            None => format!("{count} slots of {threads} CPU threads each"),
        }
    }
}

/// The slots that were asked for, else those of the study file, else one for each GPU, else two. An error is what the study
/// file wants and what there is.
#[cfg(feature = "torch")]
pub(super) fn slots(
    asked: Option<u32>,
    threads: Option<u32>,
    cpu: bool,
    described: Option<&ClusterSpec>,
) -> Result<Slots, (String, String)> {
    let gpus = if cpu { 0 } else { crate::worker::gpus() };
    let there = if gpus > 0 { format!("{gpus} GPUs") } else { "no GPUs".to_owned() };
    let wanted = match (asked, described) {
        (None, Some(cluster)) => {
            let one = match &cluster.node_sets[..] {
                [set] if set.nodes == 1 => Some(set),
                _ => None,
            };
            let fits = one.filter(|set| set.gpu_type.name() == "cpu" || set.gpus <= gpus);
            let set = fits.ok_or_else(|| (cluster.to_string(), there))?;
            Some((set.gpus, set.gpu_type.name() == "cpu"))
        }
        _ => None,
    };
    let gpus = if wanted.is_some_and(|(_, cpu)| cpu) { 0 } else { gpus };
    let described = || wanted.map(|(count, _)| count);
    let count = asked.or_else(described).unwrap_or(if gpus > 0 { gpus } else { 2 });
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let threads = threads.unwrap_or_else(|| (cores / count).max(1));
    let slot = |number| Slot { threads, cuda: (number < gpus).then(|| crate::worker::gpu_id(number)) };
    let gpu_type = if gpus > 0 { gpu_type() } else { GpuType::cpu() };
    // A group of one speed: a share of the processor next to GPUs would only slow them down.
    let slots = (0..count).map(slot).filter(|slot| gpus == 0 || slot.cuda.is_some()).collect();
    Ok(Slots { slots, gpu_type })
}

/// The type of the first GPU.
#[cfg(feature = "torch")]
fn gpu_type() -> GpuType {
    let model = || {
        let first = fs::read_dir("/proc/driver/nvidia/gpus").ok()?.flatten().next()?;
        let text = fs::read_to_string(first.path().join("information")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Model:").map(|model| model.trim().to_owned()))
    };
    GpuType::of_model(&model().unwrap_or_default())
}
