//! What an agent can call at its head.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender, UnboundedReceiver},
        oneshot, watch,
    },
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    AgentGatewayEvent, AgentId, CheckpointFolders, TOKEN,
    connection::{Guest, Presence},
    transfer::{self, PartStream},
};
use crate::{
    trials::agent::{AgentCommand, AgentEvent, AgentHello, HEARTBEAT, LEASE},
    wire::{
        Error, Secret,
        admission::PROVE_WITHIN,
        build,
        convert_agent::{Said, agent_hello},
        gateway::until,
        proto::{self, agent_head_server::AgentHead},
    },
};

/// How many events of an agent are read ahead of whoever receives them, so that a head that is busy still hears that the agent is there.
const AHEAD: usize = 1 << 14;
/// How long an agent may take to hear the last words of its head.
const CLOSING: Duration = Duration::from_secs(5);

/// Admits or refuses agents.
pub(super) struct AgentService {
    token: Secret,
    events: Sender<AgentGatewayEvent>,
    closed: watch::Receiver<()>,
    next: AtomicU64,
    checkpoints: Arc<dyn CheckpointFolders>,
}

impl AgentService {
    pub(super) fn new(
        token: Secret,
        events: Sender<AgentGatewayEvent>,
        closed: watch::Receiver<()>,
        checkpoints: Arc<dyn CheckpointFolders>,
    ) -> Self {
        Self { token, events, closed, next: AtomicU64::new(0), checkpoints }
    }

    /// Tells both sides.
    fn refuse(&self, name: &str, status: Status) -> Status {
        let (name, reason) = (name.to_owned(), status.message().to_owned());
        // Without a head nobody is interested. Nobody waits for that either: strangers must not fill what agents need.
        let _ = self.events.try_send(AgentGatewayEvent::Refused { name, reason });
        status
    }

    fn check_token<T>(&self, request: &Request<T>, guest: &Guest) -> Result<(), Status> {
        let problem = match request.metadata().get(TOKEN) {
            Some(given) if self.token.is(given.as_bytes()) => return Ok(()),
            Some(_) => {
                "it has another token: its join file is that of another study, or of an earlier state of the folder `cluster` of this one; get the present join file of the study"
            }
            None => "it has no token; start it with the join file of the study",
        };
        Err(self.refuse(&guest.peer, Status::unauthenticated(problem)))
    }

    /// The first message of an agent that is of the same build.
    async fn hello(
        &self,
        upward: &mut Streaming<proto::AgentEvent>,
        guest: &Guest,
    ) -> Result<AgentHello, Status> {
        let first = timeout(PROVE_WITHIN, upward.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello in time"))??;
        // Who goes without a message needs no answer.
        let first = first.ok_or_else(|| Status::cancelled("no hello"))?;
        let theirs = match &first.kind {
            Some(proto::agent_event::Kind::Hello(hello)) => Some((hello.build.clone(), hello.name.clone())),
            _ => None,
        };
        // Before the rest of it, which another build may write in another way.
        if let Some((theirs, name)) = theirs.filter(|(theirs, _)| theirs != build()) {
            let reason = format!(
                "the agent is another program than its head: it is {theirs}, the head is {}; start the agent from the file that \
                 the head runs, or from a copy of it",
                build()
            );
            return Err(self.refuse(&name, Status::failed_precondition(reason)));
        }
        agent_hello(first)
            .map_err(|error| self.refuse(&guest.peer, Status::invalid_argument(error.to_string())))
    }
}

/// Who calls.
fn guest<T>(request: &Request<T>) -> Result<Guest, Status> {
    request.extensions().get().cloned().ok_or_else(|| Status::internal("a call without a connection"))
}

/// That the call is of an agent that was let in, and is still here.
fn check_joined<T>(request: &Request<T>) -> Result<(), Status> {
    match guest(request)?.presence() {
        Presence::Joined => Ok(()),
        Presence::Stranger => Err(Status::unauthenticated("an agent has to join first")),
        Presence::Gone => Err(Status::unavailable("the agent has left")),
    }
}

#[tonic::async_trait]
impl AgentHead for AgentService {
    type JoinStream = CommandStream;
    type DownloadStream = PartStream;

    async fn join(
        &self,
        request: Request<Streaming<proto::AgentEvent>>,
    ) -> Result<Response<CommandStream>, Status> {
        let guest = guest(&request)?;
        self.check_token(&request, &guest)?;
        let mut upward = request.into_inner();
        let hello = self.hello(&mut upward, &guest).await?;
        if !guest.join() {
            let reason = "an agent has joined on this connection already";
            return Err(self.refuse(&hello.name, Status::failed_precondition(reason)));
        }
        let (sender, commands) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let agent = AgentId(self.next.fetch_add(1, Ordering::Relaxed));
        let heard = Arc::new(AtomicU64::new(0));
        let name = hello.name.clone();
        let member = Member { agent, name, guest, heard: heard.clone(), events: self.events.clone() };
        let joined = AgentGatewayEvent::Joined { agent, hello, commands: sender };
        // A task of its own, so that the end is reported whatever becomes of this call.
        tokio::spawn(member.listen(upward, joined, end, self.closed.clone()));
        Ok(Response::new(CommandStream { commands, heartbeat: heartbeat(), heard, ended: Some(ended) }))
    }

    async fn upload(
        &self,
        request: Request<Streaming<proto::UploadPart>>,
    ) -> Result<Response<proto::UploadDone>, Status> {
        check_joined(&request)?;
        transfer::receive(self.checkpoints.clone(), request.into_inner()).await?;
        Ok(Response::new(proto::UploadDone {}))
    }

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<proto::CheckpointList>, Status> {
        check_joined(&request)?;
        let files = transfer::list(self.checkpoints.clone(), request.into_inner()).await?;
        Ok(Response::new(proto::CheckpointList { files }))
    }

    async fn download(
        &self,
        request: Request<proto::DownloadRequest>,
    ) -> Result<Response<PartStream>, Status> {
        check_joined(&request)?;
        let parts = transfer::send(self.checkpoints.clone(), request.into_inner()).await?;
        Ok(Response::new(parts))
    }
}

/// When to say again that one is there.
pub(super) fn heartbeat() -> Interval {
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat
}

/// Why an agent is lost.
enum Loss {
    Left,
    Broken(String),
    Silent,
    Invalid(Error),
    /// On this side: the gateway is closed, or nobody receives what it hears.
    Unheard,
}

/// An agent that was let in.
struct Member {
    agent: AgentId,
    name: String,
    guest: Guest,
    /// By the clock of the agent.
    heard: Arc<AtomicU64>,
    events: Sender<AgentGatewayEvent>,
}

impl Member {
    /// Passes on the events of an agent until it is lost, the gateway is closed, or nobody listens.
    async fn listen(
        self,
        upward: Streaming<proto::AgentEvent>,
        joined: AgentGatewayEvent,
        end: oneshot::Sender<Status>,
        closed: watch::Receiver<()>,
    ) {
        let (ahead, queued) = mpsc::channel(AHEAD);
        let both = async { tokio::join!(self.read(upward, ahead), self.pass_on(joined, queued)).0 };
        let loss = tokio::select! {
            loss = both => loss,
            () = until(closed) => Loss::Unheard,
        };
        self.guest.leave();
        let Self { agent, name, guest, events, .. } = self;
        let is_silent = matches!(loss, Loss::Silent);
        match &loss {
            // The agent may have gone already.
            Loss::Invalid(error) => drop(end.send(Status::invalid_argument(error.to_string()))),
            _ => drop(end),
        }
        let reason = match loss {
            Loss::Left => "it has left".to_owned(),
            Loss::Broken(how) => format!("its connection has ended: {how}"),
            Loss::Silent => format!("nothing was heard of it for {} s", LEASE.as_secs()),
            Loss::Unheard => "the head has ended the connection".to_owned(),
            Loss::Invalid(error) => {
                let reason = error.to_string();
                let _ = events.send(AgentGatewayEvent::Refused { name, reason: reason.clone() }).await;
                format!("it has sent an invalid message: {reason}")
            }
        };
        // Without a head nobody is interested.
        let _ = events.send(AgentGatewayEvent::Lost { agent, reason }).await;
        if !is_silent {
            sleep(CLOSING).await;
        }
        guest.cut();
    }

    /// Reads what the agent says until there is no more.
    async fn read(&self, mut upward: Streaming<proto::AgentEvent>, ahead: Sender<AgentEvent>) -> Loss {
        loop {
            let message = tokio::select! {
                message = timeout(LEASE, upward.message()) => message,
                () = ahead.closed() => return Loss::Unheard,
            };
            let said = match message {
                Err(_) => return Loss::Silent,
                Ok(Err(status)) => return Loss::Broken(status.message().to_owned()),
                Ok(Ok(None)) => return Loss::Left,
                Ok(Ok(Some(event))) => Said::try_from(event),
            };
            match said {
                Ok(Said::Heartbeat { at_ms }) => self.heard.store(at_ms, Ordering::Relaxed),
                Ok(Said::Message(event)) => {
                    if ahead.send(event).await.is_err() {
                        return Loss::Unheard;
                    }
                }
                Err(error) => return Loss::Invalid(error),
            }
        }
    }

    /// Until there is no more, or nobody receives it.
    async fn pass_on(&self, joined: AgentGatewayEvent, mut queued: Receiver<AgentEvent>) {
        let agent = self.agent;
        let mut open = self.events.send(joined).await.is_ok();
        while open && let Some(event) = queued.recv().await {
            open = self.events.send(AgentGatewayEvent::Event { agent, event }).await.is_ok();
        }
    }
}

/// Commands to an agent, until all senders are dropped or the agent is lost.
pub(super) struct CommandStream {
    commands: UnboundedReceiver<AgentCommand>,
    heartbeat: Interval,
    heard: Arc<AtomicU64>,
    ended: Option<oneshot::Receiver<Status>>,
}

impl Stream for CommandStream {
    type Item = Result<proto::AgentCommand, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        let Some(ended) = &mut self.ended else { return Poll::Ready(None) };
        if let Poll::Ready(why) = Pin::new(ended).poll(context) {
            self.ended = None;
            return Poll::Ready(why.ok().map(Err));
        }
        // First, so that no number of commands keeps it back.
        if self.heartbeat.poll_tick(context).is_ready() {
            let at_ms = self.heard.load(Ordering::Relaxed);
            return Poll::Ready(Some(Ok(Said::<AgentCommand>::Heartbeat { at_ms }.into())));
        }
        self.commands.poll_recv(context).map(|command| Some(Ok(Said::Message(command?).into())))
    }
}
