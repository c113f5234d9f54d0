//! One life of an agent: from the welcome of a head until that needs it no longer, or is lost.

use std::{
    collections::BTreeMap, fs, net::IpAddr, path::PathBuf, process::Command, sync::Arc, time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, Receiver, UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    task::spawn_local,
    time,
};

use super::{
    Error,
    process::{Gone, Spawner},
    program::Programs,
    shipping::{Ready, Shipped, Shipping},
};
use crate::{
    emulate,
    ids::{NodeId, SlotId},
    store::{Folder, tail},
    trials::{
        agent::{AgentCommand, AgentEvent, AgentNode, AgentSlot, Welcome, Work},
        group::WorkerCommand,
    },
    wire::{
        CheckpointTransfer, Gateway, GatewayEvent, Secret, SocketFolder, WorkerHandle, WorkerId, with_causes,
    },
    worker,
};

/// How long the last words of a process that has ended may be on their way. Whatever it has started may hold its connection open.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long workers may take to write their state when the head is lost.
const SAVING: Duration = Duration::from_secs(30);

/// What an agent serves with.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) nodes: Vec<AgentNode>,
    /// Where workers of other machines reach those of this one.
    pub(crate) address: Option<IpAddr>,
    /// The arguments with which this program is started again as a worker, an emulated node or a launcher.
    pub(crate) arguments: Vec<String>,
    /// Whether all children of this process are the agent's.
    pub(crate) is_sole: bool,
    pub(crate) spawner: Arc<dyn Spawner>,
}

/// Why a life of an agent is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The head needs it no longer, and says why.
    Told(String),
    /// The head is lost.
    HeadLost,
}

/// Serves a head, inside a `LocalSet`. When this returns, nothing is left of what was started.
///
/// Files go to a folder, if there is one: that of the study, where the agent can reach it. With `transfer` it is another one, and checkpoints
/// go to the head and come from there.
pub(crate) async fn serve(
    machine: &Machine,
    welcome: Welcome,
    folder: Option<PathBuf>,
    secret: Secret,
    transfer: Option<CheckpointTransfer>,
    commands: &mut UnboundedReceiver<AgentCommand>,
    events: UnboundedSender<AgentEvent>,
) -> Result<Ended, Error> {
    let folder = folder.map(|folder| Folder::new(&folder));
    let (ships, mut shipped) = mpsc::unbounded_channel();
    let study = welcome.study;
    let shipping =
        transfer.zip(folder.clone()).map(|(transfer, folder)| Shipping::new(transfer, study, folder, ships));
    let (mut serving, mut ended, mut gateway) =
        Serving::new(machine, welcome, folder, secret, shipping, events)?;
    let how = loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(AgentCommand::Leave { reason }) => break Ended::Told(reason),
                Some(command) => serving.carry_out(command),
                None => break Ended::HeadLost,
            },
            Some(event) = next(&mut gateway) => serving.on_gateway(event),
            Some(end) = ended.recv() => match end {
                ProcessEnd::Process { node, process, gone } => serving.on_end(node, process, gone),
                ProcessEnd::LastWords { node, process, end } => serving.on_last_words(node, process, end),
            },
            Some(shipped) = shipped.recv() => serving.on_shipped(shipped),
        }
    };
    serving.end(&how, ended).await;
    Ok(how)
}

/// The next event of the gateway, if there is one.
async fn next(gateway: &mut Option<Receiver<GatewayEvent>>) -> Option<GatewayEvent> {
    gateway.as_mut()?.recv().await
}

/// The end of a process, in two parts.
enum ProcessEnd {
    /// It has ended, or could not be started.
    Process { node: NodeId, process: u32, gone: Gone },
    /// What it has said last had its time to arrive. Another process may have its place by now: `end` is the number of its end.
    LastWords { node: NodeId, process: u32, end: u64 },
}

struct Serving<'a> {
    machine: &'a Machine,
    welcome: Welcome,
    folder: Option<Folder>,
    secret: Secret,
    events: UnboundedSender<AgentEvent>,
    /// Where workers attach; none if there are none.
    door: Option<(Gateway, SocketFolder)>,
    /// The connection of each slot.
    workers: BTreeMap<SlotId, (WorkerId, WorkerHandle)>,
    /// How to end each process; none if that is under way.
    processes: BTreeMap<(NodeId, u32), Option<oneshot::Sender<()>>>,
    ended: UnboundedSender<ProcessEnd>,
    /// Processes that have ended and whose workers are still connected: what they said last is on its way. With the number of the end.
    ending: BTreeMap<(NodeId, u32), (u64, Gone)>,
    /// How many there were.
    endings: u64,
    programs: Option<Programs>,
    /// If checkpoints have to be sent.
    shipping: Option<Shipping>,
}

impl<'a> Serving<'a> {
    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn new(
        machine: &'a Machine,
        welcome: Welcome,
        folder: Option<Folder>,
        secret: Secret,
        shipping: Option<Shipping>,
        events: UnboundedSender<AgentEvent>,
    ) -> Result<(Self, UnboundedReceiver<ProcessEnd>, Option<Receiver<GatewayEvent>>), Error> {
        let (ended, ends) = mpsc::unbounded_channel();
        let (mut door, mut programs, mut gateway_events) = (None, None, None);
        if welcome.work == Work::Programs {
            programs = folder.clone().map(|folder| Programs::new(machine, folder, &events)).transpose()?;
        } else {
            // Paths of sockets must be short, and those of studies may be long.
            let socket = SocketFolder::new()?;
            let (gateway, received) = Gateway::open(&socket.address(), &secret)?;
            (door, gateway_events) = (Some((gateway, socket)), Some(received));
        }
        let (workers, processes) = (BTreeMap::new(), BTreeMap::new());
        let serving = Self {
            machine,
            welcome,
            folder,
            secret,
            events,
            door,
            workers,
            processes,
            ended,
            ending: BTreeMap::new(),
            endings: 0,
            programs,
            shipping,
        };
        Ok((serving, ends, gateway_events))
    }

    fn tell(&self, event: AgentEvent) {
        // A head that is gone is noticed by those who await its commands.
        let _ = self.events.send(event);
    }

    fn carry_out(&mut self, command: AgentCommand) {
        match command {
            AgentCommand::Start { node, process } => self.start(node, process),
            AgentCommand::Kill { node, process } => {
                self.forget(node, process);
                if let Some(kill) = self.processes.get_mut(&(node, process)).and_then(Option::take) {
                    // It may have ended meanwhile.
                    let _ = kill.send(());
                }
            }
            AgentCommand::ToWorker { slot, command } => self.pass_on(slot, command),
            AgentCommand::Launch(launch) => {
                let place = |slot: &SlotId| self.place(*slot, launch.share);
                let places = launch.slots.iter().filter_map(place).cloned().collect();
                if let Some(programs) = &mut self.programs {
                    programs.launch(*launch, places);
                }
            }
            AgentCommand::StopProgram { trial, generation } => {
                if let Some(programs) = &mut self.programs {
                    programs.stop(trial, generation);
                }
            }
            AgentCommand::ReportTaken { trial, generation } => {
                if let Some(programs) = &mut self.programs {
                    programs.report_taken(trial, generation);
                }
            }
            // They come once, and before this.
            AgentCommand::Welcome(_) | AgentCommand::Leave { .. } => {}
        }
    }

    fn pass_on(&mut self, slot: SlotId, command: WorkerCommand) {
        let Some((_, worker)) = self.workers.get(&slot) else { return };
        let command = match &mut self.shipping {
            Some(shipping) => shipping.command(slot, command),
            None => Some(command),
        };
        if let Some(command) = command {
            worker.send(command);
        }
    }

    /// A checkpoint was sent or fetched: what has waited for it goes on.
    fn on_shipped(&mut self, shipped: Shipped) {
        let Some(shipping) = &mut self.shipping else { return };
        let (slot, Ready { commands, events }) = shipping.shipped(shipped);
        if let Some((_, worker)) = self.workers.get(&slot) {
            for command in commands {
                worker.send(command);
            }
        }
        for event in events {
            self.tell(AgentEvent::Worker { slot, event });
        }
    }

    /// The worker of a slot is another one from now on, or none.
    fn renew(&mut self, slot: SlotId) {
        if let Some(shipping) = &mut self.shipping {
            shipping.forget(slot);
        }
    }

    fn node(&self, node: NodeId) -> Option<&'a AgentNode> {
        let place = self.welcome.nodes.iter().position(|of| *of == node)?;
        self.machine.nodes.get(place)
    }

    /// The place of a slot, if so many slots share one.
    fn place(&self, slot: SlotId, share: u32) -> Option<&'a AgentSlot> {
        self.node(slot.node)?.slots.get((slot.index / share.max(1)) as usize)
    }

    fn start(&mut self, node: NodeId, process: u32) {
        let (kill, killed) = oneshot::channel();
        let log = self.log(node, process);
        let command = self.command(node, process).map_err(Gone::from);
        match command.and_then(|command| self.machine.spawner.spawn(command, log.as_deref(), killed)) {
            Ok(running) => {
                self.processes.insert((node, process), Some(kill));
                let ended = self.ended.clone();
                spawn_local(async move {
                    let gone = running.await;
                    // Without an agent nobody is interested.
                    let _ = ended.send(ProcessEnd::Process { node, process, gone });
                });
            }
            Err(gone) => self.on_end(node, process, gone),
        }
    }

    /// What a process of a node is.
    fn command(&self, node: NodeId, process: u32) -> Result<Command, String> {
        let (Some((gateway, _)), Some(of)) = (&self.door, self.node(node)) else {
            return Err(format!("there is no node {node} here"));
        };
        let (address, secret, arguments) = (gateway.address(), &self.secret, &self.machine.arguments[..]);
        match &self.welcome.work {
            work @ (Work::Trainable | Work::Python(_)) => {
                let place = of.slots.get(process as usize);
                let place = place.ok_or_else(|| format!("node {node} has no slot {process}"))?;
                let slot = SlotId { node, index: process };
                let lock = self.lock(slot)?;
                let launch = worker::Launch {
                    address,
                    secret,
                    slot,
                    place: &place.into(),
                    machine_address: self.machine.address,
                    lock: lock.as_deref(),
                    arguments,
                    python: if let Work::Python(python) = work { Some(python) } else { None },
                };
                worker::launch(&launch).map_err(|error| with_causes(&error))
            }
            &Work::Emulated { time_scale } => {
                let launch = emulate::NodeLaunch {
                    address: address.clone(),
                    secret: secret.clone(),
                    node: node.0,
                    slots: 0..of.slots.len() as u32,
                    gpu_type: of.gpu_type.clone(),
                    time_scale,
                    machine_address: self.machine.address,
                    arguments: arguments.to_vec(),
                };
                emulate::launch(&launch).map_err(|error| with_causes(&error))
            }
            Work::Programs => Err("programs have no workers".to_owned()),
        }
    }

    /// What the worker of a slot holds as long as it lives, so that the next one can wait for that.
    fn lock(&self, slot: SlotId) -> Result<Option<PathBuf>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let locks = folder.locks();
        fs::create_dir_all(&locks).map_err(|error| format!("making {}: {error}", locks.display()))?;
        Ok(Some(locks.join(format!("{slot}.lock"))))
    }

    /// Where a process prints to; none if it shares our output.
    fn log(&self, node: NodeId, process: u32) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.logs().join(format!("worker-{node}.{process}.log")))
    }

    /// The slots that a process serves.
    fn slots_of(&self, node: NodeId, process: u32) -> std::ops::Range<u32> {
        let slots = self.node(node).map_or(0, |of| of.slots.len() as u32);
        match self.welcome.work {
            Work::Trainable | Work::Python(_) => process..process + 1,
            Work::Emulated { .. } | Work::Programs => 0..slots,
        }
    }

    /// The connections of a process are of no use any more.
    fn forget(&mut self, node: NodeId, process: u32) {
        for index in self.slots_of(node, process) {
            let slot = SlotId { node, index };
            self.workers.remove(&slot);
            self.renew(slot);
        }
    }

    /// A process has ended, or could not be started. What its workers have said before comes first.
    fn on_end(&mut self, node: NodeId, process: u32, gone: Gone) {
        self.processes.remove(&(node, process));
        if !self.has_workers(node, process) {
            self.tell_end(node, process, gone);
            return;
        }
        self.endings += 1;
        let (ended, end) = (self.ended.clone(), self.endings);
        self.ending.insert((node, process), (end, gone));
        spawn_local(async move {
            time::sleep(LAST_WORDS).await;
            let _ = ended.send(ProcessEnd::LastWords { node, process, end });
        });
    }

    /// Nobody waits any longer for what a process has said last.
    fn on_last_words(&mut self, node: NodeId, process: u32, end: u64) {
        if self.ending.get(&(node, process)).is_some_and(|(of, _)| *of == end)
            && let Some((_, gone)) = self.ending.remove(&(node, process))
        {
            self.tell_end(node, process, gone);
        }
    }

    fn has_workers(&self, node: NodeId, process: u32) -> bool {
        self.slots_of(node, process).any(|index| self.workers.contains_key(&SlotId { node, index }))
    }

    /// All that was said by a process that has ended is told; so is its end.
    fn tell_ends(&mut self) {
        let quiet: Vec<_> = self
            .ending
            .keys()
            .copied()
            .filter(|(node, process)| !self.has_workers(*node, *process))
            .collect();
        for (node, process) in quiet {
            if let Some((_, gone)) = self.ending.remove(&(node, process)) {
                self.tell_end(node, process, gone);
            }
        }
    }

    fn tell_end(&mut self, node: NodeId, process: u32, Gone { how, fault }: Gone) {
        tracing::warn!(%node, process, how, "a worker process has ended");
        self.forget(node, process);
        let output = self
            .log(node, process)
            .map_or_else(String::new, |log| format!("its output, in {}:\n{}", log.display(), tail(&log)));
        self.tell(AgentEvent::Ended { node, process, how, fault, output });
    }

    fn on_gateway(&mut self, event: GatewayEvent) {
        match event {
            GatewayEvent::Joined { worker, hello, handle } => {
                let slot = hello.slot;
                if self.node(slot.node).is_some_and(|node| (slot.index as usize) < node.slots.len()) {
                    self.workers.insert(slot, (worker, handle));
                    self.renew(slot);
                    self.tell(AgentEvent::WorkerJoined { slot });
                }
            }
            GatewayEvent::Event { worker, event } => {
                if let Some(slot) = self.slot(worker) {
                    tracing::trace!(%slot, ?event, "event of a worker");
                    let event = match &mut self.shipping {
                        Some(shipping) => shipping.event(slot, event),
                        None => Some(event),
                    };
                    if let Some(event) = event {
                        self.tell(AgentEvent::Worker { slot, event });
                    }
                }
            }
            GatewayEvent::Lost { worker } => {
                if let Some(slot) = self.slot(worker) {
                    self.workers.remove(&slot);
                    self.renew(slot);
                    self.tell(AgentEvent::WorkerLost { slot });
                    self.tell_ends();
                }
            }
            GatewayEvent::Refused { slot, reason } => {
                tracing::warn!(?slot, reason, "a worker was refused");
            }
        }
    }

    /// The slot of a connection.
    fn slot(&self, worker: WorkerId) -> Option<SlotId> {
        let of = self.workers.iter().find(|(_, (connection, _))| *connection == worker);
        of.map(|(slot, _)| *slot)
    }

    /// When all is to end, it is enough to know who has.
    fn note(&mut self, end: &ProcessEnd) {
        if let ProcessEnd::Process { node, process, .. } = end {
            self.processes.remove(&(*node, *process));
        }
    }

    /// Ends all that runs, and waits for that. Without a head, workers write their state first; programs cannot.
    async fn end(mut self, how: &Ended, mut ended: UnboundedReceiver<ProcessEnd>) {
        self.workers.clear();
        drop(self.door.take());
        let programs = self.programs.take();
        let programs = async {
            if let Some(programs) = programs {
                programs.end(matches!(how, Ended::Told(_))).await;
            }
        };
        let processes = async {
            if *how == Ended::HeadLost {
                // Whoever has nothing to save ends at once.
                let all = async {
                    while !self.processes.is_empty()
                        && let Some(end) = ended.recv().await
                    {
                        self.note(&end);
                    }
                };
                // Those that are late are killed next.
                let _ = time::timeout(SAVING, all).await;
            }
            for kill in self.processes.values_mut().filter_map(Option::take) {
                let _ = kill.send(());
            }
            while !self.processes.is_empty()
                && let Some(end) = ended.recv().await
            {
                self.note(&end);
            }
        };
        tokio::join!(programs, processes);
    }
}
