//! Which of the GPUs this process was given.

use super::{
    Readings,
    gpus::{self, Gpu},
    readings::{ORDER, ORDINAL, SLURM_ID, SLURM_JOB, SLURM_STEP, VISIBLE},
};

/// The GPUs that may be used, in the order in which they were given.
pub(super) fn gpus(readings: &Readings, notes: &mut Vec<String>) -> Vec<Gpu> {
    let all = gpus::all(readings);
    if all.is_empty() {
        return all;
    }
    if readings.usable == Some(0) {
        notes.push(format!(
            "{}, but this program's libtorch cannot use them: see docs/training.md",
            super::describe(&all)
        ));
        return Vec::new();
    }
    let given = given(readings, all, notes);
    let (divided, whole): (Vec<Gpu>, Vec<Gpu>) = given.into_iter().partition(|gpu| gpu.is_divided);
    if !divided.is_empty() {
        let numbers: Vec<String> = divided.iter().map(|gpu| gpu.index.to_string()).collect();
        notes.push(format!(
            "GPU {} is divided into instances (MIG), which are not supported: it is not used",
            numbers.join(", ")
        ));
    }
    whole
}

fn given(readings: &Readings, all: Vec<Gpu>, notes: &mut Vec<String>) -> Vec<Gpu> {
    let listed = [VISIBLE, ORDINAL].into_iter().find_map(|name| Some((name, readings.variable(name)?)));
    if let Some((name, text)) = listed {
        return named(name, text, &all, readings, notes);
    }
    if readings.variable(SLURM_ID).is_none() {
        return all;
    }
    // In a job of Slurm, what it gave.
    let Some(text) = [SLURM_STEP, SLURM_JOB].into_iter().find_map(|name| readings.variable(name)) else {
        let there = super::describe(&all);
        notes.push(format!(
            "this job of Slurm was given none of the {there} here: ask for some with --gres, or set {VISIBLE}"
        ));
        return Vec::new();
    };
    let numbers = numbers(text);
    if numbers.len() == all.len() {
        // A control group hides the others, and numbers begin with 0 again.
        return all;
    }
    all.into_iter().filter(|gpu| numbers.contains(&gpu.index)).collect()
}

/// As CUDA reads its variable: up to the first entry that is no GPU. No entry, `-1` and Slurm's `NoDevFiles` are none.
fn named(name: &str, text: &str, all: &[Gpu], readings: &Readings, notes: &mut Vec<String>) -> Vec<Gpu> {
    let mut given: Vec<Gpu> = Vec::new();
    let mut by_number = false;
    for entry in text.split(',').map(str::trim) {
        let found = if let Ok(index) = entry.parse::<u32>() {
            by_number = true;
            all.iter().find(|gpu| gpu.index == index)
        } else if entry.starts_with("GPU-") {
            // The beginning of a UUID will do, if it is that of one GPU only.
            let mut matching = all.iter().filter(|gpu| gpu.id.starts_with(entry));
            matching.next().filter(|_| matching.next().is_none())
        } else {
            None
        };
        let Some(gpu) = found else {
            if entry.starts_with("MIG-") {
                notes.push(format!("{name} names {entry}: instances of GPUs (MIG) are not supported"));
            } else if !["", "-1", "NoDevFiles"].contains(&entry) {
                notes.push(format!(
                    "{name} is `{text}`, and there is no GPU `{entry}`: what comes after it is not used"
                ));
            }
            break;
        };
        if !given.contains(gpu) {
            given.push(gpu.clone());
        }
    }
    let is_mixed = all.iter().any(|gpu| gpu.kind != all[0].kind);
    if by_number && is_mixed && readings.variable(ORDER) != Some("PCI_BUS_ID") {
        notes.push(format!(
            "{name} has numbers, and GPUs of several types are here: they are taken in the order of nvidia-smi, not in that of CUDA; set {ORDER}=PCI_BUS_ID, or give UUIDs"
        ));
    }
    given
}

/// `0,2-3` is 0, 2 and 3.
fn numbers(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        (last.checked_sub(first)? < super::SlotsWanted::MAX).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}
