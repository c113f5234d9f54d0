//! The agent's side: how it gets to its head.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    task::JoinSet,
    time::{Instant, Interval, sleep, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;
use tokio_stream::Stream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Endpoint, Uri},
};
use tower::service_fn;

use super::{
    CALL_WINDOW, CONNECTION_WINDOW, CheckpointTransfer, TOKEN,
    connection::{Connection, Cut},
    service::heartbeat,
};
use crate::{
    trials::agent::{AgentCommand, AgentEvent, AgentHello, FENCE},
    wire::{
        Error, HostPort, JoinFile, LARGEST, Secret,
        admission::Io,
        attach::root,
        convert_agent::Said,
        proto::{self, agent_head_client::AgentHeadClient},
        tls,
    },
};

/// How long it may take to find and to reach a machine, and to agree on a key.
const CONNECTING: Duration = Duration::from_secs(15);
/// How long a head may take to answer the first message.
const ANSWERING: Duration = Duration::from_secs(30);
/// How long the last events may take to be received.
const CLOSING: Duration = Duration::from_secs(10);

/// An agent that was let in.
///
/// What is sent as an event goes up. When all senders are dropped, there is nothing more to say, and the commands end as soon as the head
/// has heard everything. Dropping all of it leaves the head.
#[derive(Debug)]
pub struct AgentConnection {
    /// The way up.
    pub events: UnboundedSender<AgentEvent>,
    /// The way down; when there is no more, the connection has ended.
    pub commands: UnboundedReceiver<AgentCommand>,
    /// Why there are no more commands.
    pub ended: oneshot::Receiver<ConnectionEnd>,
    /// Checkpoints, for as long as the connection lasts.
    pub checkpoints: CheckpointTransfer,
}

/// How the connection of an agent has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEnd {
    /// The head has ended it, or has ended itself.
    Closed,
    /// The head has died, or the network has.
    Broken(String),
    /// The head was not heard for [`FENCE`]: by now it may take this agent for lost.
    Silent,
    /// One side has not understood the other, which cannot be between the same programs.
    Invalid(String),
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the head has ended the connection"),
            Self::Broken(how) => write!(f, "the connection to the head has ended: {how}"),
            Self::Silent => write!(f, "nothing was heard of the head for {} s", FENCE.as_secs()),
            Self::Invalid(how) => write!(f, "a message was not understood: {how}"),
        }
    }
}

/// Joins a head, inside a tokio runtime. [`Error::is_temporary`] tells whether it makes sense to try again.
pub async fn dial(join: &JoinFile, hello: AgentHello) -> Result<AgentConnection, Error> {
    reach(join).await?.join(hello).await
}

/// Connects to the head at whichever of its addresses answers first. It has proved to be that of the join file, and knows nothing yet.
pub async fn reach(join: &JoinFile) -> Result<ReachedHead, Error> {
    if join.addresses.is_empty() {
        return Err(Error::NoAddress);
    }
    let away = |reason: String| Error::HeadAway { reason };
    let config = tls::client(&join.certificate).map_err(|error| away(error.to_string()))?;
    let tls = TlsConnector::from(Arc::new(config));
    let mut tries = JoinSet::new();
    for address in &join.addresses {
        tries.spawn(connect(address.clone(), tls.clone()));
    }
    let (mut reasons, mut other) = (Vec::new(), None);
    while let Some(tried) = tries.join_next().await {
        match tried {
            Ok(Ok((stream, local))) => {
                return Ok(ReachedHead { stream, local, token: join.token.clone() });
            }
            Ok(Err(Error::HeadAway { reason })) => reasons.push(reason),
            Ok(Err(error)) => other = Some(error),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    match other {
        // Not for good while the head may come back somewhere else.
        Some(other) if reasons.is_empty() => Err(other),
        _ => Err(away(reasons.join(", and "))),
    }
}

async fn connect(address: HostPort, tls: TlsConnector) -> Result<(Box<dyn Io>, IpAddr), Error> {
    let away = |how: &str| Error::HeadAway { reason: format!("{address}: {how}") };
    let connecting = async {
        let stream = connect_tcp(&address).await.map_err(|error| away(&error.to_string()))?;
        let local = stream.local_addr().map_err(|error| away(&error.to_string()))?.ip();
        // Only makes it slower, if it fails.
        let _ = stream.set_nodelay(true);
        Ok((secure(&address, &tls, Box::new(stream)).await?, local))
    };
    let late = |_| away(&format!("it does not answer within {} s", CONNECTING.as_secs()));
    timeout(CONNECTING, connecting).await.map_err(late)?
}

/// Any of the machine's addresses.
async fn connect_tcp(address: &HostPort) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for one in lookup_host((address.host(), address.port())).await?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect(one).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Agrees on a key with the head, and with nobody else.
pub(super) async fn secure(
    address: &HostPort,
    tls: &TlsConnector,
    stream: Box<dyn Io>,
) -> Result<Box<dyn Io>, Error> {
    match tls.connect(tls::server_name(), stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if tls::is_other_head(&error) => {
            Err(Error::OtherHead { address: address.clone(), reason: error.to_string() })
        }
        Err(error) => {
            let reason = format!("{address}: whoever listens there is not ready, or no head: {error}");
            Err(Error::HeadAway { reason })
        }
    }
}

/// A connection to a head that has proved who it is, before anything was said.
pub struct ReachedHead {
    stream: Box<dyn Io>,
    local: IpAddr,
    token: Secret,
}

impl fmt::Debug for ReachedHead {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ReachedHead").field("local", &self.local).finish_non_exhaustive()
    }
}

impl ReachedHead {
    #[cfg(test)]
    pub(super) fn detached(stream: Box<dyn Io>, token: &Secret) -> Self {
        Self { stream, local: IpAddr::from([127, 0, 0, 1]), token: token.clone() }
    }

    /// The address of this machine on the way to its head: others that reach the head most likely reach it there, too.
    #[must_use]
    pub const fn local(&self) -> IpAddr {
        self.local
    }

    /// Asks to be let in.
    pub async fn join(self, hello: AgentHello) -> Result<AgentConnection, Error> {
        let Self { stream, token, .. } = self;
        let away = |reason: String| Error::HeadAway { reason };
        let late = |_| away(format!("it does not answer within {} s", ANSWERING.as_secs()));
        let cut = Cut::new();
        let mut stream = Some(TokioIo::new(Connection::to_head(stream, cut.clone())));
        // Once: a connection that has ended is not made again behind the back of the agent.
        let connector = service_fn(move |_: Uri| {
            let stream = stream.take().ok_or_else(|| io::Error::other("the connection has ended"));
            async { stream }
        });
        let endpoint = Endpoint::from_static("http://head")
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let connecting = timeout(ANSWERING, endpoint.connect_with_connector(connector));
        let channel = connecting.await.map_err(late)?.map_err(|error| away(root(&error)))?;
        let mut client = AgentHeadClient::new(channel).max_decoding_message_size(LARGEST);

        let started = Instant::now();
        let (events, said) = mpsc::unbounded_channel();
        let upward = EventStream { hello: Some(hello), said, heartbeat: heartbeat(), started };
        let mut request = Request::new(upward);
        request.metadata_mut().insert(TOKEN, header(&token));
        let answer = timeout(ANSWERING, client.join(request)).await.map_err(late)?;
        let downward = answer.map_err(|status| refused(&status))?.into_inner();

        let (commands, received) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        tokio::spawn(Lease { downward, commands, started, cut }.keep(end));
        let checkpoints = CheckpointTransfer::new(client);
        Ok(AgentConnection { events, commands: received, ended, checkpoints })
    }
}

/// The token as it travels; logs do not show it.
fn header(token: &Secret) -> MetadataValue<Ascii> {
    let mut header =
        MetadataValue::try_from(token.reveal()).expect("hexadecimal digits are fine in a header");
    header.set_sensitive(true);
    header
}

/// What the answer to a call means.
fn refused(status: &Status) -> Error {
    let reason = status.message().to_owned();
    match status.code() {
        Code::Unauthenticated | Code::FailedPrecondition | Code::InvalidArgument => {
            Error::AgentRefused(reason)
        }
        Code::Unimplemented => {
            Error::AgentRefused("the head is of another version; start both from the same file".to_owned())
        }
        _ => Error::HeadAway { reason },
    }
}

/// What an agent says.
struct EventStream {
    /// None after the first message.
    hello: Option<AgentHello>,
    said: UnboundedReceiver<AgentEvent>,
    heartbeat: Interval,
    started: Instant,
}

impl Stream for EventStream {
    type Item = proto::AgentEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello.into()));
        }
        // First, so that no number of events keeps it back.
        if self.heartbeat.poll_tick(context).is_ready() {
            let at_ms = self.started.elapsed().as_millis() as u64;
            return Poll::Ready(Some(Said::<AgentEvent>::Heartbeat { at_ms }.into()));
        }
        self.said.poll_recv(context).map(|event| Some(Said::Message(event?).into()))
    }
}

/// The agent's end of a connection: passes commands on for as long as the head is known to know of the agent.
struct Lease {
    downward: Streaming<proto::AgentCommand>,
    commands: UnboundedSender<AgentCommand>,
    started: Instant,
    cut: Cut,
}

impl Lease {
    async fn keep(mut self, end: oneshot::Sender<ConnectionEnd>) {
        let how = self.listen().await;
        let Self { mut downward, commands, cut, .. } = self;
        let is_orderly = how == ConnectionEnd::Closed;
        if !is_orderly {
            // At once, whoever still uses it.
            cut.cut();
        }
        let _ = end.send(how);
        drop(commands);
        if is_orderly {
            let farewell = async { while let Ok(Some(_)) = downward.message().await {} };
            let _ = timeout(CLOSING, farewell).await;
            // What was said last may still be on its way.
            sleep(CLOSING).await;
            cut.cut();
        }
    }

    async fn listen(&mut self) -> ConnectionEnd {
        // When the agent said what the head has heard last.
        let mut known = self.started;
        loop {
            let message = tokio::select! {
                message = timeout_at(known + FENCE, self.downward.message()) => message,
                // The agent leaves.
                () = self.commands.closed() => return ConnectionEnd::Closed,
            };
            let said = match message {
                Err(_) => return ConnectionEnd::Silent,
                Ok(Ok(None)) => return ConnectionEnd::Closed,
                Ok(Err(status)) if status.code() == Code::InvalidArgument => {
                    return ConnectionEnd::Invalid(status.message().to_owned());
                }
                Ok(Err(status)) => return ConnectionEnd::Broken(status.message().to_owned()),
                Ok(Ok(Some(command))) => Said::try_from(command),
            };
            match said {
                Ok(Said::Heartbeat { at_ms }) => {
                    let heard = self.started.checked_add(Duration::from_millis(at_ms));
                    known = known.max(heard.unwrap_or(known).min(Instant::now()));
                }
                Ok(Said::Message(command)) => {
                    if self.commands.send(command).is_err() {
                        return ConnectionEnd::Closed;
                    }
                }
                Err(error) => return ConnectionEnd::Invalid(error.to_string()),
            }
        }
    }
}
