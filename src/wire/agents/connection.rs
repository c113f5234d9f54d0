//! One connection between an agent and its head, below HTTP/2.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
};
use tonic::transport::server::Connected;

use crate::wire::admission::{Io, Stranger, Visit};

/// Ends a connection, whoever still uses it.
#[derive(Debug, Clone)]
pub(super) struct Cut(Arc<watch::Sender<bool>>);

impl Cut {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(super) fn cut(&self) {
        self.0.send_replace(true);
    }

    fn is_cut(&self) -> bool {
        *self.0.borrow()
    }

    fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut cut = self.0.subscribe();
        async move {
            // The connection has a sender itself, so there is no error.
            let _ = cut.wait_for(|cut| *cut).await;
        }
    }
}

/// Who is at the other end, as far as a head knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Stranger,
    Joined,
    Gone,
}

/// The other end of a connection, for all calls that are made on it.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    /// Where it calls from.
    pub(super) peer: Arc<str>,
    visit: Visit,
    cut: Cut,
    presence: Arc<Mutex<Presence>>,
}

impl Guest {
    /// Lets an agent in; not twice.
    pub(super) fn join(&self) -> bool {
        let mut presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = *presence == Presence::Stranger;
        if is_first {
            *presence = Presence::Joined;
            self.visit.admit();
        }
        is_first
    }

    /// The agent is gone: nothing more is done for it.
    pub(super) fn leave(&self) {
        *self.presence.lock().unwrap_or_else(PoisonError::into_inner) = Presence::Gone;
    }

    pub(super) fn presence(&self) -> Presence {
        *self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection with all its calls.
    pub(super) fn cut(&self) {
        self.cut.cut();
    }
}

/// A connection that can be cut, and that breaks when the time of a stranger is over.
pub(super) struct Connection {
    stream: Box<dyn Io>,
    /// None at the agent's end.
    stranger: Option<Stranger>,
    guest: Guest,
    until_cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Connection {
    /// The head's end.
    pub(super) fn of_stranger(stream: Box<dyn Io>, peer: &str, stranger: Stranger) -> Self {
        let visit = stranger.visit().clone();
        Self::new(stream, peer, visit, Some(stranger), Cut::new())
    }

    /// The agent's end.
    pub(super) fn to_head(stream: Box<dyn Io>, cut: Cut) -> Self {
        Self::new(stream, "the head", Visit::default(), None, cut)
    }

    fn new(stream: Box<dyn Io>, peer: &str, visit: Visit, stranger: Option<Stranger>, cut: Cut) -> Self {
        let until_cut = Box::pin(cut.wait());
        let presence = Arc::new(Mutex::new(Presence::Stranger));
        Self { stream, stranger, guest: Guest { peer: peer.into(), visit, cut, presence }, until_cut }
    }
}

impl Connected for Connection {
    type ConnectInfo = Guest;

    fn connect_info(&self) -> Guest {
        self.guest.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        if self.guest.cut.is_cut() || self.until_cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(ErrorKind::ConnectionAborted.into()));
        }
        if let Some(stranger) = &mut self.stranger
            && Pin::new(stranger).poll(context).is_ready()
        {
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.guest.cut.is_cut() {
            return Poll::Ready(Err(ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        if self.guest.cut.is_cut() {
            // Nobody listens: a farewell would wait for ever.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
