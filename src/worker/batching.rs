//! Which batch a trial uses on how many workers.

use super::error::Error;
use crate::{
    goodput::{
        BatchLimits, BatchMode, GradientStats, NoiseScale, Observations, Shape, ThroughputParams, best_batch,
        fit,
    },
    trials::group::{Batch, WorkerReport},
};

/// A batch must promise that much more goodput before it replaces another one.
const WORTH_A_CHANGE: f64 = 1.03;

/// Which batch a trial uses: a fixed one, or the one of the highest goodput for what was measured so far.
#[derive(Debug, Clone)]
pub struct Batching {
    initial: u32,
    limits: BatchLimits,
    is_fixed: bool,
    seen: Observations,
    params: Option<ThroughputParams>,
    noise: Option<NoiseScale>,
}

impl Batching {
    /// Always this batch in all, in passes of at most `per_worker` examples.
    pub fn fixed(initial: u32, per_worker: u32) -> Result<Self, Error> {
        Self::new(initial, BatchMode::Fixed, per_worker)
    }

    /// From the initial batch up to `max`, in passes of at most `per_worker` examples.
    pub fn adaptive(initial: u32, max: u32, per_worker: u32) -> Result<Self, Error> {
        Self::new(initial, BatchMode::Adaptive { max }, per_worker)
    }

    fn new(initial: u32, mode: BatchMode, per_worker: u32) -> Result<Self, Error> {
        let limits = BatchLimits::new(initial, mode, 1, per_worker)?;
        let is_fixed = mode == BatchMode::Fixed;
        Ok(Self { initial, limits, is_fixed, seen: Observations::default(), params: None, noise: None })
    }

    /// What a trial starts with.
    pub(super) fn initial(&self) -> Batch {
        self.on(1)
    }

    /// Takes in what the first rank has measured.
    pub(super) fn learn(&mut self, report: &WorkerReport) -> Result<(), Error> {
        for times in &report.step_times {
            self.seen.add(times)?;
        }
        self.noise = report.noise.map(GradientStats::noise_scale);
        if !self.is_fixed && !self.seen.is_empty() {
            self.params = Some(fit(&self.seen, None, self.params.as_ref())?.params);
        }
        Ok(())
    }

    /// The batch for so many workers.
    pub(super) fn on(&self, workers: u32) -> Batch {
        self.best(workers).map_or_else(|| self.plain(workers), |(batch, _)| batch)
    }

    /// The initial batch, in as many passes as it takes.
    fn plain(&self, workers: u32) -> Batch {
        let passes = self.initial.div_ceil(workers.max(1)).div_ceil(self.limits.per_gpu_max());
        Batch { total: self.initial.max(workers), accumulation: passes.max(1) - 1 }
    }

    fn best(&self, workers: u32) -> Option<(Batch, f64)> {
        if self.is_fixed {
            return None;
        }
        let shape = Shape::new(workers, 1).ok()?;
        let best = best_batch(self.params.as_ref()?, shape, self.noise?, &self.limits)?;
        let total = best.plan.total(workers).min(u64::from(u32::MAX)) as u32;
        Some((Batch { total, accumulation: best.plan.accumulation }, best.goodput))
    }

    /// A batch that is worth the change, if there is one.
    pub(super) fn better(&self, workers: u32, now: Batch) -> Option<Batch> {
        let (batch, goodput) = self.best(workers)?;
        let (params, noise) = (self.params.as_ref()?, self.noise?);
        let shape = Shape::new(workers, 1).ok()?;
        let total = f64::from(now.total);
        let per_gpu = total / f64::from(workers * (now.accumulation + 1));
        let seconds = params.iter_time_s(shape, per_gpu, now.accumulation);
        let present = total / seconds * noise.efficiency(f64::from(self.initial), total);
        (batch != now && goodput > present * WORTH_A_CHANGE).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::Observation;

    fn report(replicas: u32, per_gpu: f64, seconds: f64, phi: f64) -> WorkerReport {
        let step_times = vec![Observation {
            shape: Shape::new(replicas, 1).expect("a shape"),
            per_gpu,
            accumulation: 0,
            iter_time_s: seconds,
            steps: 50.0,
        }];
        WorkerReport {
            step_times,
            noise: Some(GradientStats { sqr: 1.0, var: phi }),
            ..WorkerReport::default()
        }
    }

    #[test]
    fn a_fixed_batch_is_split_into_passes() {
        let batching = Batching::fixed(100, 40).expect("fine limits");
        assert_eq!(batching.on(1), Batch { total: 100, accumulation: 2 });
        assert_eq!(batching.on(2), Batch { total: 100, accumulation: 1 });
        assert_eq!(batching.on(3), Batch { total: 100, accumulation: 0 });
    }

    #[test]
    fn noise_and_overhead_make_the_batch_grow_and_it_stays_then() {
        let mut batching = Batching::adaptive(64, 1024, 512).expect("fine limits");
        let now = batching.on(2);
        assert_eq!((now.total, batching.better(2, now)), (64, None), "nothing is known yet");
        // 0.1 s and 1 ms an example, of which 0.05 s are the reduction.
        batching.learn(&report(1, 64.0, 0.114, 1000.0)).expect("fine");
        batching.learn(&report(2, 32.0, 0.132, 1000.0)).expect("fine");
        batching.learn(&report(2, 64.0, 0.164, 1000.0)).expect("fine");
        let better = batching.better(2, now).expect("there is much to gain");
        assert!((200..=1024).contains(&better.total), "{better:?}");
        assert_eq!(batching.on(2), better);
        assert_eq!(batching.better(2, better), None);
    }
}
