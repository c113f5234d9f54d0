//! Who of the workers stands still: how long each may take for what it does, and who has taken longer.

use std::collections::{BTreeMap, BTreeSet};

use super::{Activity, FinalState, WorkerCommand, WorkerEvent};
use crate::ids::{Round, SlotId};

/// A worker may take this many times as long as the longest of its trial has taken for the same.
const FACTOR: f64 = 10.0;
/// The least limit of a step, unless the study has its own: a file server may be gone for some seconds.
const STEP_S: f64 = 60.0;
/// A worker that is to leave a broken group at once, and to forget the trial, may take this long, or two steps: nothing but its process is
/// lost with it, and others wait for its slot.
const LEAVE_S: f64 = 10.0;
const LEAVE_STEPS: f64 = 2.0;
/// How often to look, whatever the limits are.
const TICK_S: f64 = 5.0;
/// Who has not looked for this long stood still itself, or its machine did: nothing is known of the others.
const ABSENCE_S: f64 = 15.0;

/// What limits depend on, besides what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The least limit of a step in seconds, if that of the study is another one. Those of all else are at least as long.
    pub silence_s: Option<f64>,
    /// Real seconds in a second on the clock of workers: less than 1 where they are emulated.
    pub time_scale: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { silence_s: None, time_scale: 1.0 }
    }
}

impl Limits {
    /// How long a worker may take, in seconds; none if nothing is expected of it. `longest_s` is the longest that was measured.
    fn limit_s(&self, stage: Stage, longest_s: Option<f64>) -> Option<f64> {
        let (first_s, least_s) = match stage {
            // Nothing to do, or others are awaited, who have limits of their own.
            Stage::Idle | Stage::Joining => return None,
            // Data may be downloaded; disks may be slow, and all may write at once.
            Stage::Preparing | Stage::Saving => (600.0, 600.0),
            Stage::Answering => (60.0, 60.0),
            // The first time, the state may come from a slow disk.
            Stage::Forming => (300.0, 60.0),
            // Kernels are compiled and chosen.
            Stage::FirstStep => (300.0, 300.0),
            Stage::Stepping => {
                let least_s = self.silence_s.unwrap_or(STEP_S);
                return Some(least_s.max(FACTOR * longest_s.unwrap_or(0.0)));
            }
            Stage::Evaluating => (600.0, 60.0),
        };
        let least_s = longest_s.map_or(first_s, |longest_s| f64::max(least_s, FACTOR * longest_s));
        Some(least_s.max(self.silence_s.unwrap_or(0.0)))
    }
}

/// What a worker does, as far as the head knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Idle,
    Preparing,
    /// It had nothing to do when it was asked to form a group or to leave.
    Answering,
    /// It has come to a rendezvous, where others are still awaited.
    Joining,
    /// All have come.
    Forming,
    /// The first step of a group or with a batch.
    FirstStep,
    Stepping,
    Evaluating,
    Saving,
}

impl Stage {
    /// Whether it takes part in a group, where those who wait for the one that stands still are as silent as that one.
    const fn is_together(self) -> bool {
        matches!(self, Self::Forming | Self::FirstStep | Self::Stepping | Self::Evaluating)
    }

    /// Durations that are compared with each other.
    const fn kind(self) -> Self {
        match self {
            Self::FirstStep => Self::Stepping,
            other => other,
        }
    }
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Watch {
    stage: Stage,
    /// When the time for it began.
    since_s: f64,
    /// When it was last heard of.
    heard_s: f64,
    /// The last round that it was asked to form, and the one that it has come to.
    asked: Round,
    came: Round,
    /// It is to forget the trial.
    is_leaving: bool,
    /// It was asked to leave its group at once.
    is_urged: bool,
    /// It is to save the state before.
    is_saver: bool,
}

/// A worker that has taken too long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Overdue {
    pub(super) slot: SlotId,
    stage: Stage,
    silent_s: f64,
    limit_s: f64,
    is_urged: bool,
}

impl Overdue {
    /// Whether it may only wait for others, which they can find out by forming the group anew.
    pub(super) const fn may_wait_for_others(&self) -> bool {
        self.stage.is_together() && !self.is_urged
    }

    /// What it is killed for.
    pub(super) fn reason(&self) -> String {
        let Self { slot, stage, silent_s, limit_s, .. } = self;
        let what = match stage {
            Stage::Idle | Stage::Answering | Stage::Joining => "has not answered for",
            Stage::Preparing => "has been preparing its trial for",
            Stage::Forming => "has been forming its group for",
            Stage::FirstStep | Stage::Stepping => "made no step for",
            Stage::Evaluating => "has been evaluating for",
            Stage::Saving => "has been waiting for a checkpoint for",
        };
        format!("worker {slot} {what} {silent_s:.0} s, expected at most {limit_s:.0} s: it was killed")
    }
}

/// Follows what the workers of a trial do, from the commands they get and the events they send. Times are seconds on a clock that does
/// not jump; the clocks of workers matter only for how long steps take.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Watchdog {
    limits: Limits,
    now_s: f64,
    workers: BTreeMap<SlotId, Watch>,
    /// The longest that each kind of stage has taken.
    longest_s: BTreeMap<Stage, f64>,
}

impl Watchdog {
    pub(super) const fn new(limits: Limits, now_s: f64) -> Self {
        Self { limits, now_s, workers: BTreeMap::new(), longest_s: BTreeMap::new() }
    }

    /// The time is this. Called before everything else that happens at the time.
    pub(super) fn tick(&mut self, now_s: f64) {
        if now_s - self.now_s > ABSENCE_S {
            for watch in self.workers.values_mut() {
                watch.since_s = now_s;
            }
        }
        self.now_s = self.now_s.max(now_s);
    }

    /// When to look again, at the latest; none if nothing is expected of anybody.
    pub(super) fn deadline_s(&self) -> Option<f64> {
        let deadlines = self.workers.values().filter_map(|watch| Some(watch.since_s + self.limit_s(watch)?));
        deadlines.reduce(f64::min).map(|deadline_s| deadline_s.min(self.now_s + TICK_S))
    }

    fn limit_s(&self, watch: &Watch) -> Option<f64> {
        let longest_s = self.longest_s.get(&watch.stage.kind()).copied();
        let limit_s = self.limits.limit_s(watch.stage, longest_s)?;
        let is_of_no_use = watch.is_leaving && watch.is_urged && !watch.is_saver && watch.stage.is_together();
        let leave_s = LEAVE_S.max(LEAVE_STEPS * longest_s.unwrap_or(0.0));
        Some(if is_of_no_use { limit_s.min(leave_s) } else { limit_s })
    }

    /// Who has taken too long by now.
    pub(super) fn overdue(&self) -> Vec<Overdue> {
        let overdue = self.workers.iter().filter_map(|(&slot, watch)| {
            let Watch { stage, since_s, heard_s, is_urged, .. } = *watch;
            let limit_s = self.limit_s(watch)?;
            let silent_s = self.now_s - heard_s;
            (self.now_s >= since_s + limit_s).then_some(Overdue { slot, stage, silent_s, limit_s, is_urged })
        });
        overdue.collect()
    }

    /// Whether somebody else takes part in a group, who may be the one that is waited for.
    pub(super) fn is_together_with_others(&self, slot: SlotId) -> bool {
        self.workers.iter().any(|(other, watch)| *other != slot && watch.stage.is_together())
    }

    /// The time of a worker begins anew.
    pub(super) fn restart(&mut self, slot: SlotId) {
        if let Some(watch) = self.workers.get_mut(&slot) {
            watch.since_s = self.now_s;
        }
    }

    /// All groups were broken: who waited for others will be heard of.
    pub(super) fn urge(&mut self) {
        for watch in self.workers.values_mut().filter(|watch| watch.stage.is_together()) {
            (watch.since_s, watch.is_urged) = (self.now_s, true);
        }
    }

    /// Only these workers have to do with the trial.
    pub(super) fn retain(&mut self, slots: &BTreeSet<SlotId>) {
        self.workers.retain(|slot, _| slots.contains(slot));
    }

    /// Once all participants of a round have come, it has to form.
    pub(super) fn check_arrivals<'a>(
        &mut self,
        round: Round,
        mut everybody: impl Iterator<Item = &'a SlotId>,
    ) {
        if everybody.all(|slot| self.workers.get(slot).is_some_and(|watch| watch.came == round)) {
            for watch in self.workers.values_mut().filter(|watch| watch.stage == Stage::Joining) {
                (watch.stage, watch.since_s) = (Stage::Forming, self.now_s);
            }
        }
    }

    /// A worker was given a command.
    pub(super) fn sent(&mut self, slot: SlotId, command: &WorkerCommand) {
        let now_s = self.now_s;
        if let WorkerCommand::Prepare(_) = command {
            let (none, stage) = (Round::default(), Stage::Preparing);
            let watch = Watch {
                stage,
                since_s: now_s,
                heard_s: now_s,
                asked: none,
                came: none,
                is_leaving: false,
                is_urged: false,
                is_saver: false,
            };
            self.workers.insert(slot, watch);
            return;
        }
        let Some(watch) = self.workers.get_mut(&slot) else { return };
        match command {
            WorkerCommand::Prepare(_) => {}
            WorkerCommand::Form(form) => {
                let mut everybody = form.members.iter().chain(&form.donors);
                watch.is_leaving = !everybody.any(|member| member.slot == slot);
                watch.asked = form.round;
                if form.broken && watch.stage.is_together() {
                    (watch.since_s, watch.is_urged) = (now_s, true);
                }
                watch.ask(now_s);
            }
            WorkerCommand::Retune { .. } => {
                if watch.stage == Stage::Stepping {
                    (watch.stage, watch.since_s) = (Stage::FirstStep, now_s);
                }
            }
            WorkerCommand::Release { state, .. } => {
                (watch.is_leaving, watch.is_saver) = (true, *state == FinalState::Saved);
                watch.ask(now_s);
            }
        }
    }

    /// A worker has reported something.
    pub(super) fn heard(&mut self, slot: SlotId, event: &WorkerEvent) {
        let now_s = self.now_s;
        let Some(watch) = self.workers.get_mut(&slot) else { return };
        let before = *watch;
        watch.heard_s = now_s;
        let stage = match *event {
            WorkerEvent::Prepared { .. } if before.stage == Stage::Preparing => before.rest(Round::default()),
            WorkerEvent::Formed { round, .. } if round == before.asked => {
                watch.came = round;
                Stage::FirstStep
            }
            WorkerEvent::Broken { round, .. } if round == before.asked => before.rest(round),
            WorkerEvent::Progress { round, activity, .. } => match activity {
                Activity::Joining if round != before.asked => return,
                Activity::Joining => {
                    watch.came = round;
                    // Who is to leave has nobody to wait for.
                    if before.is_leaving { Stage::Forming } else { Stage::Joining }
                }
                Activity::Training => Stage::Stepping,
                Activity::Evaluating => Stage::Evaluating,
                Activity::Saving => Stage::Saving,
                Activity::Idle => before.rest(round),
            },
            WorkerEvent::Finished { round, .. } => before.rest(round),
            _ => return,
        };
        (watch.stage, watch.since_s, watch.is_urged) = (stage, now_s, false);
        match (before.stage, event) {
            (Stage::Preparing, WorkerEvent::Prepared { .. })
            | (Stage::Forming, WorkerEvent::Formed { .. })
            | (Stage::Evaluating, WorkerEvent::Progress { .. })
            | (Stage::Saving, WorkerEvent::Finished { .. }) => {
                self.measure(before.stage, now_s - before.since_s);
            }
            // Workers measure it, since not each of their steps is heard of.
            (_, WorkerEvent::Progress { longest_step_s, .. }) if *longest_step_s > 0.0 => {
                self.measure(Stage::Stepping, longest_step_s * self.limits.time_scale);
            }
            _ => {}
        }
    }

    fn measure(&mut self, kind: Stage, took_s: f64) {
        // A worker may claim anything.
        if took_s.is_finite() {
            let longest_s = self.longest_s.entry(kind).or_default();
            *longest_s = longest_s.max(took_s);
        }
    }
}

impl Watch {
    /// It has done all that it can in a round: whether anything else is expected of it.
    fn rest(&self, round: Round) -> Stage {
        if self.is_leaving || self.asked > round { Stage::Answering } else { Stage::Idle }
    }

    /// It was asked for something that it does after all that it is at.
    const fn ask(&mut self, now_s: f64) {
        match self.stage {
            Stage::Idle => (self.stage, self.since_s) = (Stage::Answering, now_s),
            // Nobody else will come.
            Stage::Joining => (self.stage, self.since_s) = (Stage::Forming, now_s),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
