//! The books of a trial on one worker, whoever trains: how far it has come, and what was seen since the last report.

use crate::{
    goodput::{
        LrContext, LrRule, NoiseEstimator, NoiseScale, NoiseState, Observation, Observations, Shape,
        StatisticalProgress, scale_lr,
    },
    trials::group::{Batch, Task, WorkerReport},
    worker::{
        Error,
        counters::{Counters, unix_time},
    },
};

/// What was seen since the last report.
#[derive(Debug, Default)]
struct Seen {
    times: Observations,
    loss_sum: f64,
    losses: u32,
    learning_rate: f64,
}

/// The books of one trial on one worker. Where a method asks for `count`, that is how many examples the training data have.
#[derive(Debug)]
pub(super) struct Books {
    initial_batch: f64,
    total_epochs: f64,
    evaluate_every: f64,
    rule: LrRule,
    progress: StatisticalProgress,
    steps: u64,
    examples: u64,
    evaluations: u64,
    stepped_at: f64,
    /// Whether this worker has what the group has learned so far, and not only a model as it was made.
    is_current: bool,
    /// The first step of a group or a batch pays for what later ones do not.
    is_warm: bool,
    seen: Seen,
}

impl Books {
    /// Those of a trial that has not begun.
    pub(super) fn new(task: &Task) -> Result<Self, Error> {
        let initial_batch = f64::from(task.initial_batch);
        Ok(Self {
            initial_batch,
            total_epochs: task.epochs,
            evaluate_every: task.evaluate_every,
            rule: task.lr_rule.parse()?,
            progress: StatisticalProgress::new(initial_batch)?,
            steps: 0,
            examples: 0,
            evaluations: 0,
            stepped_at: 0.0,
            is_current: false,
            is_warm: false,
            seen: Seen::default(),
        })
    }

    /// Optimizer steps so far.
    pub(super) const fn steps(&self) -> u64 {
        self.steps
    }

    /// Examples so far: the position in their order.
    pub(super) const fn examples(&self) -> u64 {
        self.examples
    }

    /// How often it was evaluated, or could have been.
    pub(super) const fn evaluations(&self) -> u64 {
        self.evaluations
    }

    #[cfg(feature = "torch")]
    pub(super) const fn is_warm(&self) -> bool {
        self.is_warm
    }

    /// Optimizer steps that the state has behind it; none if there is only a model as it was made.
    pub(super) fn state_steps(&self) -> Option<u64> {
        self.is_current.then_some(self.steps)
    }

    /// Statistical epochs so far.
    pub(super) fn epochs(&self, count: u32) -> Result<f64, Error> {
        Ok(self.progress.epochs(u64::from(count))?)
    }

    /// Whether the last epoch is over.
    pub(super) fn is_finished(&self, count: u32) -> Result<bool, Error> {
        Ok(self.epochs(count)? >= self.total_epochs)
    }

    /// Whether another evaluation is due.
    pub(super) fn wants_evaluation(&self, count: u32) -> Result<bool, Error> {
        Ok(self.due_evaluations(count)? > self.evaluations)
    }

    /// All evaluations that are due have had their chance.
    pub(super) fn evaluated(&mut self, count: u32) -> Result<(), Error> {
        self.evaluations = self.due_evaluations(count)?;
        Ok(())
    }

    fn due_evaluations(&self, count: u32) -> Result<u64, Error> {
        Ok((self.epochs(count)? / self.evaluate_every) as u64)
    }

    /// Seconds since the last step, whichever worker took it.
    pub(super) fn idle_s(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { (unix_time() - self.stepped_at).max(0.0) }
    }

    /// A group is together, and this worker has its state; or it uses another batch from now on.
    pub(super) const fn begin(&mut self) {
        self.is_current = true;
        self.is_warm = false;
    }

    /// What was seen before in another rank, or by one that nobody asks, was never reported and is old.
    pub(super) fn forget_seen(&mut self) {
        self.seen = Seen::default();
    }

    /// What the learning rate of a step is multiplied with.
    pub(super) fn learning_rate_factor(
        &self,
        count: u32,
        batch: u32,
        noise: &NoiseEstimator,
    ) -> Result<f64, Error> {
        let context = LrContext {
            initial_batch: self.initial_batch,
            batch: f64::from(batch),
            stats: noise.stats(),
            epochs: self.epochs(count)?,
        };
        Ok(scale_lr(&self.rule, &context)?)
    }

    /// A loss of the group.
    pub(super) fn saw_loss(&mut self, loss: f64) {
        self.seen.loss_sum += loss;
        self.seen.losses += 1;
    }

    /// A step is complete.
    pub(super) fn stepped(
        &mut self,
        batch: u32,
        learning_rate: f64,
        noise: &NoiseEstimator,
    ) -> Result<(), Error> {
        let phi = noise.noise_scale().unwrap_or(NoiseScale::ZERO);
        self.progress.add_step(f64::from(batch), phi)?;
        self.steps += 1;
        self.examples += u64::from(batch);
        self.stepped_at = unix_time();
        self.seen.learning_rate = learning_rate;
        Ok(())
    }

    /// How long a step of so many workers on so many machines took: from the second one of a group or a batch on, unless somebody did more
    /// than was planned. `seconds` is none then.
    pub(super) fn took(
        &mut self,
        (size, nodes): (u32, u32),
        batch: Batch,
        seconds: Option<f64>,
    ) -> Result<(), Error> {
        if let Some(seconds) = seconds.filter(|seconds| self.is_warm && *seconds > 0.0) {
            let per_gpu = batch.total.div_ceil(size * (batch.accumulation + 1));
            self.seen.times.record(Shape::new(size, nodes)?, per_gpu, batch.accumulation, seconds)?;
        }
        self.is_warm = true;
        Ok(())
    }

    /// What was measured since the last call; the worker adds the rest.
    pub(super) fn report(
        &mut self,
        count: u32,
        (size, nodes): (u32, u32),
        batch: Batch,
        noise: &NoiseEstimator,
    ) -> Result<WorkerReport, Error> {
        let shape = Shape::new(size, nodes)?;
        let epochs = self.epochs(count)?;
        let Seen { times, loss_sum, losses, learning_rate } = std::mem::take(&mut self.seen);
        self.seen.learning_rate = learning_rate;
        Ok(WorkerReport {
            steps: self.steps,
            examples: self.examples,
            epochs,
            loss: (losses > 0).then(|| loss_sum / f64::from(losses)),
            learning_rate,
            batch: Some(batch),
            step_times: times.iter().map(|times| Observation { shape, ..times }).collect(),
            noise: noise.settled(),
            noise_batch: noise.settled().and_then(|_| noise.batch()),
            ..WorkerReport::default()
        })
    }

    /// What another worker needs to continue.
    pub(super) const fn counters(&self, noise: NoiseState) -> Counters {
        Counters {
            steps: self.steps,
            examples: self.examples,
            useful: self.progress.examples(),
            noise,
            evaluations: self.evaluations,
            stepped_at: self.stepped_at,
        }
    }

    /// Continues where another worker, or a checkpoint, was.
    pub(super) fn restore(&mut self, counters: &Counters) -> Result<(), Error> {
        self.progress = StatisticalProgress::resume(self.initial_batch, counters.useful)?;
        self.steps = counters.steps;
        self.examples = counters.examples;
        self.evaluations = counters.evaluations;
        self.stepped_at = counters.stepped_at;
        self.is_current = true;
        Ok(())
    }
}
