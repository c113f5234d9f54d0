//! What must be true of the study, whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use super::{INJECTED, plan::Scenario};
use crate::{
    ids::{SlotId, TrialId},
    trials::{
        End,
        engine::{Engine, Fact, JournalEntry, Severity, State},
    },
};

pub(super) struct Rules {
    /// Is shown what is in the journal, and nothing else.
    twin: Engine,
    /// Trials that were created and ended, as others than the head may know: for ever.
    created: BTreeSet<TrialId>,
    ended: BTreeMap<TrialId, End>,
    /// When others could know of it.
    ended_s: BTreeMap<TrialId, f64>,
}

impl Rules {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, String> {
        Ok(Self {
            twin: engine(scenario)?,
            created: BTreeSet::new(),
            ended: BTreeMap::new(),
            ended_s: BTreeMap::new(),
        })
    }

    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Whether there were trials, and none of them has a result.
    pub(super) fn all_have_failed(&self) -> bool {
        let ended = &self.twin.state().ended;
        !ended.is_empty() && ended.values().all(|trial| matches!(trial.end, End::Failed(_)))
    }

    /// When a trial has ended.
    pub(super) fn ended_s(&self, trial: TrialId) -> Option<f64> {
        self.ended_s.get(&trial).copied()
    }

    /// Facts are in the journal, and the engine has decided on them.
    pub(super) fn appended(&mut self, facts: &[JournalEntry], engine: &Engine) -> Result<(), String> {
        engine.check()?;
        for entry in facts {
            self.check_places(&entry.fact)?;
            self.keeps_the_pause(&entry.fact)?;
            self.twin.apply(entry).map_err(|error| format!("a fact does not follow: {error}"))?;
            self.keeps_to_memory(&entry.fact)?;
            if let Fact::TrialFailed { trial, reason } = &entry.fact
                && !is_explained(reason)
            {
                return Err(format!("trial {trial} has failed without a fault: {reason}"));
            }
        }
        let state = self.twin.state();
        self.keeps_results(state)?;
        if engine.state() != state {
            return Err("the engine differs from what follows of the journal".to_owned());
        }
        if state.created() > engine.study().search.trials as usize {
            return Err(format!("{} trials were created", state.created()));
        }
        Ok(())
    }

    /// Nothing new is placed on a machine that is about to leave.
    fn check_places(&self, fact: &Fact) -> Result<(), String> {
        let Fact::TrialStarted { trial, slots, .. } = fact else { return Ok(()) };
        let state = self.twin.state();
        let Some(active) = state.active.get(trial) else { return Ok(()) };
        let had: BTreeSet<SlotId> = active.reserved().collect();
        match slots.iter().find(|slot| !state.is_open(**slot) && !had.contains(slot)) {
            Some(slot) => Err(format!("trial {trial} is placed on {slot}, which is about to leave or gone")),
            None => Ok(()),
        }
    }

    /// While the study is paused, no trial is created or launched. A group that was about to form may do so, with its state.
    fn keeps_the_pause(&self, fact: &Fact) -> Result<(), String> {
        let launched = match fact {
            Fact::TrialCreated { trial, .. } => Some(trial),
            Fact::TrialStarted { trial, holders, .. } if holders.is_empty() => Some(trial),
            _ => None,
        };
        match launched.filter(|_| self.twin.state().paused_s.is_some()) {
            Some(trial) => Err(format!("trial {trial} is launched while the study is paused")),
            None => Ok(()),
        }
    }

    /// Facts are acted on: from now on they are promised.
    pub(super) fn promised(&mut self, facts: &[JournalEntry], now_s: f64) -> Result<(), String> {
        for entry in facts {
            if let Fact::TrialCreated { trial, .. } = &entry.fact
                && !self.created.insert(*trial)
            {
                return Err(format!("trial {trial} was created twice"));
            }
            let Some((trial, end)) = self.end(entry) else { continue };
            self.ended_s.insert(trial, now_s);
            if self.ended.insert(trial, end).is_some() {
                return Err(format!("trial {trial} was told twice"));
            }
        }
        Ok(())
    }

    /// The end of a trial.
    fn end(&self, entry: &JournalEntry) -> Option<(TrialId, End)> {
        let trial = entry.fact.trial()?;
        let is_end = matches!(
            entry.fact,
            Fact::TrialDone { .. }
                | Fact::TrialStopped { .. }
                | Fact::TrialFailed { .. }
                | Fact::TrialCancelled { .. }
        );
        let ended = self.twin.state().ended.get(&trial).filter(|_| is_end)?;
        Some((trial, ended.end.clone()))
    }

    /// A head has replayed the journal.
    pub(super) fn replayed(&self, engine: &Engine) -> Result<(), String> {
        if engine.state() == self.twin.state() {
            return Ok(());
        }
        Err("what follows of the journal is not what was true before".to_owned())
    }

    /// The journal has lost what was not durable.
    pub(super) fn cut(&mut self, scenario: &Scenario, entries: &[JournalEntry]) -> Result<(), String> {
        self.twin = engine(scenario)?;
        for entry in entries {
            self.twin.apply(entry).map_err(|error| format!("a fact does not follow: {error}"))?;
        }
        self.keeps_results(self.twin.state())
    }

    /// No trial is forgotten, no result is lost or changed.
    fn keeps_results(&self, state: &State) -> Result<(), String> {
        for trial in &self.created {
            if !state.active.contains_key(trial) && !state.ended.contains_key(trial) {
                return Err(format!("trial {trial} is forgotten"));
            }
        }
        for (trial, end) in &self.ended {
            if state.ended.get(trial).map(|ended| &ended.end) != Some(end) {
                return Err(format!("the result of trial {trial} was {end:?}, and is lost"));
            }
        }
        Ok(())
    }

    /// No batch is larger than what is known to fit.
    fn keeps_to_memory(&self, fact: &Fact) -> Result<(), String> {
        let state = self.twin.state();
        let (trial, batch) = match fact {
            Fact::TrialStarted { trial, batch, .. } => (trial, *batch),
            Fact::Retuned { trial, batch, .. } => (trial, Some(*batch)),
            _ => return Ok(()),
        };
        let slots = state.active.get(trial).map_or(&[][..], |active| active.slots());
        let limit = state.gpu_type(slots).and_then(|gpu_type| state.batch_limits.get(gpu_type));
        match batch.zip(limit) {
            Some((batch, limit)) if batch.per_gpu > *limit => {
                Err(format!("trial {trial} takes passes of {}, and at most {limit} fit", batch.per_gpu))
            }
            _ => Ok(()),
        }
    }

    /// The study is over.
    pub(super) fn at_the_end(&self, scenario: &Scenario, entries: &[JournalEntry]) -> Result<(), String> {
        let state = self.twin.state();
        let asked = scenario.study.search.trials as usize;
        if !state.active.is_empty() || (state.ended.len() != asked && state.search_ended.is_none()) {
            return Err(format!("{} of {asked} trials have ended", state.ended.len()));
        }
        if let Some(end) = state.search_ended.as_ref().filter(|end| end.limit.is_none())
            && end.severity == Severity::Failure
            && !end.reason.contains(INJECTED)
        {
            return Err(format!("the suggester has failed without a fault: {}", end.reason));
        }
        let mut again = engine(scenario)?;
        for entry in entries {
            // As a journal keeps it.
            let text = serde_json::to_string(entry).map_err(|error| error.to_string())?;
            let entry = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            again.apply(&entry).map_err(|error| format!("a fact does not follow: {error}"))?;
        }
        self.replayed(&again)
    }
}

fn engine(scenario: &Scenario) -> Result<Engine, String> {
    Engine::new(&scenario.study, scenario.kind).map_err(|error| error.to_string())
}

/// Whether a trial may fail for this reason: a fault of its own, or too many of others.
fn is_explained(reason: &str) -> bool {
    reason.contains(INJECTED) || reason.contains("failures without progress")
}
