//! The head's side: worker processes, one for each slot, and a socket to talk to them.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{self, Child, Command as Process, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use tch::Device;

use super::{
    Registry,
    error::Error,
    host::{self, Place},
    link::{self, Listener, Speaker},
};
use crate::wire::{Command, Event, Member, VERSION};

/// What a program that is started again as a worker finds in its environment.
const SOCKET: &str = "POLLUX_TUNE_WORKER_SOCKET";
const SLOT: &str = "POLLUX_TUNE_WORKER_SLOT";
const THREADS: &str = "POLLUX_TUNE_WORKER_THREADS";
const DEVICE: &str = "POLLUX_TUNE_WORKER_DEVICE";

/// How long a fresh worker may take to say hello: it has to load libtorch, on a machine that may be busy.
const HELLO: Duration = Duration::from_secs(120);

/// Where a worker runs: a GPU, or a share of the cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Threads that libtorch may use.
    pub threads: u32,
    /// The CUDA device, if it is a GPU.
    pub cuda: Option<u32>,
}

/// What a pool hears.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A worker has said something.
    Event(u32, Event),
    /// A worker is gone. Call [`Pool::start`] to have another one on its slot.
    Gone(u32),
}

/// Worker processes, one for each slot, which are this program started again.
#[derive(Debug)]
pub struct Pool {
    slots: Vec<Slot>,
    socket: PathBuf,
    arguments: Vec<String>,
    workers: BTreeMap<u32, Worker>,
    /// Stores outlive trials: what is under a generation's name must be of no other one.
    generation: u64,
    told: Receiver<FromWorker>,
    early: Vec<Told>,
}

#[derive(Debug)]
struct Worker {
    process: Child,
    connection: Option<(Speaker, String)>,
}

#[derive(Debug)]
enum FromWorker {
    Hello { slot: u32, pid: u32, version: u32, store: String, speaker: Speaker },
    Event { slot: u32, pid: u32, event: Event },
    Gone { slot: u32, pid: u32 },
}

/// If this process was started as a worker, works until the head is gone, and then ends the process.
///
/// Every program with a [`Pool`] calls it first thing in `main`.
pub fn serve_if_worker(registry: &Registry) {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let place = Place {
        socket: Path::new(&socket),
        slot: number(SLOT).unwrap_or(0),
        threads: number(THREADS).unwrap_or(1).cast_signed(),
        device: number(DEVICE).map_or(Device::Cpu, |device| Device::Cuda(device as usize)),
    };
    let code = match host::serve(&place, registry) {
        Ok(()) => 0,
        Err(error) => {
            tell_the_user(&format!("worker {}: {error}", place.slot));
            1
        }
    };
    process::exit(code);
}

#[expect(clippy::print_stderr, reason = "the head is out of reach, and a silent end helps nobody")]
fn tell_the_user(message: &str) {
    eprintln!("{message}");
}

impl Pool {
    /// Starts a worker on each slot: this program with these arguments. Sockets go into `folder`, whose path must be short
    /// enough for one.
    pub fn new(slots: Vec<Slot>, folder: &Path, arguments: &[&str]) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io(format!("making the folder {}", folder.display())))?;
        let socket = folder.join(format!("head-{}.socket", process::id()));
        // One of a dead process of the same number.
        let _ = fs::remove_file(&socket);
        let listener =
            UnixListener::bind(&socket).map_err(Error::io(format!("listening at {}", socket.display())))?;
        let (tell, told) = mpsc::channel();
        thread::Builder::new()
            .name("gateway".to_owned())
            .spawn(move || accept(&listener, &tell))
            .map_err(Error::io("starting a thread"))?;
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut pool = Self {
            slots,
            socket,
            arguments,
            workers: BTreeMap::new(),
            generation: 0,
            told,
            early: Vec::new(),
        };
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

    /// The highest generation that its workers have seen.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn has_seen(&mut self, generation: u64) {
        self.generation = self.generation.max(generation);
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
        let program = env::current_exe().map_err(Error::io("finding this program"))?;
        let mut process = Process::new(program);
        process.args(&self.arguments);
        process.env(SOCKET, &self.socket).env(SLOT, slot.to_string()).env(THREADS, place.threads.to_string());
        // Libraries that have pools of their own, beside libtorch's.
        process
            .env("OMP_NUM_THREADS", place.threads.to_string())
            .env("MKL_NUM_THREADS", place.threads.to_string());
        if let Some(device) = place.cuda {
            process.env(DEVICE, device.to_string());
        }
        // Lost connections are told as events, and need no page of libtorch's about each.
        if env::var_os("TORCH_CPP_LOG_LEVEL").is_none() {
            process.env("TORCH_CPP_LOG_LEVEL", "FATAL");
        }
        // What a trainable prints is for people, and not part of the head's output.
        process.stdin(Stdio::null()).stdout(Stdio::null());
        let process = process.spawn().map_err(Error::io("starting a worker"))?;
        self.workers.insert(slot, Worker { process, connection: None });
        Ok(())
    }

    fn await_hello(&mut self, slot: u32) -> Result<(), Error> {
        while self.workers.get(&slot).is_some_and(|worker| worker.connection.is_none()) {
            let next = self.told.recv_timeout(HELLO);
            let next = next.map_err(|_| Error::Protocol(format!("worker {slot} does not say hello")))?;
            if let Some(told) = self.take_in(next)? {
                if told == Told::Gone(slot) {
                    return Err(Error::Protocol(format!("worker {slot} ended before it said hello")));
                }
                self.early.push(told);
            }
        }
        Ok(())
    }

    /// What the members of a group need to know about the worker on a slot.
    #[must_use]
    pub fn member(&self, slot: u32) -> Option<Member> {
        let (_, store) = self.workers.get(&slot)?.connection.as_ref()?;
        Some(Member { slot, node: 0, store: store.clone() })
    }

    /// The process on a slot.
    #[must_use]
    pub fn pid(&self, slot: u32) -> Option<u32> {
        self.workers.get(&slot).map(|worker| worker.process.id())
    }

    /// Tells a worker what to do. One that is gone hears nothing; that it is gone is told by [`Pool::next`].
    pub fn tell(&mut self, slot: u32, command: &Command) -> Result<(), Error> {
        let connection = self.workers.get_mut(&slot).and_then(|worker| worker.connection.as_mut());
        match connection.map(|(speaker, _)| speaker.say(command)) {
            Some(Err(Error::Io { .. }) | Ok(())) | None => Ok(()),
            Some(Err(error)) => Err(error),
        }
    }

    /// The next thing that happens; none if nothing does in time.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Told>, Error> {
        if !self.early.is_empty() {
            return Ok(Some(self.early.remove(0)));
        }
        let mut timeout = timeout;
        loop {
            match self.told.recv_timeout(timeout) {
                Ok(from) => {
                    if let Some(told) = self.take_in(from)? {
                        return Ok(Some(told));
                    }
                    timeout = Duration::ZERO;
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Protocol("the thread that listens to workers has ended".to_owned()));
                }
            }
        }
    }

    /// What a process says that was replaced is not worth telling.
    fn take_in(&mut self, from: FromWorker) -> Result<Option<Told>, Error> {
        let known = |pool: &Self, slot, pid| pool.pid(slot) == Some(pid);
        Ok(match from {
            FromWorker::Hello { version, slot, .. } if version != VERSION => {
                return Err(Error::Protocol(format!(
                    "worker {slot} speaks version {version} of the protocol, this program {VERSION}: \
                     they must be the same program"
                )));
            }
            FromWorker::Hello { slot, pid, store, speaker, .. } => {
                if let Some(worker) = self.workers.get_mut(&slot).filter(|worker| worker.process.id() == pid)
                {
                    worker.connection = Some((speaker, store));
                }
                None
            }
            FromWorker::Event { slot, pid, event } => {
                known(self, slot, pid).then_some(Told::Event(slot, event))
            }
            FromWorker::Gone { slot, pid } if known(self, slot, pid) => {
                if let Some(mut worker) = self.workers.remove(&slot) {
                    // It may only have closed its socket.
                    let _ = worker.process.kill();
                    worker.process.wait().map_err(Error::io("waiting for a dead worker"))?;
                }
                Some(Told::Gone(slot))
            }
            FromWorker::Gone { .. } => None,
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            // Gone already, if this fails.
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

/// Lets workers in, each on a thread that listens to it.
fn accept(listener: &UnixListener, tell: &Sender<FromWorker>) {
    while let Ok((stream, _)) = listener.accept() {
        let tell = tell.clone();
        let Ok((speaker, listener)) = link::split(stream) else { continue };
        let listen = move || listen(speaker, listener, &tell);
        // A worker that nobody listens to will be missed by whoever waits for its hello.
        let _ = thread::Builder::new().name("worker link".to_owned()).spawn(listen);
    }
}

fn listen(speaker: Speaker, mut listener: Listener, tell: &Sender<FromWorker>) {
    let Ok(Some(Event::Hello { version, slot, pid, store })) = listener.hear() else { return };
    let mut open = tell.send(FromWorker::Hello { slot, pid, version, store, speaker }).is_ok();
    while open && let Ok(Some(event)) = listener.hear() {
        open = tell.send(FromWorker::Event { slot, pid, event }).is_ok();
    }
    // Nobody is interested any more, if this fails.
    let _ = tell.send(FromWorker::Gone { slot, pid });
}
