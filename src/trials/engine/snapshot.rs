//! What the allocator is asked, complete in itself, so that it can be answered elsewhere.

use std::{collections::BTreeMap, sync::Arc};

use super::{ActiveTrial, Engine, PaceModel, Phase, Refit, TrialKind, pace, state};
use crate::{
    alloc::{self, Allocation, Cluster, Fairness, PolicyKind, Problem, RemainingWork, TrialRequest},
    goodput::{
        BatchLimits, BatchMode, BatchPlan, Curve, Error, GoodputModel, GoodputTable, NoiseCurve, Shape,
    },
    ids::{GpuType, SlotId, TrialId},
    space::{Algorithm, Parallel, Study, TrialSettings},
    trials::{group::Batch, weigh},
};

/// How many GPUs which trial could use, and all else that a policy decides on.
///
/// [`problem`](Self::problem) turns it into what policies work on. That takes a while, so it is left to the solver.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationSnapshot {
    /// The machines, without the slots that have no worker.
    pub cluster: Cluster,
    /// All trials that run or wait, oldest first.
    pub trials: Vec<TrialSnapshot>,
    /// The largest pass on one GPU of a type, in examples, where that was learned.
    pub batch_limits: BTreeMap<GpuType, u32>,
    /// Trials that have not been created yet.
    pub to_come: u32,
}

/// One trial of a [`AllocationSnapshot`].
#[derive(Debug, Clone, PartialEq)]
pub struct TrialSnapshot {
    /// Its number.
    pub id: TrialId,
    /// What is known of its speed; none if that is nothing.
    pub fit: Option<Refit>,
    /// The noise scale of its gradients, over the batch.
    pub noise: NoiseCurve,
    /// The GPUs it has.
    pub current: Allocation,
    /// Seconds since it was created.
    pub age_s: f64,
    /// How often its group changed.
    pub reallocations: u32,
    /// What a change costs, in seconds.
    pub delay_s: f64,
    /// In how many seconds it has to pay off.
    pub horizon_s: f64,
    /// GPU-seconds it has had.
    pub attained_gpu_s: f64,
    /// How likely it is to continue at its next decision.
    pub promise: f64,
    /// Statistical epochs until it is done.
    pub remaining_epochs: f64,
    /// What is known of its speed, if it is a program.
    pub pace: Option<PaceModel>,
}

/// The part of an interval in which a change has to pay off. Other trials end and noise grows, so that a gain does not last: in
/// `pollux-tune simulate study`, whole intervals brought more changes and less progress.
const HORIZON: f64 = 0.25;
/// A program runs for so many times as long as a restart takes before it may be restarted again.
const RESTARTS: f64 = 10.0;
/// Seconds that a change of a group costs, until the first was measured: more than any hand-over was seen to take. From a single batch on one
/// GPU a gain of a third is expected of two, which [`HORIZON`] would not grant to a change of 5 s, and it would never be found out.
const DELAY_S: f64 = 1.0;
/// The same for programs, which start again.
const RESTART_S: f64 = 5.0;
/// Trials that a search loses by each trial that runs beside others, if what it tries next depends on their results: in
/// `pollux-tune simulate study`, a search of 100 trials with 15 at a time finds a little less than with 4.
const PLACE_COST: f64 = 0.3;
/// The same for a search that does not look at results: what is lost is only that the last trials do not end together.
const BLIND_PLACE_COST: f64 = 0.1;

impl Engine {
    /// The question that the study has now.
    pub(in crate::trials) fn snapshot(&self, now_s: f64) -> AllocationSnapshot {
        let is_restarted = self.kind == TrialKind::Restarted;
        let ((count, seconds), unknown_s) =
            if is_restarted { (self.shown.restarts, RESTART_S) } else { (self.state.reshapes, DELAY_S) };
        let serial = self.serial_part();
        let pace = |trial: TrialId| {
            let own = self.records.get(&trial).and_then(|record| record.pace.expect(serial));
            let others = || PaceModel::of_study(serial?, self.shown.widest);
            own.or_else(|| others().filter(|_| self.study.scheduler.knowledge_sharing))
        };
        let delay_s = if count == 0 { unknown_s } else { seconds / f64::from(count) };
        let candidate = |(&id, active): (&TrialId, &ActiveTrial)| {
            // What is under way counts as done.
            let slots = if matches!(active.phase, Phase::Pausing(_)) { &[] } else { active.slots() };
            TrialSnapshot {
                id,
                fit: active.fit.clone(),
                noise: active.noise_curve(self.study.trial.initial_batch),
                current: state::allocation(slots),
                age_s: (now_s - active.created_s).max(0.0),
                reallocations: active.reallocations,
                delay_s,
                horizon_s: self.horizon_s(active, delay_s, now_s),
                attained_gpu_s: active.usage.at(now_s, active.slots().len()).slot_s,
                promise: self.stopper.promise(id),
                remaining_epochs: (self.study.trial.epochs - active.epochs).max(0.0),
                pace: if is_restarted { pace(id) } else { None },
            }
        };
        AllocationSnapshot {
            cluster: self.state.cluster(),
            trials: self.state.active.iter().map(candidate).collect(),
            batch_limits: self.state.batch_limits.clone(),
            to_come: self.to_come(),
        }
    }

    /// Trials that have not been created yet, and will be.
    fn to_come(&self) -> u32 {
        let is_over = self.state.search_ended.is_some() || self.state.done;
        if is_over { 0 } else { self.study.search.trials.saturating_sub(self.state.created() as u32) }
    }

    /// In how many seconds a change of a trial's GPUs has to pay off: a part of the interval, but twice as long as it takes, so
    /// that trials get beyond their first GPU however expensive it is; or until the trial ends, at its pace so far.
    fn horizon_s(&self, active: &ActiveTrial, delay_s: f64, now_s: f64) -> f64 {
        let interval_s = self.study.scheduler.interval.as_secs_f64();
        let decision_s = match self.kind {
            // What is as expensive as a restart is not done for the next minute only.
            TrialKind::Restarted => interval_s.max(RESTARTS * delay_s),
            TrialKind::Elastic | TrialKind::Rigid => (HORIZON * interval_s).max(2.0 * delay_s),
        };
        if active.epochs <= 0.0 {
            return decision_s;
        }
        let left = (self.study.trial.epochs - active.epochs).max(0.0);
        decision_s.min(active.usage.at(now_s, active.slots().len()).ran_s * left / active.epochs)
    }
}

impl AllocationSnapshot {
    /// The problem that a policy of this study is to solve.
    pub fn problem(&self, study: &Study) -> Result<Problem, alloc::Error> {
        let limits = TypeLimits { all: batch_limits(&study.trial)?, learned: &self.batch_limits };
        let total = self.cluster.total_gpus();
        let share = (total / study.search.parallel.or_default().max(1)).max(study.trial.min_gpus).max(1);
        let mut requests = Vec::with_capacity(self.trials.len());
        for candidate in &self.trials {
            requests.push(candidate.request(study, &self.cluster, limits, share)?);
        }
        if study.scheduler.promise_weighting {
            let promises: BTreeMap<_, _> =
                self.trials.iter().map(|candidate| (candidate.id, candidate.promise)).collect();
            weigh(&mut requests, |id| promises.get(&id).copied().unwrap_or(1.0));
        }
        let problem = Problem {
            cluster: self.cluster.clone(),
            trials: requests,
            fairness: study.scheduler.p.map_or_else(|| Ok(Fairness::default()), Fairness::new)?,
            avoid_interference: study.scheduler.avoid_interference,
        };
        match (study.scheduler.policy, study.scheduler.p) {
            // The study ends with its last trial.
            (PolicyKind::Goodput, None) if self.to_come == 0 => problem.aim_at_makespan(),
            (PolicyKind::Goodput, None) => problem.aim_at_progress(),
            _ => Ok(problem),
        }
    }

    /// How many trials should be active at a time, where that is not fixed; none while it is not known how fast any of them is.
    pub fn places(&self, study: &Study, problem: &Problem) -> Result<Option<u32>, alloc::Error> {
        let is_known = |trial: &TrialSnapshot| trial.fit.as_ref().is_some_and(|fit| !fit.models.is_empty());
        if study.search.parallel != Parallel::Auto || !self.trials.iter().any(is_known) {
            return Ok(None);
        }
        let begun: f64 = self.trials.iter().map(|trial| trial.remaining_epochs / study.trial.epochs).sum();
        let cost = match study.search.algorithm {
            Algorithm::Random | Algorithm::Halton | Algorithm::Grid => BLIND_PLACE_COST,
            Algorithm::Tpe | Algorithm::Gp | Algorithm::Auto => PLACE_COST,
        };
        problem.places(f64::from(self.to_come) + begun, cost)
    }
}

impl TrialSnapshot {
    fn request(
        &self,
        study: &Study,
        cluster: &Cluster,
        limits: TypeLimits,
        share: u32,
    ) -> Result<TrialRequest, alloc::Error> {
        let TrialSettings { min_gpus, max_gpus, .. } = study.trial;
        let max_gpus = max_gpus.unwrap_or(u32::MAX).min(limits.all.max_gpus()).max(min_gpus);
        // What a user asks for does not wait until it was explored.
        let asked_for = matches!(study.scheduler.policy, PolicyKind::Static | PolicyKind::Tiresias);
        let cap = match (&self.fit, &self.pace) {
            _ if asked_for => max_gpus,
            (Some(fit), _) => fit.cap.clamp(min_gpus, max_gpus),
            (None, Some(pace)) => pace.cap().clamp(min_gpus, max_gpus),
            (None, None) => min_gpus,
        };
        let is_program = study.trial.elastic.is_some();
        let table = match &self.fit {
            _ if is_program => match self.pace.as_ref().filter(|_| !asked_for) {
                Some(pace) => pace.table(cluster, cap)?,
                None => pace::one_node(cluster, cap, |_, gpus| f64::from(gpus))?,
            },
            Some(fit) if !asked_for && fit.is_of(cluster) => {
                fit.model(self.noise, limits).table(cluster.room(cap))?
            }
            _ => linear(cluster, cap),
        };
        let id = self.id;
        Ok(TrialRequest {
            min_gpus,
            max_gpus: cap,
            current: self.current.clone(),
            age_s: self.age_s,
            reallocations: self.reallocations,
            realloc_delay_s: self.delay_s,
            // Pollux goes by the past of a trial.
            horizon_s: (study.scheduler.policy != PolicyKind::Pollux).then_some(self.horizon_s),
            attained_gpu_s: self.attained_gpu_s,
            requested_gpus: share.min(max_gpus),
            remaining: RemainingWork::Epochs(self.remaining_epochs),
            ..TrialRequest::new(id, Arc::new(table))
        })
    }
}

/// A trial of which nothing is known on the GPUs that are here is taken to scale perfectly.
fn linear(cluster: &Cluster, max_gpus: u32) -> GoodputTable {
    cluster.room(max_gpus).map(|(gpu_type, node, gpus)| (gpu_type, Curve::linear(gpus, node))).collect()
}

impl Refit {
    fn model(&self, noise: NoiseCurve, limits: TypeLimits) -> GoodputModel {
        self.models.iter().fold(GoodputModel::new(noise), |model, (gpu_type, params)| {
            model.with_type(gpu_type.clone(), *params, limits.of(gpu_type))
        })
    }

    /// Whether it knows a type of GPU that is here.
    fn is_of(&self, cluster: &Cluster) -> bool {
        cluster.iter().any(|(_, node)| self.models.contains_key(&node.gpu_type))
    }
}

/// What is known of a trial, as a model of its goodput; none for trials that are not elastic.
#[cfg(feature = "cli")]
pub(super) fn model(fit: &Refit, noise: NoiseCurve, engine: &Engine) -> Option<GoodputModel> {
    Some(fit.model(noise, engine.type_limits()?))
}

/// The batches that a study allows on each type of GPU.
#[derive(Clone, Copy)]
struct TypeLimits<'a> {
    all: BatchLimits,
    learned: &'a BTreeMap<GpuType, u32>,
}

impl TypeLimits<'_> {
    fn of(&self, gpu_type: &GpuType) -> BatchLimits {
        self.learned.get(gpu_type).map_or(self.all, |limit| self.all.within(*limit))
    }
}

impl Engine {
    fn type_limits(&self) -> Option<TypeLimits<'_>> {
        Some(TypeLimits { all: self.limits?, learned: &self.state.batch_limits })
    }

    /// The batches that are allowed on a type of GPU; none for trials that are not elastic.
    pub(super) fn limits_of(&self, gpu_type: &GpuType) -> Option<BatchLimits> {
        Some(self.type_limits()?.of(gpu_type))
    }
}

/// Whether the passes of a trial are larger than what fits into the memory of its GPUs, by what is known now.
pub(super) fn is_too_large(active: &ActiveTrial, engine: &Engine) -> bool {
    let limits = engine.state.gpu_type(active.slots()).and_then(|gpu_type| engine.limits_of(gpu_type));
    let batch = active.phase.group().and_then(|group| group.batch);
    batch.zip(limits).is_some_and(|(batch, limits)| batch.per_gpu > limits.per_gpu_max())
}

/// The batches that a study allows.
pub(super) fn batch_limits(trial: &TrialSettings) -> Result<BatchLimits, Error> {
    let per_gpu = trial.max_batch_per_gpu.unwrap_or(trial.max_batch);
    let mode = match trial.batch_per_gpu {
        Some(batch) => BatchMode::PerGpu { batch },
        None => BatchMode::Adaptive { max: trial.max_batch },
    };
    BatchLimits::new(trial.initial_batch, mode, 1, per_gpu)
}

/// The batch of a trial on some slots: the best one that is known, else the initial or the fixed one in equal shares.
pub(super) fn batch(active: &ActiveTrial, slots: &[SlotId], engine: &Engine) -> Option<BatchPlan> {
    let (limits, shape) = (engine.type_limits()?, state::shape(slots)?);
    let gpu_type = engine.state.gpu_type(slots);
    let known = active.fit.as_ref().zip(gpu_type).and_then(|(fit, gpu_type)| {
        let noise = active.noise_curve(engine.study.trial.initial_batch);
        fit.model(noise, limits).best_batch(gpu_type, shape)
    });
    let largest = gpu_type.map_or(limits.all, |gpu_type| limits.of(gpu_type)).per_gpu_max();
    Some(known.map_or_else(|| equal_shares(&engine.study.trial, shape, largest), |best| best.plan))
}

/// What a step takes in all. Equal shares are rounded up, but not beyond the largest batch that the study allows.
pub(super) fn in_all(plan: BatchPlan, workers: usize, trial: &TrialSettings) -> Batch {
    let workers = workers as u32;
    let largest = if trial.batch_per_gpu.is_some() { u32::MAX } else { trial.max_batch.max(workers) };
    let total = plan.total(workers).min(u64::from(largest)) as u32;
    Batch { total, accumulation: plan.accumulation }
}

fn equal_shares(trial: &TrialSettings, shape: Shape, per_gpu: u32) -> BatchPlan {
    let total = match trial.batch_per_gpu {
        Some(batch) => batch.saturating_mul(shape.gpus()),
        None => trial.initial_batch,
    };
    BatchPlan::split(total.max(1), shape.gpus(), per_gpu, 1)
}

/// Whether another batch is worth a change, by the goodput that is expected of both.
pub(super) fn is_better(active: &ActiveTrial, new: BatchPlan, engine: &Engine) -> bool {
    let Some((fit, gpu_type)) = active.fit.as_ref().zip(engine.state.gpu_type(active.slots())) else {
        return false;
    };
    let (Some(old), Some(shape), Some(params), Some(limits)) = (
        active.phase.group().and_then(|group| group.batch),
        state::shape(active.slots()),
        fit.models.get(gpu_type),
        engine.limits,
    ) else {
        return false;
    };
    let noise = active.noise_curve(limits.initial());
    let goodput = |plan: BatchPlan| {
        let total = plan.total(shape.gpus()) as f64;
        params.throughput(shape, f64::from(plan.per_gpu), plan.accumulation)
            * noise.efficiency(f64::from(limits.initial()), total)
    };
    goodput(new) > gain(fit.noise_scatter) * goodput(old)
}

/// The factor that a change of the batch must bring: it is as good as free, but measurements are noisy. Where they are known not to be, it
/// follows them more closely.
fn gain(noise_scatter: Option<f64>) -> f64 {
    if noise_scatter.is_some_and(|scatter| scatter < RELIABLE) { 1.005 } else { 1.02 }
}

/// The scatter of noise scales below which they are reliable. The best batch changes by about half of what the noise scale does, and a
/// batch that is off by 7 % costs a part in a thousand.
const RELIABLE: f64 = 0.15;
