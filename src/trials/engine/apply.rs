//! From facts to the state: the only code that changes it.

use super::{
    ActiveTrial, Checkpoint, EndedTrial, Engine, Error, Fact, JournalEntry, Metrics, NodeState, Phase,
    SearchEnd, Severity, State, Target, WorkerGroup,
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

    /// Time does not go back.
    fn check_time(&self, JournalEntry { at_s, fact }: &JournalEntry) -> Result<(), Error> {
        if at_s.is_finite() && *at_s >= self.at_s {
            return Ok(());
        }
        Err(Error::out_of_place(fact, format!("its time is {at_s}, the one before it {}", self.at_s)))
    }

    /// Makes a fact true; an error leaves everything as it was. An [`Engine`] does that and more: this is for those who only
    /// want to know where the study stands.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.check_time(entry)?;
        let JournalEntry { at_s, fact } = entry;
        match fact {
            Fact::StudyCreated { yaml } | Fact::StudyChanged { yaml } => yaml.clone_into(&mut self.yaml),
            Fact::HeadStarted {} => self.restart(*at_s),
            Fact::NodeJoined { node, gpu_type, island, slots } => {
                if self.nodes.contains_key(node) {
                    return Err(Error::out_of_place(fact, format!("node {node} is here already")));
                }
                let (gpu_type, up) = (gpu_type.clone(), (0..*slots).collect());
                self.nodes.insert(*node, NodeState { gpu_type, island: *island, slots: *slots, up });
            }
            Fact::NodeLost { node, reason } => {
                self.nodes.remove(node);
                self.lose(*at_s, reason, |slot| slot.node == *node);
            }
            Fact::SlotJoined { slot } => {
                if let Some(node) = self.nodes.get_mut(&slot.node) {
                    node.up.insert(slot.index);
                }
            }
            Fact::SlotLost { slot, reason } => {
                if let Some(node) = self.nodes.get_mut(&slot.node) {
                    node.up.remove(&slot.index);
                }
                self.lose(*at_s, reason, |other| other == slot);
            }
            Fact::ResultImported { .. } => self.imported += 1,
            Fact::TrialEnqueued { params } => self.queue.push_back(params.clone()),
            Fact::PlanAdopted { targets, .. } => self.adopt_targets(fact, targets)?,
            Fact::SuggestionsEnded { reason, severity } => {
                self.search_ended = Some(SearchEnd { reason: reason.clone(), severity: *severity });
            }
            Fact::StopRequested {} => self.stopping = true,
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
            | Fact::TrialInterrupted { trial, .. } => {
                let formed_s = self.of(fact, *trial)?.apply(*at_s, fact)?;
                if let Some(seconds) = formed_s {
                    self.reshapes.0 += 1;
                    self.reshapes.1 += seconds;
                }
            }
            Fact::TrialDone { .. }
            | Fact::TrialStopped { .. }
            | Fact::TrialFailed { .. }
            | Fact::TrialCancelled { .. } => self.end(*at_s, fact)?,
        }
        self.at_s = *at_s;
        self.facts += 1;
        Ok(())
    }

    /// A head has started: nothing runs.
    fn restart(&mut self, at_s: f64) {
        if self.facts > 1 {
            self.up_s += self.at_s - self.started_s;
        }
        let before_s = self.at_s;
        (self.started_s, self.stopping, self.done) = (at_s, false, false);
        self.nodes.clear();
        for active in self.active.values_mut() {
            active.count(before_s);
            active.usage.until_s = at_s;
            active.phase = Phase::Waiting;
            active.target.clear();
        }
    }

    /// Workers are gone.
    fn lose(&mut self, at_s: f64, reason: &str, lost: impl Fn(&SlotId) -> bool) {
        for active in self.active.values_mut() {
            active.count(at_s);
            if active.lose(&lost) {
                active.failures.add(reason);
            }
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
        let ActiveTrial { params, created_s, epochs, generation, metrics, usage, .. } = active;
        let (ended_s, slot_s) = (at_s, usage.slot_s);
        let ended = EndedTrial { params, created_s, ended_s, end, epochs, generation, metrics, slot_s };
        self.ended.insert(trial, ended);
        Ok(())
    }
}

impl ActiveTrial {
    /// Makes a fact about this trial true. If its group was formed again, gives the seconds that took.
    fn apply(&mut self, at_s: f64, fact: &Fact) -> Result<Option<f64>, Error> {
        if let Fact::TrialStarted { generation, .. } = fact
            && *generation != self.generation.next()
        {
            let problem = format!("generation {generation} after {}", self.generation);
            return Err(Error::out_of_place(fact, problem));
        }
        self.count(at_s);
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
                    let formed_s = (!holders.is_empty()).then_some(at_s - since_s);
                    self.phase = Phase::Running(group.clone());
                    return Ok(formed_s);
                }
            }
            Fact::Retuned { batch, .. } => {
                if let Some(group) = self.phase.group_mut() {
                    group.batch = Some(*batch);
                }
            }
            Fact::Measured { generation, number, epochs, metrics, noise, .. } => {
                self.measure(*generation, *number, *epochs, metrics);
                self.noise = noise.or(self.noise);
            }
            Fact::Refitted { fit, .. } => self.fit = Some(fit.clone()),
            Fact::Checkpointed { checkpoint, .. } => self.keep(checkpoint),
            Fact::TrialPausing { .. } => {
                if let Some(group) = self.phase.group().cloned() {
                    self.phase = Phase::Pausing(group);
                }
            }
            Fact::TrialPaused { checkpoint, .. } => {
                self.keep(checkpoint);
                self.phase = Phase::Waiting;
            }
            Fact::TrialInterrupted { reason, severity, .. } => {
                if *severity == Severity::Failure {
                    self.failures.add(reason);
                }
                self.phase = Phase::Waiting;
            }
            // Those change the study, or the list of trials.
            _ => {}
        }
        Ok(None)
    }

    fn measure(&mut self, generation: Generation, number: u32, epochs: f64, metrics: &Metrics) {
        match &mut self.phase {
            Phase::Forming { previous: Some((of, reported)), .. } if *of == generation => *reported = number,
            phase => {
                if let Some(group) = phase.group_mut() {
                    group.reported = number;
                }
            }
        }
        if epochs > self.epochs {
            (self.epochs, self.failures.count) = (epochs, 0);
        }
        for (name, value) in metrics {
            self.metrics.insert(name.clone(), *value);
        }
    }

    fn keep(&mut self, checkpoint: &Checkpoint) {
        let before = self.checkpoint.as_ref().map_or(-1.0, |before| before.epochs);
        if checkpoint.epochs > before {
            self.failures.count = 0;
        }
        if checkpoint.epochs >= before {
            self.checkpoint = Some(checkpoint.clone());
        }
    }
}
