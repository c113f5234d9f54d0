//! One trial on one emulated worker: what is trained, and how far it has come. Nothing here knows the time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::error::Error;
use crate::{
    goodput::{GradientStats, LrContext, LrRule, NoiseScale, scale_lr},
    ids::GpuType,
    sim::Modelled,
    trials::group::{Batch, Evaluation, Task},
};

/// The noise scale is constant in each of this many parts of a training.
const PARTS: f64 = 512.0;

/// With more, single steps would be lost in rounding.
const EPOCHS_MAX: f64 = 1e9;
const EVALUATIONS_MAX: f64 = 1e6;

/// How far a trial has come: what is handed over and written to disk.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// Optimizer steps.
    pub(super) steps: u64,
    /// Examples.
    pub(super) examples: u64,
    /// Examples at full statistical efficiency.
    pub(super) useful: f64,
    /// Evaluations.
    pub(super) evaluations: u64,
}

/// One trial on one worker.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) task: Task,
    model: Modelled,
    rule: LrRule,
    /// Examples of an epoch.
    per_epoch: f64,
    /// None until it has joined a group.
    pub(super) state: Option<State>,
    /// When the last step ended.
    pub(super) stepped: Option<Instant>,
    /// Steps of a checkpoint that was not reported yet.
    pub(super) saved: Option<u64>,
    /// What the user should know of its checkpoints.
    pub(super) warning: Option<String>,
}

impl Session {
    pub(super) fn new(task: Task) -> Result<Self, Error> {
        let Task { trainable, params, seed, epochs, .. } = &task;
        let model = Modelled::new(trainable, params, *seed, *epochs)?;
        Error::check_positive("the initial batch", f64::from(task.initial_batch))?;
        Error::check_max("the number of epochs", task.epochs, EPOCHS_MAX, "at most 1e9")?;
        let every = task.evaluate_every;
        Error::check_positive("epochs from evaluation to evaluation", every)?;
        Error::check_max("evaluations in an epoch", every.recip(), EVALUATIONS_MAX, "at most 1e6")?;
        Error::check_positive("seconds from checkpoint to checkpoint", task.checkpoint_every_s)?;
        Error::check_positive("seconds from report to report", task.report_every_s)?;
        let rule: LrRule = task.lr_rule.parse()?;
        let per_epoch = model.examples_per_epoch() as f64;
        Error::check_positive("the number of examples of an epoch", per_epoch)?;
        Ok(Self { task, model, rule, per_epoch, state: None, stepped: None, saved: None, warning: None })
    }

    /// Its state, or that at the beginning.
    pub(super) fn current(&self) -> State {
        self.state.unwrap_or_default()
    }

    /// Statistical epochs so far.
    pub(super) fn epochs(&self) -> f64 {
        self.current().useful / self.per_epoch
    }

    /// Useful examples at which the trial is complete.
    fn goal(&self) -> f64 {
        self.task.epochs * self.per_epoch
    }

    /// Useful examples at which the next evaluation is due.
    fn evaluation(&self) -> f64 {
        self.current().evaluations.saturating_add(1) as f64 * self.task.evaluate_every * self.per_epoch
    }

    pub(super) fn is_finished(&self) -> bool {
        self.current().useful >= self.goal()
    }

    /// Steps to the end.
    pub(super) fn steps_to_end(&self, batch: Batch) -> u64 {
        self.walk(batch, u64::MAX, self.goal()).steps - self.current().steps
    }

    /// Steps to the next evaluation, if it is among the next `max_steps` ones.
    pub(super) fn steps_to_evaluation(&self, batch: Batch, max_steps: u64) -> Option<u64> {
        let then = self.walk(batch, max_steps, self.evaluation());
        (then.useful >= self.evaluation()).then(|| then.steps - self.current().steps)
    }

    /// Seconds of a step on these GPUs: a pass takes as long as the largest share of it.
    pub(super) fn step_s(&self, gpu_type: &GpuType, placement: &[u32], batch: Batch) -> Result<f64, Error> {
        let per_gpu = per_gpu(batch, placement.iter().sum());
        let seconds = self.model.step_time_s(gpu_type, placement, f64::from(per_gpu), batch.accumulation);
        seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0).ok_or_else(|| Error::NotMeasured {
            trainable: self.task.trainable.clone(),
            gpu_type: gpu_type.name().to_owned(),
            per_gpu,
            allowed: self.model.application().gpu_types().map(GpuType::name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The state after at most this many more steps, or as soon as it has as many useful examples as the goal.
    ///
    /// A step is worth what its batch is at the noise scale of the moment, as in a real training, but steps are not taken one by
    /// one: all steps of a part of the training are worth the same.
    fn walk(&self, batch: Batch, max_steps: u64, goal: f64) -> State {
        let mut state = self.current();
        let part = self.goal() / PARTS;
        let mut left = max_steps;
        while left > 0 && state.useful < goal {
            let begin = (state.useful / part).floor();
            let worth = self.worth(begin * part, batch);
            let end = ((begin + 1.0) * part).min(goal);
            let steps = ((end - state.useful) / worth).ceil().max(1.0) as u64;
            let steps = steps.min(left);
            state.useful = (steps as f64).mul_add(worth, state.useful);
            state.steps = state.steps.saturating_add(steps);
            state.examples = state.examples.saturating_add(steps.saturating_mul(u64::from(batch.total)));
            left -= steps;
        }
        state
    }

    /// Useful examples of one step.
    fn worth(&self, useful: f64, batch: Batch) -> f64 {
        let phi = if self.task.measure_noise { self.phi(useful, batch) } else { NoiseScale::ZERO };
        let total = f64::from(batch.total);
        total * phi.efficiency(f64::from(self.task.initial_batch), total)
    }

    fn phi(&self, useful: f64, batch: Batch) -> NoiseScale {
        self.model.noise_at(useful / self.per_epoch, batch.total)
    }

    /// Takes steps. Gives what was evaluated on the way.
    pub(super) fn advance(&mut self, batch: Batch, steps: u64) -> Vec<Evaluation> {
        let mut evaluated = Vec::new();
        let end = self.current().steps.saturating_add(steps);
        loop {
            let due = self.evaluation();
            self.state = Some(self.walk(batch, end - self.current().steps, due));
            if self.current().useful < due {
                return evaluated;
            }
            let metric = self.evaluate();
            if !self.is_finished() {
                evaluated.push(metric);
            }
        }
    }

    /// All steps are taken, whatever the rounding of their sum.
    pub(super) fn complete(&mut self) {
        let state = self.current();
        self.state = Some(State { useful: state.useful.max(self.goal()), ..state });
    }

    /// How well it does now.
    pub(super) fn evaluate(&mut self) -> Evaluation {
        let (mut state, epochs) = (self.current(), self.epochs());
        let due = (epochs / self.task.evaluate_every) as u64;
        state.evaluations = due.max(state.evaluations.saturating_add(1));
        self.state = Some(state);
        Evaluation { epochs, values: self.metrics() }
    }

    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        self.model.metrics(self.epochs())
    }

    /// The gradient's statistics as a worker that measures them would report them.
    pub(super) fn noise(&self, batch: Batch) -> Option<GradientStats> {
        let measured = self.task.measure_noise && self.current().steps > 0;
        measured.then(|| GradientStats { sqr: 1.0, var: self.phi(self.current().useful, batch).value() })
    }

    /// The parameter `lr`, or 1 if there is none, times what the rule makes of the batch.
    pub(super) fn learning_rate(&self, batch: Batch) -> Result<f64, Error> {
        let noise = self.noise(batch);
        let context = LrContext {
            initial_batch: f64::from(self.task.initial_batch),
            batch: f64::from(batch.total),
            stats: noise,
            epochs: self.epochs(),
        };
        let base = self.task.params.get("lr").and_then(serde_json::Value::as_f64).unwrap_or(1.0);
        Ok(base * scale_lr(&self.rule, &context)?)
    }
}

/// Examples of a pass on one GPU: the largest share, if they cannot be divided evenly.
pub(super) fn per_gpu(batch: Batch, gpus: u32) -> u32 {
    let passes = batch.accumulation.saturating_add(1);
    batch.total.div_ceil(gpus.saturating_mul(passes).max(1))
}
