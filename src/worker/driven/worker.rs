//! A worker process whose main thread trains.

use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Instant,
};

use rustix::process::Signal;
use tokio::{runtime::Builder, sync::mpsc::UnboundedReceiver};

use super::{
    Answer, GroupRequest, Request,
    backend::{Attention, Channels, DrivenBackend},
};
use crate::{
    ids::SlotId,
    trials::group::{WorkerCommand, WorkerEvent},
    wire::{self, Hello, Secret, VERSION},
    worker::{
        Error,
        abort::Aborts,
        host::{HostedTrial, end_by_second_signal, receive, take_slot},
        launch::Place,
        protocol::Worker,
        rendezvous::Rendezvous,
    },
};

/// A worker process, for the thread that trains.
pub struct DrivenWorker {
    requests: Mutex<Receiver<Request>>,
    answers: Sender<Answer>,
    attention: Arc<Attention>,
    aborts: Aborts,
    slot: SlotId,
    host: String,
    threads: u32,
    is_gpu: bool,
}

impl DrivenWorker {
    /// If this process was started as a worker, attaches it to its head. It waits until the worker before it on its slot has ended.
    pub fn attach() -> Result<Option<Self>, Error> {
        let Some(place) = Place::of_this_process()? else { return Ok(None) };
        end_by_second_signal()?;
        let slot = place.lock.as_deref().map(take_slot).transpose()?;
        let rendezvous = Rendezvous::host(place.machine_address, &place.secret)?;
        let hello = Hello { version: VERSION, slot: place.slot, pid: process::id() };
        let (events, commands) = wire::attach_blocking(&place.address, &place.secret, hello)?;
        let (aborts, hosted, attention) =
            (Aborts::default(), HostedTrial::default(), Arc::new(Attention::new()));
        let noticed = attention.clone();
        let notice = move || noticed.want();
        let commands = receive(commands, events.clone(), aborts.clone(), hosted.clone(), notice, end)?;
        let send = move |event: WorkerEvent| events.send(&event);
        let started = Self::start(place.slot, rendezvous, (aborts, hosted, attention), commands, send, slot)?;
        Ok(Some(Self { threads: place.threads, is_gpu: place.is_gpu, ..started }))
    }

    /// Runs the protocol on a thread of its own, which holds on to `keep` until its end.
    pub(super) fn start(
        slot: SlotId,
        rendezvous: Rendezvous,
        (aborts, hosted, attention): (Aborts, HostedTrial, Arc<Attention>),
        commands: UnboundedReceiver<WorkerCommand>,
        send: impl Fn(WorkerEvent) + Send + 'static,
        keep: impl Send + 'static,
    ) -> Result<Self, Error> {
        let (requests, asked) = mpsc::channel();
        let (answers, answered) = mpsc::channel();
        let host = host_of(rendezvous.address()).to_owned();
        let channels = Arc::new(Channels { requests, answers: Mutex::new(answered) });
        let backend = DrivenBackend {
            channels,
            rendezvous,
            aborts: aborts.clone(),
            hosted,
            attention: attention.clone(),
            started: Instant::now(),
        };
        // Nothing but the next command is ever awaited: training blocks.
        let runtime = Builder::new_current_thread().build().map_err(Error::io("starting a runtime"))?;
        let run = move || {
            runtime.block_on(Worker::new(slot, backend, commands, send).run());
            drop(keep);
        };
        let thread = thread::Builder::new().name("protocol".to_owned()).spawn(run);
        thread.map_err(Error::io("starting the thread of the protocol"))?;
        let requests = Mutex::new(asked);
        Ok(Self { requests, answers, attention, aborts, slot, host, threads: 1, is_gpu: false })
    }

    /// Waits for what is to be done next; none when the head is gone, and the process may end.
    pub fn next(&self) -> Option<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// Answers the last request.
    pub fn answer(&self, answer: Answer) {
        // Without a protocol the next request says so.
        let _ = self.answers.send(answer);
    }

    /// Whether another step may be taken before [`Request::Train`] is answered.
    #[must_use]
    pub fn may_continue(&self) -> bool {
        self.attention.is_free()
    }

    /// How to abort a group that was formed: called on another thread, if it is broken while this one waits for its members.
    pub fn on_abort(&self, group: &GroupRequest, abort: impl Fn() + Send + 'static) {
        self.aborts.register(&group.form, Box::new(abort));
    }

    /// The slot of this worker.
    #[must_use]
    pub const fn slot(&self) -> SlotId {
        self.slot
    }

    /// The address of this machine for the other members of a group.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Threads that this worker may compute with.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.threads
    }

    /// Whether it has a GPU: then it sees one only.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    /// A random number of 128 bits by which a member of a group shows that it is one.
    pub fn token() -> Result<String, Error> {
        Ok(Secret::random()?.reveal().to_owned())
    }
}

/// The host of `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Ends the process from whichever thread: what an interpreter would do at its end has to wait for the thread that trains.
fn end(_code: i32) {
    // It cannot fail for the process itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}
