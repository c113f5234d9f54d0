use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Duration};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, WrapFuture};
use tokio::sync::oneshot;

use super::{
    error::Error,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FromWorker, KillWorker, ToWorker, WorkerOwner},
    process::{Gone, ProcessSpec, Spawner},
};
use crate::{
    ids::{GpuType, NodeId, SlotId},
    trials::{
        engine::Input,
        group::{WorkerCommand, WorkerEvent},
    },
    wire::{Address, GatewayEvent, Secret, WorkerHandle, WorkerId},
};

/// A worker process that ends this often before it connects will not do better the next time.
const TRIES: u32 = 3;
/// One that is killed may do so more often: that is somebody else's doing.
const KILLS: u32 = 12;
/// How long to wait with the next try; twice as long each time.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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

/// The worker processes of one machine: starts them, starts them again, and carries messages between them and the groups.
pub(super) struct Node {
    spec: NodeSpec,
    around: NodeContext,
    slots: Vec<SlotState>,
    processes: Vec<ProcessState>,
    has_joined: bool,
    _guard: ActorGuard,
}

/// A slot.
#[derive(Default)]
struct SlotState {
    process: usize,
    worker: Option<(WorkerId, WorkerHandle)>,
    owner: Option<WorkerOwner>,
    /// Commands of whoever comes next.
    waiting: VecDeque<(WorkerOwner, WorkerCommand)>,
}

/// A process, or the attempt to have one.
#[derive(Default)]
struct ProcessState {
    kill: Option<oneshot::Sender<()>>,
    /// Ends since a worker of it last connected.
    failures: u32,
    /// Those of them that were not the work of `SIGKILL`.
    faults: u32,
}

impl Node {
    pub(super) fn new(spec: NodeSpec, around: NodeContext) -> Self {
        let slots = spec.processes.iter().enumerate().flat_map(|(process, of)| {
            (0..of.slots).map(move |_| SlotState { process, ..SlotState::default() })
        });
        let slots = slots.collect();
        let processes = spec.processes.iter().map(|_| ProcessState::default()).collect();
        let guard = around.exit.guard("node");
        Self { spec, around, slots, processes, has_joined: false, _guard: guard }
    }

    const fn slot(&self, index: usize) -> SlotId {
        SlotId { node: self.spec.node, index: index as u32 }
    }

    fn log(&self, process: usize) -> Option<PathBuf> {
        Some(self.around.logs.as_ref()?.join(format!("worker-{}.{process}.log", self.spec.node)))
    }

    fn start(&mut self, process: usize, context: &mut Context<Self>) {
        let (kill, killed) = oneshot::channel();
        self.processes[process].kill = Some(kill);
        let NodeContext { address, secret, spawner, .. } = &self.around;
        let command = (self.spec.processes[process].start)(address, secret);
        match command.and_then(|command| spawner.spawn(command, self.log(process).as_deref(), killed)) {
            Ok(running) => {
                let ended = running.into_actor(self);
                context.spawn(ended.map(move |how, actor, context| actor.ended(process, &how, context)));
            }
            Err(problem) => self.ended(process, &problem.into(), context),
        }
    }

    /// A process is gone: another one takes its place.
    fn ended(&mut self, process: usize, Gone { how, is_killed }: &Gone, context: &mut Context<Self>) {
        tracing::warn!(node = %self.spec.node, process, how, "a worker process has ended");
        for place in self.places(process) {
            self.lose(place, how);
        }
        let running = &mut self.processes[process];
        running.kill = None;
        running.failures += 1;
        running.faults += u32::from(!is_killed);
        let failures = running.failures;
        if (running.faults >= TRIES || failures >= KILLS) && !self.has_joined {
            let reason = match self.log(process) {
                Some(log) => {
                    let output = super::command::tail(&log).unwrap_or_default();
                    format!(
                        "{how}; its output, in {}:
{output}",
                        log.display()
                    )
                }
                None => how.clone(),
            };
            self.around.exit.send(SessionExit::Failed(Error::NoWorkers(reason)));
        }
        let pause = PAUSE.saturating_mul(1 << failures.saturating_sub(2).min(8)).min(LONGEST_PAUSE);
        // The first end after a good time is an accident.
        let pause = if failures == 1 { Duration::ZERO } else { pause };
        context.run_later(pause, move |actor, context| actor.start(process, context));
    }

    /// A process is of no use any more. All its workers are gone from now on, and it is killed; another one takes its place when it has
    /// ended.
    fn kill(&mut self, process: usize, place: usize, reason: &str) {
        self.lose(place, reason);
        for other in self.places(process) {
            self.lose(other, &format!("its process has ended, because {reason}"));
        }
        if let Some(kill) = self.processes[process].kill.take() {
            // It may have ended meanwhile.
            let _ = kill.send(());
        }
    }

    /// The slots of a process.
    fn places(&self, process: usize) -> Vec<usize> {
        let own = |(place, slot_state): (usize, &SlotState)| (slot_state.process == process).then_some(place);
        self.slots.iter().enumerate().filter_map(own).collect()
    }

    /// The worker of a slot is gone.
    fn lose(&mut self, place: usize, reason: &str) {
        let slot = self.slot(place);
        let slot_state = &mut self.slots[place];
        if slot_state.worker.take().is_none() {
            return;
        }
        let mut owners: Vec<WorkerOwner> = slot_state.owner.take().into_iter().collect();
        for (owner, _) in slot_state.waiting.drain(..) {
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        // Groups are informed first: what the engine decides must not find them unaware.
        for owner in owners {
            owner.events.do_send(FromWorker { slot, event: None });
        }
        if self.has_joined {
            let reason = reason.to_owned();
            self.around.supervisor.do_send(Input::WorkerLost { slot, reason }.into());
        }
    }

    fn joined(&mut self, place: usize, worker: WorkerId, handle: WorkerHandle) {
        self.lose(place, "another process has taken its slot");
        let slot = self.slot(place);
        self.slots[place].worker = Some((worker, handle));
        let process = &mut self.processes[self.slots[place].process];
        (process.failures, process.faults) = (0, 0);
        if self.has_joined {
            self.around.supervisor.do_send(Input::WorkerJoined { slot }.into());
        } else if self.slots.iter().all(|slot_state| slot_state.worker.is_some()) {
            self.has_joined = true;
            let NodeSpec { node, gpu_type, island, .. } = &self.spec;
            let (node, gpu_type, island, slots) = (*node, gpu_type.clone(), *island, self.spec.slots());
            self.around.supervisor.do_send(Input::NodeJoined { node, gpu_type, island, slots }.into());
        }
    }

    fn on_event(&mut self, place: usize, event: WorkerEvent) {
        let slot = self.slot(place);
        let slot_state = &mut self.slots[place];
        tracing::trace!(%slot, ?event, "event of a worker");
        let has_left = matches!(event, WorkerEvent::Released { .. } | WorkerEvent::Failed { .. });
        let Some(owner) = &slot_state.owner else { return };
        if event.trial() != owner.trial {
            return;
        }
        owner.events.do_send(FromWorker { slot, event: Some(event) });
        if has_left {
            slot_state.owner = None;
            slot_state.serve_next();
        }
    }

    /// The slot of a connection.
    fn place(&self, worker: WorkerId) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot_state| slot_state.worker.as_ref().is_some_and(|(of, _)| *of == worker))
    }
}

impl SlotState {
    fn send(&self, command: WorkerCommand) {
        if let Some((_, worker)) = &self.worker {
            worker.send(command);
        }
    }

    /// Whoever has waited takes over, with all its commands.
    fn serve_next(&mut self) {
        let Some((next, command)) = self.waiting.pop_front() else { return };
        self.send(command);
        while self.waiting.front().is_some_and(|(owner, _)| *owner == next) {
            if let Some((_, command)) = self.waiting.pop_front() {
                self.send(command);
            }
        }
        self.owner = Some(next);
    }
}

impl Actor for Node {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        for process in 0..self.processes.len() {
            self.start(process, context);
        }
    }
}

impl Handler<FromGateway> for Node {
    type Result = ();

    fn handle(&mut self, FromGateway(event): FromGateway, _: &mut Context<Self>) {
        match event {
            GatewayEvent::Joined { worker, hello, handle } => {
                let place = hello.slot.index as usize;
                if place < self.slots.len() {
                    self.joined(place, worker, handle);
                }
            }
            GatewayEvent::Event { worker, event } => {
                if let Some(place) = self.place(worker) {
                    self.on_event(place, event);
                }
            }
            GatewayEvent::Lost { worker } => {
                if let Some(place) = self.place(worker) {
                    let process = self.slots[place].process;
                    self.lose(place, "its connection ended");
                    // A process that nobody can talk to is of no use.
                    if let Some(kill) = self.processes[process].kill.take() {
                        let _ = kill.send(());
                    }
                }
            }
            GatewayEvent::Refused { .. } => {}
        }
    }
}

impl Handler<KillWorker> for Node {
    type Result = ();

    fn handle(&mut self, KillWorker { slot, from, reason }: KillWorker, _: &mut Context<Self>) {
        let place = slot.index as usize;
        // The slot may have been lost, or have gone to somebody else, meanwhile.
        if let Some(slot_state) = self.slots.get(place)
            && slot_state.worker.is_some()
            && slot_state.owner.as_ref() == Some(&from)
        {
            tracing::warn!(%slot, trial = %from.trial, "{reason}");
            self.kill(slot_state.process, place, &reason);
        }
    }
}

impl Handler<ToWorker> for Node {
    type Result = ();

    fn handle(&mut self, ToWorker { slot, from, command }: ToWorker, _: &mut Context<Self>) {
        let Some(slot_state) =
            self.slots.get_mut(slot.index as usize).filter(|slot_state| slot_state.worker.is_some())
        else {
            // Whoever had the worker knows of its loss already: a second event might come after the next worker has joined.
            if matches!(command, WorkerCommand::Prepare(_)) {
                from.events.do_send(FromWorker { slot, event: None });
            }
            return;
        };
        tracing::trace!(%slot, trial = %from.trial, ?command, is_free = slot_state.owner.is_none(), "to a worker");
        match &slot_state.owner {
            Some(owner) if *owner != from => slot_state.waiting.push_back((from, command)),
            Some(_) => slot_state.send(command),
            None if matches!(command, WorkerCommand::Prepare(_)) => {
                slot_state.owner = Some(from);
                slot_state.send(command);
            }
            // The worker has left, and its last event is on its way to the sender.
            None => {}
        }
    }
}
