//! A whole study in virtual time: the engine that runs live studies, with modelled trials around it.
//!
//! *Architecture invariant:* what to try, who gets which GPUs and which batch is decided by
//! [`engine`](crate::trials::engine) and its services. Only time passes here.

mod bound;
mod report;
mod team;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use self::{report::ReportBuilder, team::Team};
pub use report::{StudyReport, TrialReport};

use super::{Error, Modelled};
use crate::{
    alloc::Cluster,
    ids::{Generation, SlotId, TrialId},
    space::{Direction, Parallel, Program, Study},
    trials::{
        Execution,
        engine::{
            Checkpoint, Command, Engine, GroupCommand, GroupEvent, Input, JournalEntry, Launch, Metrics,
            Outcome, Report, Services, TrialKind,
        },
        group::{Batch, FinalState},
        trial_seed,
    },
};

/// Where a study is simulated.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SimulatedCluster {
    /// The machines, which neither fail nor wait for anything.
    pub cluster: Cluster,
    /// Seconds from the decision that a trial should have other GPUs, or its first, until it trains on them.
    pub realloc_s: f64,
    /// Seconds between two reports of a trial.
    pub report_s: f64,
    /// Whether trials report their noise smoothed, as workers do, or as it is at the moment.
    pub smooth_noise: bool,
}

impl SimulatedCluster {
    /// A change of GPUs takes 0.1 s, as measured with workers that hand over their state in memory, and trials report every 5 s,
    /// with their noise as it is.
    #[must_use]
    pub const fn new(cluster: Cluster) -> Self {
        Self { cluster, realloc_s: 0.1, report_s: 5.0, smooth_noise: false }
    }

    fn check(&self, study: &Study) -> Result<(), Error> {
        let range = |what, value: f64, low: f64, allowed| {
            if (low..=86_400.0).contains(&value) {
                Ok(())
            } else {
                Err(Error::OutOfRange { what, value, allowed })
            }
        };
        range("the restart delay in seconds", self.realloc_s, 0.0, "0 to 86400")?;
        range("the time between two reports in seconds", self.report_s, 0.1, "0.1 to 86400")?;
        let (asked, total) = (study.trial.min_gpus, self.cluster.total_gpus());
        if asked > total {
            let reason = format!("`trial.min_gpus` is {asked}, the cluster has {total} GPUs");
            return Err(Error::CannotRun { job: "every trial".to_owned(), reason });
        }
        Ok(())
    }
}

/// Runs a study to its end, with trials that train as was measured ([`Modelled`]). All random choices follow from the seed of the
/// study.
///
/// ```
/// use pollux_tune::{alloc::Cluster, sim::{SimulatedCluster, simulate_study}, space::Study};
/// let study = Study::from_yaml("study.yaml", "
/// space: {lr: {log: [1e-3, 1]}, width: [32, 64]}
/// objective: {maximize: accuracy}
/// trial: {trainable: cifar10, epochs: 5, max_batch: 4Ki, max_batch_per_gpu: 1Ki}
/// search: {trials: 6, parallel: 2}
/// ")?;
/// let report = simulate_study(&study, &SimulatedCluster::new(Cluster::parse("1x4xa100")?))?;
/// assert_eq!(report.trials.len(), 6);
/// assert!(report.makespan_s < 120.0 && report.top(5) > 0.8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate_study(study: &Study, simulated: &SimulatedCluster) -> Result<StudyReport, Error> {
    follow_study(study, simulated, &mut |_| ())
}

/// The same for who wants to see each fact, such as a journal.
pub(crate) fn follow_study(
    study: &Study,
    simulated: &SimulatedCluster,
    watch: &mut dyn FnMut(&JournalEntry),
) -> Result<StudyReport, Error> {
    simulated.check(study)?;
    let Some(Program::Trainable(trainable)) = &study.trial.program else {
        return Err(Error::NoTrainable { allowed: super::modelled::names() });
    };
    let mut run = Run {
        study,
        simulated,
        trainable,
        engine: Engine::new(study, TrialKind::Elastic)?,
        services: Services::new(study)?,
        teams: BTreeMap::new(),
        trained: BTreeMap::new(),
        tally: ReportBuilder::default(),
        watch,
        events: BinaryHeap::new(),
        inputs: VecDeque::new(),
        now_s: 0.0,
        wake_s: None,
        outcome: None,
    };
    run.run()?;
    let places = match study.search.parallel {
        Parallel::Fixed(number) => Some(number),
        Parallel::Auto => None,
    };
    let trained: Vec<(Modelled, f64)> = run.trained.into_values().collect();
    let bound_s = bound::lower_bound_s(study, &simulated.cluster, places, &trained);
    Ok(run.tally.report(run.now_s, bound_s))
}

/// What will happen at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    /// A generation is together.
    Ready(TrialId, Generation),
    /// A trial reports or ends, if its group is still the one that was asked.
    Trains(TrialId, u32),
}

/// A time that has an order: seconds that are finite and at least 0 sort as their bits do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct At(u64);

impl At {
    fn new(seconds: f64) -> Self {
        Self(seconds.max(0.0).to_bits())
    }

    fn seconds(self) -> f64 {
        f64::from_bits(self.0)
    }
}

struct Run<'a> {
    study: &'a Study,
    simulated: &'a SimulatedCluster,
    trainable: &'a str,
    engine: Engine,
    services: Services,
    teams: BTreeMap<TrialId, Team>,
    /// All trials, and for how long each was trained.
    trained: BTreeMap<TrialId, (Modelled, f64)>,
    tally: ReportBuilder,
    watch: &'a mut dyn FnMut(&JournalEntry),
    /// By time; at the same time in the order of the events.
    events: BinaryHeap<Reverse<(At, Event)>>,
    inputs: VecDeque<Input>,
    now_s: f64,
    wake_s: Option<f64>,
    outcome: Option<Outcome>,
}

/// After this number of ticks without a trial that trains, there will never be one.
const IDLE_TICKS: u32 = 100;

impl Run<'_> {
    fn run(&mut self) -> Result<(), Error> {
        self.inputs.push_back(Input::Started);
        for (node, state) in self.simulated.cluster.iter() {
            let (gpu_type, island, slots) = (state.gpu_type.clone(), state.island, state.gpus);
            let name = String::new();
            self.inputs.push_back(Input::NodeJoined { node, name, gpu_type, island, slots });
        }
        let mut idle = 0;
        loop {
            while let Some(input) = self.inputs.pop_front() {
                self.on_input(input)?;
            }
            match &self.outcome {
                None => {}
                Some(Outcome::Failed(reason)) => return Err(Error::StudyFailed { reason: reason.clone() }),
                Some(Outcome::Done | Outcome::Stopped) => return Ok(()),
            }
            idle = if self.teams.is_empty() { idle + 1 } else { 0 };
            let next = self.events.pop().filter(|_| idle < IDLE_TICKS);
            let Some(Reverse((at, event))) = next else {
                let reason = "no trial ever gets GPUs that it can use".to_owned();
                return Err(Error::StudyFailed { reason });
            };
            self.now_s = self.now_s.max(at.seconds());
            self.on_event(event, at)?;
        }
    }

    fn on_event(&mut self, event: Event, at: At) -> Result<(), Error> {
        match event {
            Event::Tick => {
                if self.wake_s.map(At::new) == Some(at) {
                    self.wake_s = None;
                    self.inputs.push_back(Input::Tick);
                }
            }
            Event::Ready(trial, generation) => {
                if let Some(team) = self.teams.get_mut(&trial).filter(|team| team.generation == generation) {
                    team.begin(self.now_s);
                    self.inputs.push_back(Input::group(trial, generation, GroupEvent::Formed));
                    self.schedule_report(trial)?;
                }
            }
            Event::Trains(trial, version) => {
                if self.teams.get(&trial).is_some_and(|team| team.version == version) {
                    self.report(trial)?;
                }
            }
        }
        Ok(())
    }

    fn on_input(&mut self, input: Input) -> Result<(), Error> {
        let step = self.engine.handle(input, self.now_s);
        for entry in &step.facts {
            self.services.apply(entry)?;
            self.tally.apply(entry);
            (self.watch)(entry);
        }
        for command in step.commands {
            match self.services.answer(&command) {
                Some(answer) => self.inputs.push_back(answer),
                None => self.act(command)?,
            }
        }
        Ok(())
    }

    fn act(&mut self, command: Command) -> Result<(), Error> {
        match command {
            Command::Group { trial, command } => self.act_on_group(trial, command)?,
            Command::WakeAt { at_s } => {
                self.wake_s = Some(at_s);
                self.events.push(Reverse((At::new(at_s), Event::Tick)));
            }
            Command::Finished(outcome) => self.outcome = Some(outcome),
            // The services have answered, and no machine of a simulation drains.
            Command::Suggest(_) | Command::Allocate(_) | Command::ReleaseNode { .. } => {}
        }
        Ok(())
    }

    fn act_on_group(&mut self, trial: TrialId, command: GroupCommand) -> Result<(), Error> {
        match command {
            GroupCommand::Launch(Launch { generation, slots, params, batch, checkpoint }) => {
                let params = serde_json::to_value(&params).unwrap_or_default();
                let seed = trial_seed(self.study.search.seed, trial, Execution::Simulated);
                let params = params.as_object().cloned().unwrap_or_default();
                let modelled = Modelled::new(self.trainable, &params, seed, self.study.trial.epochs)?;
                let epochs = checkpoint.map_or(0.0, |checkpoint| checkpoint.epochs);
                self.trained.entry(trial).or_insert_with(|| (modelled.clone(), 0.0));
                self.teams.insert(trial, Team::new(modelled, self.study, epochs)?);
                if let Some(batch) = batch {
                    self.form(trial, generation, &slots, batch);
                }
            }
            GroupCommand::Reshape { generation, slots, batch } => self.form(trial, generation, &slots, batch),
            GroupCommand::Retune { batch } => {
                let now_s = self.now_s;
                if let Some(team) = self.teams.get_mut(&trial) {
                    team.advance(now_s)?;
                    team.retune(batch);
                    self.schedule_report(trial)?;
                }
            }
            GroupCommand::Stop(state) => {
                if let Some(mut team) = self.teams.remove(&trial)
                    && state == FinalState::Saved
                {
                    team.advance(self.now_s)?;
                    let checkpoint = Checkpoint { name: format!("trial-{trial}"), epochs: team.epochs };
                    let paused = GroupEvent::Paused(checkpoint);
                    self.inputs.push_back(Input::group(trial, team.generation, paused));
                }
            }
        }
        Ok(())
    }

    /// The workers of a generation begin to form a group.
    fn form(&mut self, trial: TrialId, generation: Generation, slots: &[SlotId], batch: Batch) {
        let Some(team) = self.teams.get_mut(&trial) else { return };
        let gpu_type =
            slots.first().and_then(|slot| self.simulated.cluster.get(slot.node)).map(|node| &node.gpu_type);
        if let Some(gpu_type) = gpu_type {
            team.form(self.now_s, generation, gpu_type.clone(), slots, batch);
            let at = At::new(self.now_s + self.simulated.realloc_s);
            self.events.push(Reverse((at, Event::Ready(trial, generation))));
        }
    }

    /// Schedules the next report of a trial, or its end.
    fn schedule_report(&mut self, trial: TrialId) -> Result<(), Error> {
        let Some(team) = self.teams.get_mut(&trial) else { return Ok(()) };
        team.version += 1;
        let seconds = team.until_done_s()?.min(self.simulated.report_s);
        let at = At::new(self.now_s + seconds);
        self.events.push(Reverse((at, Event::Trains(trial, team.version))));
        Ok(())
    }

    fn report(&mut self, trial: TrialId) -> Result<(), Error> {
        let Some(team) = self.teams.get_mut(&trial) else { return Ok(()) };
        team.advance(self.now_s)?;
        if let Some((_, epochs)) = self.trained.get_mut(&trial) {
            *epochs = team.epochs;
        }
        let generation = team.generation;
        let metrics = metrics(self.study, team);
        if team.is_done() {
            self.teams.remove(&trial);
            self.inputs.push_back(Input::group(trial, generation, GroupEvent::Finished(metrics)));
            return Ok(());
        }
        team.reports += 1;
        let (noise, noise_batch) = team.noise(self.simulated.smooth_noise);
        let report = Report {
            number: team.reports,
            epochs: team.epochs,
            metrics,
            steps: std::mem::take(&mut team.steps),
            noise,
            noise_batch,
        };
        self.inputs.push_back(Input::group(trial, generation, GroupEvent::Reported(report)));
        self.schedule_report(trial)
    }
}

/// What a trial measures. An objective of a name that the model does not know is taken for one that it does.
fn metrics(study: &Study, team: &Team) -> Metrics {
    let known = team.modelled.metrics(team.epochs);
    let of = |name: &str| known.get(name).copied().unwrap_or(f64::NAN);
    let mut metrics: Metrics = known.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    for objective in &study.objectives {
        let alike = match objective.direction {
            Direction::Maximize => "accuracy",
            Direction::Minimize => "loss",
        };
        metrics.entry(objective.metric.clone()).or_insert_with(|| of(alike).into());
    }
    metrics
}
