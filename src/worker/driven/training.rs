//! The books of a trial: how far it has come, what comes next, and what its gradients tell.

use crate::{
    goodput::{
        ConsecutiveNorms, GradientNorms, GradientSample, GradientStats, NoiseEstimator, Optimizer,
        Preconditioner,
    },
    trials::group::{Batch, Task, WorkerReport},
    worker::{
        ElasticSampler, Error, books::Books, comparison::Comparison, counters::Counters, memory::Memory,
        shard,
    },
};

/// A worker's place in its group, and what a step of that takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlace {
    /// From 0.
    pub rank: u32,
    /// Workers.
    pub size: u32,
    /// Machines.
    pub nodes: u32,
    /// What a step takes.
    pub batch: Batch,
}

/// What the gradients of a step are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparing {
    /// Those of the other workers.
    Workers,
    /// Those of the passes of the step, each by itself.
    Passes,
    /// That of the step before, which has to be kept.
    Steps,
}

/// What a worker does in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlan {
    /// Its number.
    pub step: u64,
    /// Examples over all workers.
    pub total: u32,
    /// The examples of each pass of this worker, at least one pass. A pass may be empty if there are fewer examples than passes.
    pub passes: Vec<Vec<u32>>,
    /// How its gradients are compared, if they are measured.
    pub comparing: Option<Comparing>,
    /// Whether the next step is compared with this one.
    pub keep_gradients: bool,
    /// Whether it takes more passes than were planned, because those would not fit into memory.
    pub more_passes: bool,
}

/// The books of one trial on one worker.
#[derive(Debug)]
pub struct Training {
    task: Task,
    optimizer: Optimizer,
    may_be_halved: bool,
    order: Option<ElasticSampler>,
    noise: NoiseEstimator,
    books: Books,
    is_over: bool,
    group: GroupPlace,
    /// What its device has room for.
    pub(super) memory: Memory,
    pub(super) warning: Option<String>,
}

impl Training {
    /// The books of a trial that has not begun.
    pub fn new(task: Task) -> Result<Self, Error> {
        let batch = Batch { total: task.initial_batch, accumulation: 0 };
        Ok(Self {
            optimizer: Optimizer::Sgd,
            may_be_halved: true,
            order: None,
            noise: NoiseEstimator::new(f64::from(task.initial_batch))?,
            books: Books::new(&task)?,
            is_over: false,
            group: GroupPlace { rank: 0, size: 1, nodes: 1, batch },
            memory: Memory::default(),
            warning: None,
            task,
        })
    }

    /// How many examples the training data have, and whether a batch may be computed in halves. Later calls have to say the same.
    pub fn open(&mut self, examples: u64, may_be_halved: bool) -> Result<(), Error> {
        let unfit = |problem: String| Err(Error::Unfit(problem));
        let Ok(count) = u32::try_from(examples) else {
            return unfit(format!(
                "the training data have {examples} examples; expected at most {}",
                u32::MAX
            ));
        };
        self.may_be_halved = may_be_halved;
        match &self.order {
            Some(order) if order.count() == count => Ok(()),
            Some(order) => {
                let before = order.count();
                unfit(format!(
                    "the training data have {count} examples now and had {before} before; use the same dataset in all epochs of a trial"
                ))
            }
            None => {
                self.order = ElasticSampler::new(self.task.seed, count);
                match self.order {
                    Some(_) => Ok(()),
                    None => unfit("the training data have no examples".to_owned()),
                }
            }
        }
    }

    /// Which optimizer weights the gradient.
    pub const fn set_optimizer(&mut self, optimizer: Optimizer) {
        self.optimizer = optimizer;
    }

    /// A group is together, and this worker has its state.
    pub fn form(&mut self, place: GroupPlace) {
        self.group = place;
        self.books.begin();
        self.books.forget_seen();
    }

    /// Another batch from the next step on.
    pub const fn retune(&mut self, batch: Batch) {
        self.group.batch = batch;
        self.books.begin();
    }

    /// This worker's place in its group.
    #[must_use]
    pub const fn group(&self) -> GroupPlace {
        self.group
    }

    /// Optimizer steps that the state has behind it; none if there is only a model as it was made.
    #[must_use]
    pub fn state_steps(&self) -> Option<u64> {
        self.books.state_steps()
    }

    /// Optimizer steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.books.steps()
    }

    /// Statistical epochs so far.
    pub fn epochs(&self) -> Result<f64, Error> {
        self.count().map_or(Ok(0.0), |count| self.books.epochs(count))
    }

    /// Examples of the training data, once they are open.
    fn count(&self) -> Option<u32> {
        self.order.as_ref().map(ElasticSampler::count)
    }

    /// Statistical epochs of the whole training.
    #[must_use]
    pub const fn total_epochs(&self) -> f64 {
        self.task.epochs
    }

    /// How often it was evaluated, or could have been.
    #[must_use]
    pub const fn evaluations(&self) -> u64 {
        self.books.evaluations()
    }

    /// Whether another evaluation is due.
    pub fn wants_evaluation(&self) -> Result<bool, Error> {
        self.count().map_or(Ok(false), |count| self.books.wants_evaluation(count))
    }

    /// All evaluations that are due have had their chance.
    pub fn evaluated(&mut self) -> Result<(), Error> {
        self.count().map_or(Ok(()), |count| self.books.evaluated(count))
    }

    /// Whether it has reached its last epoch, or has ended itself.
    pub fn is_finished(&self) -> Result<bool, Error> {
        Ok(self.is_over || self.count().map_or(Ok(false), |count| self.books.is_finished(count))?)
    }

    /// The trial has come to its end, whatever its progress is.
    pub const fn finish(&mut self) {
        self.is_over = true;
    }

    /// Seconds since the last step, whichever worker took it.
    #[must_use]
    pub fn idle_s(&self) -> f64 {
        self.books.idle_s()
    }

    /// The batch in as many passes as fit into memory.
    fn batch(&self) -> Batch {
        self.memory.fit(self.group.batch, self.group.size)
    }

    fn comparison(&self) -> Option<Comparison> {
        let (size, batch) = (self.group.size, self.batch());
        let compare = || Comparison::of(size, batch.accumulation + 1, batch.total, self.may_be_halved);
        self.task.measure_noise.then(compare)
    }

    /// What this worker does in the next step, or so many steps after that if nothing changes until then.
    pub fn plan(&mut self, ahead: u64) -> Result<StepPlan, Error> {
        let (comparison, GroupPlace { rank, size, .. }) = (self.comparison(), self.group);
        let batch = self.batch();
        let more_passes = batch != self.group.batch;
        let step = self.steps() + ahead;
        let passes = batch.accumulation + 1;
        let passes = comparison.map_or(passes, |comparison| comparison.passes(step, passes));
        let start = self.books.examples() + ahead * u64::from(batch.total);
        let mine = shard(&(start..start + u64::from(batch.total)), rank, size);
        let Some(order) = &mut self.order else { return Err(no_data()) };
        let passes = (0..passes).map(|pass| order.examples(shard(&mine, pass, passes))).collect();
        let measures = |step| comparison.is_some_and(|comparison| comparison.measures(step));
        let comparing = comparison.filter(|_| measures(step)).map(|comparison| match comparison {
            Comparison::Workers => Comparing::Workers,
            Comparison::Passes | Comparison::Halves => Comparing::Passes,
            Comparison::Steps => Comparing::Steps,
        });
        let keep_gradients = comparison == Some(Comparison::Steps) && measures(step + 1);
        Ok(StepPlan { step, total: batch.total, passes, comparing, keep_gradients, more_passes })
    }

    /// A pass of so many examples begins.
    pub fn attempt(&mut self, examples: u32) {
        self.memory.attempt(u64::from(examples));
    }

    /// The pass under way did not fit into memory: those of the next step are smaller. False if they cannot be.
    pub fn exhausted(&mut self) -> bool {
        self.memory.exhausted()
    }

    /// Squared norms of several gradients of the step under way.
    pub fn measure(&mut self, norms: GradientNorms) -> Result<(), Error> {
        self.push(norms.into())
    }

    /// Squared norms of the gradients of the step under way and of the one before.
    pub fn measure_consecutive(&mut self, norms: ConsecutiveNorms) -> Result<(), Error> {
        self.push(norms.into())
    }

    fn push(&mut self, sample: GradientSample) -> Result<(), Error> {
        let every = self.comparison().map_or(1, Comparison::every);
        self.noise.push_for(sample, every).map_err(|_| Error::Diverged {
            what: "the norm of the gradient",
            value: f64::NAN,
            step: self.books.steps(),
        })
    }

    /// What the learning rate of the step under way is multiplied with.
    pub fn learning_rate_factor(&self) -> Result<f64, Error> {
        let count = self.count().ok_or_else(no_data)?;
        self.books.learning_rate_factor(count, self.group.batch.total, &self.noise)
    }

    /// How Adam and its kin weight the gradient before the step under way: `1 - beta2^t`, or none if all coordinates weigh alike.
    pub fn bias_correction(&self, optimizer: Optimizer) -> Result<Option<f64>, Error> {
        Ok(match optimizer.preconditioner(self.steps())? {
            Preconditioner::InverseRms { bias_correction2, .. } => Some(bias_correction2),
            Preconditioner::Identity => None,
        })
    }

    /// The step under way is complete. How long it took counts from the second one of a group on, unless somebody took more passes than
    /// were planned: `seconds` is none then.
    pub fn stepped(
        &mut self,
        seconds: Option<f64>,
        learning_rate: f64,
        loss: Option<f64>,
    ) -> Result<(), Error> {
        let GroupPlace { size, nodes, batch, .. } = self.group;
        self.memory.fitted();
        if let Some(loss) = loss {
            if !loss.is_finite() {
                return Err(Error::Diverged { what: "the loss", value: loss, step: self.steps() });
            }
            self.books.saw_loss(loss);
        }
        self.books.stepped(batch.total, learning_rate, &self.noise)?;
        self.books.took((size, nodes), batch, seconds)?;
        if self.optimizer.changes_unit(self.steps()) {
            // Norms from before have another unit.
            self.noise.reset();
        }
        Ok(())
    }

    /// What was measured since the last call; the worker adds the rest.
    pub(super) fn report(&mut self) -> Result<WorkerReport, Error> {
        let GroupPlace { size, nodes, batch, .. } = self.group;
        self.books.report(self.count().ok_or_else(no_data)?, (size, nodes), batch, &self.noise)
    }

    /// What the user should know of checkpoints that were not used.
    pub fn warn(&mut self, warning: Option<String>) {
        self.warning = warning;
    }

    /// The statistics of the gradient as they are now, if there are any.
    #[must_use]
    pub fn statistics(&self) -> Option<GradientStats> {
        self.noise.stats()
    }

    /// What another worker needs to continue, as JSON.
    pub fn state(&self) -> Result<String, Error> {
        let counters = self.books.counters(self.noise.state());
        serde_json::to_string(&counters)
            .map_err(|error| Error::Protocol(format!("the counters cannot be written: {error}")))
    }

    /// Continues where another worker, or a checkpoint, was.
    pub fn restore(&mut self, state: &str) -> Result<(), Error> {
        let counters: Counters = serde_json::from_str(state)
            .map_err(|error| Error::Protocol(format!("the counters cannot be read: {error}")))?;
        self.noise = NoiseEstimator::restore(counters.noise)?;
        self.books.restore(&counters)
    }
}

fn no_data() -> Error {
    Error::Unfit("there are no training data yet".to_owned())
}
