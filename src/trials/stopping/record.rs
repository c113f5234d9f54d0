use std::collections::{BTreeMap, BTreeSet};

use super::{EndKind, Error, Reason, Stopper, Verdict};
use crate::ids::TrialId;

/// Sums of steps end up a little off the epoch they stand for; by this share it does not matter.
const ROUNDING: f64 = 1e-6;

/// Whether a trial at `progress` has reached a point.
pub(super) fn reached(progress: f64, point: f64) -> bool {
    progress >= point * (1.0 - ROUNDING)
}

/// A finite value at some progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// In statistical epochs.
    pub progress: f64,
    /// Smaller is better, whatever the direction of the objective.
    pub value: f64,
}

/// When trials are stopped early: the judgement alone. It sees only finite values, at growing progress of each trial.
///
/// The same samples and ends in the same order must give the same judgements: a study that is resumed shows them to a fresh rule again,
/// to bring it to where it was. What was judged then stays decided, whatever the fresh rule says. [`of_rule`](super::of_rule) makes a
/// stopper of it.
pub trait Rule: Send {
    /// What people call it.
    fn name(&self) -> &'static str {
        "custom"
    }

    /// Takes note of a sample, and gives the reason to stop the trial, if any. `before` is the trial's last one.
    fn judge(&mut self, trial: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason>;

    /// How likely a trial that reported `now` last is to continue at its next decision, from 0 to 1: trials with little promise are given
    /// fewer GPUs.
    fn promise(&self, _trial: TrialId, _now: Sample) -> f64 {
        1.0
    }

    /// The trial has ended, and counts for others.
    fn end(&mut self, _trial: TrialId) {}

    /// From now on the trial does not count for others. It will not be judged again, unless from its beginning.
    fn withdraw(&mut self, _trial: TrialId) {}
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// With the furthest sample; the flag: its latest value was not finite.
    Running(Option<Sample>, bool),
    Stopped(Reason),
}

/// The trials of a study with the rule that judges them.
pub(super) struct Record<R> {
    rule: R,
    /// None where nothing is ever decided.
    grace: Option<f64>,
    epochs: f64,
    /// Those that have not ended.
    trials: BTreeMap<TrialId, State>,
    ended: BTreeSet<TrialId>,
}

impl<R: Rule> Record<R> {
    pub(super) fn new(rule: R, grace: Option<f64>, epochs: f64) -> Self {
        Self { rule, grace, epochs, trials: BTreeMap::new(), ended: BTreeSet::new() }
    }

    fn state(&self, trial: TrialId) -> State {
        self.trials.get(&trial).copied().unwrap_or(State::Running(None, false))
    }

    /// The next state of a running trial.
    fn next(&mut self, trial: TrialId, last: Option<Sample>, now: Sample) -> State {
        if !now.value.is_finite() {
            let progress = now.progress;
            if self.grace.is_none_or(|grace| !reached(progress, grace)) {
                return State::Running(last, true);
            }
            self.rule.withdraw(trial);
            return State::Stopped(Reason::Diverged { progress });
        }
        if last.is_some_and(|last| now.progress <= last.progress) {
            return State::Running(last, false);
        }
        match self.rule.judge(trial, last, now) {
            Some(reason) if !reached(now.progress, self.epochs) => State::Stopped(reason),
            _ => State::Running(Some(now), false),
        }
    }
}

impl<R: Rule> Stopper for Record<R> {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn report(&mut self, trial: TrialId, progress: f64, value: f64) -> Result<Verdict, Error> {
        if !(progress.is_finite() && progress >= 0.0) {
            return Err(Error::BadProgress { trial, progress });
        }
        if self.ended.contains(&trial) {
            return Err(Error::Ended(trial));
        }
        let state = match self.state(trial) {
            State::Running(last, _) => self.next(trial, last, Sample { progress, value }),
            stopped @ State::Stopped(_) => stopped,
        };
        self.trials.insert(trial, state);
        Ok(match state {
            State::Stopped(reason) => Verdict::Stop(reason),
            State::Running(..) => Verdict::Continue,
        })
    }

    fn end(&mut self, trial: TrialId, how: EndKind) -> Result<(), Error> {
        if !self.ended.insert(trial) {
            return Err(Error::Ended(trial));
        }
        self.trials.remove(&trial);
        match how {
            EndKind::Failed | EndKind::Cancelled => self.rule.withdraw(trial),
            EndKind::Done | EndKind::Stopped => self.rule.end(trial),
        }
        Ok(())
    }

    fn reopen(&mut self, trial: TrialId) {
        self.rule.withdraw(trial);
        self.trials.remove(&trial);
        self.ended.remove(&trial);
    }

    fn promise(&self, trial: TrialId) -> f64 {
        if self.ended.contains(&trial) {
            return 0.0;
        }
        match self.state(trial) {
            State::Running(_, true) if self.grace.is_some() => 0.0,
            State::Running(Some(now), _) if !reached(now.progress, self.epochs) => {
                self.rule.promise(trial, now)
            }
            State::Running(..) => 1.0,
            State::Stopped(_) => 0.0,
        }
    }
}
