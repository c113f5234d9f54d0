//! Where agents of other machines join.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::Arc,
};

use actix::Addr;
use tokio::sync::mpsc::Receiver;

use super::{
    agents::{AgentKey, AgentMessage, Agents},
    error::Error,
};
use crate::{
    ids::{StudyId, TrialId},
    store::{self, Folder},
    wire::{
        self, AgentGateway, AgentGatewayEvent, CheckpointFolders, HeadIdentity, HostPort, JoinFile, Secret,
    },
    worker::checkpoint::checkpoint_steps,
};

/// A gateway that nobody has used yet.
pub(super) struct Door {
    gateway: AgentGateway,
    events: Receiver<AgentGatewayEvent>,
    identity: HeadIdentity,
    /// The number of this start of the head.
    pub(super) epoch: u64,
    /// What agents find in the folder if they share it.
    pub(super) probe: String,
}

/// The checkpoints of a study.
struct Checkpoints {
    folder: Folder,
    study: StudyId,
}

impl CheckpointFolders for Checkpoints {
    fn folder(&self, study: StudyId, trial: TrialId) -> Result<PathBuf, String> {
        if study == self.study {
            Ok(self.folder.checkpoint(trial))
        } else {
            Err(format!("this is the head of study {}, not of {study}", self.study))
        }
    }

    fn is_checkpoint(&self, file: &str) -> bool {
        checkpoint_steps(file).is_some()
    }
}

impl Door {
    /// Listens, and writes down what agents need to know.
    pub(super) fn open(listen: SocketAddr, study: StudyId, folder: &Path) -> Result<Self, Error> {
        let folder = Folder::new(folder);
        let identity = HeadIdentity::open(&folder.cluster())?;
        let open = |at: SocketAddr| {
            let checkpoints = Checkpoints { folder: folder.clone(), study };
            AgentGateway::open(at, &identity, Arc::new(checkpoints))
        };
        // Agents that know the port of the last head find this one without a shared folder, too.
        let before = (listen.port() == 0).then(|| last_port(&folder)).flatten();
        let again = before.and_then(|port| open(SocketAddr::new(listen.ip(), port)).ok());
        let (gateway, events) = match again {
            Some(opened) => opened,
            None => open(listen)?,
        };
        let epoch = wire::random_number()?;
        let probe = format!("{epoch:016x}");
        let path = folder.probe();
        fs::write(&path, &probe).map_err(Error::io(format!("writing {}", path.display())))?;
        let join = identity.join_file(study, addresses(gateway.address()));
        join.write(&folder.join_file())?;
        Ok(Self { gateway, events, identity, epoch, probe })
    }

    pub(super) fn secret(&self) -> Secret {
        self.identity.worker_secret(self.epoch)
    }

    /// Where workers of other machines reach those of this one.
    pub(super) fn own_address(&self) -> IpAddr {
        own_address(self.gateway.address().ip())
    }

    /// From now on agents are let in.
    pub(super) fn let_in(self, agents: &Addr<Agents>) -> AgentGateway {
        let Self { gateway, mut events, .. } = self;
        let agents = agents.clone();
        actix::spawn(async move {
            while let Some(event) = events.recv().await {
                match event {
                    AgentGatewayEvent::Joined { agent, hello, commands } => {
                        let (agent, hello) = (AgentKey::Remote(agent), Box::new(hello));
                        agents.do_send(AgentMessage::Joined { agent, hello, commands });
                    }
                    AgentGatewayEvent::Event { agent, event } => {
                        agents.do_send(AgentMessage::Event { agent: AgentKey::Remote(agent), event });
                    }
                    AgentGatewayEvent::Lost { agent, reason } => {
                        agents.do_send(AgentMessage::Lost { agent: AgentKey::Remote(agent), reason });
                    }
                    AgentGatewayEvent::Refused { name, reason } => {
                        tracing::warn!(name, reason, "an agent was refused");
                    }
                }
            }
        });
        gateway
    }
}

/// The port at which the last head of the study listened.
fn last_port(folder: &Folder) -> Option<u16> {
    let path = folder.join_file();
    let join = path.exists().then(|| JoinFile::read(&path).ok()).flatten()?;
    join.addresses.first().map(HostPort::port)
}

/// How agents reach a head that listens here. One that listens on all interfaces is called by its name, and by the address that it has
/// on the way to other networks.
fn addresses(at: SocketAddr) -> Vec<HostPort> {
    let port = at.port();
    let mut hosts = vec![own_address(at.ip()).to_string()];
    if at.ip().is_unspecified() {
        hosts.push(store::Runner::this().host);
    }
    let named = |host: String| {
        // Addresses with colons have brackets.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        format!("{host}:{port}").parse().ok()
    };
    hosts.into_iter().filter_map(named).collect()
}

/// The address of this machine; if a head listens on all of them, that on the way to other networks.
fn own_address(listens: IpAddr) -> IpAddr {
    if !listens.is_unspecified() {
        return listens;
    }
    // Nothing is sent: the system only says which way it would take.
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    route().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
