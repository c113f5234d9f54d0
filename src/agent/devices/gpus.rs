//! The GPUs that the driver lists.

use super::Readings;
use crate::ids::GpuType;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    /// Its number, in the order of the bus.
    pub(super) index: u32,
    /// Its UUID, or its number where that is not known. CUDA's own numbers depend on the speed of the GPUs.
    pub(super) id: String,
    pub(super) kind: GpuType,
    pub(super) memory_bytes: Option<u64>,
    /// Whether it is divided into instances.
    pub(super) is_divided: bool,
}

/// All that the driver lists, by number.
pub(super) fn all(readings: &Readings) -> Vec<Gpu> {
    match &readings.listed {
        Some(listed) => {
            let mut gpus = parse_list(listed);
            for gpu in &mut gpus {
                gpu.memory_bytes = readings.queried.as_deref().and_then(|queried| memory(queried, &gpu.id));
            }
            gpus
        }
        None => readings.information.iter().enumerate().map(parse_information).collect(),
    }
}

/// Lines of `nvidia-smi -L`: `GPU 0: Tesla T4 (UUID: GPU-5f3c...)`; those of instances come after their GPU, indented.
fn parse_list(text: &str) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("MIG ") {
            if let Some(gpu) = gpus.last_mut() {
                gpu.is_divided = true;
            }
            continue;
        }
        let parsed = line.strip_prefix("GPU ").and_then(|rest| rest.split_once(": "));
        let Some((index, rest)) = parsed.and_then(|(index, rest)| Some((index.parse::<u32>().ok()?, rest)))
        else {
            continue;
        };
        let (model, uuid) = match rest.rsplit_once(" (UUID: ") {
            Some((model, uuid)) => (model, Some(uuid.trim_end().trim_end_matches(')').to_owned())),
            None => (rest, None),
        };
        let id = uuid.unwrap_or_else(|| index.to_string());
        let kind = GpuType::of_model(model);
        gpus.push(Gpu { index, id, kind, memory_bytes: None, is_divided: false });
    }
    gpus
}

/// From lines such as `0, GPU-5f3c..., Tesla T4, 15360 MiB`; some GPUs share the memory of the processor and say `[N/A]`.
fn memory(queried: &str, uuid: &str) -> Option<u64> {
    let line =
        queried.lines().find(|line| line.split(',').nth(1).is_some_and(|found| found.trim() == uuid))?;
    let mebibytes: u64 = line.rsplit(',').next()?.trim().strip_suffix("MiB")?.trim().parse().ok()?;
    mebibytes.checked_mul(1 << 20)
}

/// `/proc/driver/nvidia/gpus/*/information`: lines of a name, a colon and a value.
fn parse_information((place, text): (usize, &String)) -> Gpu {
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        found.map(str::trim)
    };
    let index = u32::try_from(place).unwrap_or(u32::MAX);
    // The driver knows it only once the GPU was used.
    let uuid = value("GPU UUID").filter(|uuid| !uuid.contains('?'));
    let id = uuid.map_or_else(|| index.to_string(), str::to_owned);
    let kind = GpuType::of_model(value("Model").unwrap_or_default());
    Gpu { index, id, kind, memory_bytes: None, is_divided: false }
}
