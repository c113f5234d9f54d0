use std::{collections::BTreeMap, fmt, sync::OnceLock};

use super::{
    data::{self, ProfileFile, number},
    step_time::{Measured, Spread, StepTime, StepTimes, smallest_rotation},
};
use crate::{
    alloc::Cluster,
    goodput::{BatchLimits, BatchMode, NoiseScale},
    ids::GpuType,
};

/// A model with its data set, measured from the first step to the last: what a simulated job trains.
///
/// ```
/// use pollux_tune::sim::Application;
/// let cifar10 = Application::get("cifar10").unwrap();
/// assert_eq!((cifar10.initial_batch(), cifar10.epochs()), (128, 100));
/// assert!(Application::get("mnist").is_none());
/// ```
pub struct Application {
    name: &'static str,
    epochs: usize,
    /// Progress at the end of each epoch, from 0 before the first; in steps of the initial batch.
    progress: Vec<f64>,
    /// Trainings by total batch, the smallest first.
    runs: Vec<Run>,
    times: BTreeMap<GpuType, (StepTimes, BatchLimits)>,
}

/// One training from beginning to end.
struct Run {
    batch: u32,
    epochs: Vec<Epoch>,
}

struct Epoch {
    progress: f64,
    /// Steps since the beginning.
    iterations: f64,
    grad_sqr: f64,
    grad_var: f64,
}

/// How many epochs a job trains.
const EPOCHS: [(&str, usize); 6] =
    [("bert", 2), ("cifar10", 100), ("deepspeech2", 80), ("imagenet", 90), ("ncf", 10), ("yolov3", 50)];

impl Application {
    /// All applications, by name.
    #[must_use]
    pub fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<Application>> = OnceLock::new();
        ALL.get_or_init(load)
    }

    /// The application of this name.
    #[must_use]
    pub fn get(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|application| application.name == name)
    }

    /// Its name, as workloads spell it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How many epochs a job trains.
    #[must_use]
    pub const fn epochs(&self) -> usize {
        self.epochs
    }

    /// The smallest total batch, to which progress and gradient statistics refer.
    #[must_use]
    pub fn initial_batch(&self) -> u32 {
        self.runs[0].batch
    }

    /// The largest total batch that was tried.
    #[must_use]
    pub fn max_batch(&self) -> u32 {
        self.runs[self.runs.len() - 1].batch
    }

    /// Step times on a GPU type, if they were measured.
    #[must_use]
    pub fn step_times(&self, gpu_type: &GpuType) -> Option<&StepTimes> {
        self.times.get(gpu_type).map(|(times, _)| times)
    }

    /// The batches it may use on a GPU type, if it was measured there.
    #[must_use]
    pub fn batch_limits(&self, gpu_type: &GpuType) -> Option<BatchLimits> {
        self.times.get(gpu_type).map(|(_, limits)| *limits)
    }

    /// The GPU types it was measured on.
    pub fn gpu_types(&self) -> impl Iterator<Item = &GpuType> {
        self.times.keys()
    }

    /// Channels of the first layer of the network that was measured, for those that are known by their width.
    pub(super) fn width(&self) -> Option<f64> {
        matches!(self.name, "cifar10" | "imagenet").then_some(64.0)
    }

    /// As [`Cluster::room`], with no more GPUs of a type than were measured together.
    pub(super) fn room(&self, cluster: &Cluster, max_gpus: u32) -> impl Iterator<Item = (GpuType, u32, u32)> {
        cluster.room(max_gpus).filter_map(|(gpu_type, node_gpus, total)| {
            let measured = self.step_times(&gpu_type)?.gpus_max();
            Some((gpu_type, node_gpus, total.min(measured)))
        })
    }

    /// Progress at which `epochs` epochs are over, in steps of the initial batch.
    #[must_use]
    pub fn progress_after(&self, epochs: usize) -> f64 {
        self.progress[epochs.min(self.epochs)]
    }

    /// The time of one step, if it was measured.
    #[must_use]
    pub fn step_time(&self, gpu_type: &GpuType, placement: &[u32], per_gpu: u32) -> Option<StepTime> {
        self.step_times(gpu_type)?.at(placement, per_gpu)
    }

    /// The gradient noise scale in an epoch (counted from 0) at a total batch: statistics of neighbouring batches in
    /// proportion.
    #[must_use]
    pub fn noise(&self, epoch: usize, batch: u32) -> NoiseScale {
        let (below, above, share) = self.around(batch);
        let row = |run: &'_ Run| {
            let row = &run.epochs[epoch.min(self.epochs - 1)];
            (row.grad_sqr, row.grad_var)
        };
        let ((low_sqr, low_var), (high_sqr, high_var)) = (row(below), row(above));
        let (sqr, var) = (mix(low_sqr, high_sqr, share), mix(low_var, high_var, share));
        NoiseScale::new(f64::from(self.initial_batch()) * var / sqr).unwrap_or(NoiseScale::UNRESOLVED)
    }

    /// Steps at a total batch from the end of epoch `epoch` (counted from 0) to the end of the last one.
    #[must_use]
    pub fn iterations_after(&self, epoch: usize, batch: u32) -> f64 {
        let (below, above, share) = self.around(batch);
        let last = self.epochs - 1;
        let left = |run: &Run| run.epochs[last].iterations - run.epochs[epoch.min(last)].iterations;
        mix(left(below), left(above), share)
    }

    /// The two trainings whose batches are around this one, and how far it is between them.
    fn around(&self, batch: u32) -> (&Run, &Run, f64) {
        let last = self.runs.len() - 1;
        let above = self.runs.partition_point(|run| run.batch < batch).min(last);
        let below = if self.runs[above].batch <= batch { above } else { above.saturating_sub(1) };
        let (low, high) = (&self.runs[below], &self.runs[above]);
        if below == above {
            return (low, high, 0.0);
        }
        (low, high, f64::from(batch - low.batch) / f64::from(high.batch - low.batch))
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn mix(low: f64, high: f64, share: f64) -> f64 {
    low + share * (high - low)
}

fn load() -> Vec<Application> {
    let mut runs: BTreeMap<String, BTreeMap<u32, Vec<Epoch>>> = BTreeMap::new();
    let columns = ["model", "batch_size", "progress", "iteration", "grad_sqr", "grad_var"];
    for [model, batch, progress, iterations, grad_sqr, grad_var] in
        data::rows(&data::unpacked(data::TRAINING), columns)
    {
        runs.entry(model).or_default().entry(number(&batch)).or_default().push(Epoch {
            progress: number(&progress),
            iterations: number(&iterations),
            grad_sqr: number(&grad_sqr),
            grad_var: number(&grad_var),
        });
    }
    let mut meshes = load_meshes();
    data::PROFILES
        .iter()
        .zip(EPOCHS)
        .map(|((name, files), (_, epochs))| {
            let runs: Vec<Run> = runs
                .remove(*name)
                .unwrap_or_default()
                .into_iter()
                .map(|(batch, epochs)| Run { batch, epochs })
                .collect();
            let min = |epoch: usize| {
                runs.iter().map(|run| run.epochs[epoch].progress).fold(f64::INFINITY, f64::min)
            };
            let progress = std::iter::once(0.0).chain((0..epochs).map(min)).collect();
            let batches = (runs[0].batch, runs[runs.len() - 1].batch);
            let times = files.iter().map(|file| {
                let corners = meshes.remove(&(file.gpu, (*name).to_owned())).unwrap_or_default();
                let times = load_times(file, corners);
                let limits = limits(name, file.gpu, batches, times.per_gpu_range());
                (GpuType::new(file.gpu).expect("it has a name"), (times, limits))
            });
            Application { name, epochs, progress, times: times.collect(), runs }
        })
        .collect()
}

fn limits(name: &str, gpu: &str, batches: (u32, u32), per_gpu: (u32, u32)) -> BatchLimits {
    // The authors let YOLOv3 use half of what was measured on T4.
    let max = if (name, gpu) == ("yolov3", "t4") { 8 } else { per_gpu.1 };
    BatchLimits::new(batches.0, BatchMode::Adaptive { max: batches.1 }, per_gpu.0, max)
        .expect("measured batches are in order")
}

type Corners = Vec<[usize; 4]>;

fn load_meshes() -> BTreeMap<(&'static str, String), Corners> {
    let mut meshes: BTreeMap<_, Corners> = BTreeMap::new();
    for (gpu, bytes) in data::MESHES {
        for [model, a, b, c, d] in data::rows(&data::unpacked(bytes), ["model", "a", "b", "c", "d"]) {
            // Each corner is written as the distance to the one before.
            let mut corner = 0;
            let corners = [a, b, c, d].map(|step| {
                corner += number::<usize>(&step);
                corner
            });
            meshes.entry((gpu, model)).or_default().push(corners);
        }
    }
    meshes
}

fn load_times(file: &ProfileFile, corners: Corners) -> StepTimes {
    let time = |step: &str, sync: &str| StepTime { step_s: number(step), sync_s: number(sync) };
    let mut placements: BTreeMap<Vec<u32>, Vec<Measured>> = BTreeMap::new();
    for [placement, batch, step, sync] in
        data::rows(file.placements, ["placement", "local_bsz", "step_time", "sync_time"])
    {
        let nodes: Vec<u32> = placement.chars().filter_map(|digit| digit.to_digit(10)).collect();
        let measured = Measured { per_gpu: number(&batch), time: time(&step, &sync) };
        placements.entry(smallest_rotation(&nodes)).or_default().push(measured);
    }
    for rows in placements.values_mut() {
        rows.sort_by_key(|row| row.per_gpu);
    }
    let columns = ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"];
    let text = if file.scalability.is_empty() {
        "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    } else {
        file.scalability
    };
    let spread: Vec<Spread> = data::rows(text, columns)
        .into_iter()
        .map(|[nodes, gpus, batch, step, sync]| Spread {
            nodes: number(&nodes),
            gpus: number(&gpus),
            measured: Measured { per_gpu: number(&batch), time: time(&step, &sync) },
        })
        .collect();
    StepTimes::new(placements, &spread, corners)
}
