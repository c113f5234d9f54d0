//! The group of an elastic trial: carries messages between the pure driver, the nodes of its workers and the engine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender},
    message::{EngineInput, ForGroup, FromWorker, ToWorker, WorkerOwner},
};
use crate::{
    ids::{NodeId, Round, SlotId, TrialId},
    trials::{
        engine::{Input, Launch},
        group::{Driver, Output, Task, WorkerCommand, WorkerEvent},
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

/// What groups need to know of the cluster.
#[derive(Clone)]
pub(super) struct ClusterHandles {
    pub(super) nodes: Arc<BTreeMap<NodeId, Recipient<ToWorker>>>,
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
}

impl TrialGroup {
    pub(super) fn new(
        task: Task,
        launch: Launch,
        cluster: ClusterHandles,
        supervisor: Recipient<EngineInput>,
    ) -> Self {
        let (round, guard) = (Round::before(launch.generation), cluster.exit.guard("trial group"));
        let (driver, first) = Driver::launch(task, launch);
        Self { driver, first, round, cluster, supervisor, guard }
    }

    fn carry_out(&mut self, outputs: Vec<Output>, context: &mut Context<Self>) {
        let trial = self.driver.trial();
        for output in outputs {
            match output {
                Output::Send { slot, command } => {
                    self.cluster.observe(trial, slot, GroupMessage::Command(&command));
                    let from =
                        WorkerOwner { trial, round: self.round, events: context.address().recipient() };
                    match self.cluster.nodes.get(&slot.node) {
                        Some(node) => node.do_send(ToWorker { slot, from, command }),
                        None => from.events.do_send(FromWorker { slot, event: None }),
                    }
                }
                Output::Engine { generation, event } => {
                    self.supervisor.do_send(Input::group(trial, generation, event).into());
                }
                Output::Left => {
                    self.guard.release();
                    context.stop();
                }
            }
        }
    }
}

impl Actor for TrialGroup {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let first = std::mem::take(&mut self.first);
        self.carry_out(first, context);
    }
}

impl Handler<FromWorker> for TrialGroup {
    type Result = ();

    fn handle(&mut self, FromWorker { slot, event }: FromWorker, context: &mut Context<Self>) {
        let message = event.as_ref().map_or(GroupMessage::Lost, GroupMessage::Event);
        self.cluster.observe(self.driver.trial(), slot, message);
        let outputs = match event {
            Some(event) => self.driver.on_worker(slot, event),
            None => self.driver.on_lost(slot),
        };
        self.carry_out(outputs, context);
    }
}

impl Handler<ForGroup> for TrialGroup {
    type Result = ();

    fn handle(&mut self, ForGroup(command): ForGroup, context: &mut Context<Self>) {
        let outputs = self.driver.on_command(command);
        self.carry_out(outputs, context);
    }
}
