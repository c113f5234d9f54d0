//! Connections that have yet to prove who they are: how long they may take, and how many there may be.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

/// How long a stranger may stay. A worker needs milliseconds.
pub(crate) const PROVE_WITHIN: Duration = Duration::from_secs(30);
/// How many strangers there may be at once. When another one comes, the one that has been there longest has to go, so whoever
/// needs no time to prove itself gets in, however many others hang around.
pub(crate) const STRANGERS_MAX: usize = 256;

/// The strangers at one door.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strangers(Arc<Mutex<VecDeque<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    visit: Visit,
    /// Dropped to send it away.
    stay: oneshot::Sender<()>,
}

impl Strangers {
    /// Another one has come.
    pub(crate) fn enter(&self) -> Stranger {
        let visit = Visit::default();
        let (stay, sent_away) = oneshot::channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|one| !one.visit.is_admitted() && !one.stay.is_closed());
        waiting.push_back(Waiting { visit: visit.clone(), stay });
        while waiting.len() > STRANGERS_MAX {
            waiting.pop_front();
        }
        drop(waiting);
        Stranger { visit, limit: Box::pin(sleep(PROVE_WITHIN)), sent_away }
    }
}

/// Whether somebody has proved who it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Visit(Arc<AtomicBool>);

impl Visit {
    /// It has: from now on it may stay.
    pub(crate) fn admit(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_admitted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Somebody who may have proved who it is, or not. As a future: the end of its time; none comes for one that was admitted.
#[derive(Debug)]
pub(crate) struct Stranger {
    visit: Visit,
    limit: Pin<Box<Sleep>>,
    sent_away: oneshot::Receiver<()>,
}

impl Stranger {
    pub(crate) fn visit(&self) -> &Visit {
        &self.visit
    }
}

impl Future for Stranger {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if self.visit.is_admitted() {
            return Poll::Pending;
        }
        let late = self.limit.as_mut().poll(context).is_ready();
        if late || Pin::new(&mut self.sent_away).poll(context).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// What a connection can do.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection to a gateway. It breaks when its time is over.
pub(super) struct Connection {
    stream: Box<dyn Io>,
    stranger: Stranger,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Io>, strangers: &Strangers) -> Self {
        Self { stream, stranger: strangers.enter() }
    }
}

impl Connected for Connection {
    type ConnectInfo = Visit;

    fn connect_info(&self) -> Visit {
        self.stranger.visit.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.stranger).poll(context).is_ready() {
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
