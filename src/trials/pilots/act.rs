//! What follows from what is known of the pilots.

use std::collections::BTreeSet;

use super::{
    Controller, DRAIN_S, FAILURES_MAX, IDLE_S, JobEnd, JobReport, JobState, LONG_WAIT_S, PAUSE_S,
    PENDING_MAX, Pilot, PilotAction, PilotId, PilotPhase, REGISTER_S, SUBMIT_EVERY_S, WORTH_ASKING,
    WORTH_WAITING,
};

use crate::ids::NodeId;

/// Reasons of Slurm for which a job waits for ever.
const HOPELESS: [&str; 9] = [
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "AssocMaxWallDurationPerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "AccountNotAllowed",
];

impl Controller {
    /// What the queue says of a job.
    pub(super) fn report(
        &mut self,
        JobReport { job, state }: JobReport,
        now_s: f64,
        actions: &mut Vec<PilotAction>,
    ) {
        let Some((&id, pilot)) =
            self.pilots.iter_mut().find(|(_, pilot)| pilot.job.as_deref() == Some(&*job))
        else {
            return;
        };
        match state {
            JobState::Pending { reason } => {
                if HOPELESS.contains(&reason.as_str()) && pilot.phase == PilotPhase::Pending {
                    pilot.phase = PilotPhase::Cancelled;
                    pilot.fault = Some(format!("it would wait for ever ({reason})"));
                    actions.push(PilotAction::Cancel { job });
                } else if now_s - pilot.submitted_s >= LONG_WAIT_S && !pilot.told {
                    pilot.told = true;
                    let name = self.name(id);
                    let notice = format!("{name} (job {job}) waits in the queue of Slurm: {reason}");
                    actions.push(PilotAction::Notice(notice));
                }
            }
            JobState::Running { since_s, ends_s } => {
                pilot.runs_s = Some((since_s, ends_s));
                if pilot.phase == PilotPhase::Pending {
                    pilot.phase = PilotPhase::Starting { since_s: now_s };
                }
            }
            JobState::Ended { end, reason, log } => {
                let name = self.name(id);
                if let Some(pilot) = self.pilots.remove(&id) {
                    self.ended(&pilot, &name, (end, &reason, &log), now_s, actions);
                }
            }
        }
    }

    /// A job is gone: as it was meant to, or not.
    fn ended(
        &mut self,
        pilot: &Pilot,
        name: &str,
        (end, reason, log): (JobEnd, &str, &str),
        now_s: f64,
        actions: &mut Vec<PilotAction>,
    ) {
        let job = pilot.job.as_deref().unwrap_or_default();
        if let Some(fault) = &pilot.fault {
            return self.fail(pilot, fault, log, now_s, actions);
        }
        match (&pilot.phase, end) {
            (PilotPhase::Cancelled, _) => {}
            (_, JobEnd::Preempted) => {
                actions.push(PilotAction::Notice(format!("{name} (job {job}) was preempted")));
                // Whoever needs it now needs it for a while.
                if let Some(kind) = self.kinds.get_mut(pilot.kind).filter(|_| !pilot.has_joined) {
                    kind.retry_s = now_s + PAUSE_S;
                }
            }
            _ if pilot.has_joined => {
                let how = match (end, &pilot.phase) {
                    (JobEnd::TimeLimit, _) => "is gone: its time was up".to_owned(),
                    (_, PilotPhase::Draining { .. }) => "was given back".to_owned(),
                    _ => format!("is gone ({reason})"),
                };
                actions.push(PilotAction::Notice(format!("{name} (job {job}) {how}")));
            }
            _ => self.fail(pilot, &format!("it ended before its agent came ({reason})"), log, now_s, actions),
        }
    }

    /// Counts a pilot that came to nothing, and tells why.
    pub(super) fn fail(
        &mut self,
        pilot: &Pilot,
        reason: &str,
        log: &str,
        now_s: f64,
        actions: &mut Vec<PilotAction>,
    ) {
        let Some(kind) = self.kinds.get_mut(pilot.kind) else { return };
        kind.failures += 1;
        let pause_s = PAUSE_S * f64::from(1 << (kind.failures - 1).min(8));
        kind.retry_s = now_s + pause_s;
        let job = pilot.job.as_ref().map_or_else(String::new, |job| format!(" (job {job})"));
        let what = format!("a node of {}{job} failed: {reason}", kind.spec);
        kind.fault = match log.lines().last() {
            Some(line) => format!("{reason}; its last line: {line}"),
            None => reason.to_owned(),
        };
        let next = if kind.has_given_up() {
            format!("that was number {FAILURES_MAX} in a row, so no more of them are asked for in this run")
        } else {
            format!("the next one is asked for in {pause_s:.0} s")
        };
        let tail = log.lines().fold(String::new(), |text, line| text + "\n    " + line);
        let tail = if tail.is_empty() { tail } else { format!("; it printed{tail}") };
        actions.push(PilotAction::Notice(format!("{what}; {next}{tail}")));
    }

    fn name(&self, id: PilotId) -> String {
        let kind = self.pilots.get(&id).and_then(|pilot| self.kinds.get(pilot.kind));
        kind.map_or_else(|| "a node".to_owned(), |kind| format!("a node of {}", kind.spec))
    }

    pub(super) fn act(&mut self, now_s: f64, actions: &mut Vec<PilotAction>) {
        if self.is_over {
            for pilot in self.pilots.values_mut() {
                cancel(pilot, None, actions);
            }
            // What was not submitted yet is cancelled when its job is known.
            return;
        }
        self.end_the_silent(now_s, actions);
        for kind in 0..self.kinds.len() {
            self.give_back(kind, now_s, actions);
        }
        if let Some((kind, why)) = self.wanted(now_s).filter(|_| now_s >= self.next_submit_s) {
            let what = &self.kinds[kind].spec;
            actions.push(PilotAction::Notice(format!("asking Slurm for one more node of {what}: {why}")));
            let pilot = self.add(kind, now_s);
            self.next_submit_s = now_s + SUBMIT_EVERY_S;
            // The answer was to a question that is no longer the same.
            self.kinds.iter_mut().for_each(|kind| kind.gain = None);
            actions.push(PilotAction::Submit { pilot, kind });
        }
    }

    /// Ends pilots whose agents do not come, or do not go.
    fn end_the_silent(&mut self, now_s: f64, actions: &mut Vec<PilotAction>) {
        for pilot in self.pilots.values_mut() {
            match pilot.phase {
                PilotPhase::Starting { since_s } if now_s - since_s >= REGISTER_S => {
                    let never = format!("its agent did not come within {REGISTER_S} s");
                    let fault = (!pilot.has_joined).then_some(never);
                    cancel(pilot, fault, actions);
                }
                PilotPhase::Draining { since_s, .. }
                    if now_s - since_s >= DRAIN_S && !pilot.ends_soon(now_s) =>
                {
                    cancel(pilot, None, actions);
                }
                _ => {}
            }
        }
    }

    /// Takes note of where trials run, and lets go what was given back and is free.
    pub(super) fn mark_idle(&mut self, busy: &BTreeSet<NodeId>, now_s: f64, actions: &mut Vec<PilotAction>) {
        for pilot in self.pilots.values_mut() {
            match &mut pilot.phase {
                PilotPhase::Joined { nodes, idle_since_s } => {
                    let is_idle = nodes.is_disjoint(busy);
                    *idle_since_s = is_idle.then(|| idle_since_s.unwrap_or(now_s));
                }
                PilotPhase::Draining { given_back, .. }
                    if !given_back.is_empty() && given_back.is_disjoint(busy) =>
                {
                    cancel(pilot, None, actions);
                }
                _ => {}
            }
        }
    }

    /// Pilots of a kind that count.
    pub(super) fn held(&self, kind: usize, now_s: f64) -> usize {
        self.pilots.values().filter(|pilot| pilot.kind == kind && pilot.is_held(now_s)).count()
    }

    /// Gives back what the study has no use for, as far as more are left than it has to hold.
    fn give_back(&mut self, kind: usize, now_s: f64, actions: &mut Vec<PilotAction>) {
        let (min, max) = (self.kinds[kind].spec.nodes.min as usize, self.kinds[kind].spec.nodes.max as usize);
        let mut spare = self.held(kind, now_s).saturating_sub(min);
        let mut surplus = self.held(kind, now_s).saturating_sub(max);
        let last = self.kinds[kind].gain.and_then(|gain| gain.last);
        let spec = self.kinds[kind].spec.clone();
        // The newest first: the others have waited longer.
        for pilot in self.pilots.values_mut().rev().filter(|pilot| pilot.kind == kind) {
            if spare == 0 || !pilot.is_held(now_s) {
                continue;
            }
            let useless = last.is_some_and(|last| last < WORTH_WAITING);
            if pilot.phase == PilotPhase::Pending && (surplus > 0 || useless) {
                let why = match last.filter(|_| surplus == 0) {
                    Some(last) => format!("the study would run only {last:.2} times as fast"),
                    None => "the study file allows no more".to_owned(),
                };
                let job = pilot.job.clone().unwrap_or_default();
                let notice = format!("no longer asking Slurm for a node of {spec} (job {job}): {why}");
                actions.push(PilotAction::Notice(notice));
                cancel(pilot, None, actions);
                (spare, surplus) = (spare - 1, surplus.saturating_sub(1));
                // One at a time: each changes what the next would bring.
                self.kinds[kind].gain = None;
                if surplus == 0 {
                    break;
                }
            } else if let PilotPhase::Joined { nodes, idle_since_s: Some(since_s) } = &pilot.phase
                && now_s - since_s >= IDLE_S
            {
                let job = pilot.job.clone().unwrap_or_default();
                let reason = format!("no trial has used it for {:.0} minutes", IDLE_S / 60.0);
                actions.push(PilotAction::Notice(format!(
                    "giving a node of {spec} (job {job}) back to Slurm: {reason}"
                )));
                actions.push(PilotAction::Drain { job, nodes: nodes.clone(), reason });
                pilot.phase = PilotPhase::Draining { since_s: now_s, given_back: nodes.clone() };
                spare -= 1;
            }
        }
    }

    /// The kind of which one more is to be submitted, and why.
    fn wanted(&self, now_s: f64) -> Option<(usize, String)> {
        let may = |kind: usize| !self.kinds[kind].has_given_up() && now_s >= self.kinds[kind].retry_s;
        let below = |kind: &usize| self.held(*kind, now_s) < self.kinds[*kind].spec.nodes.min as usize;
        if let Some(kind) = (0..self.kinds.len()).filter(|kind| may(*kind)).find(below) {
            let min = self.kinds[kind].spec.nodes.min;
            let ending = self.pilots.values().any(|pilot| pilot.kind == kind && pilot.ends_soon(now_s));
            let why = if ending { "another one ends soon, and the study" } else { "the study" };
            return Some((kind, format!("{why} holds at least {min}")));
        }
        let queued = self.pilots.values().filter(|pilot| pilot.is_queued()).count();
        let room = |kind: &usize| self.held(*kind, now_s) < self.kinds[*kind].spec.nodes.max as usize;
        let gain = |kind: usize| self.kinds[kind].gain.map_or(1.0, |gain| gain.more);
        let kinds = (0..self.kinds.len()).filter(|kind| may(*kind)).filter(room);
        let worth = kinds.filter(|kind| gain(*kind) >= WORTH_ASKING && queued < PENDING_MAX);
        // The first of those that bring the same.
        let best = worth.reduce(|best, kind| if gain(kind) > gain(best) { kind } else { best })?;
        let why = if gain(best).is_finite() {
            format!("the study would run about {:.1} times as fast", gain(best))
        } else {
            "the study has none to run on".to_owned()
        };
        Some((best, why))
    }
}

/// Ends a pilot that is not told to already.
fn cancel(pilot: &mut Pilot, fault: Option<String>, actions: &mut Vec<PilotAction>) {
    if pilot.phase == PilotPhase::Cancelled {
        return;
    }
    if let Some(job) = pilot.job.clone() {
        (pilot.phase, pilot.fault) = (PilotPhase::Cancelled, fault);
        actions.push(PilotAction::Cancel { job });
    }
}
