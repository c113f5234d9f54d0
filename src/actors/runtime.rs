//! What trials run on, for one life of the actors.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use actix::{Actor, Addr, Recipient, System};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::JoinHandle,
};

use super::{
    agents::{AgentKey, AgentMessage, Agents, EndAgents, NodeMap, StudyTerms},
    clock::Clock,
    door::Door,
    elastic::{Elastic, StudyTasks, Tasks},
    error::Error,
    exit::{ExitSender, SessionExit},
    group::{ClusterHandles, Observer},
    message::{EngineInput, ReleaseNode},
    pilots::PilotNews,
    programs::{ProgramSpec, Programs},
    session::{Notify, WorkerTasks, Workers},
};
use crate::{
    agent::{self, Machine},
    ids::{GpuType, NodeId, StudyId},
    space::Study,
    store::{self, Folder},
    trials::{
        agent::{AgentCommand, AgentHello, Work},
        engine::{Input, Outcome},
        group::Limits,
    },
    wire::{AgentGateway, Secret},
};

/// Seconds from report to report.
const REPORT_EVERY_S: f64 = 1.0;
/// As many real seconds at least, where time is scaled.
const REPORT_EVERY_REAL_S: f64 = 0.25;

/// Where trials run.
pub(super) enum Runtime {
    /// In this process: the input that tells the engine of it.
    Local(Input),
    /// On machines.
    Machines(Machines),
}

/// Machines that agents serve.
pub(super) struct Machines {
    agents: Addr<Agents>,
    programs: Option<Programs>,
    /// The agent of this machine, and how to talk to it.
    local: Option<(UnboundedSender<AgentCommand>, JoinHandle<()>)>,
    /// Where others join; closed when this is dropped.
    door: Option<AgentGateway>,
}

/// What a runtime of machines has to know.
pub(super) struct Around<'a> {
    pub(super) study: &'a Study,
    pub(super) study_id: StudyId,
    pub(super) folder: Option<&'a Path>,
    pub(super) machine: &'a Machine,
    /// Where agents of other machines can join.
    pub(super) listen: Option<SocketAddr>,
    pub(super) notify: Option<&'a Notify>,
    pub(super) clock: Clock,
    pub(super) pilots: Option<Recipient<PilotNews>>,
    pub(super) supervisor: &'a Recipient<EngineInput>,
    pub(super) exit: &'a ExitSender,
}

impl Runtime {
    pub(super) fn local(slots: u32) -> Result<Self, Error> {
        let gpu_type = GpuType::new("cpu")?;
        Ok(Self::Local(Input::NodeJoined {
            node: NodeId(0),
            name: String::new(),
            gpu_type,
            island: 0,
            slots,
        }))
    }

    /// What the engine has to know of it at the beginning.
    pub(super) const fn joined(&self) -> Option<&Input> {
        match self {
            Self::Local(joined) => Some(joined),
            // Each node tells of itself.
            Self::Machines(_) => None,
        }
    }

    /// Who lets machines go.
    pub(super) fn nodes(&self) -> Option<Recipient<ReleaseNode>> {
        match self {
            Self::Local(_) => None,
            Self::Machines(machines) => Some(machines.agents.clone().recipient()),
        }
    }

    /// Ends it, in an orderly way: all that takes time is waited for.
    pub(super) async fn end(self, ended: &SessionExit, notify: impl FnOnce(&str)) {
        let Self::Machines(Machines { agents, programs, local, door }) = self else { return };
        if let Some(programs) = programs {
            programs.end(notify).await;
        }
        // Agents elsewhere stay for the next head, unless there is nothing more to do.
        let is_done = matches!(ended, SessionExit::Finished(Outcome::Done | Outcome::Failed(_)));
        let _ = agents.send(EndAgents { is_done }).await;
        if let Some((commands, served)) = local {
            if matches!(ended, SessionExit::Finished(_)) {
                let _ = commands.send(AgentCommand::Leave { reason: "the study is over".to_owned() });
            }
            // Otherwise it learns that it has lost its head.
            drop(commands);
            // It has ended in any case.
            let _ = served.await;
        }
        drop(door);
    }

    pub(super) fn programs(around: &Around, spec: ProgramSpec) -> Result<(Programs, Self), Error> {
        let nodes = NodeMap::default();
        let programs = Programs::new(spec, around.study, nodes.clone());
        let machines = Machines::open(around, &Work::Programs, nodes, Some(programs.clone()))?;
        Ok((programs, Self::Machines(machines)))
    }

    pub(super) fn workers(
        around: &Around,
        workers: &Workers,
        observer: Option<Observer>,
    ) -> Result<(Elastic, Self), Error> {
        let study = around.study;
        let tasks = match &workers.tasks {
            WorkerTasks::OfStudy { trainable } => {
                let folder = absolute(around.folder.ok_or(Error::NoFolder)?)?;
                let report_every_s = REPORT_EVERY_S.max(REPORT_EVERY_REAL_S / workers.work.time_scale());
                let (study, study_id, trainable) = (study.clone(), around.study_id, trainable.clone());
                let tasks = StudyTasks { study, study_id, trainable, folder, report_every_s };
                Tasks::OfStudy(Box::new(tasks))
            }
            WorkerTasks::Given { tasks, .. } => Tasks::Given(tasks.clone()),
        };
        let nodes = NodeMap::default();
        let machines = Machines::open(around, &workers.work, nodes.clone(), None)?;
        let limits = Limits {
            silence_s: study.trial.silence.map(|silence| silence.as_secs_f64()),
            time_scale: workers.work.time_scale(),
        };
        let cluster = ClusterHandles { nodes, limits, observer, exit: around.exit.clone() };
        let arbiter = System::current().arbiter().clone();
        let elastic = Elastic { tasks, cluster, arbiter, groups: BTreeMap::new() };
        Ok((elastic, Self::Machines(machines)))
    }
}

fn absolute(folder: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(folder).map_err(Error::io("finding the folder"))
}

impl Machines {
    fn open(around: &Around, work: &Work, nodes: NodeMap, programs: Option<Programs>) -> Result<Self, Error> {
        let folder = around.folder.map(absolute).transpose()?;
        if let Some(folder) = &folder {
            Folder::new(folder).create()?;
        }
        let door = match (around.listen, &folder) {
            (Some(listen), Some(folder)) => Some(Door::open(listen, around.study_id, folder)?),
            (Some(_), None) => return Err(Error::NoFolder),
            (None, _) => None,
        };
        let (epoch, probe, secret, address) = match &door {
            Some(door) => (door.epoch, door.probe.clone(), door.secret(), Some(door.own_address())),
            None => (0, String::new(), Secret::random()?, None),
        };
        let terms = StudyTerms {
            study: around.study_id,
            clock: around.clock,
            epoch,
            work: work.clone(),
            folder: folder.clone().unwrap_or_default(),
            probe,
        };
        let (supervisor, exit) = (around.supervisor.clone(), around.exit);
        let agents = Agents::new(terms, nodes, programs.clone(), around.notify.cloned(), supervisor, exit);
        let agents = agents.telling(around.pilots.clone()).start();
        let mut machine = around.machine.clone();
        machine.address = machine.address.or(address);
        // A machine that gives nothing needs no agent.
        let local = (!machine.nodes.is_empty())
            .then(|| serve_here(machine, folder, secret, work, &agents, exit.clone()));
        let door = door.map(|door| door.let_in(&agents));
        Ok(Self { agents, programs, local, door })
    }
}

/// Serves this machine, on this thread.
fn serve_here(
    machine: Machine,
    folder: Option<PathBuf>,
    secret: Secret,
    work: &Work,
    agents: &Addr<Agents>,
    exit: ExitSender,
) -> (UnboundedSender<AgentCommand>, JoinHandle<()>) {
    let (commands, mut received) = mpsc::unbounded_channel();
    let (events, mut happened) = mpsc::unbounded_channel();
    // Machines that are not there have no names.
    let is_emulated = matches!(work, Work::Emulated { .. });
    let name = if is_emulated { String::new() } else { store::Runner::this().host };
    let hello = Box::new(AgentHello {
        build: String::new(),
        incarnation: 0,
        name,
        address: machine.address,
        island: String::new(),
        nodes: machine.nodes.clone(),
        ends_in_s: None,
        job: None,
        held: Vec::new(),
    });
    let agent = AgentKey::Local;
    agents.do_send(AgentMessage::Joined { agent, hello, commands: commands.clone() });
    let registry = agents.clone();
    actix::spawn(async move {
        while let Some(event) = happened.recv().await {
            registry.do_send(AgentMessage::Event { agent, event });
        }
    });
    let served = actix::spawn(async move {
        let Some(AgentCommand::Welcome(welcome)) = received.recv().await else { return };
        if let Err(error) =
            agent::serve(&machine, *welcome, folder, secret, None, &mut received, events).await
        {
            exit.send(SessionExit::Failed(error.into()));
        }
    });
    (commands, served)
}
