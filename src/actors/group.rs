//! The group of an elastic trial: carries messages between the pure driver, the nodes of its workers and the engine.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Recipient};
use tokio::{
    sync::mpsc::UnboundedSender,
    task::JoinHandle,
    time::{self, Instant},
};

use super::{
    agents::NodeMap,
    exit::{ActorGuard, ExitSender},
    message::{EngineInput, ForGroup, FromWorker, KillWorker, ToWorker, WorkerOwner},
};
use crate::{
    ids::{Round, SlotId, TrialId},
    trials::{
        agent::AgentCommand,
        engine::{Input, Launch},
        group::{Driver, Limits, Output, Task, WorkerCommand, WorkerEvent},
    },
};

/// What passes between the group of a trial and a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum GroupMessage<'a> {
    /// The worker is to do something.
    Command(&'a WorkerCommand),
    /// The worker reports something.
    Event(&'a WorkerEvent),
    /// The worker is gone.
    Lost,
}

/// Sees all that passes between groups and workers.
pub(super) type Observer = Arc<Mutex<dyn FnMut(TrialId, SlotId, GroupMessage<'_>) + Send>>;

/// Where a node takes orders.
#[derive(Clone)]
pub(super) struct NodeHandle {
    pub(super) agent: UnboundedSender<AgentCommand>,
    /// For its workers, if it has any.
    pub(super) workers: Option<(Recipient<ToWorker>, Recipient<KillWorker>)>,
}

/// What groups need to know of the cluster.
#[derive(Clone)]
pub(super) struct ClusterHandles {
    pub(super) nodes: NodeMap,
    /// How long workers may take.
    pub(super) limits: Limits,
    pub(super) observer: Option<Observer>,
    pub(super) exit: ExitSender,
}

impl ClusterHandles {
    fn observe(&self, trial: TrialId, slot: SlotId, message: GroupMessage<'_>) {
        if let Some(observer) = &self.observer {
            (observer.lock().unwrap_or_else(PoisonError::into_inner))(trial, slot, message);
        }
    }
}

/// The actor around a [`Driver`].
pub(super) struct TrialGroup {
    driver: Driver,
    /// What the driver wanted before the actor was there to do it.
    first: Vec<Output>,
    /// No two groups of a trial have the same.
    round: Round,
    cluster: ClusterHandles,
    supervisor: Recipient<EngineInput>,
    guard: ActorGuard,
    /// The driver's time 0. It is real time, also where workers are emulated: those stand still in real time.
    started: Instant,
    /// When the driver is told the time next.
    timer: Option<(f64, JoinHandle<()>)>,
}

impl TrialGroup {
    pub(super) fn new(
        task: Task,
        launch: Launch,
        cluster: ClusterHandles,
        supervisor: Recipient<EngineInput>,
    ) -> Self {
        let (round, guard) = (Round::before(launch.generation), cluster.exit.guard("trial group"));
        let (driver, first) = Driver::launch(task, launch, cluster.limits, 0.0);
        let (started, timer) = (Instant::now(), None);
        Self { driver, first, round, cluster, supervisor, guard, started, timer }
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Sees to it that the driver is told the time when it wants to know it.
    fn set_timer(&mut self, context: &mut Context<Self>) {
        let Some(at_s) = self.driver.deadline_s() else { return };
        match &self.timer {
            // It is set again then.
            Some((set_s, _)) if *set_s <= at_s => return,
            Some((_, timer)) => timer.abort(),
            None => {}
        }
        let wait = Duration::try_from_secs_f64(at_s - self.now_s()).unwrap_or_default();
        // A group that nobody knows any more must not live on for its timer.
        let group = context.address().downgrade();
        let timer = actix::spawn(async move {
            time::sleep(wait).await;
            if let Some(group) = group.upgrade() {
                group.do_send(TimePassed);
            }
        });
        self.timer = Some((at_s, timer));
    }

    fn carry_out(&mut self, outputs: Vec<Output>, context: &mut Context<Self>) {
        let trial = self.driver.trial();
        for output in outputs {
            match output {
                Output::Send { slot, command } => {
                    self.cluster.observe(trial, slot, GroupMessage::Command(&command));
                    let from =
                        WorkerOwner { trial, round: self.round, events: context.address().recipient() };
                    match self.cluster.nodes.get(slot.node).and_then(|node| node.workers) {
                        Some((commands, _)) => commands.do_send(ToWorker { slot, from, command }),
                        None => from.events.do_send(FromWorker { slot, event: None }),
                    }
                }
                Output::Kill { slot, reason } => {
                    let from =
                        WorkerOwner { trial, round: self.round, events: context.address().recipient() };
                    let node = self.cluster.nodes.get(slot.node);
                    if let Some((_, kills)) = node.and_then(|node| node.workers) {
                        kills.do_send(KillWorker { slot, from, reason });
                    }
                }
                Output::Engine { generation, event } => {
                    self.supervisor.do_send(Input::group(trial, generation, event).into());
                }
                Output::Left => {
                    self.guard.release();
                    context.stop();
                    return;
                }
            }
        }
        self.set_timer(context);
    }
}

impl Actor for TrialGroup {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let first = std::mem::take(&mut self.first);
        self.carry_out(first, context);
    }
}

/// The time has come that a driver wanted to know of.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct TimePassed;

impl Handler<TimePassed> for TrialGroup {
    type Result = ();

    fn handle(&mut self, _: TimePassed, context: &mut Context<Self>) {
        self.timer = None;
        let outputs = self.driver.on_time(self.now_s());
        self.carry_out(outputs, context);
    }
}

impl Drop for TrialGroup {
    fn drop(&mut self) {
        if let Some((_, timer)) = &self.timer {
            timer.abort();
        }
    }
}

impl Handler<FromWorker> for TrialGroup {
    type Result = ();

    fn handle(&mut self, FromWorker { slot, event }: FromWorker, context: &mut Context<Self>) {
        let message = event.as_ref().map_or(GroupMessage::Lost, GroupMessage::Event);
        self.cluster.observe(self.driver.trial(), slot, message);
        let outputs = match event {
            Some(event) => self.driver.on_worker(slot, event, self.now_s()),
            None => self.driver.on_lost(slot, self.now_s()),
        };
        self.carry_out(outputs, context);
    }
}

impl Handler<ForGroup> for TrialGroup {
    type Result = ();

    fn handle(&mut self, ForGroup(command): ForGroup, context: &mut Context<Self>) {
        let outputs = self.driver.on_command(command, self.now_s());
        self.carry_out(outputs, context);
    }
}
