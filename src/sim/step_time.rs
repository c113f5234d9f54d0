use std::collections::BTreeMap;

use super::mesh::{Mesh, Vertex};

/// One optimizer step without accumulation, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Seconds of the step, synchronization of the gradients included.
    pub step_s: f64,
    /// Seconds of it in which synchronization is not hidden by computation.
    pub sync_s: f64,
}

impl StepTime {
    /// Seconds of one pass without synchronization.
    #[must_use]
    pub fn pass_s(&self) -> f64 {
        self.step_s - self.sync_s
    }

    /// Seconds of a step with `accumulation` passes before the one that synchronizes.
    #[must_use]
    pub fn with_accumulation_s(&self, accumulation: u32) -> f64 {
        self.step_s + self.pass_s() * f64::from(accumulation)
    }
}

/// A batch with the time that was measured for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) per_gpu: u32,
    pub(super) time: StepTime,
}

/// A time on a number of nodes and GPUs, in any placement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) measured: Measured,
}

/// Measured step times of one model on one GPU type, for every placement.
#[derive(Debug)]
pub struct StepTimes {
    /// By placement, as its smallest rotation; batches in ascending order.
    placements: BTreeMap<Vec<u32>, Vec<Measured>>,
    mesh: Option<Mesh>,
    /// Averages over placements by (nodes, GPUs), for placements that nothing else covers.
    averages: BTreeMap<(u32, u32), Vec<Measured>>,
    nodes_max: u32,
    gpus_max: u32,
    per_gpu: (u32, u32),
}

impl StepTimes {
    /// `corners` number the averages of the placements by (nodes, GPUs, batch) in ascending order, and then `spread`.
    pub(super) fn new(
        placements: BTreeMap<Vec<u32>, Vec<Measured>>,
        spread: &[Spread],
        corners: Vec<[usize; 4]>,
    ) -> Self {
        let mut sums: BTreeMap<(u32, u32, u32), (f64, f64, f64)> = BTreeMap::new();
        let mut per_gpu = (u32::MAX, 0);
        for (placement, measured) in &placements {
            for &Measured { per_gpu: batch, time } in measured {
                let key = (placement.len() as u32, placement.iter().sum(), batch);
                let (step_s, sync_s, count) = sums.entry(key).or_default();
                *step_s += time.step_s;
                *sync_s += time.sync_s;
                *count += 1.0;
                per_gpu = (per_gpu.0.min(batch), per_gpu.1.max(batch));
            }
        }
        let mut rows: BTreeMap<(u32, u32), Vec<Measured>> = BTreeMap::new();
        for (&(nodes, gpus, per_gpu), &(step_s, sync_s, count)) in &sums {
            let time = StepTime { step_s: step_s / count, sync_s: sync_s / count };
            rows.entry((nodes, gpus)).or_default().push(Measured { per_gpu, time });
        }
        let at = |nodes: u32, gpus: u32, batch: u32| [nodes, gpus, batch].map(f64::from);
        let averages = sums.iter().map(|(&(nodes, gpus, batch), &(step_s, sync_s, count))| Vertex {
            at: at(nodes, gpus, batch),
            values: [step_s / count, sync_s / count],
        });
        let others = spread.iter().map(|row| Vertex {
            at: at(row.nodes, row.gpus, row.measured.per_gpu),
            values: [row.measured.time.step_s, row.measured.time.sync_s],
        });
        let nodes = placements.keys().map(|placement| placement.len() as u32);
        let nodes_max = nodes.chain(spread.iter().map(|row| row.nodes)).max().unwrap_or(0);
        let gpus = placements.keys().map(|placement| placement.iter().sum());
        let gpus_max = gpus.chain(spread.iter().map(|row| row.gpus)).max().unwrap_or(0);
        let mesh = (!corners.is_empty()).then(|| Mesh::new(averages.chain(others).collect(), corners));
        Self { placements, mesh, averages: rows, nodes_max, gpus_max, per_gpu }
    }

    /// The smallest and the largest batch that was measured on one GPU.
    #[must_use]
    pub const fn per_gpu_range(&self) -> (u32, u32) {
        self.per_gpu
    }

    /// The largest number of GPUs that were measured together.
    #[must_use]
    pub const fn gpus_max(&self) -> u32 {
        self.gpus_max
    }

    /// The largest number of GPUs of one node that were measured.
    #[must_use]
    pub fn node_gpus_max(&self) -> u32 {
        self.placements.keys().flatten().copied().max().unwrap_or(0)
    }

    /// The batches that were measured on one GPU, with their times.
    pub(super) fn on_one_gpu(&self) -> impl Iterator<Item = (u32, StepTime)> {
        self.placements.get(&[1][..]).into_iter().flatten().map(|row| (row.per_gpu, row.time))
    }

    /// The time of one step on a placement, the GPUs of each node in order, with `per_gpu` examples on each of them: between
    /// measured batches of that placement in proportion, and where it was not measured, between those with about as
    /// many nodes, GPUs and examples. None where nothing was measured around it. More nodes than were measured count as
    /// the largest number that was.
    #[must_use]
    pub fn at(&self, placement: &[u32], per_gpu: u32) -> Option<StepTime> {
        if let Some(rows) = self.placements.get(&smallest_rotation(placement)) {
            return between(rows, per_gpu);
        }
        let nodes = (placement.len() as u32).min(self.nodes_max);
        let gpus = placement.iter().sum();
        let inside = self.mesh.as_ref().and_then(|mesh| mesh.at([nodes, gpus, per_gpu].map(f64::from)));
        match inside {
            Some([step_s, sync_s]) => Some(StepTime { step_s, sync_s }),
            None => between(self.averages.get(&(nodes, gpus))?, per_gpu),
        }
    }
}

impl StepTimes {
    /// The same at any batch on any placement that is not empty: below the smallest measured batch as there, beyond the largest
    /// one as from the one before to that. More nodes, or more GPUs of one, than were measured count as the largest number that was.
    pub(super) fn anywhere(&self, placement: &[u32], per_gpu: f64) -> Option<StepTime> {
        let node_gpus = self.node_gpus_max();
        let mut fullest: Vec<u32> = placement.iter().map(|gpus| (*gpus).min(node_gpus)).collect();
        if fullest.len() > self.nodes_max as usize {
            fullest.sort_unstable_by(|a, b| b.cmp(a));
            fullest.truncate(self.nodes_max as usize);
        }
        let exact = self.placements.get(&smallest_rotation(&fullest));
        let rows = exact.cloned().unwrap_or_else(|| {
            let row = |(per_gpu, _)| Some(Measured { per_gpu, time: self.at(&fullest, per_gpu)? });
            self.on_one_gpu().filter_map(row).collect()
        });
        let last = rows.len().checked_sub(1)?;
        let next = rows.partition_point(|row| f64::from(row.per_gpu) < per_gpu).clamp(1, last.max(1));
        let (below, above) = (rows[next - 1], rows[next.min(last)]);
        let span = f64::from(above.per_gpu - below.per_gpu).max(1.0);
        let share = ((per_gpu - f64::from(below.per_gpu)) / span).max(0.0);
        let mix = |low: f64, high: f64, share: f64| low + share * (high - low);
        let sync_s = mix(below.time.sync_s, above.time.sync_s, share.min(1.0));
        Some(StepTime { step_s: mix(below.time.pass_s(), above.time.pass_s(), share) + sync_s, sync_s })
    }
}

/// Of all rotations of a placement the smallest, by which it is filed.
pub(super) fn smallest_rotation(placement: &[u32]) -> Vec<u32> {
    let rotated = |by: usize| [&placement[by..], &placement[..by]].concat();
    (0..placement.len()).map(rotated).min().unwrap_or_default()
}

/// How far beyond the largest measured batch of a placement times continue in proportion: large placements were measured up to
/// the last batch of a coarse grid.
const BEYOND: f64 = 1.5;

fn between(rows: &[Measured], per_gpu: u32) -> Option<StepTime> {
    let next = rows.partition_point(|row| row.per_gpu < per_gpu);
    if let Some(exact) = rows.get(next).filter(|row| row.per_gpu == per_gpu) {
        return Some(exact.time);
    }
    let last = rows.last()?;
    if f64::from(per_gpu) > BEYOND * f64::from(last.per_gpu) {
        return None;
    }
    let next = next.min(rows.len() - 1);
    let (below, above) = (rows.get(next.checked_sub(1)?)?, &rows[next]);
    let share = f64::from(per_gpu - below.per_gpu) / f64::from(above.per_gpu - below.per_gpu);
    let mix = |low: f64, high: f64| low + share * (high - low);
    let step_s = mix(below.time.step_s, above.time.step_s);
    Some(StepTime { step_s, sync_s: mix(below.time.sync_s, above.time.sync_s).clamp(0.0, step_s) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(per_gpu: u32, step_s: f64) -> Measured {
        Measured { per_gpu, time: StepTime { step_s, sync_s: 0.25 * step_s } }
    }

    #[test]
    fn a_placement_is_known_by_its_rotations_and_between_batches() {
        let rows = vec![measured(10, 1.0), measured(20, 3.0)];
        let other = vec![measured(10, 2.0), measured(20, 4.0)];
        let placements = BTreeMap::from([(vec![1, 2, 1, 3], rows), (vec![1, 1, 2, 3], other)]);
        let times = StepTimes::new(placements, &[], Vec::new());
        let time = times.at(&[1, 3, 1, 2], 15).unwrap();
        assert!((time.step_s - 2.0).abs() < 1e-12 && (time.sync_s - 0.5).abs() < 1e-12);
        assert!((time.with_accumulation_s(2) - 5.0).abs() < 1e-12);
        // The same GPUs in another order are another placement, and what was not measured is taken as the average.
        assert!((times.at(&[2, 3, 1, 1], 15).unwrap().step_s - 3.0).abs() < 1e-12);
        assert!((times.at(&[2, 2, 2, 1], 15).unwrap().step_s - 2.5).abs() < 1e-12);
        assert!(times.at(&[4, 4], 15).is_none());
        assert!(times.at(&[1, 2, 1, 3], 9).is_none() && times.at(&[1, 2, 1, 3], 31).is_none());
        assert_eq!((times.per_gpu_range(), times.gpus_max(), times.node_gpus_max()), ((10, 20), 7, 3));
    }
}
