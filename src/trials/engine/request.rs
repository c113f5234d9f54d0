//! Time that has run out, and questions that follow from the state.

use std::collections::BTreeSet;

use super::{
    ActiveTrial, AllocatorRequest, Command, Engine, Fact, Outcome, Phase, SearchLimit, StepBuilder,
    SuggestRequest, TrialKind, limits::TIME_IS_UP,
};
use crate::{
    goodput::NoiseScale,
    ids::TrialId,
    space::{Parallel, Program},
};

impl Engine {
    /// Ends what has taken too long, and marks what is due.
    pub(super) fn expire(&mut self, step: &mut StepBuilder) {
        if self.state.facts == 0 || self.state.done {
            return;
        }
        if self.study_ends_s().is_some_and(|end_s| step.now_s >= end_s) && self.state.search_ended.is_none() {
            self.end_search(step, TIME_IS_UP, SearchLimit::Timeout);
        }
        let late: Vec<TrialId> =
            self.trial_ends().filter(|(_, end_s)| step.now_s >= *end_s).map(|(trial, _)| trial).collect();
        for trial in late {
            let seconds = self.study.trial.timeout.unwrap_or_default().as_secs_f64();
            let reason = format!("it took longer than the {seconds} s of `trial.timeout`");
            self.stop_and_end(step, Fact::TrialFailed { trial, reason }, trial);
        }
        if self.solve_due_s().is_some_and(|due_s| step.now_s >= due_s) {
            self.pending.dirty = true;
        }
    }

    /// When the study has to end.
    pub(super) fn study_ends_s(&self) -> Option<f64> {
        let timeout = self.study.search.timeout.filter(|_| self.state.paused_s.is_none());
        timeout.map(|timeout| self.state.started_s + timeout.as_secs_f64() - self.state.up_s)
    }

    /// When trials that have slots have to end. Programs tell when they begin, and what they wait for before that does not count.
    fn trial_ends(&self) -> impl Iterator<Item = (TrialId, f64)> {
        let timeout = self.study.trial.timeout;
        let is_program = matches!(self.study.trial.program, Some(Program::Command(_)));
        let running = self
            .state
            .active
            .iter()
            .filter(move |(_, active)| !(active.slots().is_empty() || is_program && active.waits()));
        running.filter_map(move |(&trial, active)| {
            let waited_s = if is_program { active.usage.waited_s } else { 0.0 };
            Some((trial, active.usage.until_s + timeout?.as_secs_f64() - (active.usage.ran_s - waited_s)))
        })
    }

    /// When the GPUs are to be allocated again though nothing has changed.
    fn solve_due_s(&self) -> Option<f64> {
        let wanted = self.kind.is_planned()
            && !self.state.active.is_empty()
            && self.state.is_launching()
            && !self.state.done;
        wanted.then_some(self.pending.solved_s + self.study.scheduler.interval.as_secs_f64())
    }

    /// Whether there is something to decide on the GPUs, and the time has come.
    fn may_solve(&self, now_s: f64) -> bool {
        let due = self.solve_due_s().is_some_and(|due_s| now_s >= due_s);
        self.pending.dirty && (self.study.scheduler.immediate || due || self.is_urgent())
    }

    /// Whether another trial should begin.
    pub(super) fn wants_trials(&self, now_s: f64) -> bool {
        // While the study waits, a new trial is needed only if there is none to find out with.
        let is_idle = |active: &ActiveTrial| matches!(active.phase, Phase::Waiting);
        if self.state.waiting.is_some()
            && (!self.state.may_launch(now_s) || self.state.active.values().any(is_idle))
        {
            return false;
        }
        self.state.is_launching()
            && !self.state.done
            && self.state.facts > 0
            && self.state.search_ended.is_none()
            && self.state.created() < self.study.search.trials as usize
            && self.state.active.len() < self.room().min(self.parallel() as usize)
    }

    /// How many trials may be active at a time. Where that is not fixed, a plan says how many pay off.
    fn parallel(&self) -> u32 {
        match self.study.search.parallel {
            Parallel::Fixed(number) => number,
            Parallel::Auto => self.pending.places.unwrap_or(Parallel::DEFAULT),
        }
    }

    /// Sends requests that are due, and sets when to wake up or that all is over.
    pub(super) fn request(&mut self, step: &mut StepBuilder) {
        if self.pending.ask.is_none() && self.wants_trials(step.now_s) {
            let revision = self.revision();
            self.pending.ask = Some(revision);
            step.command(Command::Suggest(SuggestRequest { revision, trial: self.state.next_trial() }));
        }
        if self.kind.is_planned() {
            self.request_plan(step);
        }
        self.finish(step);
        self.wake(step);
    }

    /// The noise scale that a plan goes by, at the initial batch: a new trial has measured none, but one is expected of it.
    pub(super) fn noise_of(&self, active: &ActiveTrial) -> NoiseScale {
        let initial_batch = self.study.trial.initial_batch;
        active.noise_curve(initial_batch).at(f64::from(initial_batch))
    }

    fn request_plan(&mut self, step: &mut StepBuilder) {
        if !self.state.is_launching() || self.state.done {
            return;
        }
        if self.kind == TrialKind::Elastic {
            self.request_fits(step);
        }
        // A new trial is placed by what is expected of it, and together with those that are here: if the others moved first
        // they would move twice.
        let unknown = |trial: &TrialId| self.state.active.get(trial).is_some_and(|trial| trial.fit.is_none());
        let ready = !self.state.active.is_empty()
            && self.state.open_slots().next().is_some()
            && self.pending.ask.is_none()
            && !self.pending.fits.keys().any(unknown);
        if self.may_solve(step.now_s) && self.pending.solve.is_none() && ready {
            (self.pending.dirty, self.pending.solved_s) = (false, step.now_s);
            let noise = |(&trial, active): (&TrialId, &ActiveTrial)| (trial, self.noise_of(active));
            self.pending.noises = self.state.active.iter().map(noise).collect();
            let (revision, snapshot) = (self.revision(), Box::new(self.snapshot(step.now_s)));
            self.pending.solve = Some(revision);
            step.command(Command::Allocate(AllocatorRequest::Solve { revision, snapshot }));
        }
    }

    /// Asks for the speed of trials of which nothing is known.
    fn request_fits(&mut self, step: &mut StepBuilder) {
        let fresh = self
            .state
            .active
            .iter()
            .filter(|(trial, active)| active.fit.is_none() && !self.pending.fitted.contains_key(trial));
        let mut wanted: BTreeSet<TrialId> = fresh.map(|(&trial, _)| trial).collect();
        wanted.extend(self.unknown_on_new_types());
        for trial in wanted {
            self.ask_fit(step, trial);
        }
    }

    fn finish(&mut self, step: &mut StepBuilder) {
        let state = &self.state;
        let all = state.search_ended.is_some() || state.created() >= self.study.search.trials as usize;
        if state.facts == 0 || self.pending.finished {
            return;
        }
        if state.done || (all && state.active.is_empty()) {
            if !state.done {
                self.emit(step, Fact::StudyDone {});
            }
            let outcome = self.outcome();
            self.pending.finished = true;
            step.command(Command::Finished(outcome));
        } else if state.stopping && state.active.values().all(|active| matches!(active.phase, Phase::Waiting))
        {
            self.pending.finished = true;
            step.command(Command::Finished(Outcome::Stopped));
        }
    }

    /// When what went wrong is to be tried again.
    fn retries(&self, now_s: f64) -> impl Iterator<Item = f64> {
        let idle = self.state.active.values().filter(|active| matches!(active.phase, Phase::Waiting));
        let study = self.state.waiting.as_ref().filter(|wait| wait.probe.is_none());
        let retries = idle.map(|active| active.failures.retry_s).chain(study.map(|wait| wait.retry_s));
        let is_wanted = self.state.is_launching();
        retries.filter(move |retry_s| is_wanted && *retry_s > now_s)
    }

    fn wake(&mut self, step: &mut StepBuilder) {
        if self.state.facts == 0 || self.pending.finished {
            return;
        }
        // While an answer or a slot is awaited, that is what wakes us.
        let awaited = self.may_solve(step.now_s) || self.pending.solve.is_some();
        let solve = self.solve_due_s().filter(|_| !awaited);
        let study = self.study_ends_s().filter(|_| self.state.search_ended.is_none());
        let trials = self.trial_ends().map(|(_, end_s)| end_s);
        let next = trials.chain(solve).chain(study).chain(self.retries(step.now_s));
        let next = next.chain(self.drains_end()).min_by(f64::total_cmp);
        if next != self.pending.wake_s {
            self.pending.wake_s = next;
            if let Some(at_s) = next {
                step.command(Command::WakeAt { at_s });
            }
        }
    }
}
