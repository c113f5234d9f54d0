//! The worker's side: how it gets to its head.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc as blocking},
    thread,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    net::UnixStream,
    runtime::Builder,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::timeout,
};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{
    Code, Request, Status, Streaming,
    metadata::MetadataValue,
    transport::{Endpoint, Uri},
};
use tower::service_fn;

use super::{
    Address, Error, Hello, KEEP_ALIVE, LARGEST, PATIENCE, SECRET, Secret,
    proto::{self, head_client::HeadClient},
    socket,
};
use crate::trials::group::{WorkerCommand, WorkerEvent};

/// How long a head may take to accept a connection, and then to answer the first message.
const CONNECTING: Duration = Duration::from_secs(30);
/// How long the last events may take to be received.
const CLOSING: Duration = Duration::from_secs(10);

/// Attaches a worker to its head, inside a tokio runtime.
///
/// What is sent goes up. What is received came down; when there is no more, the head is gone or does not need this worker any
/// longer. Dropping both ends leaves the head.
pub async fn attach(
    address: &Address,
    secret: &Secret,
    hello: Hello,
) -> Result<(UnboundedSender<WorkerEvent>, UnboundedReceiver<WorkerCommand>), Error> {
    let (events, mut downward) = dial(address, secret, hello).await?;
    let (send, commands) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let listen = async {
            while let Ok(Some(command)) = next(&mut downward).await {
                if send.send(command).is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = listen => {}
            () = send.closed() => {}
        }
    });
    Ok((events, commands))
}

async fn dial(
    address: &Address,
    secret: &Secret,
    hello: Hello,
) -> Result<(UnboundedSender<WorkerEvent>, Streaming<proto::Command>), Error> {
    let unreachable = |error: tonic::transport::Error| Error::Unreachable {
        address: address.clone(),
        reason: root(&error),
    };
    let uri = match address {
        Address::Unix(path) => {
            // Before anything is said: whoever listens there gets the secret.
            socket::check_folder(path)?;
            "http://head".to_owned()
        }
        Address::Tcp(address) => {
            socket::check_loopback(*address)?;
            format!("http://{address}")
        }
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(unreachable)?
        .connect_timeout(CONNECTING)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true);
    let channel = match address {
        Address::Unix(path) => {
            let path = path.clone();
            endpoint.connect_with_connector(service_fn(move |_: Uri| connect_unix(path.clone()))).await
        }
        Address::Tcp(_) => endpoint.connect().await,
    };
    let channel = channel.map_err(unreachable)?;
    let (events, sent) = mpsc::unbounded_channel::<WorkerEvent>();
    let upward = tokio_stream::once(proto::Event::from(hello))
        .chain(UnboundedReceiverStream::new(sent).map(proto::Event::from));
    let mut request = Request::new(upward);
    let mut key = MetadataValue::try_from(secret.reveal()).expect("hexadecimal digits are fine in a header");
    key.set_sensitive(true);
    request.metadata_mut().insert(SECRET, key);
    let mut client = HeadClient::new(channel).max_decoding_message_size(LARGEST);
    let refused = |status: Status| match status.code() {
        Code::Unauthenticated | Code::FailedPrecondition | Code::InvalidArgument => {
            Error::Refused(status.message().to_owned())
        }
        _ => Error::Unreachable { address: address.clone(), reason: status.message().to_owned() },
    };
    let silent = |_| Error::Unreachable {
        address: address.clone(),
        reason: format!("it does not answer within {} s", CONNECTING.as_secs()),
    };
    let attached = timeout(CONNECTING, client.attach(request)).await.map_err(silent)?;
    Ok((events, attached.map_err(refused)?.into_inner()))
}

/// Connects to a socket of this user.
async fn connect_unix(path: PathBuf) -> io::Result<TokioIo<UnixStream>> {
    let stream = UnixStream::connect(path).await?;
    socket::same_user(&stream)?;
    Ok(TokioIo::new(stream))
}

/// What is behind a chain of "transport error"s.
pub(super) fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

/// The next command; none when the head is gone.
async fn next(downward: &mut Streaming<proto::Command>) -> Result<Option<WorkerCommand>, Error> {
    match downward.message().await {
        Ok(command) => command.map(WorkerCommand::try_from).transpose(),
        Err(status) if status.code() == Code::InvalidArgument => {
            Err(Error::Refused(status.message().to_owned()))
        }
        // A head that has died closes nothing.
        Err(_) => Ok(None),
    }
}

/// Attaches a worker that has no runtime to its head. A thread of its own keeps the connection.
///
/// Not to be called inside a tokio runtime, where nothing may block.
pub fn attach_blocking(
    address: &Address,
    secret: &Secret,
    hello: Hello,
) -> Result<(EventSender, CommandReceiver), Error> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
    let (events, mut downward) = runtime.block_on(dial(address, secret, hello))?;
    let (send, commands) = blocking::channel();
    let over = Arc::new(ConnectionEnd::default());
    let at_end = over.clone();
    let run = move || {
        runtime.block_on(async {
            while let Some(command) = next(&mut downward).await.transpose() {
                let is_last = command.is_err();
                if send.send(command).is_err() || is_last {
                    break;
                }
            }
        });
        at_end.announce();
    };
    thread::Builder::new().name("head link".to_owned()).spawn(run).map_err(Error::Thread)?;
    Ok((EventSender { events: Arc::new(Mutex::new(Some(events))), over }, CommandReceiver { commands }))
}

/// The way up to the head, for those without a runtime.
#[derive(Clone)]
pub struct EventSender {
    /// None after [`EventSender::close`].
    events: Arc<Mutex<Option<UnboundedSender<WorkerEvent>>>>,
    over: Arc<ConnectionEnd>,
}

impl fmt::Debug for EventSender {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("EventSender").finish_non_exhaustive()
    }
}

impl EventSender {
    /// Sends an event to the head, without waiting. [`CommandReceiver::recv`] reports that the head is gone.
    pub fn send(&self, event: &WorkerEvent) {
        if let Some(events) = &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = events.send(event.clone());
        }
    }

    /// Sends no more, and waits until the head has received everything, but not for ever: for the end of a process.
    pub fn close(&self) {
        drop(self.events.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.over.wait(CLOSING);
    }

    /// Whether it was closed on this side.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// The way down from the head, for those without a runtime.
#[derive(Debug)]
pub struct CommandReceiver {
    commands: blocking::Receiver<Result<WorkerCommand, Error>>,
}

impl CommandReceiver {
    /// Waits for the next command; none when the head is gone or does not need this worker any longer.
    pub fn recv(&mut self) -> Result<Option<WorkerCommand>, Error> {
        self.commands.recv().ok().transpose()
    }
}

/// Whether the connection has ended.
#[derive(Default)]
struct ConnectionEnd {
    is: Mutex<bool>,
    changed: Condvar,
}

impl ConnectionEnd {
    fn announce(&self) {
        *self.is.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self, patience: Duration) {
        let is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever comes out: there is nothing more to be done.
        drop(self.changed.wait_timeout_while(is, patience, |is| !*is));
    }
}
