use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender},
    message::{EngineInput, GroupCommand, Launch},
    node::{Directory, Owner, Said, Tell},
};
use crate::{
    goodput::{BatchPlan, GradientStats},
    ids::{NodeId, SlotId, TrialId},
    trials::{
        Group, GroupAction,
        engine::{Checkpoint, Input, Metrics, Report, StepTimes},
    },
    wire::{self, Batch, Command, Event, Form, Member, Task},
};

/// After so many broken generations without a step in between, the trial goes back to its checkpoint.
const FAILURES_MAX: u32 = 5;

/// What groups need to know about the world.
#[derive(Clone)]
pub(super) struct ClusterHandles {
    pub(super) nodes: Arc<BTreeMap<NodeId, Recipient<Tell>>>,
    pub(super) directory: Directory,
    pub(super) ending: ExitSender,
}

/// The workers of one trial: keeps to the protocol of [`Group`], and translates between workers and the engine.
pub(super) struct TrialGroup {
    trial: TrialId,
    task: Task,
    world: ClusterHandles,
    supervisor: Recipient<EngineInput>,
    /// How the workers stand.
    group: Group,
    /// Slots by the numbers that the group knows them by.
    slots: Vec<SlotId>,
    /// The generation that the engine wants, and who is in it.
    generation: u32,
    wanted: Vec<SlotId>,
    batch: BatchPlan,
    /// The last generation that the engine knows to be together.
    announced: u32,
    /// Reports of that generation.
    reports: u32,
    /// What was measured before the engine knew the first generation to be together.
    held: Vec<Report>,
    epochs: f64,
    first: u64,
    fate: Fate,
    guard: ActorGuard,
}

/// Where a group is heading.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    Training,
    /// Its state is to be kept; whether it is.
    Pausing {
        is_saved: bool,
    },
    /// It has come to its end, and the engine may have to be told again.
    Finished(Metrics),
    Failed {
        reason: String,
        retry: bool,
    },
    /// The engine has lost interest.
    Dropped,
}

impl TrialGroup {
    pub(super) fn new(
        launch: Launch,
        task: Task,
        world: ClusterHandles,
        supervisor: Recipient<EngineInput>,
    ) -> Self {
        let Launch { trial, generation, slots, batch, checkpoint, .. } = launch;
        // Numbers of generations are never used twice, whichever group of a trial it is.
        let first = u64::from(generation) << 32;
        let guard = world.ending.guard("trial group");
        let batch = batch.unwrap_or(BatchPlan { per_gpu: task.initial_batch, accumulation: 0 });
        Self {
            trial,
            task,
            world,
            supervisor,
            group: Group::after(first),
            slots: Vec::new(),
            generation,
            wanted: slots,
            batch,
            announced: 0,
            reports: 0,
            held: Vec::new(),
            epochs: checkpoint.map_or(0.0, |checkpoint| checkpoint.epochs),
            first,
            fate: Fate::Training,
            guard,
        }
    }

    /// The number by which the group knows a slot.
    fn key(&mut self, slot: SlotId) -> u32 {
        let known = self.slots.iter().position(|other| *other == slot);
        known.unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        }) as u32
    }

    fn slot(&self, key: u32) -> SlotId {
        self.slots[key as usize]
    }

    fn tell_engine(&self, input: Input) {
        self.supervisor.do_send(input.into());
    }

    fn tell(&self, key: u32, command: Command, context: &Context<Self>) {
        let slot = self.slot(key);
        let hears = context.address().recipient();
        let from = Owner { trial: self.trial, group: self.first, hears };
        match self.world.nodes.get(&slot.node) {
            Some(node) => node.do_send(Tell { slot, from, command }),
            None => from.hears.do_send(Said { slot, event: None }),
        }
    }

    fn reshape(&mut self, context: &Context<Self>) {
        let wanted: Vec<u32> = self.wanted.clone().into_iter().map(|slot| self.key(slot)).collect();
        let orders = self.group.reshape(wanted);
        self.obey(orders, context);
    }

    fn obey(&mut self, orders: Vec<GroupAction>, context: &Context<Self>) {
        let trial = self.task.trial;
        for order in orders {
            match order {
                GroupAction::Prepare(slot) => {
                    self.tell(slot, Command::Prepare(Box::new(self.task.clone())), context);
                }
                GroupAction::Release { slot, save } => {
                    self.tell(slot, Command::Release { trial, save }, context);
                }
                GroupAction::Form { generation, members, donors, told, broken } => {
                    let batch = self.total(members.len());
                    let (members, donors) = (self.members(&members), self.members(&donors));
                    let form = Form { trial, generation, members, donors, batch, broken };
                    for slot in told {
                        self.tell(slot, Command::Form(form.clone()), context);
                    }
                }
            }
        }
    }

    fn total(&self, workers: usize) -> Batch {
        let total = self.batch.total(workers as u32).min(u64::from(u32::MAX)) as u32;
        Batch { total, accumulation: self.batch.accumulation }
    }

    /// Those of whom it is known where to meet them: the loss of the others is on its way.
    fn members(&self, keys: &[u32]) -> Vec<Member> {
        let directory = self.world.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let member = |key: &u32| {
            let SlotId { node, index } = self.slot(*key);
            let store = directory.get(&SlotId { node, index })?.clone();
            Some(Member { slot: index, node: node.0, store })
        };
        keys.iter().filter_map(member).collect()
    }

    fn hear(&mut self, key: u32, event: Event, context: &Context<Self>) {
        let orders = match event {
            Event::Prepared { .. } => self.group.prepared(key),
            Event::Formed { generation, .. } => self.group.formed(key, generation),
            Event::Broken { generation, reason, .. } => {
                tracing::debug!(trial = %self.trial, reason, "a group has broken");
                self.group.broken(key, generation)
            }
            Event::Released { .. } => self.group.released(key),
            Event::Reported(report) => {
                self.reported(&report);
                Vec::new()
            }
            Event::Checkpointed { .. } => {
                self.checkpointed();
                Vec::new()
            }
            Event::Finished { metrics, .. } => {
                let metrics = metrics.into_iter().map(|(name, value)| (name, value.into())).collect();
                self.end(Fate::Finished(metrics), context);
                Vec::new()
            }
            Event::Failed { reason, .. } => {
                // Whoever fails has let go already.
                let orders = self.group.released(key);
                self.end(Fate::Failed { reason, retry: false }, context);
                orders
            }
        };
        self.obey(orders, context);
    }

    fn checkpoint(&self) -> Checkpoint {
        let name = self.task.checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Checkpoint { name, epochs: self.epochs }
    }

    fn checkpointed(&mut self) {
        if let Fate::Pausing { is_saved } = &mut self.fate {
            *is_saved = true;
        } else if self.announced == self.generation {
            let (trial, generation, checkpoint) = (self.trial, self.generation, self.checkpoint());
            self.tell_engine(Input::Checkpointed { trial, generation, checkpoint });
        }
    }

    fn reported(&mut self, report: &wire::Report) {
        self.group.progressed();
        self.epochs = self.epochs.max(report.epochs);
        let reports = translate(report);
        if self.announced > 0 {
            self.pass_on(reports);
        } else {
            self.held.extend(reports);
        }
    }

    fn pass_on(&mut self, reports: Vec<Report>) {
        for mut report in reports {
            self.reports += 1;
            report.number = self.reports;
            // A generation that is to come has nothing to say yet: this is of the one before, unless there was none.
            let generation = if self.announced > 0 { self.announced } else { self.generation };
            self.tell_engine(Input::Reported { trial: self.trial, generation, report });
        }
    }

    /// The trial needs its workers no longer. They are told before the engine is, which gives them to others at once.
    fn end(&mut self, fate: Fate, context: &Context<Self>) {
        if matches!(self.fate, Fate::Training | Fate::Pausing { .. }) {
            let was_pausing = self.fate != Fate::Training;
            self.fate = fate;
            if !was_pausing {
                let orders = self.group.release(false);
                self.obey(orders, context);
            }
            self.tell_fate();
        }
    }

    fn tell_fate(&mut self) {
        let (trial, generation) = (self.trial, self.generation);
        match self.fate.clone() {
            Fate::Finished(metrics) => {
                // The last evaluations come before the end.
                let held = std::mem::take(&mut self.held);
                self.pass_on(held);
                self.tell_engine(Input::TrialFinished { trial, generation, metrics });
            }
            Fate::Failed { reason, retry } => {
                self.tell_engine(Input::GroupFailed { trial, generation, reason, retry });
            }
            Fate::Training | Fate::Pausing { .. } | Fate::Dropped => {}
        }
    }

    /// Looks whether something is complete.
    fn settle(&mut self, context: &mut Context<Self>) {
        let slots = self.group.slots();
        match self.fate {
            Fate::Training => {
                if self.group.failures() > FAILURES_MAX {
                    let reason =
                        format!("{FAILURES_MAX} groups in a row have broken without a step in between");
                    self.end(Fate::Failed { reason, retry: true }, context);
                    return;
                }
                let members = self.group.members();
                let is_whole = self.group.is_settled() && slots.iter().all(|slot| members.contains(slot));
                if self.announced < self.generation && is_whole {
                    (self.announced, self.reports) = (self.generation, 0);
                    let (trial, generation) = (self.trial, self.generation);
                    self.tell_engine(Input::WorkersReady { trial, generation });
                    let held = std::mem::take(&mut self.held);
                    self.pass_on(held);
                }
            }
            Fate::Pausing { is_saved } if slots.is_empty() => {
                let (trial, generation, checkpoint) = (self.trial, self.generation, self.checkpoint());
                let reason = "its state could not be kept".to_owned();
                self.tell_engine(if is_saved {
                    Input::Paused { trial, generation, checkpoint }
                } else {
                    Input::GroupFailed { trial, generation, reason, retry: true }
                });
                self.leave(context);
            }
            Fate::Dropped if slots.is_empty() => self.leave(context),
            // Those that have ended stay until the engine has heard: the supervisor drops them then.
            Fate::Finished(_) | Fate::Failed { .. } | Fate::Pausing { .. } | Fate::Dropped => {}
        }
    }

    fn leave(&mut self, context: &mut Context<Self>) {
        self.guard.release();
        context.stop();
    }
}

/// What the engine wants to know of a report: each evaluation by itself, then what was measured up to now.
fn translate(report: &wire::Report) -> Vec<Report> {
    let evaluated = report.metrics.iter().map(|metric| Report {
        epochs: metric.epochs,
        metrics: metric.values.iter().map(|(name, value)| (name.clone(), (*value).into())).collect(),
        ..Report::default()
    });
    let steps = report.step_times.iter().map(|times| StepTimes {
        gpus: times.replicas,
        nodes: times.nodes,
        per_gpu: times.per_gpu.round() as u32,
        accumulation: times.accumulation,
        seconds: times.seconds,
        steps: times.steps.round() as u32,
    });
    let noise = report.noise.map(|noise| GradientStats { sqr: noise.sqr, var: noise.var }.noise_scale());
    let last = Report { epochs: report.epochs, steps: steps.collect(), noise, ..Report::default() };
    evaluated.chain([last]).collect()
}

impl Actor for TrialGroup {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        self.reshape(context);
    }
}

impl Handler<Said> for TrialGroup {
    type Result = ();

    fn handle(&mut self, Said { slot, event }: Said, context: &mut Context<Self>) {
        let key = self.key(slot);
        if let Some(event) = event {
            self.hear(key, event, context);
        } else {
            let orders = self.group.gone(key);
            self.obey(orders, context);
        }
        self.settle(context);
    }
}

impl Handler<GroupCommand> for TrialGroup {
    type Result = ();

    fn handle(&mut self, order: GroupCommand, context: &mut Context<Self>) {
        match order {
            // A launch makes a new group.
            GroupCommand::Launch(_) => {}
            GroupCommand::Reshape { generation, slots, batch } => {
                (self.generation, self.wanted) = (generation, slots);
                self.batch = batch.unwrap_or(self.batch);
                match self.fate {
                    Fate::Training => self.reshape(context),
                    // The end of the trial and this have crossed.
                    _ => self.tell_fate(),
                }
            }
            // It comes too late.
            GroupCommand::Retune { .. } if self.fate != Fate::Training => {}
            GroupCommand::Retune { batch } => {
                self.batch = batch;
                let members = self.group.members().to_vec();
                let (trial, generation) = (self.task.trial, self.group.generation());
                let batch = self.total(members.len());
                for slot in members {
                    self.tell(slot, Command::Retune { trial, generation, batch }, context);
                }
            }
            GroupCommand::Stop { keep } => {
                if self.fate == Fate::Training {
                    self.fate = if keep { Fate::Pausing { is_saved: false } } else { Fate::Dropped };
                    let orders = self.group.release(keep);
                    self.obey(orders, context);
                } else if !keep {
                    self.fate = Fate::Dropped;
                }
            }
        }
        self.settle(context);
    }
}
