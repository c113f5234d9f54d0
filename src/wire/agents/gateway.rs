//! The head's side: where agents join.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{
        mpsc::{self, Receiver, Sender, UnboundedSender},
        watch,
    },
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use super::{
    CALL_WINDOW, CALLS, CONNECTION_WINDOW, CheckpointFolders, connection::Connection, service::AgentService,
};
use crate::{
    trials::agent::{AgentCommand, AgentEvent, AgentHello},
    wire::{
        Address, Error, HeadIdentity, LARGEST,
        admission::{Io, Strangers},
        gateway::until,
        proto::agent_head_server::AgentHeadServer,
        socket, tls,
    },
};

/// How many messages may wait to be received.
const WAITING: usize = 1024;
/// When to try again to accept a connection if that fails: for want of file descriptors, most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// One connection of an agent. No two of a gateway have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub(super) u64);

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
impl AgentId {
    /// One without a gateway.
    pub(crate) const fn detached(number: u64) -> Self {
        Self(number)
    }
}

/// What a gateway for agents receives.
///
/// Of each agent first that it joined, then its events, in this order, and in the end exactly once that it is lost.
#[derive(Debug)]
pub enum AgentGatewayEvent {
    /// An agent has come.
    Joined {
        /// Its connection.
        agent: AgentId,
        /// Its first message.
        hello: AgentHello,
        /// Sends it commands, without waiting; to an agent that is gone they are lost. When all senders are dropped, its connection ends.
        commands: UnboundedSender<AgentCommand>,
    },
    /// Something has happened at an agent.
    Event {
        /// Its connection.
        agent: AgentId,
        /// What happened.
        event: AgentEvent,
    },
    /// An agent has left, died, or become silent.
    Lost {
        /// Its connection.
        agent: AgentId,
        /// How, for people.
        reason: String,
    },
    /// Somebody was refused, or has sent an invalid message and is about to be lost.
    Refused {
        /// The name that it gave itself, or its address if it did not get so far.
        name: String,
        /// Why. An agent was answered the same.
        reason: String,
    },
}

/// Lets agents in, over TLS, for as long as it lives.
#[derive(Debug)]
pub struct AgentGateway {
    address: SocketAddr,
    /// Closed when the gateway is dropped: everything else ends then.
    _open: watch::Sender<()>,
}

impl AgentGateway {
    /// Listens at an address, inside a tokio runtime. Events have to be received.
    pub fn open(
        listen: SocketAddr,
        identity: &HeadIdentity,
        checkpoints: Arc<dyn CheckpointFolders>,
    ) -> Result<(Self, Receiver<AgentGatewayEvent>), Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (listener, address) = socket::tcp(listen)?;
        let failed = |source| Error::Listen { address: Address::Tcp(address), source };
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let (open, closed) = watch::channel(());
        let (events, received) = mpsc::channel(WAITING);
        let door = Door::open(&runtime, identity, checkpoints, events, closed.clone());
        runtime.spawn(accept(listener, door, closed));
        Ok((Self { address, _open: open }, received))
    }

    /// Where it listens: with the port that it got, if it was asked for any.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Accepts connections until the gateway is closed. Whatever goes wrong with one of them, the next one is awaited.
async fn accept(listener: TcpListener, door: Door, closed: watch::Receiver<()>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until(closed.clone()) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Only makes it slower, if it fails.
                let _ = stream.set_nodelay(true);
                door.knock(Box::new(stream), peer.to_string());
            }
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Where connections come in.
#[derive(Clone)]
pub(super) struct Door {
    tls: TlsAcceptor,
    strangers: Strangers,
    accepted: Sender<io::Result<Connection>>,
    events: Sender<AgentGatewayEvent>,
}

impl Door {
    /// Serves those who come in until the gateway is closed.
    pub(super) fn open(
        runtime: &Handle,
        identity: &HeadIdentity,
        checkpoints: Arc<dyn CheckpointFolders>,
        events: Sender<AgentGatewayEvent>,
        closed: watch::Receiver<()>,
    ) -> Self {
        let (accepted, incoming) = mpsc::channel(1);
        let is_over = until(closed.clone());
        let service = AgentService::new(identity.token.clone(), events.clone(), closed, checkpoints);
        let service = AgentHeadServer::new(service).max_decoding_message_size(LARGEST);
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        runtime.spawn(server.serve_with_incoming_shutdown(service, ReceiverStream::new(incoming), is_over));
        let strangers = Strangers::default();
        Self { tls: TlsAcceptor::from(identity.tls.clone()), strangers, accepted, events }
    }

    /// Somebody has come. Nobody waits for it: it has its own time to prove who it is.
    pub(super) fn knock(&self, stream: Box<dyn Io>, peer: String) {
        let Self { tls, strangers, accepted, events } = self.clone();
        let mut stranger = strangers.enter();
        tokio::spawn(async move {
            let secured = tokio::select! {
                secured = tls.accept(stream) => secured,
                () = &mut stranger => return,
                // The gateway is closed.
                () = accepted.closed() => return,
            };
            match secured {
                Ok(stream) => {
                    let connection = Connection::of_stranger(Box::new(stream), &peer, stranger);
                    let _ = accepted.send(Ok(connection)).await;
                }
                Err(error) => {
                    if let Some(reason) = tls::refusal(&error) {
                        // Nobody waits for that either: strangers must not fill what agents need.
                        let _ = events.try_send(AgentGatewayEvent::Refused { name: peer, reason });
                    }
                }
            }
        });
    }
}
