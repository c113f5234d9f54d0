//! What a job knows of its own speed, and the batch it chooses with that.

use std::collections::BTreeMap;

use super::{
    Application, Error, Rules, StepTime,
    osdi21::{self, Profile},
};
use crate::{
    alloc::{Cluster, TrialRequest},
    goodput::{
        BatchPlan, BestBatch, Curve, GoodputTable, NoiseScale, Observations, Shape, ThroughputParams,
        ThroughputPrior, TypeCatalog, best_batch, bootstrap, fit,
    },
    ids::{GpuType, TrialId},
};

/// How a job chooses its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    /// Always this total batch.
    Fixed(u32),
    /// Whatever is best at the moment.
    Adaptive,
}

/// The goodput model of one job, learned while it runs.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    application: &'static Application,
    rules: Rules,
    batch: Batch,
    noise: NoiseScale,
    types: BTreeMap<GpuType, Known>,
    /// Types that it might run on.
    around: Vec<GpuType>,
}

/// What was learned on one GPU type.
#[derive(Debug, Clone)]
struct Known {
    seen: Seen,
    params: ThroughputParams,
    /// The largest number of GPUs it had there.
    largest_gpus: u32,
}

#[derive(Debug, Clone)]
enum Seen {
    Own(Observations),
    Osdi21(Profile),
}

impl Seen {
    /// Whether the step is of a kind that was not seen before.
    fn record(&mut self, shape: Shape, plan: BatchPlan, time: StepTime) -> Result<bool, Error> {
        match self {
            Self::Osdi21(profile) => Ok(profile.record(shape, plan.per_gpu, time.step_s, time.sync_s)?),
            Self::Own(seen) => {
                let (before, total_s) = (seen.len(), time.with_accumulation_s(plan.accumulation));
                seen.record(shape, plan.per_gpu, plan.accumulation, total_s)?;
                let new = seen.len() > before;
                for _ in 1..if new { STEPS } else { 1 } {
                    seen.record(shape, plan.per_gpu, plan.accumulation, total_s)?;
                }
                Ok(new)
            }
        }
    }
}

/// A step time in a simulation has no scatter: one stands for many.
const STEPS: u32 = 32;

impl Agent {
    pub(super) fn new(
        application: &'static Application,
        rules: Rules,
        batch: Batch,
        cluster: &Cluster,
    ) -> Self {
        let around = application.room(cluster, 1).map(|(gpu_type, ..)| gpu_type).collect();
        Self { application, rules, batch, noise: NoiseScale::ZERO, types: BTreeMap::new(), around }
    }

    /// Tries some batches on one GPU of each type, as Sia does before a job starts (SOSP'23).
    pub(super) fn profile(&mut self) -> Result<(), Error> {
        for gpu_type in &self.around {
            let Some(times) = self.application.step_times(gpu_type) else { continue };
            let mut seen = Observations::default();
            for (per_gpu, time) in times.on_one_gpu() {
                for _ in 0..STEPS {
                    seen.record(Shape::single(), per_gpu, 0, time.step_s)?;
                }
            }
            let params = fit(&seen, None, None)?.params;
            self.types.insert(gpu_type.clone(), Known { seen: Seen::Own(seen), params, largest_gpus: 0 });
        }
        Ok(())
    }

    /// The batch for an allocation of this type.
    pub(super) fn choose(&self, gpu_type: &GpuType, shape: Shape) -> Option<BatchPlan> {
        let limits = self.application.batch_limits(gpu_type)?;
        let total = match self.batch {
            Batch::Fixed(total) => Some(total),
            Batch::Adaptive if self.types.contains_key(gpu_type) => None,
            Batch::Adaptive => Some(limits.initial().max(limits.per_gpu_min().saturating_mul(shape.gpus()))),
        };
        let plan = match total {
            None => self.best_batch(gpu_type, shape)?.plan,
            Some(total) => {
                let grown = total > limits.initial();
                let passes = if grown { self.rules.min_passes(shape.gpus()) } else { 1 };
                BatchPlan::split(total, shape.gpus(), limits.per_gpu_max(), passes)
            }
        };
        // Rounding up must not exceed the largest batch.
        let max = self.application.max_batch() / (shape.gpus() * (plan.accumulation + 1));
        Some(BatchPlan { per_gpu: plan.per_gpu.min(max), ..plan }).filter(|plan| plan.per_gpu > 0)
    }

    /// Records a step, and learns from it what is new.
    pub(super) fn observe(
        &mut self,
        gpu_type: &GpuType,
        shape: Shape,
        plan: BatchPlan,
        time: StepTime,
        noise: NoiseScale,
    ) -> Result<(), Error> {
        self.noise = noise;
        let known = self.types.remove(gpu_type);
        let (mut seen, old, before_gpus) = match known {
            Some(Known { seen, params, largest_gpus }) => (seen, Some(params), largest_gpus),
            None if self.rules.as_authors() => (Seen::Osdi21(Profile::default()), None, 0),
            None => (Seen::Own(Observations::default()), None, 0),
        };
        let new = seen.record(shape, plan, time)?;
        let params = match (old, &seen) {
            (Some(old), _) if !new => old,
            (_, Seen::Osdi21(profile)) => profile.fit()?,
            (old, Seen::Own(seen)) => fit(seen, self.prior(gpu_type)?.as_ref(), old.as_ref())?.params,
        };
        let largest_gpus = before_gpus.max(shape.gpus());
        self.types.insert(gpu_type.clone(), Known { seen, params, largest_gpus });
        if new && !self.rules.as_authors() {
            self.update_others(gpu_type)?;
        }
        Ok(())
    }

    /// What follows for another type from the one with most experience.
    fn prior(&self, gpu_type: &GpuType) -> Result<Option<ThroughputPrior>, Error> {
        let others = self.types.iter().filter(|(other, _)| *other != gpu_type);
        let Some((source, known)) = others.max_by_key(|(_, known)| known.largest_gpus) else {
            return Ok(None);
        };
        if known.largest_gpus == 0 {
            return Ok(None);
        }
        Ok(Some(bootstrap(&TypeCatalog::builtin(), &known.params, source, gpu_type)?))
    }

    /// Lets types with less experience learn from what was seen on this one.
    fn update_others(&mut self, source: &GpuType) -> Result<(), Error> {
        let experience = self.types.get(source).map_or(0, |known| known.largest_gpus);
        for gpu_type in self.around.clone().into_iter().filter(|gpu_type| gpu_type != source) {
            let Some(prior) = self.prior(&gpu_type)? else { continue };
            let known = self.types.remove(&gpu_type);
            let (seen, old, largest_gpus) = match known {
                Some(Known { seen, params, largest_gpus }) => (seen, Some(params), largest_gpus),
                None => (Seen::Own(Observations::default()), None, 0),
            };
            let params = match (&seen, old) {
                (_, Some(old)) if largest_gpus >= experience => old,
                (Seen::Own(seen), _) if !seen.is_empty() => fit(seen, Some(&prior), None)?.params,
                _ => prior.params()?,
            };
            self.types.insert(gpu_type, Known { seen, params, largest_gpus });
        }
        Ok(())
    }

    /// The job as an allocator sees it, apart from what it has.
    pub(super) fn request(
        &self,
        id: TrialId,
        cluster: &Cluster,
        fair_gpus: u32,
    ) -> Result<TrialRequest, Error> {
        if !self.is_profiled() {
            let types = self.application.room(cluster, 1).map(|(gpu_type, ..)| gpu_type);
            return Ok(TrialRequest::unprofiled(id, types));
        }
        let largest = self.types.values().map(|known| known.largest_gpus).max().unwrap_or(0);
        let cap = largest.saturating_mul(2).max(1).min(cluster.total_gpus());
        // The authors' fair share is on one node, however large, and does not end at the cap.
        let authors = self.rules.as_authors();
        let max_gpus = if authors { cap.max(fair_gpus) } else { cap };
        let mut table = GoodputTable::new();
        for (gpu_type, node_gpus, max_gpus) in self.application.room(cluster, max_gpus) {
            if let Some(limits) =
                self.application.batch_limits(&gpu_type).filter(|_| self.types.contains_key(&gpu_type))
            {
                let goodput = |shape| self.best_batch(&gpu_type, shape).map_or(0.0, |best| best.goodput);
                let node_gpus = if authors { max_gpus } else { node_gpus };
                let curve = Curve::build(max_gpus.min(limits.max_gpus()), node_gpus, goodput)?;
                table.insert(gpu_type, curve);
            }
        }
        Ok(TrialRequest { max_gpus: cap, ..TrialRequest::new(id, table) })
    }

    /// Whether something is known of it, so that its goodput is a number of examples per second.
    pub(super) fn is_profiled(&self) -> bool {
        !self.types.is_empty()
    }

    /// The best batch for an allocation, as far as its type is known.
    fn best_batch(&self, gpu_type: &GpuType, shape: Shape) -> Option<BestBatch> {
        let params = &self.types.get(gpu_type)?.params;
        let limits = self.application.batch_limits(gpu_type)?;
        if self.rules.as_authors() {
            return osdi21::best_batch(params, shape, self.noise, &limits, self.application.max_batch());
        }
        best_batch(params, shape, self.noise, &limits)
    }
}
