//! Worker processes and their connections. What runs in them is the real protocol of workers.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    rc::Rc,
    task::{Context, Waker},
};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc::{self, UnboundedSender};

use super::{
    Fault, Life,
    backend::ModelledBackend,
    world::{Address, Event, Message, World},
};
use crate::{
    ids::{SlotId, TrialId},
    trials::{
        group::{WorkerCommand, WorkerEvent},
        node::{NodeDescription, ProcessFault},
    },
    worker::protocol::Worker,
};

/// Keep-alive messages have no answer for this long: see `wire::gateway`.
const SILENCE_S: f64 = 40.0;

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) head: u32,
    /// The actor of the node.
    pub(super) node: usize,
    pub(super) slot: SlotId,
}

#[derive(Default)]
pub(super) struct Processes {
    running: BTreeMap<u64, Process>,
    workers: BTreeMap<Life, WorkerLife>,
    /// Every connection that ever was.
    places: BTreeMap<Life, Place>,
    /// Until when nothing can be started on a machine.
    down_s: Vec<f64>,
    /// The first slot of each process of each machine.
    slots: Vec<Vec<(u32, u32)>>,
    next: u64,
}

struct Process {
    head: u32,
    node: usize,
    number: usize,
    lives: Vec<Life>,
    is_stopped: bool,
}

struct WorkerLife {
    process: u64,
    future: Pin<Box<dyn Future<Output = ()>>>,
    commands: UnboundedSender<WorkerCommand>,
    sent: Rc<RefCell<Vec<WorkerEvent>>>,
    is_connected: bool,
}

impl Processes {
    pub(super) fn new(nodes: &[NodeDescription]) -> Self {
        let slots = |node: &NodeDescription| {
            let mut first = 0;
            let place = |&count: &u32| {
                first += count;
                (first - count, count)
            };
            node.processes.iter().map(place).collect()
        };
        Self { down_s: vec![0.0; nodes.len()], slots: nodes.iter().map(slots).collect(), ..Self::default() }
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.running.keys().copied().collect()
    }

    pub(super) fn place(&self, life: Life) -> Option<Place> {
        self.places.get(&life).copied()
    }

    /// Those of the actor of a node.
    pub(super) fn on(&self, node: usize) -> Vec<u64> {
        self.running.iter().filter(|(_, of)| of.node == node).map(|(id, _)| *id).collect()
    }

    pub(super) fn any_connected(&self, rng: &mut ChaCha8Rng) -> Option<u64> {
        let connected: Vec<u64> =
            self.running.iter().filter(|(_, of)| !of.lives.is_empty()).map(|(id, _)| *id).collect();
        if connected.is_empty() { None } else { Some(connected[rng.random_range(0..connected.len())]) }
    }

    /// A worker receives a command.
    pub(super) fn command(&mut self, life: Life, command: WorkerCommand) {
        if let Some(worker) = self.workers.get(&life) {
            // It may have ended just now.
            let _ = worker.commands.send(command);
        }
    }

    /// Machines can start processes again.
    pub(super) fn heal(&mut self) {
        self.down_s.fill(0.0);
    }
}

impl World {
    pub(super) fn start_process(&mut self, head: u32, node: usize, number: usize) {
        if head != self.heads || self.head.is_none() {
            return;
        }
        let actor = self.head.as_ref().and_then(|head| head.nodes.get(&node));
        let Some(machine) = actor.map(|actor| actor.machine) else { return };
        self.processes.next += 1;
        let process = self.processes.next;
        let cannot = self.processes.down_s[machine] > self.now_s;
        let is_doomed = cannot || self.site.borrow_mut().strikes(Fault::StartFails);
        let (lives, is_stopped) = (Vec::new(), false);
        self.processes.running.insert(process, Process { head, node, number, lives, is_stopped });
        self.note(format_args!("process {process} starts on node {node}"));
        let Some(actor) = self.head.as_mut().and_then(|head| head.nodes.get_mut(&node)) else { return };
        actor.processes[number] = Some(process);
        if !cannot {
            let (start, limit) = actor.driver.started(number);
            let overdue = Event::CheckStart { head, node, process: number, start };
            self.after(limit.as_secs_f64(), overdue);
        }
        let after_s = self.seconds(0.1, 1.5);
        if !is_doomed {
            self.after(after_s, Event::Connect(process));
        } else if cannot {
            let (how, fault) = ("no more processes", ProcessFault::Environment);
            self.after(after_s, Event::Kill { process, how, fault });
        } else if self.rng.random_bool(0.7) {
            let (how, fault) = ("exit status: 1", ProcessFault::Own);
            self.after(after_s, Event::Kill { process, how, fault });
        }
        // Else it stands still before it has connected.
    }

    /// The workers of a process have reached the head.
    pub(super) fn connect(&mut self, process: u64) {
        let Some(of) = self.processes.running.get(&process) else { return };
        let (head, node, number) = (of.head, of.node, of.number);
        let actor = self.head.as_ref().filter(|_| head == self.heads).and_then(|head| head.nodes.get(&node));
        let Some((machine, id)) = actor.map(|actor| (actor.machine, actor.node)) else { return };
        let (first, count) = self.processes.slots[machine][number];
        for index in first..first + count {
            let slot = SlotId { node: id, index };
            self.processes.next += 1;
            let life = self.processes.next;
            let (commands, received) = mpsc::unbounded_channel();
            let sent = Rc::new(RefCell::new(Vec::new()));
            let outbox = sent.clone();
            let backend = ModelledBackend { site: self.site.clone(), slot, life, defects: self.defects };
            let send = move |event| outbox.borrow_mut().push(event);
            let future = Box::pin(Worker::new(slot, backend, received, send).run());
            let worker = WorkerLife { process, future, commands, sent, is_connected: true };
            self.processes.workers.insert(life, worker);
            self.processes.places.insert(life, Place { head, node, slot });
            if let Some(of) = self.processes.running.get_mut(&process) {
                of.lives.push(life);
            }
            self.send(Address::Up(life), Message::Joined);
        }
    }

    /// Lets a worker go on, as far as it can.
    pub(super) fn poll(&mut self, life: Life) {
        let Some(worker) = self.processes.workers.get_mut(&life) else { return };
        if self.processes.running.get(&worker.process).is_none_or(|of| of.is_stopped) {
            return;
        }
        let ended = worker.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let (process, is_connected) = (worker.process, worker.is_connected);
        let events = std::mem::take(&mut *worker.sent.borrow_mut());
        for event in events.into_iter().filter(|_| is_connected) {
            self.send(Address::Up(life), Message::Event(event));
        }
        if ended {
            self.kill_process(process, "exit status: 0", ProcessFault::Own);
        }
    }

    /// A process is dead, with all that it was doing.
    pub(super) fn kill_process(&mut self, process: u64, how: &'static str, fault: ProcessFault) {
        let Some(of) = self.processes.running.remove(&process) else { return };
        self.note(format_args!("process {process} on node {} ends: {how}", of.node));
        for life in &of.lives {
            self.site.borrow_mut().disk.kill(*life);
            let worker = self.processes.workers.remove(life);
            let was_connected = worker.as_ref().is_some_and(|worker| worker.is_connected);
            drop(worker);
            self.close(|address| *address == Address::Down(*life));
            if was_connected && of.head == self.heads && self.head.is_some() {
                self.send(Address::Up(*life), Message::Lost);
            }
        }
        if of.head == self.heads && self.head.is_some() {
            let ended = Message::Ended { process: of.number, how, fault };
            self.send(Address::Node(of.node), ended);
        }
    }

    /// The connection of one worker of a process breaks. The process notices and ends, if it is not ended before.
    pub(super) fn cut(&mut self, process: u64) {
        let Some(of) = self.processes.running.get(&process) else { return };
        let Some(&life) = of.lives.first() else { return };
        if let Some(worker) = self.processes.workers.get_mut(&life) {
            worker.is_connected = false;
        }
        self.send(Address::Up(life), Message::Lost);
        let after_s = self.seconds(0.0, 0.15);
        self.after(after_s, Event::Kill { process, how: "exit status: 0", fault: ProcessFault::Own });
    }

    pub(super) fn stop_process(&mut self, process: u64) {
        let Some(of) = self.processes.running.get_mut(&process) else { return };
        of.is_stopped = true;
        let after_s = self.seconds(1.0, 80.0);
        self.after(after_s, Event::Continue(process));
        self.after(SILENCE_S, Event::Silent(process));
    }

    /// The threads that train stand still for ever, while the connection lives.
    pub(super) fn stick(&mut self, process: u64) {
        if let Some(of) = self.processes.running.get_mut(&process) {
            of.is_stopped = true;
        }
    }

    pub(super) fn go_on(&mut self, process: u64) {
        let Some(of) = self.processes.running.get_mut(&process) else { return };
        of.is_stopped = false;
        self.site.borrow_mut().ready.extend(of.lives.iter().copied());
    }

    /// The gateway has heard nothing of a process for too long.
    pub(super) fn fall_silent(&mut self, process: u64) {
        let Some(of) = self.processes.running.get(&process).filter(|of| of.is_stopped) else { return };
        for life in of.lives.clone() {
            if let Some(worker) = self.processes.workers.get_mut(&life) {
                worker.is_connected = false;
            }
            self.send(Address::Up(life), Message::Lost);
        }
    }

    pub(super) fn lose_node(&mut self) {
        let machine = self.rng.random_range(0..self.scenario.nodes.len());
        let for_s = self.seconds(0.0, 60.0);
        self.processes.down_s[machine] = self.now_s + for_s;
        let actors = self.head.iter().flat_map(|head| &head.nodes);
        let actors = actors.filter(|(_, actor)| actor.machine == machine).map(|(key, _)| *key);
        let lost: Vec<u64> = actors.flat_map(|key| self.processes.on(key)).collect();
        let trials = lost.iter().flat_map(|process| self.trials_of(*process)).collect();
        self.expect_recovery(trials);
        for process in lost {
            self.kill_process(process, "signal: 9", ProcessFault::Killed);
        }
    }

    /// The trials that a process has something of.
    pub(super) fn trials_of(&self, process: u64) -> BTreeSet<TrialId> {
        let Some(of) = self.processes.running.get(&process) else { return BTreeSet::new() };
        let site = self.site.borrow();
        let hosted = site.hosts.values().filter(|(life, _)| of.lives.contains(life));
        hosted.map(|(_, trial)| *trial).collect()
    }
}
