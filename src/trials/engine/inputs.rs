//! What each input means.

use std::fmt::Write;

use super::{
    ActiveTrial, AllocatorRequest, Command, Engine, Fact, FailureCause, GroupCommand, GroupEvent, Input,
    Metrics, NO_METRIC, NoSuggestion, Number, Phase, Refit, Report, Severity, StepBuilder, TrialKind, report,
    snapshot,
};
use crate::{
    goodput::BatchPlan,
    ids::{Generation, SlotId, TrialId},
    space::{Objective, Program, ResultValue},
    trials::{
        Verdict,
        group::{FinalState, MemoryLimit},
        stopping::Reason,
    },
};

impl Engine {
    pub(super) fn on_input(&mut self, input: Input, step: &mut StepBuilder) {
        if (self.state.done || self.state.facts == 0) && input != Input::Started {
            return;
        }
        match input {
            Input::Started => self.start(step),
            Input::Tick => self.pending.wake_s = self.pending.wake_s.filter(|wake_s| *wake_s > step.now_s),
            Input::NodeJoined { .. }
            | Input::NodeDraining { .. }
            | Input::NodeLost { .. }
            | Input::WorkerJoined { .. }
            | Input::WorkerLost { .. }
            | Input::NodeBlocked { .. } => self.on_node_input(step, input),
            Input::Suggested { revision, answer } => {
                if self.pending.ask == Some(revision) {
                    self.pending.ask = None;
                    self.suggested(step, answer);
                }
            }
            Input::FitDone { revision, trial, answer } => {
                if self.pending.fits.get(&trial) == Some(&revision) {
                    self.pending.fits.remove(&trial);
                    self.fitted(step, trial, answer);
                }
            }
            Input::PlanSolved { revision, answer, places } => {
                if self.pending.solve == Some(revision) {
                    self.pending.solve = None;
                    self.pending.places = places.or(self.pending.places);
                    if let Ok(plan) = answer {
                        self.adopt(step, &plan);
                    }
                }
            }
            Input::TrialStopRequested { trial } => {
                if self.state.active.contains_key(&trial) {
                    let reason = STOPPED_BY_HAND.to_owned();
                    self.stop_and_end(step, Fact::TrialCancelled { trial, reason }, trial);
                }
            }
            Input::StopRequested => {
                if !self.state.stopping {
                    self.emit(step, Fact::StopRequested {});
                }
            }
            Input::PauseRequested | Input::ResumeRequested | Input::EnqueueRequested { .. } => {
                self.on_user_input(step, input);
            }
            Input::ReplanRequested => self.pending.dirty = true,
            Input::Group { trial, generation, event } => self.on_group_event(step, trial, generation, event),
        }
    }

    fn start(&mut self, step: &mut StepBuilder) {
        let reopens = self.reopens();
        let cancelled = if reopens { self.state.cancelled_by_limit() } else { Vec::new() };
        let left = (reopens || self.state.search_ended.is_none())
            && (!cancelled.is_empty() || self.state.created() < self.study.search.trials as usize);
        if self.state.done && !left {
            return;
        }
        self.pending = super::Pending::default();
        let yaml = self.study.to_yaml();
        if self.state.facts == 0 {
            self.emit(step, Fact::StudyCreated { yaml: yaml.clone() });
        }
        self.emit(step, Fact::HeadStarted {});
        if self.state.yaml != yaml {
            self.emit(step, Fact::StudyChanged { yaml });
        }
        if reopens {
            self.emit(step, Fact::SuggestionsReopened {});
            for trial in cancelled {
                self.emit(step, Fact::TrialRetried { trial });
            }
        }
        self.pending.dirty = true;
    }

    fn suggested(&mut self, step: &mut StepBuilder, answer: Result<super::Suggestion, NoSuggestion>) {
        let (reason, severity) = match answer {
            Ok(_) if !self.wants_trials(step.now_s) => return,
            Ok(suggestion) => {
                let super::Suggestion { params, point } = suggestion;
                self.emit(step, Fact::TrialCreated { trial: self.state.next_trial(), params, point });
                self.pending.dirty = true;
                return;
            }
            Err(NoSuggestion::Exhausted) => ("everything was tried".to_owned(), Severity::Normal),
            Err(NoSuggestion::Failed(reason)) => (reason, Severity::Failure),
        };
        self.emit(step, Fact::SuggestionsEnded { reason, severity, limit: None });
    }

    /// The trial, if this is its current generation: events of older ones do not count.
    fn current(&self, trial: TrialId, generation: Generation) -> Option<&ActiveTrial> {
        let alive = |active: &&ActiveTrial| active.generation == generation && active.phase.group().is_some();
        self.state.active.get(&trial).filter(alive)
    }

    /// Whether an active trial has had workers in this generation, and has them no more.
    fn is_past(&self, trial: TrialId, generation: Generation) -> bool {
        let had = |active: &ActiveTrial| generation != Generation::NONE && generation <= active.generation;
        self.kind == TrialKind::Elastic
            && self.current(trial, generation).is_none()
            && self.state.active.get(&trial).is_some_and(had)
    }

    fn on_group_event(
        &mut self,
        step: &mut StepBuilder,
        trial: TrialId,
        generation: Generation,
        event: GroupEvent,
    ) {
        match event {
            // It may still be under way when its generation has ended.
            GroupEvent::Reported(report) => self.reported(step, trial, generation, report),
            // Whatever its generation is by now, the user should know.
            GroupEvent::CheckpointFailed(reason) => {
                if self.state.active.contains_key(&trial) {
                    self.emit(step, Fact::CheckpointFailed { trial, reason });
                }
            }
            // What a GPU has room for does not depend on who has found it out.
            GroupEvent::OutOfMemory { slot, memory } => self.limited(step, trial, slot, memory),
            // Its own failure is final, in whatever generation: that its worker ended with it may have been heard first.
            GroupEvent::Failed { reason, cause: FailureCause::Trial } if self.is_past(trial, generation) => {
                self.stop_and_end(step, Fact::TrialFailed { trial, reason }, trial);
            }
            _ if self.current(trial, generation).is_none() => {}
            GroupEvent::Formed => self.formed(step, trial, generation),
            GroupEvent::Checkpointed(checkpoint) => {
                self.mended(step, trial);
                self.emit(step, Fact::Checkpointed { trial, checkpoint });
            }
            GroupEvent::Paused(checkpoint) => {
                if matches!(self.state.active[&trial].phase, Phase::Pausing(_)) {
                    let fact = match self.kind {
                        // What it has saved is its own business.
                        TrialKind::Restarted => {
                            let reason = "it was ended to run with other slots".to_owned();
                            Fact::TrialInterrupted { trial, reason, severity: Severity::Normal }
                        }
                        TrialKind::Elastic | TrialKind::Rigid => Fact::TrialPaused { trial, checkpoint },
                    };
                    self.emit(step, fact);
                }
            }
            GroupEvent::Finished(metrics) => {
                self.mended(step, trial);
                let fact = self.result(trial, &metrics);
                self.end(step, fact, trial);
            }
            GroupEvent::Failed { reason, cause } if self.is_excused(trial, cause) => {
                self.emit(step, Fact::TrialInterrupted { trial, reason, severity: Severity::Normal });
                self.pending.dirty = true;
            }
            GroupEvent::Failed { reason, cause: FailureCause::Infrastructure } => {
                self.emit(step, Fact::TrialInterrupted { trial, reason, severity: Severity::Failure });
                // Machines that do not reach each other are to be used otherwise.
                self.pending.dirty |= !self.state.apart().is_empty();
            }
            GroupEvent::Failed { reason, cause: FailureCause::Environment } => {
                self.wait(step, trial, reason);
            }
            GroupEvent::Failed { reason, cause: FailureCause::Trial } => {
                // What all trials share has let it come so far.
                self.mended(step, trial);
                self.end(step, Fact::TrialFailed { trial, reason }, trial);
            }
        }
    }

    /// Whether a failure is due to a machine that is taken away. Programs are often ended with their machine, which looks like a
    /// failure of their own: elsewhere they show whether it was.
    fn is_excused(&self, trial: TrialId, cause: FailureCause) -> bool {
        let is_possible = match cause {
            FailureCause::Infrastructure => true,
            FailureCause::Trial => self.kind != TrialKind::Elastic,
            FailureCause::Environment => false,
        };
        is_possible && self.state.active.get(&trial).is_some_and(|active| self.state.has_to_leave(active))
    }

    /// What all trials share has broken a group: no trial is to blame, and none is launched before it is mended.
    fn wait(&mut self, step: &mut StepBuilder, trial: TrialId, reason: String) {
        let is_news = self.state.waiting.as_ref().is_none_or(|wait| wait.probe == Some(trial));
        let severity = Severity::Normal;
        self.emit(step, Fact::TrialInterrupted { trial, reason: reason.clone(), severity });
        if is_news {
            self.emit(step, Fact::StudyWaiting { reason });
        }
        self.pending.dirty = true;
    }

    /// A trial has done what it could not do if what all trials share were broken.
    fn mended(&mut self, step: &mut StepBuilder, trial: TrialId) {
        if self.state.waiting.as_ref().is_some_and(|wait| wait.probe == Some(trial)) {
            self.emit(step, Fact::StudyResumed {});
            self.pending.dirty = true;
        }
    }

    /// A generation is formed.
    fn formed(&mut self, step: &mut StepBuilder, trial: TrialId, generation: Generation) {
        if self.current(trial, generation).is_some_and(|active| matches!(active.phase, Phase::Forming { .. }))
        {
            self.emit(step, Fact::GroupFormed { trial, generation });
            self.keep_to_limit(step, trial);
            if self.kind != TrialKind::Elastic {
                // A program that runs has met all that could be broken; it may not report for hours.
                self.mended(step, trial);
            }
        }
    }

    /// The number of the last report of a generation that may still report, and the slots it has or had.
    fn last_report(&self, trial: TrialId, generation: Generation) -> Option<(u32, Vec<SlotId>)> {
        if let Some(active) = self.current(trial, generation) {
            return Some((active.phase.reported(), active.slots().to_vec()));
        }
        let active = self.state.active.get(&trial)?;
        match &active.phase {
            Phase::Forming { previous: Some((of, reported)), holders, .. } if *of == generation => {
                Some((*reported, holders.clone()))
            }
            _ => None,
        }
    }

    fn reported(&mut self, step: &mut StepBuilder, trial: TrialId, generation: Generation, report: Report) {
        let is_current = self.current(trial, generation).is_some();
        let Some((last, slots)) = self.last_report(trial, generation) else { return };
        let Report { number, epochs, metrics, mut steps, noise, noise_batch } = report;
        if number <= last || !(epochs.is_finite() && epochs >= 0.0) {
            return;
        }
        // Times that are no numbers could not be read from the journal again.
        steps.retain(|times| times.check().is_ok());
        let noise_batch = noise_batch.filter(|batch| batch.is_finite() && *batch > 0.0);
        let gpu_type = self.state.gpu_type(&slots).filter(|_| !steps.is_empty()).cloned();
        let measured = is_current && !steps.is_empty();
        if is_current {
            // It would not report if it were not formed, even if that event is still on its way.
            self.formed(step, trial, generation);
            self.mended(step, trial);
        }
        let known = self.known_paces(trial);
        let fact = Fact::Measured {
            trial,
            generation,
            number,
            epochs,
            metrics,
            gpu_type,
            steps,
            noise,
            noise_batch,
        };
        let verdict = self.emit(step, fact);
        self.pending.dirty |= noise.is_some() && self.has_other_noise(trial);
        // How fast a program is with so many GPUs has just become known.
        self.pending.dirty |= self.known_paces(trial) != known;
        match verdict {
            Verdict::Stop(reason @ Reason::Diverged { .. }) => {
                self.stop_and_end(step, Fact::TrialFailed { trial, reason: reason.to_string() }, trial);
            }
            Verdict::Stop(reason) => {
                self.stop_and_end(step, Fact::TrialStopped { trial, reason: reason.into() }, trial);
            }
            Verdict::Continue => {
                if let Some(reason) = self.missing_metric(trial) {
                    self.stop_and_end(step, Fact::TrialFailed { trial, reason }, trial);
                    return;
                }
                if measured {
                    self.refit(step, trial);
                }
                // The noise may have changed, even if its speed has not.
                self.retune(step, trial);
            }
        }
    }

    /// Whether the noise of a trial is another one than the last plan went by.
    fn has_other_noise(&self, trial: TrialId) -> bool {
        let now = self.state.active.get(&trial).map(|active| self.noise_of(active));
        now.zip(self.pending.noises.get(&trial)).is_some_and(|(now, then)| {
            let ratio = (now.value() + 1.0) / (then.value() + 1.0);
            !(1.0 / NOISE_CHANGE..=NOISE_CHANGE).contains(&ratio)
        })
    }

    /// It is known what fits into the memory of a type of GPU: all trials keep to it.
    fn limited(&mut self, step: &mut StepBuilder, trial: TrialId, slot: SlotId, memory: MemoryLimit) {
        let MemoryLimit { failed, limit } = memory;
        let limit = limit.max(1);
        let gpu_type = self.state.nodes.get(&slot.node).map(|node| node.gpu_type.clone());
        let Some(gpu_type) = gpu_type.filter(|_| self.state.active.contains_key(&trial)) else { return };
        if self.limits_of(&gpu_type).is_none_or(|known| known.per_gpu_max() <= limit) {
            return;
        }
        self.emit(step, Fact::BatchLimited { gpu_type, limit, failed, trial });
        self.pending.dirty = true;
        let trials: Vec<TrialId> = self.state.active.keys().copied().collect();
        for trial in trials {
            self.keep_to_limit(step, trial);
        }
    }

    /// Gives a running trial another batch if its passes are too large by now.
    fn keep_to_limit(&mut self, step: &mut StepBuilder, trial: TrialId) {
        if snapshot::is_too_large(&self.state.active[&trial], self) {
            self.retune(step, trial);
        }
    }

    /// How a trial that has run to its end did.
    fn result(&self, trial: TrialId, reported: &Metrics) -> Fact {
        let active = &self.state.active[&trial];
        let mut values = Vec::new();
        for objective in &self.study.objectives {
            let metric = &objective.metric;
            let last = reported.get(metric).or_else(|| active.metrics.get(metric));
            let value = match self.study.trial.result {
                ResultValue::Last => last.copied(),
                ResultValue::Best => {
                    let best = self.records.get(&trial).and_then(|record| record.best);
                    better(objective, best.map(Number::from), last.copied())
                }
            };
            match value {
                Some(value) if value.value().is_finite() => values.push(value.value()),
                Some(_) => {
                    return Fact::TrialFailed { trial, reason: format!("`{metric}` is not a finite number") };
                }
                None if metric == NO_METRIC => values.push(0.0),
                None => {
                    let came = report::names(active.metrics.keys().chain(reported.keys()));
                    let mut reason =
                        format!("it ended without a value for `{metric}`: it has reported {came}");
                    if came == "nothing" && matches!(self.study.trial.program, Some(Program::Command(_))) {
                        // What the first program of most people prints is a line for people.
                        let _ = write!(reason, "; metrics are lines of JSON, such as {{\"{metric}\": 0.5}}");
                    }
                    return Fact::TrialFailed { trial, reason };
                }
            }
        }
        Fact::TrialDone { trial, values }
    }

    /// The objective that an elastic trial will never have a value for: each of its evaluations has all its metrics. Programs and
    /// functions may print different metrics at different times, some only at their end.
    fn missing_metric(&self, trial: TrialId) -> Option<String> {
        let metrics = &self.state.active.get(&trial).filter(|_| self.kind == TrialKind::Elastic)?.metrics;
        let is_missing = |metric: &&String| *metric != NO_METRIC && !metrics.contains_key(*metric);
        let mut wanted = self.study.objectives.iter().map(|objective| &objective.metric);
        let metric = wanted.find(is_missing).filter(|_| !metrics.is_empty())?;
        let came = report::names(metrics.keys());
        Some(format!("it reports {came}, but the objective is `{metric}`: correct one of them"))
    }

    /// A trial is over, and its group knows.
    fn end(&mut self, step: &mut StepBuilder, fact: Fact, trial: TrialId) {
        self.emit(step, fact);
        self.pending.fits.remove(&trial);
        self.pending.fitted.remove(&trial);
        self.pending.dirty = true;
    }

    /// A trial is over, and its group, if it has one, is to end.
    pub(super) fn stop_and_end(&mut self, step: &mut StepBuilder, fact: Fact, trial: TrialId) {
        self.stop_group(step, trial);
        self.end(step, fact, trial);
    }

    /// Ends the group of a trial, if there is one, without keeping its state.
    pub(super) fn stop_group(&self, step: &mut StepBuilder, trial: TrialId) {
        if self.state.active.get(&trial).is_some_and(|active| !matches!(active.phase, Phase::Waiting)) {
            step.command(Command::Group { trial, command: GroupCommand::Stop(FinalState::Discarded) });
        }
    }

    /// What is known of the speed of a trial has perhaps changed.
    fn fitted(&mut self, step: &mut StepBuilder, trial: TrialId, answer: Option<Refit>) {
        let Some(active) = self.state.active.get(&trial) else { return };
        let Some(fit) = answer else { return };
        let grown = active.fit.as_ref().is_none_or(|before| {
            fit.cap > before.cap || fit.models.keys().any(|gpu_type| !before.models.contains_key(gpu_type))
        });
        self.pending.dirty |= grown;
        if active.fit.as_ref() != Some(&fit) {
            self.emit(step, Fact::Refitted { trial, fit });
        }
        self.retune(step, trial);
    }

    /// Changes the batch of a running trial, if another one is better.
    fn retune(&mut self, step: &mut StepBuilder, trial: TrialId) {
        let active = &self.state.active[&trial];
        if !matches!(active.phase, Phase::Running(_)) {
            return;
        }
        let generation = active.generation;
        let new = snapshot::batch(active, active.slots(), self);
        let is_wanted =
            |new: &BatchPlan| snapshot::is_too_large(active, self) || snapshot::is_better(active, *new, self);
        if let Some(batch) = new.filter(is_wanted) {
            let total = snapshot::in_all(batch, active.slots().len(), &self.study.trial);
            self.emit(step, Fact::Retuned { trial, generation, batch });
            step.command(Command::Group { trial, command: GroupCommand::Retune { batch: total } });
        }
    }

    /// Asks for the speed of a trial that has new steps, once for each generation and then from time to time.
    fn refit(&mut self, step: &mut StepBuilder, trial: TrialId) {
        if self.kind != TrialKind::Elastic || self.pending.fits.contains_key(&trial) {
            return;
        }
        let generation = self.state.active[&trial].generation;
        let often_s = self.study.scheduler.interval.as_secs_f64() / FITS_PER_INTERVAL;
        let due = self.pending.fitted.get(&trial).is_none_or(|&(last_s, last_generation)| {
            last_generation != generation || step.now_s >= last_s + often_s
        });
        if due {
            self.ask_fit(step, trial);
        }
    }

    pub(super) fn ask_fit(&mut self, step: &mut StepBuilder, trial: TrialId) {
        let (revision, generation) = (self.revision(), self.state.active[&trial].generation);
        self.pending.fits.insert(trial, revision);
        self.pending.fitted.insert(trial, (step.now_s, generation));
        step.command(Command::Allocate(AllocatorRequest::Fit { revision, trial }));
    }
}

/// Why a trial has ended that its user did not want to see any further.
const STOPPED_BY_HAND: &str = "stopped by its user";

/// The better of two values, one of which may be missing or no number.
fn better(objective: &Objective, one: Option<Number>, other: Option<Number>) -> Option<Number> {
    let rank = |number: &Number| {
        let loss = objective.loss(number.value());
        if loss.is_nan() { f64::INFINITY } else { loss }
    };
    one.into_iter().chain(other).min_by(|a, b| rank(a).total_cmp(&rank(b)))
}

/// The GPUs are divided again when the noise scale of a trial has changed by this factor: it can use another number of them.
const NOISE_CHANGE: f64 = 1.5;
/// How often the speed of a trial is looked at between two decisions on the GPUs.
const FITS_PER_INTERVAL: f64 = 4.0;
