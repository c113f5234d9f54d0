use std::{path::PathBuf, sync::Arc};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, WrapFuture};
use tokio::sync::oneshot;

use super::{
    error::Error,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FromWorker, KillWorker, ToWorker, WorkerOwner},
    process::{Gone, ProcessSpec, Spawner},
};
use crate::{
    ids::{GpuType, NodeId, TrialId},
    trials::node::{NodeDescription, NodeDriver, NodeOutput, SlotOwner},
    wire::{Address, GatewayEvent, Secret, WorkerHandle, WorkerId},
};

/// A machine: its slots, and the processes that serve them.
#[derive(Clone)]
pub(crate) struct NodeSpec {
    pub(crate) node: NodeId,
    pub(crate) gpu_type: GpuType,
    pub(crate) island: u32,
    pub(crate) processes: Vec<ProcessSpec>,
}

impl NodeSpec {
    pub(crate) fn slots(&self) -> u32 {
        self.processes.iter().map(|process| process.slots).sum()
    }
}

/// An event of the gateway about a worker of this node.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct FromGateway(pub(super) GatewayEvent);

/// What all nodes share.
#[derive(Clone)]
pub(super) struct NodeContext {
    pub(super) address: Address,
    pub(super) secret: Secret,
    /// Where workers print to; none if they share the output of the head.
    pub(super) logs: Option<PathBuf>,
    pub(super) spawner: Arc<dyn Spawner>,
    pub(super) supervisor: Recipient<EngineInput>,
    pub(super) exit: ExitSender,
}

/// The worker processes of one machine: starts them, and carries messages between them and the groups. What is done when is up to
/// the pure [`NodeDriver`].
pub(super) struct Node {
    spec: NodeSpec,
    around: NodeContext,
    driver: NodeDriver<WorkerOwner>,
    /// What the driver wanted before the actor was there to do it.
    first: Vec<NodeOutput<WorkerOwner>>,
    /// The connection of each slot.
    workers: Vec<Option<(WorkerId, WorkerHandle)>>,
    /// How to end each process.
    kills: Vec<Option<oneshot::Sender<()>>>,
    _guard: ActorGuard,
}

impl Node {
    pub(super) fn new(spec: NodeSpec, around: NodeContext) -> Self {
        let processes: Vec<u32> = spec.processes.iter().map(|process| process.slots).collect();
        let workers = (0..spec.slots()).map(|_| None).collect();
        let kills = processes.iter().map(|_| None).collect();
        let NodeSpec { node, gpu_type, island, .. } = &spec;
        let (node, name, gpu_type, island) = (*node, String::new(), gpu_type.clone(), *island);
        let of = NodeDescription { node, name, gpu_type, island, processes };
        let (driver, first) = NodeDriver::new(of);
        let guard = around.exit.guard("node");
        Self { spec, around, driver, first, workers, kills, _guard: guard }
    }

    fn log(&self, process: usize) -> Option<PathBuf> {
        Some(self.around.logs.as_ref()?.join(format!("worker-{}.{process}.log", self.spec.node)))
    }

    fn carry_out(&mut self, outputs: Vec<NodeOutput<WorkerOwner>>, how: &str, context: &mut Context<Self>) {
        for output in outputs {
            match output {
                NodeOutput::Send { slot, command } => {
                    if let Some(Some((_, worker))) = self.workers.get(slot.index as usize) {
                        worker.send(command);
                    }
                }
                NodeOutput::Group { owner, slot, event } => {
                    owner.events.do_send(FromWorker { slot, event });
                }
                NodeOutput::Engine(input) => self.around.supervisor.do_send(input.into()),
                NodeOutput::Start { process, after } => {
                    context.run_later(after, move |actor, context| actor.start(process, context));
                }
                NodeOutput::Kill { process } => {
                    if let Some(kill) = self.kills[process].take() {
                        let _ = kill.send(());
                    }
                }
                NodeOutput::GiveUp { process } => self.give_up(process, how),
            }
        }
    }

    fn start(&mut self, process: usize, context: &mut Context<Self>) {
        let (kill, killed) = oneshot::channel();
        self.kills[process] = Some(kill);
        let NodeContext { address, secret, spawner, .. } = &self.around;
        let command = (self.spec.processes[process].start)(address, secret).map_err(Gone::from);
        match command.and_then(|command| spawner.spawn(command, self.log(process).as_deref(), killed)) {
            Ok(running) => {
                let (start, limit) = self.driver.started(process);
                context.run_later(limit, move |actor, context| {
                    let outputs = actor.driver.overdue(process, start);
                    actor.carry_out(outputs, "", context);
                });
                let ended = running.into_actor(self);
                context.spawn(ended.map(move |how, actor, context| actor.ended(process, &how, context)));
            }
            Err(gone) => self.ended(process, &gone, context),
        }
    }

    /// A process is gone.
    fn ended(&mut self, process: usize, Gone { how, fault }: &Gone, context: &mut Context<Self>) {
        tracing::warn!(node = %self.spec.node, process, how, "a worker process has ended");
        self.kills[process] = None;
        self.forget(process);
        let outputs = self.driver.ended(process, how, *fault);
        self.carry_out(outputs, how, context);
    }

    /// The connections of a process are of no use any more.
    fn forget(&mut self, process: usize) {
        for place in self.driver.slots_of(process) {
            self.workers[place] = None;
        }
    }

    fn give_up(&self, process: usize, how: &str) {
        let reason = match self.log(process) {
            Some(log) => {
                let output = super::command::tail(&log).unwrap_or_default();
                format!("{how}; its output, in {}:\n{output}", log.display())
            }
            None => how.to_owned(),
        };
        self.around.exit.send(SessionExit::Failed(Error::NoWorkers(reason)));
    }

    /// The slot of a connection.
    fn place(&self, worker: WorkerId) -> Option<usize> {
        self.workers.iter().position(|slot| slot.as_ref().is_some_and(|(of, _)| *of == worker))
    }
}

impl SlotOwner for WorkerOwner {
    fn trial(&self) -> TrialId {
        self.trial
    }
}

impl Actor for Node {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        for output in std::mem::take(&mut self.first) {
            // At once, so that no message comes before.
            if let NodeOutput::Start { process, .. } = output {
                self.start(process, context);
            }
        }
    }
}

impl Handler<FromGateway> for Node {
    type Result = ();

    fn handle(&mut self, FromGateway(event): FromGateway, context: &mut Context<Self>) {
        let outputs = match event {
            GatewayEvent::Joined { worker, hello, handle } => {
                let place = hello.slot.index as usize;
                let Some(slot) = self.workers.get_mut(place) else { return };
                *slot = Some((worker, handle));
                self.driver.joined(place)
            }
            GatewayEvent::Event { worker, event } => {
                let Some(place) = self.place(worker) else { return };
                tracing::trace!(node = %self.spec.node, place, ?event, "event of a worker");
                self.driver.event(place, event)
            }
            GatewayEvent::Lost { worker } => {
                let Some(place) = self.place(worker) else { return };
                self.workers[place] = None;
                self.driver.disconnected(place)
            }
            GatewayEvent::Refused { .. } => return,
        };
        self.carry_out(outputs, "", context);
    }
}

impl Handler<KillWorker> for Node {
    type Result = ();

    fn handle(&mut self, KillWorker { slot, from, reason }: KillWorker, context: &mut Context<Self>) {
        let outputs = self.driver.kill(slot.index as usize, &from, &reason);
        if !outputs.is_empty() {
            tracing::warn!(%slot, trial = %from.trial, "{reason}");
        }
        for output in &outputs {
            // What it may still have to say is of no use.
            if let NodeOutput::Kill { process } = output {
                self.forget(*process);
            }
        }
        self.carry_out(outputs, "", context);
    }
}

impl Handler<ToWorker> for Node {
    type Result = ();

    fn handle(&mut self, ToWorker { slot, from, command }: ToWorker, context: &mut Context<Self>) {
        tracing::trace!(%slot, trial = %from.trial, ?command, "to a worker");
        let outputs = self.driver.command(slot.index as usize, from, command);
        self.carry_out(outputs, "", context);
    }
}
