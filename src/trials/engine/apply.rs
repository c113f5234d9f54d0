//! From facts to the state: the only code that changes it.

use super::{
    ActiveTrial, Checkpoint, EndedTrial, Engine, Error, Fact, JournalEntry, LATEST_S, Metrics, Phase,
    SearchEnd, SearchLimit, Severity, State, Target, Unfinished, Wait, WorkerGroup, fit_service::total_batch,
    limits::TIME_IS_UP,
};
use crate::{
    ids::{Generation, SlotId, TrialId},
    space::{Params, Point},
    trials::{End, stopping::Verdict},
};

impl Engine {
    /// Makes a fact true. What was decided stays decided, even if today's rules would decide otherwise.
    ///
    /// An error leaves the study as it was: the fact does not follow from those before it.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.note(entry).map(|_| ())
    }

    /// The same, with the verdict of the stopping rule.
    pub(super) fn note(&mut self, entry: &JournalEntry) -> Result<Verdict, Error> {
        let fact = &entry.fact;
        self.state.check_time(entry)?;
        let verdict = match fact {
            Fact::Measured { trial, epochs, metrics, .. } => {
                self.state.of(fact, *trial)?;
                self.judge(*trial, *epochs, metrics)?
            }
            _ => Verdict::Continue,
        };
        if let Some((trial, end)) = end_of(fact) {
            self.state.of(fact, trial)?;
            self.stopper.end(trial, end.kind())?;
        }
        self.state.apply(entry)?;
        self.remember(entry);
        if let Fact::TrialRetried { trial } = fact {
            self.stopper.reopen(*trial);
        }
        Ok(verdict)
    }

    fn judge(&mut self, trial: TrialId, epochs: f64, metrics: &Metrics) -> Result<Verdict, Error> {
        let objective = &self.study.objectives[0];
        let Some(value) = metrics.get(&objective.metric) else { return Ok(Verdict::Continue) };
        Ok(self.stopper.report(trial, epochs, objective.loss(value.value()))?)
    }
}

impl Fact {
    /// The trial that it ends, and how.
    #[must_use]
    pub fn end(&self) -> Option<(TrialId, End)> {
        end_of(self)
    }
}

/// The trial that a fact ends.
pub(in crate::trials) fn end_of(fact: &Fact) -> Option<(TrialId, End)> {
    Some(match fact {
        Fact::TrialDone { trial, values } => (*trial, End::Done(values.clone())),
        Fact::TrialStopped { trial, reason } => (*trial, End::Stopped(reason.clone())),
        Fact::TrialFailed { trial, reason } => (*trial, End::Failed(reason.clone())),
        Fact::TrialCancelled { trial, reason } => (*trial, End::Cancelled(reason.clone())),
        _ => return None,
    })
}

impl State {
    /// The trial of a fact, which must be active.
    fn of(&mut self, fact: &Fact, trial: TrialId) -> Result<&mut ActiveTrial, Error> {
        self.active.get_mut(&trial).ok_or_else(|| Error::NotActive { kind: fact.kind(), trial })
    }

    /// Time does not go back, and not so far that seconds are lost in it.
    fn check_time(&self, JournalEntry { at_s, fact }: &JournalEntry) -> Result<(), Error> {
        if (self.at_s..=LATEST_S).contains(at_s) {
            return Ok(());
        }
        let problem = format!("its time is {at_s}; expected {} to {LATEST_S:e}", self.at_s);
        Err(Error::out_of_place(fact, problem))
    }

    /// Makes a fact true; an error leaves everything as it was. An [`Engine`] does that and more: this is for those who only
    /// want to know where the study stands.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.check_time(entry)?;
        let JournalEntry { at_s, fact } = entry;
        match fact {
            Fact::StudyCreated { yaml } | Fact::StudyChanged { yaml } => yaml.clone_into(&mut self.yaml),
            Fact::HeadStarted {} => self.restart(*at_s),
            Fact::NodeJoined { .. }
            | Fact::NodeDraining { .. }
            | Fact::NodeLost { .. }
            | Fact::SlotJoined { .. }
            | Fact::SlotLost { .. }
            | Fact::NodeBlocked { .. } => self.apply_to_nodes(*at_s, fact)?,
            Fact::StudyWaiting { reason } => {
                self.waiting = Some(Wait::again(self.waiting.as_ref(), *at_s, reason));
            }
            Fact::StudyResumed {} => self.waiting = None,
            Fact::ResultImported { .. } => self.imported += 1,
            Fact::TrialEnqueued { params } => self.queue.push_back(params.clone()),
            Fact::PlanAdopted { targets, .. } => self.adopt_targets(fact, targets)?,
            Fact::SuggestionsEnded { reason, severity, limit } => {
                // Journals of earlier versions name the limit in words only.
                let limit = limit.or((reason == TIME_IS_UP).then_some(SearchLimit::Timeout));
                self.search_ended = Some(SearchEnd { reason: reason.clone(), severity: *severity, limit });
            }
            Fact::SuggestionsReopened {} => (self.search_ended, self.done) = (None, false),
            Fact::StopRequested {} => self.stopping = true,
            Fact::PauseRequested {} => self.pause(*at_s),
            Fact::ResumeRequested {} => self.unpause(*at_s),
            Fact::StudyDone {} => self.done = true,
            Fact::TrialCreated { trial, params, point } => self.create(*at_s, fact, *trial, params, point)?,
            Fact::TrialStarted { trial, .. }
            | Fact::GroupFormed { trial, .. }
            | Fact::Retuned { trial, .. }
            | Fact::Measured { trial, .. }
            | Fact::Refitted { trial, .. }
            | Fact::Checkpointed { trial, .. }
            | Fact::CheckpointFailed { trial, .. }
            | Fact::TrialPausing { trial }
            | Fact::TrialPaused { trial, .. }
            | Fact::TrialInterrupted { trial, .. } => self.apply_to_trial(*at_s, fact, *trial)?,
            Fact::BatchLimited { trial, gpu_type, limit, .. } => {
                self.of(fact, *trial)?;
                let known = self.batch_limits.entry(gpu_type.clone()).or_insert(*limit);
                *known = (*known).min(*limit).max(1);
            }
            Fact::TrialRetried { trial } => self.retry_trial(*at_s, fact, *trial)?,
            Fact::TrialDone { .. }
            | Fact::TrialStopped { .. }
            | Fact::TrialFailed { .. }
            | Fact::TrialCancelled { .. } => self.end(*at_s, fact)?,
        }
        self.forget_probe();
        self.at_s = *at_s;
        self.facts += 1;
        Ok(())
    }

    /// What a fact says of an active trial, and of the study as a whole.
    fn apply_to_trial(&mut self, at_s: f64, fact: &Fact, trial: TrialId) -> Result<(), Error> {
        let progress = self.progress;
        let broken = self.broken_group(fact, trial);
        let change = self.of(fact, trial)?.apply(at_s, fact, progress)?;
        if let Some(seconds) = change.formed_s {
            self.reshapes.0 += 1;
            self.reshapes.1 += seconds;
        }
        self.progress += u64::from(change.is_progress);
        if let Some(slots) = broken {
            self.break_links(at_s, &slots);
        }
        if change.is_progress
            && let Some(Phase::Running(group)) = self.active.get(&trial).map(|active| &active.phase)
        {
            let slots = group.slots.clone();
            self.mend_links(&slots);
        }
        if let (Fact::TrialStarted { holders, .. }, Some(wait)) = (fact, &mut self.waiting)
            && holders.is_empty()
        {
            wait.probe = wait.probe.or(Some(trial));
        }
        Ok(())
    }

    /// The slots of a group that has failed by a fact, if all its workers live.
    fn broken_group(&self, fact: &Fact, trial: TrialId) -> Option<Vec<SlotId>> {
        let is_failure = matches!(fact, Fact::TrialInterrupted { severity: Severity::Failure, .. });
        let slots = self.active.get(&trial).filter(|_| is_failure)?.slots();
        slots.iter().all(|slot| self.is_up(*slot)).then(|| slots.to_vec())
    }

    /// A trial without a group finds nothing out.
    fn forget_probe(&mut self) {
        let Some(wait) = &mut self.waiting else { return };
        let is_launched = |trial: &TrialId| {
            self.active.get(trial).is_some_and(|active| !matches!(active.phase, Phase::Waiting))
        };
        wait.probe = wait.probe.filter(is_launched);
    }

    /// A head has started: nothing runs.
    fn restart(&mut self, at_s: f64) {
        if self.facts > 1 {
            self.up_s += self.up_since_start_s();
        }
        let before_s = self.at_s;
        (self.started_s, self.stopping, self.done) = (at_s, false, false);
        self.nodes.clear();
        self.lost.clear();
        self.rifts.clear();
        self.blocked.clear();
        // A new head finds out by itself.
        self.waiting = None;
        for active in self.active.values_mut() {
            active.count(before_s);
            active.usage.until_s = at_s;
            active.phase = Phase::Waiting;
            active.target.clear();
        }
    }

    fn adopt_targets(&mut self, fact: &Fact, targets: &[Target]) -> Result<(), Error> {
        for target in targets {
            self.of(fact, target.trial)?;
        }
        for (trial, active) in &mut self.active {
            let target = targets.iter().find(|target| target.trial == *trial);
            active.target = target.map_or_else(Vec::new, |target| target.slots.clone());
        }
        Ok(())
    }

    fn create(
        &mut self,
        at_s: f64,
        fact: &Fact,
        trial: TrialId,
        params: &Params,
        point: &Point,
    ) -> Result<(), Error> {
        let expected = self.next_trial();
        if trial != expected {
            let problem = format!("trial {trial} was created, the next one is {expected}");
            return Err(Error::out_of_place(fact, problem));
        }
        if self.queue.front() == Some(params) {
            self.queue.pop_front();
        }
        self.active.insert(trial, ActiveTrial::new(params.clone(), point.clone(), at_s));
        Ok(())
    }

    fn end(&mut self, at_s: f64, fact: &Fact) -> Result<(), Error> {
        let Some((trial, end)) = end_of(fact) else { return Ok(()) };
        let active = self.active.remove(&trial);
        let mut active = active.ok_or_else(|| Error::NotActive { kind: fact.kind(), trial })?;
        active.count(at_s);
        let ActiveTrial { params, point, checkpoint, created_s, epochs, generation, usage, .. } = active;
        let unfinished = match end {
            End::Done(_) | End::Stopped(_) => {
                self.progress += 1;
                self.finished += 1;
                None
            }
            End::Failed(_) | End::Cancelled(_) => Some(Box::new(Unfinished { point, checkpoint })),
        };
        self.failed += u32::from(matches!(end, End::Failed(_)));
        let (ended_s, slot_s) = (at_s, usage.slot_s);
        let ended = EndedTrial { params, created_s, ended_s, end, epochs, generation, slot_s, unfinished };
        self.ended.insert(trial, ended);
        Ok(())
    }

    /// A trial that had failed or was cancelled waits again, with nothing held against it.
    fn retry_trial(&mut self, at_s: f64, fact: &Fact, trial: TrialId) -> Result<(), Error> {
        let ended = self.ended.get(&trial);
        let Some((ended, unfinished)) = ended.and_then(|ended| Some((ended, ended.unfinished.as_deref()?)))
        else {
            return Err(Error::out_of_place(fact, format!("trial {trial} has not failed")));
        };
        let Unfinished { point, checkpoint } = unfinished.clone();
        let mut active = ActiveTrial::new(ended.params.clone(), point, ended.created_s);
        active.epochs = checkpoint.as_ref().map_or(0.0, |checkpoint| checkpoint.epochs);
        (active.checkpoint, active.generation) = (checkpoint, ended.generation);
        (active.usage.until_s, active.usage.slot_s) = (at_s, ended.slot_s);
        self.failed -= u32::from(matches!(ended.end, End::Failed(_)));
        self.ended.remove(&trial);
        self.active.insert(trial, active);
        self.done = false;
        Ok(())
    }
}

/// What a fact about a trial means for the study.
#[derive(Default)]
struct Change {
    /// Its group was formed again, which took these seconds.
    formed_s: Option<f64>,
    /// It is further than ever before.
    is_progress: bool,
}

impl ActiveTrial {
    /// Makes a fact about this trial true, at some progress of the study.
    fn apply(&mut self, at_s: f64, fact: &Fact, progress: u64) -> Result<Change, Error> {
        if let Fact::TrialStarted { generation, .. } = fact
            && *generation != self.generation.next()
        {
            let problem = format!("generation {generation} after {}", self.generation);
            return Err(Error::out_of_place(fact, problem));
        }
        self.count(at_s);
        let mut change = Change::default();
        match fact {
            Fact::TrialStarted { generation, slots, batch, holders, .. } => {
                self.reallocations += u32::from(!self.slots().is_empty());
                let previous = (!holders.is_empty()).then(|| (self.generation, self.phase.reported()));
                self.generation = *generation;
                let group = WorkerGroup { slots: slots.clone(), batch: *batch, reported: 0 };
                self.phase = Phase::Forming { group, holders: holders.clone(), since_s: at_s, previous };
            }
            Fact::GroupFormed { .. } => {
                if let Phase::Forming { group, holders, since_s, .. } = &self.phase {
                    change.formed_s = (!holders.is_empty()).then_some(at_s - since_s);
                    self.phase = Phase::Running(group.clone());
                }
            }
            Fact::Retuned { batch, .. } => {
                if let Some(group) = self.phase.group_mut() {
                    group.batch = Some(*batch);
                }
            }
            Fact::Measured { generation, number, epochs, metrics, steps, noise, noise_batch, .. } => {
                change.is_progress = self.measure(*generation, *number, *epochs, metrics);
                if noise.is_some() {
                    self.noise = *noise;
                    self.noise_batch = noise_batch.or_else(|| total_batch(steps)).or(self.noise_batch);
                }
            }
            Fact::Refitted { fit, .. } => self.fit = Some(fit.clone()),
            Fact::Checkpointed { checkpoint, .. } => change.is_progress = self.keep(checkpoint),
            Fact::TrialPausing { .. } => {
                if let Some(group) = self.phase.leaving() {
                    self.phase = Phase::Pausing(group);
                }
            }
            Fact::TrialPaused { checkpoint, .. } => {
                change.is_progress = self.keep(checkpoint);
                self.phase = Phase::Waiting;
            }
            Fact::TrialInterrupted { reason, severity, .. } => {
                if *severity == Severity::Failure {
                    self.failures.add(at_s, reason, progress);
                }
                self.phase = Phase::Waiting;
            }
            // Those change the study, or the list of trials.
            _ => {}
        }
        if change.is_progress {
            self.failures.forgive();
        }
        Ok(change)
    }

    /// Takes note of a report; whether the trial is further than ever before.
    fn measure(&mut self, generation: Generation, number: u32, epochs: f64, metrics: &Metrics) -> bool {
        match &mut self.phase {
            Phase::Forming { previous: Some((of, reported)), .. } if *of == generation => *reported = number,
            phase => {
                if let Some(group) = phase.group_mut() {
                    group.reported = number;
                }
            }
        }
        for (name, value) in metrics {
            self.metrics.insert(name.clone(), *value);
        }
        let is_progress = epochs > self.epochs;
        self.epochs = self.epochs.max(epochs);
        is_progress
    }

    /// Takes note of a checkpoint; whether it is further than those before.
    fn keep(&mut self, checkpoint: &Checkpoint) -> bool {
        let before = self.checkpoint.as_ref().map_or(-1.0, |before| before.epochs);
        if checkpoint.epochs >= before {
            self.checkpoint = Some(checkpoint.clone());
        }
        checkpoint.epochs > before
    }
}
