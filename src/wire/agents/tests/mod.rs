//! Agents and a head in one process, over pipes in memory and in virtual time.

mod lease;
mod messages;
mod refusals;
mod transfers;

use std::{
    env, fs,
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    runtime::Handle,
    sync::{
        mpsc::{self, Receiver, UnboundedSender},
        watch,
    },
};
use tokio_rustls::TlsConnector;

use super::{AgentConnection, AgentGatewayEvent, AgentId, CheckpointFolders, dial::secure, gateway::Door};
use crate::{
    ids::{GpuType, StudyId, TrialId},
    trials::agent::{AgentCommand, AgentHello, AgentNode, AgentSlot},
    wire::{Error, HeadIdentity, ReachedHead, admission::Io, build, tls},
};

/// A folder that is gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-agents-{}-{number}", process::id()));
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const STUDY: StudyId = StudyId(0xfeed);

/// The folders of a study below one; any `.checkpoint` will do.
struct Folders(PathBuf);

impl CheckpointFolders for Folders {
    fn folder(&self, study: StudyId, trial: TrialId) -> Result<PathBuf, String> {
        if study == STUDY { Ok(self.0.join(trial.to_string())) } else { Err("another study".to_owned()) }
    }

    fn is_checkpoint(&self, file: &str) -> bool {
        file.ends_with(".checkpoint")
    }
}

fn hello(name: &str) -> AgentHello {
    let slot = AgentSlot { device: Some("0".to_owned()), memory_bytes: Some(1 << 34), threads: 4 };
    AgentHello {
        build: build().to_owned(),
        incarnation: 7,
        name: name.to_owned(),
        address: None,
        island: "rack 1".to_owned(),
        nodes: vec![AgentNode { gpu_type: GpuType::new("t4").expect("a name"), slots: vec![slot] }],
        ends_in_s: None,
        job: None,
        held: Vec::new(),
    }
}

/// A head without a port.
struct Head {
    identity: HeadIdentity,
    door: Door,
    heard: Receiver<AgentGatewayEvent>,
    open: watch::Sender<()>,
    scratch: Scratch,
}

impl Head {
    fn new() -> Self {
        let scratch = Scratch::new();
        let folders = Folders(scratch.0.join("checkpoints"));
        Self::with(scratch, Arc::new(folders))
    }

    fn with(scratch: Scratch, folders: Arc<dyn CheckpointFolders>) -> Self {
        let identity = HeadIdentity::open(&scratch.0.join("cluster")).expect("an identity");
        let (events, heard) = mpsc::channel(1024);
        let (open, closed) = watch::channel(());
        let door = Door::open(&Handle::current(), &identity, folders, events, closed);
        Self { identity, door, heard, open, scratch }
    }

    /// A way to the head, in plain text.
    fn way(&self) -> (Box<dyn Io>, Way) {
        let (near, far, way) = way();
        self.door.knock(Box::new(far), "a test".to_owned());
        (Box::new(near), way)
    }

    /// A connection that knows the head.
    async fn reached(&self) -> (ReachedHead, Way) {
        let (stream, way) = self.way();
        let stream = self.secured(stream).await.expect("it is the right head");
        (ReachedHead::detached(stream, &self.identity.token), way)
    }

    async fn secured(&self, stream: Box<dyn Io>) -> Result<Box<dyn Io>, Error> {
        let join = self.identity.join_file(STUDY, Vec::new());
        let tls = TlsConnector::from(Arc::new(tls::client(&join.certificate).expect("a certificate")));
        secure(&"head:1".parse().expect("an address"), &tls, stream).await
    }

    /// An agent that has joined, as both sides see it.
    async fn joined(&mut self) -> (AgentConnection, AgentId, UnboundedSender<AgentCommand>, Way) {
        let (reached, way) = self.reached().await;
        let connection = reached.join(hello("gpu1")).await.expect("it is let in");
        let (agent, handle) = self.next_joined().await;
        (connection, agent, handle, way)
    }

    async fn next_joined(&mut self) -> (AgentId, UnboundedSender<AgentCommand>) {
        match self.heard.recv().await {
            Some(AgentGatewayEvent::Joined { agent, commands, hello: said }) => {
                assert_eq!(said, hello(&said.name));
                (agent, commands)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn next_lost(&mut self) -> (AgentId, String) {
        match self.heard.recv().await {
            Some(AgentGatewayEvent::Lost { agent, reason }) => (agent, reason),
            other => panic!("{other:?}"),
        }
    }

    async fn next_refused(&mut self) -> (String, String) {
        match self.heard.recv().await {
            Some(AgentGatewayEvent::Refused { name, reason }) => (name, reason),
            other => panic!("{other:?}"),
        }
    }
}

/// A network between two ends, which may fail in each direction. Nothing is lost then, only late.
struct Way {
    up: watch::Sender<bool>,
    down: watch::Sender<bool>,
}

impl Way {
    fn cut(&self) {
        self.up.send_replace(false);
        self.down.send_replace(false);
    }
}

/// The agent's end, the head's end, and what is between them.
fn way() -> (DuplexStream, DuplexStream, Way) {
    let ((near, near_net), (far_net, far)) = (duplex(1 << 16), duplex(1 << 16));
    let ((near_read, near_write), (far_read, far_write)) = (split(near_net), split(far_net));
    let way = Way { up: watch::Sender::new(true), down: watch::Sender::new(true) };
    tokio::spawn(carry(near_read, far_write, way.up.subscribe()));
    tokio::spawn(carry(far_read, near_write, way.down.subscribe()));
    (near, far, way)
}

async fn carry(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut open: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 1 << 14];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        // Whoever holds the other end of it may be gone: then it stays as it is.
        if open.wait_for(|open| *open).await.is_err() && !*open.borrow() {
            return std::future::pending().await;
        }
        if read == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
