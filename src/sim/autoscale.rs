//! A training in the cloud that asks for nodes by itself (Pollux OSDI'21 section 5.3.3).

use super::{Application, Error};
use crate::{
    goodput::{BatchLimits, BestBatch, GoodputModel, NoiseScale, Observations, Shape, ThroughputParams, fit},
    ids::GpuType,
};

/// What a training scales by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleBy {
    /// Goodput, as in Pollux: throughput times statistical efficiency.
    Goodput,
    /// Throughput alone, as Or et al. (`MLSys` 2020) do: to them all examples are worth the same.
    Throughput,
}

/// When to ask for more nodes, and for how many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// More, once the use of the GPUs is above this.
    pub above: f64,
    /// Enough nodes that it is about this.
    pub aim: f64,
}

impl Default for Thresholds {
    /// Those of the paper: U = 2/3 and L = 1/2.
    fn default() -> Self {
        Self { above: 2.0 / 3.0, aim: 0.5 }
    }
}

/// How many nodes of `node_gpus` GPUs a training should have that has `nodes` now: the same, or more, up to `max_nodes`.
///
/// The use of GPUs is what all of them bring, relative to as many single ones: `max GOODPUT(a) / (SUM(a) max GOODPUT(1))`.
///
/// ```
/// use pollux_tune::{goodput::*, ids::*, sim::{Thresholds, wanted_nodes}};
/// let sync = [SyncCost { alpha_s: 0.01, beta_s: 0.0 }, SyncCost { alpha_s: 0.1, beta_s: 0.0 }];
/// let params = ThroughputParams::new(ComputeCost { alpha_s: 0.01, beta_s: 0.001 }, sync, 1.0)?;
/// let limits = BatchLimits::new(64, BatchMode::Adaptive { max: 4096 }, 1, 128)?;
/// let t4 = GpuType::new("t4")?;
/// let model = |noise| Ok::<_, Error>(GoodputModel::new(NoiseScale::new(noise)?).with_type(t4.clone(), params, limits));
/// let early = wanted_nodes(&model(100.0)?, &t4, 4, 1, 16, Thresholds::default());
/// let late = wanted_nodes(&model(10_000.0)?, &t4, 4, 1, 16, Thresholds::default());
/// assert!(early < late); // a noisier gradient makes good use of more GPUs
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn wanted_nodes(
    model: &GoodputModel,
    gpu_type: &GpuType,
    node_gpus: u32,
    nodes: u32,
    max_nodes: u32,
    thresholds: Thresholds,
) -> u32 {
    let best = |shape: Shape| model.best_batch(gpu_type, shape).map_or(0.0, |best| best.goodput);
    let alone = best(Shape::single());
    let used = |nodes: u32| {
        let gpus = nodes.saturating_mul(node_gpus);
        Shape::new(gpus, nodes).map_or(0.0, |shape| best(shape) / (f64::from(gpus) * alone))
    };
    if used(nodes) <= thresholds.above {
        return nodes;
    }
    let off = |nodes: &u32| (used(*nodes) - thresholds.aim).abs();
    (nodes..=max_nodes).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(nodes)
}

/// One segment of a training between two changes, of its noise as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// When it begins, in seconds.
    pub from_s: f64,
    /// How many nodes there are.
    pub nodes: u32,
    /// The total batch.
    pub batch: u32,
    /// Statistical efficiency: progress for each example, relative to the initial batch.
    pub efficiency: f64,
}

/// The result of a training that scales by itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScaleReport {
    /// Seconds from the beginning to the end.
    pub time_s: f64,
    /// Hours of nodes, which is what it costs.
    pub node_hours: f64,
    /// What it did.
    pub segments: Vec<Segment>,
}

/// The machines of a training that scales by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    /// The GPUs of all nodes.
    pub gpu_type: GpuType,
    /// GPUs of a node.
    pub node_gpus: u32,
    /// The largest number of nodes.
    pub max_nodes: u32,
    /// Seconds that the training pauses when there are more nodes.
    pub restart_s: f64,
}

/// The longest time between two decisions, in seconds.
const INTERVAL_S: f64 = 60.0;

/// Trains an application from one node on, which then asks for more. Step times are known from the beginning, in the form of the
/// fitted model, the noise is that of the present epoch; the training is as fast as was measured.
///
/// ```
/// use pollux_tune::{ids::GpuType, sim::*};
/// let cloud = Cloud { gpu_type: GpuType::new("t4")?, node_gpus: 4, max_nodes: 16, restart_s: 30.0 };
/// let report = autoscale(Application::get("imagenet").unwrap(), &cloud, ScaleBy::Goodput, Thresholds::default())?;
/// assert!(report.segments.is_sorted_by_key(|segment| segment.nodes));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn autoscale(
    application: &'static Application,
    cloud: &Cloud,
    by: ScaleBy,
    thresholds: Thresholds,
) -> Result<ScaleReport, Error> {
    let training = Training::new(application, cloud)?;
    let mut report = ScaleReport { time_s: 0.0, node_hours: 0.0, segments: Vec::new() };
    let (mut nodes, mut progress, mut epoch, mut batch) = (1, 0.0, 0, application.initial_batch());
    while epoch < application.epochs() {
        let believed = match by {
            ScaleBy::Goodput => application.noise(epoch, batch),
            ScaleBy::Throughput => NoiseScale::UNRESOLVED,
        };
        let model = training.model(believed);
        let before = nodes;
        nodes = wanted_nodes(&model, &cloud.gpu_type, cloud.node_gpus, nodes, cloud.max_nodes, thresholds);
        let best = training.batch(&model, nodes)?;
        batch = best.plan.total(nodes * cloud.node_gpus) as u32;
        let initial = f64::from(application.initial_batch());
        let noise = application.noise(epoch, batch);
        let efficiency = noise.efficiency(initial, f64::from(batch));
        let now = Segment { from_s: report.time_s, nodes, batch, efficiency };
        if report.segments.last().is_none_or(|last| Segment { from_s: now.from_s, ..*last } != now) {
            report.segments.push(now);
        }
        let pause = if nodes > before { cloud.restart_s } else { 0.0 };
        let rate = noise.gain(initial, f64::from(batch)) / training.step_s(&best, nodes)?;
        let goal = application.progress_after(epoch + 1);
        let seconds = (goal - progress) / rate;
        let spent = if seconds <= INTERVAL_S {
            (progress, epoch) = (goal, epoch + 1);
            seconds
        } else {
            progress += rate * INTERVAL_S;
            INTERVAL_S
        };
        report.time_s += pause + spent;
        report.node_hours += f64::from(nodes) * (pause + spent) / 3600.0;
    }
    Ok(report)
}

/// An application on nodes of one kind.
struct Training<'a> {
    application: &'static Application,
    cloud: &'a Cloud,
    params: ThroughputParams,
    limits: BatchLimits,
}

impl<'a> Training<'a> {
    /// Fits the throughput model to step times on one GPU, and on whole nodes.
    fn new(application: &'static Application, cloud: &'a Cloud) -> Result<Self, Error> {
        let Cloud { gpu_type, node_gpus, max_nodes, .. } = cloud;
        let unknown = || Error::BadCluster {
            nodes: format!("nodes with {node_gpus} GPUs of type {gpu_type}"),
            allowed: application.gpu_types().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let limits = application.batch_limits(gpu_type).ok_or_else(unknown)?;
        let mut seen = Observations::default();
        let shapes = std::iter::once((1, 1)).chain((1..=*max_nodes).map(|nodes| (nodes, *node_gpus)));
        for (nodes, gpus) in shapes {
            let placement = vec![gpus; nodes as usize];
            let mut per_gpu = limits.per_gpu_min();
            while per_gpu <= limits.per_gpu_max() {
                if let Some(time) = application.step_time(gpu_type, &placement, per_gpu) {
                    seen.record(Shape::new(nodes * gpus, nodes)?, per_gpu, 0, time.step_s)?;
                }
                per_gpu = (per_gpu * 3).div_ceil(2).max(per_gpu + 1);
            }
        }
        if seen.is_empty() {
            return Err(unknown());
        }
        Ok(Self { application, cloud, params: fit(&seen, None, None)?.params, limits })
    }

    fn model(&self, noise: NoiseScale) -> GoodputModel {
        GoodputModel::new(noise).with_type(self.cloud.gpu_type.clone(), self.params, self.limits)
    }

    fn cannot_run(&self, nodes: u32) -> Error {
        let reason = format!("no step time is known on {nodes} nodes of {} GPUs", self.cloud.node_gpus);
        Error::CannotRun { job: self.application.name().to_owned(), reason }
    }

    fn batch(&self, model: &GoodputModel, nodes: u32) -> Result<BestBatch, Error> {
        let gpus = nodes * self.cloud.node_gpus;
        let mut best = model
            .best_batch(&self.cloud.gpu_type, Shape::new(gpus, nodes)?)
            .ok_or_else(|| self.cannot_run(nodes))?;
        // Rounding up must not exceed the largest batch.
        let max = self.application.max_batch() / (gpus * (best.plan.accumulation + 1));
        best.plan.per_gpu = best.plan.per_gpu.min(max);
        Ok(best)
    }

    fn step_s(&self, best: &BestBatch, nodes: u32) -> Result<f64, Error> {
        let placement = vec![self.cloud.node_gpus; nodes as usize];
        let time = self.application.step_time(&self.cloud.gpu_type, &placement, best.plan.per_gpu);
        let time = time.ok_or_else(|| self.cannot_run(nodes))?;
        Ok(time.with_accumulation_s(best.plan.accumulation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::{BatchMode, ComputeCost, SyncCost};

    fn t4() -> GpuType {
        GpuType::new("t4").unwrap()
    }

    /// A step takes 1 s on one GPU and 1 s plus a quarter for each further node.
    fn model() -> GoodputModel {
        let sync = [SyncCost { alpha_s: 0.0, beta_s: 0.0 }, SyncCost { alpha_s: 0.0, beta_s: 0.25 }];
        let params = ThroughputParams::new(ComputeCost { alpha_s: 1.0, beta_s: 0.0 }, sync, 1.0).unwrap();
        let limits = BatchLimits::new(8, BatchMode::PerGpu { batch: 8 }, 8, 8).unwrap();
        GoodputModel::new(NoiseScale::UNRESOLVED).with_type(t4(), params, limits)
    }

    #[test]
    fn nodes_are_added_above_the_threshold_down_to_the_aim() {
        let wanted =
            |nodes, max, above, aim| wanted_nodes(&model(), &t4(), 1, nodes, max, Thresholds { above, aim });
        // On n nodes of one GPU the use is 1 / (1 + (n - 2) / 4): 1, 1, 4/5, 2/3, 4/7, 1/2, 4/9.
        assert_eq!(wanted(1, 16, 2.0 / 3.0, 0.5), 6);
        assert_eq!(wanted(3, 16, 0.7, 0.6), 5, "4/7 is nearer to it than 2/3");
        assert_eq!(wanted(1, 3, 2.0 / 3.0, 0.5), 3, "as many as there are");
        assert_eq!(wanted(5, 16, 2.0 / 3.0, 0.1), 5, "enough");
    }

    #[test]
    fn goodput_starts_small_and_is_cheaper_than_throughput() {
        let cloud = Cloud { gpu_type: t4(), node_gpus: 4, max_nodes: 16, restart_s: 30.0 };
        let imagenet = Application::get("imagenet").unwrap();
        let run = |by| autoscale(imagenet, &cloud, by, Thresholds::default()).unwrap();
        let (ours, theirs) = (run(ScaleBy::Goodput), run(ScaleBy::Throughput));
        assert!(ours.node_hours < theirs.node_hours && ours.time_s > theirs.time_s);
        assert!(ours.segments[0].nodes < theirs.segments[0].nodes);
        let sizes = |report: &ScaleReport| {
            let mut nodes: Vec<u32> = report.segments.iter().map(|segment| segment.nodes).collect();
            nodes.dedup();
            nodes
        };
        assert!(sizes(&ours).len() > 1 && sizes(&ours).is_sorted());
        assert_eq!(sizes(&theirs).len(), 1, "throughput does not change while it trains");
        // Hours of nodes are the nodes of all segments times how long they last.
        let ends = ours.segments.iter().skip(1).map(|segment| segment.from_s).chain([ours.time_s]);
        let hours =
            |(segment, end): (&Segment, f64)| f64::from(segment.nodes) * (end - segment.from_s) / 3600.0;
        let sum: f64 = ours.segments.iter().zip(ends).map(hours).sum();
        assert!((sum / ours.node_hours - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_never_measured_is_refused() {
        let gpu_type = GpuType::new("h100").unwrap();
        let cloud = Cloud { gpu_type, node_gpus: 8, max_nodes: 4, restart_s: 0.0 };
        let error =
            autoscale(Application::get("imagenet").unwrap(), &cloud, ScaleBy::Goodput, Thresholds::default());
        assert!(error.unwrap_err().to_string().contains("h100"));
    }
}
