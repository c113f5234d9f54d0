//! One trial on one worker: model, data, optimizer and how far it has come.

use std::{collections::BTreeMap, ops::Range, time::Instant};

use tch::{Device, Tensor, nn};

use super::{
    BoxError, ElasticSampler, Error, Registry, Schedule, StepTaken, Trainable,
    flat::{FlatParameters, copy},
    gradient::Gradients,
    loader::Loader,
    memory,
    optimizer::OptimizerState,
    shard,
    team::{Norms, StepConsensus, StepVote, Team},
};
use crate::{
    goodput::NoiseEstimator,
    space::{Params, Value},
    trials::group::{Batch, Task, WorkerReport},
    worker::{books::Books, comparison::Comparison, counters::Counters, memory::Memory},
};

/// How many examples of the test data are evaluated at once.
const EVALUATION_BATCH: u64 = 250;

/// One trial on one worker.
pub(super) struct Session {
    pub(super) task: Task,
    pub(super) flat: FlatParameters,
    pub(super) descent: OptimizerState,
    model: Box<dyn Trainable>,
    gradients: Gradients,
    pub(super) books: Books,
    training: Loader,
    test: Option<Loader>,
    device: Device,
    /// What its device has room for.
    pub(super) memory: Memory,
    /// How many examples of the test data are evaluated at once.
    evaluation_batch: u64,
    /// What this worker knows of its last step and the others do not yet.
    vote: StepVote,
    /// Buffers as they were before the step under way.
    buffers_before: Option<Tensor>,
    /// What the user should know of its checkpoints.
    pub(super) warning: Option<String>,
}

/// What was agreed in a step, the norms of its gradients if they are known, and its loss here.
type Passed = (StepConsensus, Option<Norms>, f64);

impl Session {
    /// Makes the model and opens the data.
    pub(super) fn new(task: Task, registry: &Registry, device: Device) -> Result<Self, Error> {
        check(&task)?;
        let store = nn::VarStore::new(device);
        let params = assignment(&task)?;
        // The initial weights are those of the seed, on whichever worker they are made.
        tch::manual_seed(task.seed.cast_signed());
        let model = registry.build(&task.trainable, &store.root(), &params)?;
        let flat = FlatParameters::new(&store)?;
        let descent = OptimizerState::new(model.optimizer(), &flat)?;
        let user = |what| move |source| Error::User { what, source };
        let data = model.training_data().map_err(user("opening the training data"))?;
        let Some(order) = ElasticSampler::new(task.seed, data.len()) else {
            return Err(Error::Unfit("the training data have no examples".to_owned()));
        };
        let training = Loader::start(data, Some(order), device)?;
        let test = model.test_data().map_err(user("opening the test data"))?;
        let test = test.map(|data| Loader::start(data, None, device)).transpose()?;
        Ok(Self {
            gradients: Gradients::new(NoiseEstimator::new(f64::from(task.initial_batch))?),
            books: Books::new(&task)?,
            task,
            flat,
            descent,
            model,
            training,
            test,
            device,
            memory: Memory::default(),
            evaluation_batch: EVALUATION_BATCH,
            vote: StepVote::default(),
            buffers_before: None,
            warning: None,
        })
    }

    pub(super) const fn device(&self) -> Device {
        self.device
    }

    pub(super) fn counters(&self) -> Counters {
        self.books.counters(self.gradients.noise.state())
    }

    /// Resumes from where another worker, or a checkpoint, was. The vectors are already those of that place.
    pub(super) fn restore(&mut self, counters: Counters) -> Result<(), Error> {
        self.gradients = Gradients::new(NoiseEstimator::restore(counters.noise)?);
        self.descent.steps = counters.steps;
        self.books.restore(&counters)
    }

    /// Statistical epochs so far.
    pub(super) fn epochs(&self) -> Result<f64, Error> {
        self.books.epochs(self.training.len())
    }

    pub(super) fn is_finished(&self) -> Result<bool, Error> {
        self.books.is_finished(self.training.len())
    }

    /// Whether another evaluation is due.
    pub(super) fn wants_evaluation(&self) -> Result<bool, Error> {
        Ok(self.test.is_some() && self.books.wants_evaluation(self.training.len())?)
    }

    /// What was measured since the last report.
    pub(super) fn report(&mut self, team: &Team, batch: Batch) -> Result<WorkerReport, Error> {
        self.books.report(self.training.len(), (team.size, team.nodes), batch, &self.gradients.noise)
    }

    /// A new team, or another batch.
    pub(super) fn begin(&mut self, team: &mut Team) -> Result<(), Error> {
        self.gradients.interrupt();
        self.vote = StepVote::default();
        self.books.begin();
        self.descent.precondition()?;
        match self.descent.weighting() {
            Some(weighting) => team.weigh(&self.flat, weighting),
            None => Ok(()),
        }
    }

    /// What gradients are compared with, if they are.
    fn comparison(&self, team: &Team, batch: Batch) -> Option<Comparison> {
        let compare =
            || Comparison::of(team.size, batch.accumulation + 1, batch.total, self.model.may_be_halved());
        self.task.measure_noise.then(compare)
    }

    /// One optimizer step. After an error of the group, everything is as before the step.
    ///
    /// If there is not enough memory, it is taken again in more passes, with the same examples and random numbers. The other workers
    /// need not know: they wait for this one's gradients, as for those of any slow one.
    pub(super) fn step(
        &mut self,
        team: &mut Team,
        batch: Batch,
        leave: bool,
        retune: bool,
    ) -> Result<StepConsensus, Error> {
        let began = Instant::now();
        self.vote.leave = leave;
        self.vote.retune = retune;
        self.keep_buffers()?;
        let planned = batch;
        let (batch, (agreed, norms, loss)) = loop {
            let batch = self.memory.fit(planned, team.size);
            self.vote.more_passes = batch != planned;
            match self.try_step(team, batch) {
                Ok(taken) => break (batch, taken),
                Err(error) => self.give_back(error)?,
            }
        };
        self.observe(team, batch, agreed, norms, loss)?;
        self.descend(team, batch)?;
        // How long a step takes in which somebody did more than was planned says nothing of the plan.
        let seconds = (!agreed.more_passes).then(|| began.elapsed().as_secs_f64());
        self.books.took((team.size, team.nodes), batch, seconds)?;
        Ok(agreed)
    }

    /// All passes of a step, with the random numbers of this step.
    fn try_step(&mut self, team: &mut Team, batch: Batch) -> Result<Passed, Error> {
        if self.memory.is_careful && team.size > 1 {
            self.draw_from(team.rank);
            self.try_alone(team, batch)?;
            self.restore_buffers()?;
        }
        self.draw_from(team.rank);
        let taken = self.backward(team, batch)?;
        self.memory.fitted();
        Ok(taken)
    }

    /// Random numbers of a step depend on the step and the worker alone, so that it can be taken again.
    fn draw_from(&self, rank: u32) {
        let place = (self.books.steps() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(rank) << 32);
        tch::manual_seed((self.task.seed ^ place).cast_signed());
    }

    /// A pass that nobody waits for: if it does not fit, the group stays whole.
    fn try_alone(&mut self, team: &Team, batch: Batch) -> Result<(), Error> {
        let (passes, total) = (batch.accumulation + 1, u64::from(batch.total));
        let Some(range) = shares(self.books.examples(), total, team, |_| passes).next() else {
            return Ok(());
        };
        self.memory.attempt(range.end - range.start);
        let examples = self.training.next(range, std::iter::empty())?;
        let loss = self.loss(&examples)?;
        Tensor::f_run_backward(&[loss], self.flat.variables(), false, false)?;
        Ok(())
    }

    /// A step has failed: everything is as before it. Gives the error back, unless smaller passes may help.
    fn give_back(&mut self, error: Error) -> Result<(), Error> {
        let is_exhausted = memory::is_exhausted(&error);
        if is_exhausted || error.is_of_the_group() {
            self.restore_buffers()?;
        }
        if !is_exhausted {
            return Err(error);
        }
        if !self.memory.exhausted() {
            return Err(Error::OutOfMemory { source: Box::new(error) });
        }
        if error.is_of_the_group() {
            // It was in the midst of a reduction. The next group is told in time.
            self.memory.is_careful = true;
            return Err(error);
        }
        Ok(())
    }

    /// Forward and backward passes, the last one with the reduction. Gives what was agreed, the norms and the loss here.
    fn backward(&mut self, team: &mut Team, batch: Batch) -> Result<Passed, Error> {
        let comparison = self.comparison(team, batch);
        let (steps, total) = (self.books.steps(), u64::from(batch.total));
        let passes_of = move |step: u64| {
            let passes = batch.accumulation + 1;
            comparison.map_or(passes, |comparison| comparison.passes(steps + step, passes))
        };
        let (shares, passes) = (shares(self.books.examples(), total, team, passes_of), passes_of(0));
        let measured = comparison.is_some_and(|comparison| comparison.measures(steps));
        if team.size > 1 {
            self.flat.clear_gradients()?;
        }
        let mut sum = Tensor::f_zeros([], (tch::Kind::Float, self.device))?;
        let mut agreed = None;
        for pass in 0..passes {
            let mut coming = shares.clone().skip(pass as usize);
            let Some(range) = coming.next() else { break };
            let part = (range.end - range.start) as f64 / total as f64;
            self.memory.attempt(range.end - range.start);
            let examples = self.training.next(range, coming)?;
            let loss = self.loss(&examples)?.f_mul_scalar(part)?;
            sum = sum.f_add(&loss.f_detach()?)?;
            if pass + 1 < passes {
                team.accumulate(&mut self.flat, &loss)?;
            } else {
                agreed = Some(team.backward(&mut self.flat, &loss, &self.vote, measured)?);
            }
            if team.size == 1 && passes > 1 {
                if measured {
                    self.gradients.pass(&self.flat, self.descent.weighting(), pass == 0)?;
                }
                self.flat.add_up(pass == 0)?;
            }
        }
        let Some((agreed, norms)) = agreed else {
            return Err(Error::Protocol("a step without a pass".to_owned()));
        };
        // As if this worker had the whole batch: the mean over all workers is then that of the batch.
        Ok((agreed, norms, sum.f_double_value(&[])? * f64::from(team.size)))
    }

    fn loss(&self, examples: &[Tensor]) -> Result<Tensor, Error> {
        let half = self.task.mixed_precision && self.device.is_cuda();
        let loss = tch::autocast(half, || memory::guarded(|| self.model.loss(examples)));
        let loss = loss.map_err(|source| Error::User { what: "computing the loss", source })?;
        if loss.numel() != 1 || !loss.requires_grad() {
            let size = loss.size();
            return Err(Error::Unfit(format!(
                "the loss is a tensor of shape {size:?} that {}; it must be one number that depends on the variables",
                if loss.requires_grad() { "has a gradient" } else { "has no gradient" }
            )));
        }
        Ok(loss.f_to_kind(tch::Kind::Float)?.f_view([] as [i64; 0])?)
    }

    /// Losses and gradient statistics: of this step if alone, else of the step before.
    fn observe(
        &mut self,
        team: &Team,
        batch: Batch,
        agreed: StepConsensus,
        norms: Option<Norms>,
        loss: f64,
    ) -> Result<(), Error> {
        let steps = self.books.steps();
        let first_together = team.size > 1 && !self.books.is_warm();
        let known = if team.size > 1 { agreed.loss } else { loss };
        let diverged = |what, value| Error::Diverged { what, value, step: steps };
        if !known.is_finite() {
            return Err(diverged("the loss", known));
        }
        if !first_together {
            self.books.saw_loss(known);
        }
        if let Some(norms) = norms {
            self.vote.loss = loss;
            self.vote.norms = norms;
        }
        let gathered = match self.comparison(team, batch) {
            None => Ok(()),
            Some(Comparison::Workers) => {
                self.gradients.step_together(agreed.norms, steps, team.size, batch.total)
            }
            Some(comparison) => {
                let weighting = self.descent.weighting();
                self.gradients.step_alone(&self.flat, weighting, comparison, steps, batch)
            }
        };
        gathered.map_err(|error| match error {
            Error::Goodput(_) => diverged("the norm of the gradient", f64::NAN),
            other => other,
        })
    }

    fn descend(&mut self, team: &mut Team, batch: Batch) -> Result<(), Error> {
        let (epochs, count) = (self.epochs()?, self.training.len());
        let scaled = self.books.learning_rate_factor(count, batch.total, &self.gradients.noise)?;
        let base = self.model.learning_rate(Schedule { epochs, total: self.task.epochs });
        if !(base.is_finite() && base >= 0.0) {
            return Err(Error::Unfit(format!(
                "the learning rate is {base}; expected a finite number from 0"
            )));
        }
        self.descent.step(&mut self.flat, base * scaled, self.model.max_gradient_norm())?;
        self.books.stepped(batch.total, base * scaled, &self.gradients.noise)?;
        let taken = StepTaken {
            steps: self.books.steps(),
            schedule: Schedule { epochs: self.epochs()?, total: self.task.epochs },
            batch: batch.total,
            learning_rate: base * scaled,
            rank: team.rank,
            workers: team.size,
        };
        self.hook("the hook after a step", |model| model.after_step(&taken))?;
        if self.descent.changes_unit() {
            // Norms from before have another unit.
            self.gradients.noise.reset();
            self.gradients.interrupt();
        }
        if !self.comparison(team, batch).is_some_and(|comparison| comparison.measures(self.books.steps())) {
            return Ok(());
        }
        let had_weighting = self.descent.weighting().is_some();
        self.descent.precondition()?;
        match self.descent.weighting() {
            Some(weighting) if !had_weighting => team.weigh(&self.flat, weighting),
            _ => Ok(()),
        }
    }

    /// Code of the user that nothing is recorded of.
    fn hook(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut dyn Trainable) -> Result<(), BoxError>,
    ) -> Result<(), Error> {
        tch::no_grad(|| call(self.model.as_mut())).map_err(|source| Error::User { what, source })
    }

    /// A forward pass moves the running statistics of batch normalization, and a step that fails has not happened.
    fn keep_buffers(&mut self) -> Result<(), Error> {
        if self.flat.buffers.numel() == 0 {
            return Ok(());
        }
        match &mut self.buffers_before {
            Some(kept) => tch::no_grad(|| kept.f_copy_(&self.flat.buffers).map(drop))?,
            None => self.buffers_before = Some(copy(&self.flat.buffers, self.device)?),
        }
        Ok(())
    }

    fn restore_buffers(&mut self) -> Result<(), Error> {
        if let Some(kept) = &self.buffers_before {
            tch::no_grad(|| self.flat.buffers.f_copy_(kept).map(drop))?;
        }
        Ok(())
    }

    /// Means of the metrics over the test data, of which every worker takes a part.
    pub(super) fn evaluate(&mut self, team: &Team) -> Result<BTreeMap<String, f64>, Error> {
        self.books.evaluated(self.training.len())?;
        // Each worker's batches have moved its own running statistics: from here on all have the mean of them.
        if self.flat.buffers.numel() > 0 {
            team.average(&mut self.flat.buffers)?;
        }
        if self.test.is_none() {
            return Ok(BTreeMap::new());
        }
        self.hook("the hook before an evaluation", |model| model.before_evaluation())?;
        let measured = self.measure(team);
        // Training continues with the weights of before, whoever is lost meanwhile.
        self.hook("the hook after an evaluation", |model| model.after_evaluation())?;
        measured
    }

    /// The metrics of the model as it is.
    fn measure(&mut self, team: &Team) -> Result<BTreeMap<String, f64>, Error> {
        let Some(test) = &mut self.test else { return Ok(BTreeMap::new()) };
        let all = 0..u64::from(test.len());
        // With fewer examples than workers everyone takes all of them.
        let split = all.end >= u64::from(team.size);
        let mine = if split { shard(&all, team.rank, team.size) } else { all.clone() };
        let mut sums: Vec<(&'static str, f64)> = Vec::new();
        let mut start = mine.start;
        while start < mine.end {
            let size = self.evaluation_batch;
            let starts = (start..mine.end).step_by(size as usize);
            let mut batches = starts.map(|start| start..(start + size).min(mine.end));
            let Some(range) = batches.next() else { break };
            let (is_first, end) = (start == mine.start, range.end);
            let values = match evaluate(test, self.model.as_ref(), range, batches) {
                Err(error) if memory::is_exhausted(&error) => {
                    if size == 1 {
                        return Err(Error::OutOfMemory { source: Box::new(error) });
                    }
                    self.evaluation_batch = size / 2;
                    continue;
                }
                values => values?,
            };
            start = end;
            for (place, (name, value)) in values.into_iter().enumerate() {
                match sums.get_mut(place) {
                    Some((known, sum)) if *known == name => *sum += value,
                    None if is_first => sums.push((name, value)),
                    _ => return Err(Error::Unfit(format!("the metric `{name}` is not in every evaluation"))),
                }
            }
        }
        let values: Vec<f64> = sums.iter().map(|(_, sum)| *sum).collect();
        let values = if split { team.sum(&values, self.device)? } else { values };
        let means = values.into_iter().map(|sum| sum / all.end as f64);
        Ok(sums.iter().map(|(name, _)| (*name).to_owned()).zip(means).collect())
    }
}

/// The metrics of some of the test data, as sums.
fn evaluate(
    test: &mut Loader,
    model: &dyn Trainable,
    range: Range<u64>,
    then: impl Iterator<Item = Range<u64>>,
) -> Result<Vec<(&'static str, f64)>, Error> {
    let examples = test.next(range, then)?;
    let values = tch::no_grad(|| memory::guarded(|| model.evaluate(&examples)))
        .map_err(|source| Error::User { what: "evaluating", source })?;
    let sum = |(name, value): (&'static str, Tensor)| {
        let value = value.f_to_kind(tch::Kind::Double)?.f_sum(tch::Kind::Double)?;
        Ok((name, value.f_double_value(&[])?))
    };
    values.into_iter().map(sum).collect()
}

/// What this worker loads, pass by pass: of this step, then of the next ones.
fn shares<P: Fn(u64) -> u32 + Clone>(
    examples: u64,
    total: u64,
    team: &Team,
    passes_of: P,
) -> impl Iterator<Item = Range<u64>> + Clone + use<P> {
    let (rank, size) = (team.rank, team.size);
    (0_u64..).flat_map(move |step| {
        let start = examples + step * total;
        let mine = shard(&(start..start + total), rank, size);
        let passes = passes_of(step);
        (0..passes).map(move |pass| shard(&mine, pass, passes))
    })
}

fn check(task: &Task) -> Result<(), Error> {
    let positive = |what: &str, value: f64| {
        let wrong = || Error::Unfit(format!("{what} is {value}; expected a finite number above 0"));
        (value > 0.0 && value.is_finite()).then_some(()).ok_or_else(wrong)
    };
    positive("the number of epochs", task.epochs)?;
    positive("the initial batch", f64::from(task.initial_batch))?;
    positive("epochs from evaluation to evaluation", task.evaluate_every)?;
    positive("seconds from checkpoint to checkpoint", task.checkpoint_every_s)?;
    positive("seconds from report to report", task.report_every_s)
}

fn assignment(task: &Task) -> Result<Params, Error> {
    let value = |(name, json): (&String, &serde_json::Value)| {
        let value = match json {
            serde_json::Value::Bool(flag) => Value::Bool(*flag),
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Value::Int(whole),
                (None, Some(number)) => Value::Float(number),
                (None, None) => {
                    return Err(Error::Protocol(format!("`{name}` is {json}, which is no number")));
                }
            },
            _ => {
                return Err(Error::Protocol(format!("`{name}` is {json}, which is no value of a parameter")));
            }
        };
        Ok((name.clone(), value))
    };
    task.params.iter().map(value).collect()
}
