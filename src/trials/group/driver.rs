//! The head's side of the worker-group protocol: takes commands of the engine and events of workers, gives messages to workers
//! and events for the engine.

use std::collections::BTreeMap;

use super::{
    Batch, FinalState, Form, Group, GroupAction, Limits, Member, Task, WorkerCommand, WorkerEvent,
    WorkerReport,
    watchdog::{Overdue, Watchdog},
};
use crate::{
    goodput::GradientStats,
    ids::{Generation, Round, SlotId, TrialId},
    trials::engine::{Checkpoint, FailureCause, GroupCommand, GroupEvent, Launch, Metrics, Report},
};

/// After this many broken rounds without a step in between, the trial goes back to its checkpoint.
const FAILURES_MAX: u32 = 5;

/// What is to be done about a group, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send a message to the worker of a slot.
    Send {
        /// The slot.
        slot: SlotId,
        /// The message.
        command: WorkerCommand,
    },
    /// Report to the engine.
    Engine {
        /// The generation that it happened to.
        generation: Generation,
        /// What happened.
        event: GroupEvent,
    },
    /// End the process of a worker that stands still; answered by [`Driver::on_lost`].
    Kill {
        /// Its slot.
        slot: SlotId,
        /// What is to be told about it.
        reason: String,
    },
    /// All workers are free, and nothing more will happen.
    Left,
}

/// Where a group is heading.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Training,
    /// Its workers leave, one of them with a checkpoint.
    Pausing {
        is_saved: bool,
    },
    /// It cannot continue, but the trial can: the engine is told when its workers are free, so that the next group of the trial does
    /// not train beside those who still take their last step or write a checkpoint.
    Failing(GroupEvent),
    /// It has ended, which the engine may have to be told again.
    Ended(GroupEvent),
    /// The engine needs it no longer.
    Dropped,
}

/// The group of a trial from its launch to its end: follows the protocol of [`Group`], maps its rounds to the engine's generations, and
/// watches over workers that stand still.
///
/// Times are seconds on a clock that never goes back, whichever its origin. Whoever owns a driver calls [`on_time`](Self::on_time) at its
/// [`deadline`](Self::deadline_s).
///
/// ```
/// use pollux_tune::ids::{Generation, NodeId, SlotId, TrialId};
/// use pollux_tune::trials::engine::{GroupEvent, Launch};
/// use pollux_tune::trials::group::{Batch, Driver, Limits, Output, Pause, Task, WorkerCommand, WorkerEvent};
///
/// let (trial, slot) = (TrialId(7), SlotId { node: NodeId(0), index: 2 });
/// let launch = Launch {
///     generation: Generation(1),
///     slots: vec![slot],
///     params: Default::default(),
///     batch: Some(Batch { total: 128, accumulation: 0 }),
///     checkpoint: None,
/// };
/// let (mut driver, outputs) = Driver::launch(Task::new(trial, "cifar10"), launch, Limits::default(), 0.0);
/// assert!(matches!(outputs[..], [Output::Send { command: WorkerCommand::Prepare(_), .. }]));
///
/// let prepared = WorkerEvent::Prepared { trial, rendezvous_addr: "127.0.0.1:4000".to_owned() };
/// let outputs = driver.on_worker(slot, prepared, 1.0);
/// let [Output::Send { command: WorkerCommand::Form(form), .. }] = &outputs[..] else { panic!("{outputs:?}") };
/// let formed = WorkerEvent::Formed { trial, round: form.round, steps: 0, pause: Pause::default() };
/// let event = GroupEvent::Formed;
/// assert_eq!(driver.on_worker(slot, formed, 2.0), [Output::Engine { generation: Generation(1), event }]);
///
/// // Nothing is heard of it for a long time.
/// let mut outputs = Vec::new();
/// while outputs.is_empty() {
///     let now_s = driver.deadline_s().expect("a step is expected");
///     outputs = driver.on_time(now_s);
/// }
/// let reason = "worker 0.2 made no step for 300 s, expected at most 300 s: it was killed".to_owned();
/// assert_eq!(outputs, [Output::Kill { slot, reason }]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Driver {
    task: Task,
    group: Group,
    watchdog: Watchdog,
    /// Who is to save the state before it leaves.
    saver: Option<SlotId>,
    /// Rendezvous addresses of workers that have prepared.
    addresses: BTreeMap<SlotId, String>,
    /// The generation that the engine has asked for, its members and their batch.
    generation: Generation,
    slots: Vec<SlotId>,
    batch: Batch,
    /// The last generation that the engine knows to be formed.
    announced: Option<Generation>,
    /// Reports of that generation.
    reports: u32,
    /// What was measured before the engine knew the first generation to be formed.
    held: Vec<Report>,
    epochs: f64,
    fate: Fate,
    outputs: Vec<Output>,
}

impl Driver {
    /// Starts a group.
    #[must_use]
    pub fn launch(task: Task, launch: Launch, limits: Limits, now_s: f64) -> (Self, Vec<Output>) {
        let Launch { generation, slots, batch, checkpoint, .. } = launch;
        let batch = batch.unwrap_or(Batch { total: task.initial_batch, accumulation: 0 });
        let mut driver = Self {
            task,
            group: Group::after(Round::before(generation)),
            watchdog: Watchdog::new(limits, now_s),
            saver: None,
            addresses: BTreeMap::new(),
            generation,
            slots,
            batch,
            announced: None,
            reports: 0,
            held: Vec::new(),
            epochs: checkpoint.map_or(0.0, |checkpoint| checkpoint.epochs),
            fate: Fate::Training,
            outputs: Vec::new(),
        };
        driver.reshape();
        let outputs = driver.settle();
        (driver, outputs)
    }

    /// The trial.
    #[must_use]
    pub const fn trial(&self) -> TrialId {
        self.task.trial
    }

    /// The members of the latest round, by rank.
    #[must_use]
    pub fn members(&self) -> &[SlotId] {
        self.group.members()
    }

    /// A command of the engine.
    #[must_use]
    pub fn on_command(&mut self, command: GroupCommand, now_s: f64) -> Vec<Output> {
        self.watchdog.tick(now_s);
        match command {
            // A launch makes a new group.
            GroupCommand::Launch(_) => {}
            GroupCommand::Reshape { generation, slots, batch } => {
                (self.generation, self.slots, self.batch) = (generation, slots, batch);
                match self.fate {
                    Fate::Training => self.reshape(),
                    // The end of the trial and this have crossed; one that fails is reported under the new generation.
                    _ => self.announce_end(),
                }
            }
            GroupCommand::Retune { batch } => self.retune(batch),
            GroupCommand::Stop(state) => self.stop(state),
        }
        self.settle()
    }

    /// A worker has reported something. What is about another trial, or of an older round, changes nothing.
    #[must_use]
    pub fn on_worker(&mut self, slot: SlotId, event: WorkerEvent, now_s: f64) -> Vec<Output> {
        self.watchdog.tick(now_s);
        if event.trial() == self.task.trial {
            self.watchdog.heard(slot, &event);
            self.apply(slot, event);
        }
        self.settle()
    }

    /// The worker of a slot is gone.
    #[must_use]
    pub fn on_lost(&mut self, slot: SlotId, now_s: f64) -> Vec<Output> {
        self.watchdog.tick(now_s);
        self.addresses.remove(&slot);
        let actions = self.group.gone(slot);
        self.carry_out(actions);
        self.settle()
    }

    /// When to call [`on_time`](Self::on_time), if nothing else happens before; none if nothing is expected of any worker.
    #[must_use]
    pub fn deadline_s(&self) -> Option<f64> {
        self.watchdog.deadline_s()
    }

    /// Time has passed. Workers that stand still are killed; where it may be another one that they wait for, all form the next round first,
    /// and only who does not come is killed.
    #[must_use]
    pub fn on_time(&mut self, now_s: f64) -> Vec<Output> {
        self.watchdog.tick(now_s);
        let overdue = self.watchdog.overdue();
        let is_training = self.fate == Fate::Training;
        let is_innocent = |overdue: &Overdue| {
            is_training
                && overdue.may_wait_for_others()
                && self.watchdog.is_together_with_others(overdue.slot)
        };
        let (innocent, guilty): (Vec<Overdue>, Vec<Overdue>) = overdue.into_iter().partition(is_innocent);
        for overdue in guilty {
            self.kill(&overdue);
        }
        if !innocent.is_empty() {
            let actions = self.group.interrupt();
            self.carry_out(actions);
            self.watchdog.urge();
        }
        self.settle()
    }

    fn kill(&mut self, overdue: &Overdue) {
        let slot = overdue.slot;
        // If its end does not come, it is asked for again.
        self.watchdog.restart(slot);
        // Whoever is to save may wait for another one, whose end then frees it; nobody else can save.
        let is_last = self.saver != Some(slot) || !self.watchdog.is_together_with_others(slot);
        if is_last || !overdue.may_wait_for_others() {
            self.outputs.push(Output::Kill { slot, reason: overdue.reason() });
        }
    }

    fn apply(&mut self, slot: SlotId, event: WorkerEvent) {
        let actions = match event {
            WorkerEvent::Prepared { rendezvous_addr, .. } => {
                self.addresses.insert(slot, rendezvous_addr);
                self.group.prepared(slot)
            }
            WorkerEvent::Formed { round, .. } => self.group.formed(slot, round),
            WorkerEvent::Broken { round, .. } => self.group.broken(slot, round),
            WorkerEvent::Released { .. } => self.group.released(slot),
            // The watchdog has seen it.
            WorkerEvent::Progress { .. } => return,
            WorkerEvent::Reported(report) => return self.reported(&report),
            WorkerEvent::Checkpointed { .. } => return self.checkpointed(),
            WorkerEvent::CheckpointFailed { reason, .. } => return self.checkpoint_failed(reason),
            WorkerEvent::OutOfMemory { memory, .. } => {
                return self.notify_engine(self.generation, GroupEvent::OutOfMemory { slot, memory });
            }
            WorkerEvent::Finished { metrics, .. } => return self.end(GroupEvent::Finished(numbers(metrics))),
            WorkerEvent::Failed { reason, cause, .. } => {
                self.end(GroupEvent::Failed { reason, cause });
                // A worker that fails has left already.
                self.group.released(slot)
            }
        };
        self.carry_out(actions);
    }

    fn send(&mut self, slot: SlotId, command: WorkerCommand) {
        self.watchdog.sent(slot, &command);
        self.outputs.push(Output::Send { slot, command });
    }

    fn notify_engine(&mut self, generation: Generation, event: GroupEvent) {
        self.outputs.push(Output::Engine { generation, event });
    }

    fn reshape(&mut self) {
        let actions = self.group.reshape(self.slots.iter().copied());
        self.carry_out(actions);
    }

    fn release(&mut self, state: FinalState) {
        let actions = self.group.release(state);
        self.carry_out(actions);
    }

    fn retune(&mut self, batch: Batch) {
        if self.fate != Fate::Training {
            return;
        }
        self.batch = batch;
        let (trial, round, members) = (self.task.trial, self.group.round(), self.group.members().to_vec());
        let batch = self.batch_of(members.len());
        for slot in members {
            self.send(slot, WorkerCommand::Retune { trial, round, batch });
        }
    }

    fn stop(&mut self, state: FinalState) {
        match (&self.fate, state) {
            (Fate::Training, FinalState::Saved) => {
                self.fate = Fate::Pausing { is_saved: false };
                self.release(state);
            }
            (Fate::Training, FinalState::Discarded) => {
                self.fate = Fate::Dropped;
                self.release(state);
            }
            (_, FinalState::Discarded) => self.fate = Fate::Dropped,
            // It is on its way already, or there is nothing to be saved.
            (_, FinalState::Saved) => {}
        }
    }

    fn carry_out(&mut self, actions: Vec<GroupAction>) {
        let trial = self.task.trial;
        for action in actions {
            match action {
                GroupAction::Prepare(slot) => {
                    self.send(slot, WorkerCommand::Prepare(Box::new(self.task.clone())));
                }
                GroupAction::Release { slot, state } => {
                    if state == FinalState::Saved {
                        self.saver = Some(slot);
                    }
                    self.send(slot, WorkerCommand::Release { trial, state });
                }
                GroupAction::Form { round, members, donors, notify, broken } => {
                    let batch = self.batch_of(members.len());
                    let (members, donors) = (self.at_addresses(&members), self.at_addresses(&donors));
                    let form = Form { trial, round, members, donors, batch, broken };
                    for slot in notify {
                        self.send(slot, WorkerCommand::Form(form.clone()));
                    }
                }
            }
        }
    }

    /// The batch of the generation on this many workers. Fewer than wanted keep the total, in passes no larger than before, until the
    /// engine decides again.
    fn batch_of(&self, workers: usize) -> Batch {
        let Batch { total, accumulation } = self.batch;
        let (wanted, workers) = (self.slots.len().max(1) as u32, workers.max(1) as u32);
        if workers >= wanted {
            return self.batch;
        }
        let share = total.div_ceil(wanted.saturating_mul(accumulation.saturating_add(1))).max(1);
        Batch { total, accumulation: total.div_ceil(workers.saturating_mul(share)).max(1) - 1 }
    }

    fn at_addresses(&self, slots: &[SlotId]) -> Vec<Member> {
        let member =
            |slot: &SlotId| Some(Member { slot: *slot, rendezvous_addr: self.addresses.get(slot)?.clone() });
        slots.iter().filter_map(member).collect()
    }

    fn checkpoint(&self) -> Checkpoint {
        let name = self.task.checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Checkpoint { name, epochs: self.epochs }
    }

    fn checkpointed(&mut self) {
        if let Fate::Pausing { is_saved } = &mut self.fate {
            *is_saved = true;
        } else if self.announced == Some(self.generation) {
            let event = GroupEvent::Checkpointed(self.checkpoint());
            self.notify_engine(self.generation, event);
        }
    }

    /// If that is the end of the group, it ends with the reason.
    fn checkpoint_failed(&mut self, reason: String) {
        if self.fate == Fate::Training {
            self.notify_engine(self.generation, GroupEvent::CheckpointFailed(reason));
        }
    }

    fn reported(&mut self, report: &WorkerReport) {
        self.group.progressed();
        self.epochs = self.epochs.max(report.epochs);
        let reports = engine_reports(report);
        match self.announced {
            // A generation that is still to form has measured nothing: this is of the one before.
            Some(generation) => self.pass_on(generation, reports),
            None => self.held.extend(reports),
        }
    }

    fn pass_on(&mut self, generation: Generation, reports: Vec<Report>) {
        for mut report in reports {
            self.reports += 1;
            report.number = self.reports;
            self.notify_engine(generation, GroupEvent::Reported(report));
        }
    }

    /// The trial needs its workers no longer. They are released before the engine knows, which gives their slots to others at once.
    fn end(&mut self, event: GroupEvent) {
        let is_final = !matches!(&event, GroupEvent::Failed { cause, .. } if *cause != FailureCause::Trial);
        match self.fate {
            Fate::Training => self.release(FinalState::Discarded),
            Fate::Pausing { .. } => {}
            Fate::Failing(_) if is_final => {}
            Fate::Failing(_) | Fate::Ended(_) | Fate::Dropped => return,
        }
        if is_final {
            self.fate = Fate::Ended(event);
            self.announce_end();
        } else {
            self.fate = Fate::Failing(event);
        }
    }

    fn announce_end(&mut self) {
        let Fate::Ended(event) = self.fate.clone() else { return };
        if matches!(event, GroupEvent::Finished(_)) {
            // The last evaluations come before the end.
            let held = std::mem::take(&mut self.held);
            self.pass_on(self.announced.unwrap_or(self.generation), held);
        }
        self.notify_engine(self.generation, event);
    }

    /// Looks whether something is complete. Gives what is to be done.
    fn settle(&mut self) -> Vec<Output> {
        if self.fate == Fate::Training && self.group.failures() > FAILURES_MAX {
            let reason = format!("{FAILURES_MAX} groups in a row have broken without a step in between");
            self.end(GroupEvent::Failed { reason, cause: FailureCause::Infrastructure });
        }
        match &self.fate {
            Fate::Training if self.announced < Some(self.generation) && self.is_whole() => {
                (self.announced, self.reports) = (Some(self.generation), 0);
                self.notify_engine(self.generation, GroupEvent::Formed);
                let held = std::mem::take(&mut self.held);
                self.pass_on(self.generation, held);
            }
            Fate::Failing(event) if self.group.slots().is_empty() => {
                self.fate = Fate::Ended(event.clone());
                self.announce_end();
            }
            Fate::Pausing { is_saved } if self.group.slots().is_empty() => {
                let event = if *is_saved {
                    GroupEvent::Paused(self.checkpoint())
                } else {
                    let reason = "its state could not be saved".to_owned();
                    GroupEvent::Failed { reason, cause: FailureCause::Infrastructure }
                };
                self.notify_engine(self.generation, event);
                self.outputs.push(Output::Left);
            }
            Fate::Dropped if self.group.slots().is_empty() => self.outputs.push(Output::Left),
            // Those that have ended stay until the engine drops them.
            Fate::Training | Fate::Pausing { .. } | Fate::Failing(_) | Fate::Ended(_) | Fate::Dropped => {}
        }
        self.watchdog.retain(&self.group.slots());
        self.watchdog.check_arrivals(self.group.round(), self.group.participants());
        std::mem::take(&mut self.outputs)
    }

    /// Whether exactly the slots of the generation train. Survivors of a generation that has lost a worker are not all.
    fn is_whole(&self) -> bool {
        let members = self.group.members();
        self.group.is_settled()
            && self.slots.iter().all(|slot| members.contains(slot))
            && self.group.slots().iter().all(|slot| members.contains(slot))
    }
}

fn numbers(metrics: BTreeMap<String, f64>) -> Metrics {
    metrics.into_iter().map(|(name, value)| (name, value.into())).collect()
}

/// What the engine needs of a report: each evaluation by itself, then what was measured up to now.
fn engine_reports(report: &WorkerReport) -> Vec<Report> {
    let evaluated = report.evaluations.iter().map(|evaluation| Report {
        epochs: evaluation.epochs,
        metrics: numbers(evaluation.values.clone()),
        ..Report::default()
    });
    let noise = report.noise.map(GradientStats::noise_scale);
    let steps = report.step_times.clone();
    let last =
        Report { epochs: report.epochs, steps, noise, noise_batch: report.noise_batch, ..Report::default() };
    evaluated.chain([last]).collect()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
