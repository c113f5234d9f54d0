//! The head's side: worker processes, one for each slot, and a gateway to talk to them.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{self, Child},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{runtime::Builder, sync::oneshot};

use super::{Launch, Slot, error::Error, launch::launch};
use crate::{
    ids::{NodeId, Round, SlotId},
    trials::group::{WorkerCommand, WorkerEvent},
    wire::{Address, Gateway, GatewayEvent, Secret, WorkerHandle, WorkerId},
};

/// How long a fresh worker may take to say hello: it has to load libtorch, on a machine that may be busy.
const HELLO: Duration = Duration::from_secs(120);
/// How often a worker that has not said hello is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What a pool hears.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A worker has said something.
    Event(u32, WorkerEvent),
    /// A worker is gone. Call [`Pool::start`] to have another one on its slot.
    Gone(u32),
}

/// Worker processes, one for each slot, which are this program started again.
#[derive(Debug)]
pub struct Pool {
    slots: Vec<Slot>,
    secret: Secret,
    arguments: Vec<String>,
    workers: BTreeMap<u32, Worker>,
    /// Stores outlive trials: what is under a round's name must be of no other one.
    round: Round,
    gateway: Door,
    early: Vec<Told>,
}

#[derive(Debug)]
struct Worker {
    process: Child,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: WorkerId,
    handle: WorkerHandle,
}

impl Pool {
    /// Starts a worker on each slot: this program with these arguments. A socket goes into `folder`, whose path must be short
    /// enough for one.
    pub fn new(slots: Vec<Slot>, folder: &Path, arguments: &[&str]) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io(format!("making the folder {}", folder.display())))?;
        let secret = Secret::random()?;
        let socket = Address::Unix(folder.join(format!("head-{}.socket", process::id())));
        let gateway = Door::open(&socket, &secret)?;
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let (workers, early) = (BTreeMap::new(), Vec::new());
        let mut pool = Self { slots, secret, arguments, workers, round: Round(0), gateway, early };
        for slot in 0..pool.slots.len() as u32 {
            pool.launch(slot)?;
        }
        for slot in 0..pool.slots.len() as u32 {
            pool.await_hello(slot)?;
        }
        Ok(pool)
    }

    /// How many GPUs this machine has that libtorch can use.
    #[must_use]
    pub fn gpus() -> u32 {
        tch::Cuda::device_count().try_into().unwrap_or(0)
    }

    /// How many slots there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether there is no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The highest round that its workers have seen.
    pub(super) const fn round(&self) -> Round {
        self.round
    }

    pub(super) fn has_seen(&mut self, round: Round) {
        self.round = self.round.max(round);
    }

    /// Starts another worker on a slot whose worker is gone, and waits until it can be talked to.
    pub fn start(&mut self, slot: u32) -> Result<(), Error> {
        self.launch(slot)?;
        self.await_hello(slot)
    }

    fn launch(&mut self, slot: u32) -> Result<(), Error> {
        let Some(place) = self.slots.get(slot as usize) else {
            return Err(Error::Protocol(format!("there is no slot {slot}, only {}", self.slots.len())));
        };
        let mut process = launch(&Launch {
            address: &self.gateway.address,
            secret: &self.secret,
            slot: SlotId { node: NodeId(0), index: slot },
            place: *place,
            arguments: &self.arguments,
        })?;
        let process = process.spawn().map_err(Error::io("starting a worker"))?;
        self.workers.insert(slot, Worker { process, connection: None });
        Ok(())
    }

    fn await_hello(&mut self, slot: u32) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let Some(worker) = self.workers.get_mut(&slot).filter(|worker| worker.connection.is_none())
            else {
                return Ok(());
            };
            let ended = worker.process.try_wait().map_err(Error::io("looking after a worker"))?;
            match self.gateway.next(LOOK)? {
                // Somebody else's, perhaps.
                Some(GatewayEvent::Refused { slot: Some(of), reason }) if of.index == slot => {
                    return Err(Error::Protocol(reason));
                }
                Some(heard) => {
                    let told = self.take_in(heard)?;
                    if told == Some(Told::Gone(slot)) {
                        return Err(Error::Protocol(format!(
                            "worker {slot} ended as soon as it had said hello"
                        )));
                    }
                    self.early.extend(told);
                }
                None => {
                    if let Some(status) = ended {
                        return Err(Error::Protocol(format!(
                            "worker {slot} ended before it said hello: {status}"
                        )));
                    }
                    if began.elapsed() > HELLO {
                        return Err(Error::Protocol(format!("worker {slot} does not say hello")));
                    }
                }
            }
        }
    }

    /// The process on a slot.
    #[must_use]
    pub fn pid(&self, slot: u32) -> Option<u32> {
        self.workers.get(&slot).map(|worker| worker.process.id())
    }

    /// Tells a worker what to do. One that is gone hears nothing; that it is gone is told by [`Pool::next`].
    pub fn tell(&self, slot: u32, command: WorkerCommand) {
        if let Some(connection) = self.workers.get(&slot).and_then(|worker| worker.connection.as_ref()) {
            connection.handle.send(command);
        }
    }

    /// The next thing that happens; none if nothing does in time.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Told>, Error> {
        if !self.early.is_empty() {
            return Ok(Some(self.early.remove(0)));
        }
        let mut timeout = timeout;
        while let Some(heard) = self.gateway.next(timeout)? {
            let told = self.take_in(heard)?;
            if told.is_some() {
                return Ok(told);
            }
            timeout = Duration::ZERO;
        }
        Ok(None)
    }

    /// What a process says that was replaced is not worth telling.
    fn take_in(&mut self, heard: GatewayEvent) -> Result<Option<Told>, Error> {
        Ok(match heard {
            GatewayEvent::Joined { worker: id, hello, handle } => {
                let started = self.workers.get_mut(&hello.slot.index);
                if let Some(worker) = started.filter(|worker| worker.process.id() == hello.pid) {
                    worker.connection = Some(Connection { id, handle });
                }
                None
            }
            GatewayEvent::Event { worker, event } => {
                self.slot_of(worker).map(|slot| Told::Event(slot, event))
            }
            GatewayEvent::Lost { worker } => match self.slot_of(worker) {
                Some(slot) => {
                    self.bury(slot)?;
                    Some(Told::Gone(slot))
                }
                None => None,
            },
            // A stranger, or a worker that will be gone in a moment.
            GatewayEvent::Refused { .. } => None,
        })
    }

    fn slot_of(&self, id: WorkerId) -> Option<u32> {
        let is = |worker: &Worker| worker.connection.as_ref().is_some_and(|connection| connection.id == id);
        self.workers.iter().find(|(_, worker)| is(worker)).map(|(slot, _)| *slot)
    }

    fn bury(&mut self, slot: u32) -> Result<(), Error> {
        if let Some(mut worker) = self.workers.remove(&slot) {
            // It may only have closed its connection.
            let _ = worker.process.kill();
            worker.process.wait().map_err(Error::io("waiting for a dead worker"))?;
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            // Gone already, if this fails.
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}

/// A gateway for those who have no runtime: it has one on a thread of its own, as long as this lives.
#[derive(Debug)]
struct Door {
    address: Address,
    heard: Receiver<GatewayEvent>,
    /// Closed by dropping it.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    fn open(address: &Address, secret: &Secret) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("starting a runtime"))?;
        let (gateway, mut hear) = {
            let _inside = runtime.enter();
            Gateway::open(address, secret)?
        };
        let address = gateway.address().clone();
        let (tell, heard) = mpsc::channel();
        let (open, closed) = oneshot::channel::<()>();
        let pass_on = async move {
            while let Some(heard) = hear.recv().await {
                if tell.send(heard).is_err() {
                    break;
                }
            }
        };
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = pass_on => {}
                    _ = closed => {}
                }
            });
            drop(gateway);
        };
        let thread = thread::Builder::new().name("gateway".to_owned()).spawn(run);
        let thread = Some(thread.map_err(Error::io("starting a thread"))?);
        Ok(Self { address, heard, open: Some(open), thread })
    }

    /// The next thing that is heard; none if nothing is in time.
    fn next(&self, timeout: Duration) -> Result<Option<GatewayEvent>, Error> {
        match self.heard.recv_timeout(timeout) {
            Ok(heard) => Ok(Some(heard)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Protocol("the thread that listens to workers has ended".to_owned()))
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that was told already.
            let _ = thread.join();
        }
    }
}
