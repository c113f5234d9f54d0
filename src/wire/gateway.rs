//! The head's side: where workers attach.

use std::{
    fmt, fs, io,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    net::{TcpListener, UnixListener},
    runtime::Handle,
    sync::{
        mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender},
        oneshot, watch,
    },
    time::{sleep, timeout},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{
    Address, Error, Hello, KEEP_ALIVE, LARGEST, PATIENCE, SECRET, Secret, VERSION,
    admission::{Connection, Io, PROVE_WITHIN, Strangers, Visit},
    convert,
    proto::{
        self,
        head_server::{Head, HeadServer},
    },
    socket,
};
use crate::{
    ids::SlotId,
    trials::group::{WorkerCommand, WorkerEvent},
};

/// How many messages may wait to be received. Beyond that, workers wait.
const WAITING: usize = 1024;
/// How many calls one connection may have: a worker has one.
const CALLS: u32 = 4;
/// When to try again to accept a connection if that fails: for want of file descriptors, most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// One connection of a worker. No two of a gateway have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a gateway receives.
///
/// Of each worker first that it joined, then its events, in this order, and in the end exactly once that it is gone.
#[derive(Debug)]
pub enum GatewayEvent {
    /// A worker has come.
    Joined {
        /// Its connection.
        worker: WorkerId,
        /// Its first message.
        hello: Hello,
        /// Sends it commands.
        handle: WorkerHandle,
    },
    /// Something has happened at a worker.
    Event {
        /// Its connection.
        worker: WorkerId,
        /// What happened.
        event: WorkerEvent,
    },
    /// A worker has ended, died, or become silent.
    Lost {
        /// Its connection.
        worker: WorkerId,
    },
    /// A worker was refused, or sent an invalid message and is about to be gone.
    Refused {
        /// The slot that it claimed to be on, if it got so far.
        slot: Option<SlotId>,
        /// Why, as the worker was answered.
        reason: String,
    },
}

/// Sends commands to a worker. When all handles of a worker are dropped, its stream ends, and so does the worker.
#[derive(Debug, Clone)]
pub struct WorkerHandle(UnboundedSender<WorkerCommand>);

impl WorkerHandle {
    /// Sends a command, without waiting. To a worker that is gone it is lost; [`GatewayEvent::Lost`] reports that.
    pub fn send(&self, command: WorkerCommand) {
        let _ = self.0.send(command);
    }
}

/// Lets workers in, for as long as it lives.
///
/// ```
/// use pollux_tune::ids::{NodeId, SlotId, TrialId};
/// use pollux_tune::trials::group::{FinalState, WorkerCommand};
/// use pollux_tune::internal::wire::{self, Gateway, GatewayEvent, Hello, Secret, VERSION};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let secret = Secret::random()?;
/// let (gateway, mut events) = Gateway::open(&"127.0.0.1:0".parse()?, &secret)?;
/// let hello = Hello { version: VERSION, slot: SlotId { node: NodeId(0), index: 3 }, pid: 1 };
/// let (_events, mut commands) = wire::attach(gateway.address(), &secret, hello).await?;
///
/// let Some(GatewayEvent::Joined { hello, handle, .. }) = events.recv().await else { panic!("no worker") };
/// assert_eq!(hello.slot.index, 3);
/// let release = WorkerCommand::Release { trial: TrialId(7), state: FinalState::Discarded };
/// handle.send(release.clone());
/// assert_eq!(commands.recv().await, Some(release));
/// # Ok::<(), wire::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gateway {
    address: Address,
    /// Closed when the gateway is dropped: everything else ends then.
    _open: watch::Sender<()>,
}

impl Gateway {
    /// Listens at an address, inside a tokio runtime. Events have to be received: workers wait for that.
    pub fn open(address: &Address, secret: &Secret) -> Result<(Self, Receiver<GatewayEvent>), Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (events, received) = mpsc::channel(WAITING);
        let (open, closed) = watch::channel(());
        let listens = |address: &Address| {
            let address = address.clone();
            |source: io::Error| Error::Listen { address, source }
        };
        let (listener, address) = match address {
            Address::Unix(path) => {
                let (listener, path) = socket::unix(path)?;
                let listener = UnixListener::from_std(listener).map_err(listens(address))?;
                (Listener::Unix(listener), Address::Unix(path))
            }
            Address::Tcp(asked) => {
                socket::check_loopback(*asked)?;
                let (listener, got) = socket::tcp(*asked)?;
                let listener = TcpListener::from_std(listener).map_err(listens(address))?;
                (Listener::Tcp(listener), Address::Tcp(got))
            }
        };
        let (accepted, incoming) = mpsc::channel(1);
        runtime.spawn(accept(listener, accepted, closed.clone()));
        let is_over = until(closed.clone());
        let service = HeadService { secret: secret.clone(), events, closed, next: AtomicU64::new(0) };
        let service = HeadServer::new(service).max_decoding_message_size(LARGEST);
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(PATIENCE));
        let incoming = ReceiverStream::new(incoming);
        runtime.spawn(server.serve_with_incoming_shutdown(service, incoming, is_over));
        Ok((Self { address, _open: open }, received))
    }

    /// Where it listens: with the port that it got, if it was asked for any.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Somebody may have tidied up already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Waits until the gateway is dropped.
pub(super) async fn until(mut closed: watch::Receiver<()>) {
    // Nothing is ever sent; an error is the end.
    while closed.changed().await.is_ok() {}
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// The next connection; none if it comes from another user.
    async fn accept(&self) -> io::Result<Option<Box<dyn Io>>> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(socket::same_user(&stream).is_ok().then(|| Box::new(stream) as _))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Only makes it slower, if it fails.
                let _ = stream.set_nodelay(true);
                Ok(Some(Box::new(stream)))
            }
        }
    }
}

/// Accepts connections until the gateway is closed. Whatever goes wrong with one of them, the next one is awaited.
async fn accept(
    listener: Listener,
    accepted: Sender<io::Result<Connection>>,
    mut closed: watch::Receiver<()>,
) {
    let strangers = Strangers::default();
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            // Nothing is ever sent; an error is the end.
            _ = closed.changed() => return,
        };
        match connection {
            Ok(Some(stream)) => {
                if accepted.send(Ok(Connection::new(stream, &strangers))).await.is_err() {
                    return;
                }
            }
            Ok(None) => tracing::warn!("a process of another user tried to attach as a worker"),
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Admits or refuses workers.
struct HeadService {
    secret: Secret,
    events: Sender<GatewayEvent>,
    closed: watch::Receiver<()>,
    next: AtomicU64,
}

impl HeadService {
    /// Tells both sides.
    fn refuse(&self, slot: Option<SlotId>, status: Status) -> Status {
        let reason = status.message().to_owned();
        // Without a head nobody is interested. Nobody waits for that either: strangers must not fill what workers need.
        let _ = self.events.try_send(GatewayEvent::Refused { slot, reason });
        status
    }
}

#[tonic::async_trait]
impl Head for HeadService {
    type AttachStream = CommandStream;

    async fn attach(
        &self,
        request: Request<Streaming<proto::Event>>,
    ) -> Result<Response<CommandStream>, Status> {
        let knows = request.metadata().get(SECRET).is_some_and(|given| self.secret.is(given.as_bytes()));
        if !knows {
            let reason = "a worker attached with another secret: it belongs to another study, or to an earlier run of it";
            return Err(self.refuse(None, Status::unauthenticated(reason)));
        }
        let visit = request.extensions().get::<Visit>().cloned();
        let mut upward = request.into_inner();
        let first = timeout(PROVE_WITHIN, upward.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello in time"))??;
        // Who goes without a message needs no answer.
        let first = first.ok_or_else(|| Status::cancelled("no hello"))?;
        let hello = match convert::hello(&first) {
            Ok(hello) => hello,
            Err(error) => return Err(self.refuse(None, Status::invalid_argument(error.to_string()))),
        };
        if hello.version != VERSION {
            let reason = format!(
                "the worker of slot {} uses version {} of the protocol, the head uses {VERSION}: they must be the same program",
                hello.slot, hello.version
            );
            return Err(self.refuse(Some(hello.slot), Status::failed_precondition(reason)));
        }
        if let Some(visit) = visit {
            visit.admit();
        }
        let (sender, commands) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let worker = WorkerId(self.next.fetch_add(1, Ordering::Relaxed));
        let attached = Attached { worker, slot: hello.slot, upward, events: self.events.clone() };
        let joined = GatewayEvent::Joined { worker, hello, handle: WorkerHandle(sender) };
        // A task of its own, so that the end is reported whatever becomes of this call.
        tokio::spawn(attached.listen(joined, end, self.closed.clone()));
        Ok(Response::new(CommandStream { commands, ended: Some(ended) }))
    }
}

/// A worker that was let in.
struct Attached {
    worker: WorkerId,
    slot: SlotId,
    upward: Streaming<proto::Event>,
    events: Sender<GatewayEvent>,
}

impl Attached {
    /// Passes on the events of a worker until it has ended, the gateway is closed, or nobody listens.
    async fn listen(
        mut self,
        joined: GatewayEvent,
        end: oneshot::Sender<Status>,
        closed: watch::Receiver<()>,
    ) {
        let refused = tokio::select! {
            refused = self.pass_on(joined) => refused,
            () = until(closed) => None,
        };
        let Self { worker, slot, events, .. } = self;
        if let Some(error) = refused {
            let reason = error.to_string();
            // As below. The worker may have gone already.
            let _ = end.send(Status::invalid_argument(reason.clone()));
            let _ = events.send(GatewayEvent::Refused { slot: Some(slot), reason }).await;
        } else {
            drop(end);
        }
        // Without a head nobody is interested.
        let _ = events.send(GatewayEvent::Lost { worker }).await;
    }

    /// Until there is no more, or a message is invalid.
    async fn pass_on(&mut self, joined: GatewayEvent) -> Option<Error> {
        let worker = self.worker;
        let mut open = self.events.send(joined).await.is_ok();
        // A broken connection is an end as any other.
        while open && let Ok(Some(event)) = self.upward.message().await {
            match WorkerEvent::try_from(event) {
                Ok(event) => open = self.events.send(GatewayEvent::Event { worker, event }).await.is_ok(),
                Err(error) => return Some(error),
            }
        }
        None
    }
}

/// Commands to a worker, until all handles are dropped or the worker has no more events.
struct CommandStream {
    commands: UnboundedReceiver<WorkerCommand>,
    ended: Option<oneshot::Receiver<Status>>,
}

impl Stream for CommandStream {
    type Item = Result<proto::Command, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        let Some(ended) = &mut self.ended else { return Poll::Ready(None) };
        if let Poll::Ready(why) = Pin::new(ended).poll(context) {
            self.ended = None;
            return Poll::Ready(why.ok().map(Err));
        }
        self.commands.poll_recv(context).map(|command| command.map(|command| Ok(command.into())))
    }
}
