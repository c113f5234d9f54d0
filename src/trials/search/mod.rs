//! A search without processes: it suggests, takes reports and decides, and its caller runs the trials.

mod build;
mod error;
mod results;
mod trial;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub use self::{
    error::Error,
    results::best,
    trial::{End, State, Trial},
};
use super::{
    engine::{Fact, JournalEntry, Metrics, end_of},
    stopping::{Reason, Stopper, Verdict},
};
use crate::{
    ids::{Generation, TrialId},
    space::{Dims, Params, Point, StoppingRule, Study},
    tpe::{Outcome, Suggester},
};

/// Suggests parameters, takes results, and decides when to stop a trial.
///
/// ```
/// use pollux_tune::space::Study;
/// use pollux_tune::trials::{Search, Verdict};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {lr: {log: [1e-5, 1]}, optimizer: [sgd, adam]}
/// objective: {maximize: accuracy}
/// search: {trials: 30, early_stopping: {rule: median}}
/// ")?;
/// let mut search = Search::new(&study)?;
/// while !search.is_finished() {
///     let trial = search.ask()?;
///     let lr = trial.params.float("lr")?;
///     let accuracy = |epoch: f64| (1.0 - (lr.ln() + 4.0).abs() / 10.0) * epoch / (1.0 + epoch);
///     let verdict = search.report(trial.id, 1.0, accuracy(1.0))?;
///     if verdict == Verdict::Continue {
///         search.tell(trial.id, accuracy(10.0))?;
///     }
/// }
/// let best = search.best(1)[0];
/// assert!((best.params.float("lr")?.ln() + 4.0).abs() < 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Everything that happens to a search is a [`Fact`] of the engine's vocabulary: [`take_facts`](Self::take_facts) has those for a
/// journal. A fresh search of the same study that is shown the journal by [`apply`](Self::apply) continues as this one would.
pub struct Search {
    study: Study,
    dims: Dims,
    suggester: Box<dyn Suggester>,
    stopper: Box<dyn Stopper>,
    /// Enqueued points that wait for a trial.
    queue: VecDeque<Params>,
    trials: BTreeMap<TrialId, Trial>,
    /// How many results of earlier studies are known.
    known: u32,
    /// Not taken yet.
    facts: Vec<Fact>,
}

impl Search {
    /// A search as a study file describes it.
    pub fn new(study: &Study) -> Result<Self, Error> {
        Self::with_rule(study, study.search.early_stopping.rule)
    }

    /// The same where somebody else decides on early stopping.
    pub(super) fn without_stopping(study: &Study) -> Result<Self, Error> {
        Self::with_rule(study, StoppingRule::Never)
    }

    fn with_rule(study: &Study, rule: StoppingRule) -> Result<Self, Error> {
        let stopper = build::stopper(study, rule)?;
        let dims = study.space.to_dims()?;
        let suggester = build::suggester(study, &dims)?;
        let (queue, trials, facts) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        Ok(Self { study: study.clone(), dims, suggester, stopper, queue, trials, known: 0, facts })
    }

    /// Another suggester in the place of that of the study, which is made for its dimensions. Nothing has happened to the search yet.
    ///
    /// A fresh search that is shown a journal by [`apply`](Self::apply) tells the suggester of all trials with
    /// [`insert`](Suggester::insert) and [`tell`](Suggester::tell), in their order, and asks for none of them: what was suggested is a fact.
    ///
    /// ```
    /// use pollux_tune::{space::Study, tpe::Random, trials::Search};
    /// let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}}";
    /// let study = Study::from_yaml("study.yaml", yaml)?;
    /// let mut search = Search::new(&study)?.with_suggester(|dims| Box::new(Random::new(dims)));
    /// search.ask()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_suggester(mut self, make: impl FnOnce(Dims) -> Box<dyn Suggester>) -> Self {
        self.suggester = make(self.dims.clone());
        self
    }

    /// Another stopping rule in the place of that of the study: see [`of_rule`](super::stopping::of_rule). Nothing has happened to the search yet.
    #[must_use]
    pub fn with_stopper(mut self, stopper: Box<dyn Stopper>) -> Self {
        self.stopper = stopper;
        self
    }

    /// The study that is searched.
    #[must_use]
    pub const fn study(&self) -> &Study {
        &self.study
    }

    /// All trials so far, in the order they were asked for.
    #[must_use]
    pub fn trials(&self) -> impl ExactSizeIterator<Item = &Trial> {
        self.trials.values()
    }

    /// A trial by its number.
    #[must_use]
    pub fn trial(&self, id: TrialId) -> Option<&Trial> {
        self.trials.get(&id)
    }

    /// Whether all trials of the study were asked for; some of them may still run.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.trials.len() >= self.study.search.trials as usize
    }

    /// The number of the next trial.
    fn next_id(&self) -> TrialId {
        // They are consecutive, see `apply`.
        TrialId(self.trials.len() as u32)
    }

    /// Starts a trial with the most promising parameters, those in the queue first.
    pub fn ask(&mut self) -> Result<Trial, Error> {
        if self.is_finished() {
            return Err(Error::Finished(self.study.search.trials));
        }
        let id = self.next_id();
        let (params, point) = if let Some(params) = self.queue.front().cloned() {
            let point = self.study.space.encode(&params)?;
            self.suggester.insert(id, point.clone())?;
            (params, point)
        } else {
            let mut rng = ChaCha8Rng::seed_from_u64(self.study.search.seed);
            rng.set_stream(u64::from(id.0));
            let point = self.suggester.ask(id, &mut rng)?;
            (self.study.space.decode(&point)?, point)
        };
        self.facts.push(Fact::TrialCreated { trial: id, params: params.clone(), point: point.clone() });
        Ok(self.add(id, params, point).clone())
    }

    fn add(&mut self, id: TrialId, params: Params, point: Point) -> &Trial {
        if self.queue.front() == Some(&params) {
            self.queue.pop_front();
        }
        let (state, metrics) = (State::Running, Metrics::new());
        let trial = Trial { id, params, point, state, last: None, metrics, reported: 0 };
        self.trials.entry(id).or_insert(trial)
    }

    /// Puts known parameters before what the search would choose. Fixed ones may be left out; constraints hold
    /// for the search, not for those who know better.
    pub fn enqueue(&mut self, params: &Params) -> Result<(), Error> {
        let params = self.study.space.complete(params)?;
        self.queue.push_back(params.clone());
        self.facts.push(Fact::TrialEnqueued { params });
        Ok(())
    }

    /// Imports the result of a trial of an earlier study with the same objectives, with its last report if it was stopped. It
    /// guides the search and counts as no trial; a grid leaves it out.
    pub fn learn(&mut self, params: &Params, end: &End, last: Option<(f64, f64)>) -> Result<(), Error> {
        let end = self.usable(end.clone())?;
        let last = last.filter(|(epochs, value)| epochs.is_finite() && value.is_finite());
        self.import(params, &end, last)?;
        self.facts.push(Fact::ResultImported { params: params.clone(), end, last });
        Ok(())
    }

    fn import(&mut self, params: &Params, end: &End, last: Option<(f64, f64)>) -> Result<(), Error> {
        let point = self.study.space.encode(params)?;
        let outcome = self.outcome(end, last);
        // From the top, where no trial of the study will ever be.
        let id = TrialId(u32::MAX - self.known);
        self.suggester.import(id, point, outcome)?;
        self.known += 1;
        Ok(())
    }

    /// Leaves out a trial that was never started.
    pub(super) fn withdraw(&mut self, id: TrialId) {
        self.trials.remove(&id);
    }

    /// How many parameters wait for a trial.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How many results of earlier studies were [learned](Self::learn).
    #[must_use]
    pub const fn learned(&self) -> u32 {
        self.known
    }

    /// Takes an intermediate value of the first objective, after a number of statistical epochs. If the verdict is to
    /// stop, the trial has ended, as failed if it diverged: no result is expected.
    pub fn report(&mut self, id: TrialId, epochs: f64, value: f64) -> Result<Verdict, Error> {
        self.running(id)?;
        let number = self.trials.get(&id).map_or(0, |trial| trial.reported) + 1;
        let verdict = self.measure(id, number, epochs, value)?;
        self.keep(id, [(self.study.objectives[0].metric.clone(), value.into())].into());
        self.facts.push(Fact::Measured {
            trial: id,
            generation: Generation::NONE,
            number,
            epochs,
            metrics: [(self.study.objectives[0].metric.clone(), value.into())].into(),
            gpu_type: None,
            steps: Vec::new(),
            noise: None,
            noise_batch: None,
        });
        match &verdict {
            Verdict::Continue => {}
            Verdict::Stop(reason @ Reason::Diverged { .. }) => {
                self.end(id, End::Failed(reason.to_string()))?;
            }
            Verdict::Stop(reason) => self.end(id, End::Stopped((*reason).into()))?,
        }
        Ok(verdict)
    }

    /// The point of a journaled trial. The journal may be of a version that divided a domain into other cells: then it is
    /// that of the parameters, which are what was tried.
    fn replayed(&self, params: &Params, point: &Point) -> Result<Point, Error> {
        let same = self.study.space.decode(point).is_ok_and(|decoded| decoded == *params);
        Ok(if same { point.clone() } else { self.study.space.encode(params)? })
    }

    /// Keeps the last value of each metric.
    fn keep(&mut self, id: TrialId, metrics: Metrics) {
        if let Some(trial) = self.trials.get_mut(&id) {
            trial.metrics.extend(metrics);
        }
    }

    fn measure(&mut self, id: TrialId, number: u32, epochs: f64, value: f64) -> Result<Verdict, Error> {
        let verdict = self.stopper.report(id, epochs, self.study.objectives[0].loss(value))?;
        if let Some(trial) = self.trials.get_mut(&id) {
            trial.reported = number;
            // What a trial reports again after a restart from a checkpoint is old.
            if value.is_finite() && trial.last.is_none_or(|(latest, _)| epochs >= latest) {
                trial.last = Some((epochs, value));
            }
        }
        Ok(verdict)
    }

    /// Ends a trial: with a value or one for each objective, or with an [`End`]. Values that are not finite are a failure.
    pub fn tell(&mut self, id: TrialId, end: impl Into<End>) -> Result<(), Error> {
        self.running(id)?;
        let end = self.usable(end.into())?;
        self.end(id, end)
    }

    /// An end that can be journaled.
    fn usable(&self, end: End) -> Result<End, Error> {
        match end {
            End::Done(values) if values.len() != self.study.objectives.len() => {
                Err(Error::Values { given: values.len(), wanted: self.study.objectives.len() })
            }
            End::Done(values) if !values.iter().all(|value| value.is_finite()) => {
                Ok(End::Failed("its result is not finite".to_owned()))
            }
            end => Ok(end),
        }
    }

    fn end(&mut self, id: TrialId, end: End) -> Result<(), Error> {
        self.finish(id, end.clone())?;
        self.facts.push(Fact::ended(id, end));
        Ok(())
    }

    fn finish(&mut self, id: TrialId, end: End) -> Result<(), Error> {
        let outcome = self.outcome(&end, self.trials.get(&id).and_then(|trial| trial.last));
        self.suggester.tell(id, outcome)?;
        self.stopper.end(id, end.kind())?;
        if let End::Done(values) = &end {
            let names = self.study.objectives.iter().map(|objective| objective.metric.clone());
            let results = names.zip(values.iter().map(|value| (*value).into())).collect();
            self.keep(id, results);
        }
        if let Some(trial) = self.trials.get_mut(&id) {
            trial.state = State::Ended(end);
        }
        Ok(())
    }

    /// A trial that had failed or was cancelled runs again, as if it had never ended.
    fn retry(&mut self, id: TrialId) -> Result<(), Error> {
        self.suggester.retract(id)?;
        self.stopper.reopen(id);
        if let Some(trial) = self.trials.get_mut(&id) {
            (trial.state, trial.last, trial.reported) = (State::Running, None, 0);
            trial.metrics.clear();
        }
        Ok(())
    }

    fn running(&self, id: TrialId) -> Result<(), Error> {
        match self.trials.get(&id) {
            None => Err(Error::Unknown(id, self.trials.len())),
            Some(Trial { state: State::Running, .. }) => Ok(()),
            Some(Trial { state: State::Ended(end), .. }) => Err(Error::Ended(id, end.clone())),
        }
    }

    fn outcome(&self, end: &End, last: Option<(f64, f64)>) -> Outcome {
        match end {
            End::Done(values) => Outcome::Done(results::losses(&self.study.objectives, values)),
            // Whole epochs, so that trials that were stopped at the same rung are compared by value.
            End::Stopped(_) => Outcome::Stopped {
                value: last.map(|(_, value)| self.study.objectives[0].loss(value)),
                step: last.map_or(0, |(epochs, _)| epochs as u64),
            },
            End::Failed(_) => Outcome::Failed,
            End::Cancelled(_) => Outcome::Cancelled,
        }
    }

    /// What became true since this was last called, for a journal. Nothing of it came by [`apply`](Self::apply).
    pub fn take_facts(&mut self) -> Vec<Fact> {
        mem::take(&mut self.facts)
    }

    /// Brings a fresh search to where another one of the same study was, fact by fact.
    ///
    /// What was decided then stays decided, even if today's rules would decide otherwise. Facts about slots and groups are
    /// of no concern to a search.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        match &entry.fact {
            Fact::ResultImported { params, end, last } => self.import(params, end, *last),
            Fact::TrialEnqueued { params } => {
                self.queue.push_back(self.study.space.complete(params)?);
                Ok(())
            }
            Fact::TrialCreated { trial, params, point } => {
                if *trial != self.next_id() {
                    return Err(Error::OutOfOrder { found: *trial, expected: self.next_id() });
                }
                let point = self.replayed(params, point)?;
                self.suggester.insert(*trial, point.clone())?;
                self.add(*trial, params.clone(), point);
                Ok(())
            }
            Fact::Measured { trial, number, epochs, metrics, .. } => {
                self.keep(*trial, metrics.clone());
                let Some(value) = metrics.get(&self.study.objectives[0].metric) else { return Ok(()) };
                self.running(*trial)?;
                // The verdict was journaled as an end of its own.
                self.measure(*trial, *number, *epochs, value.value()).map(|_| ())
            }
            Fact::TrialRetried { trial } => self.retry(*trial),
            fact => match end_of(fact) {
                Some((trial, end)) => {
                    self.running(trial)?;
                    self.finish(trial, end)
                }
                None => Ok(()),
            },
        }
    }
}
