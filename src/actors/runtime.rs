//! What trials run on, for one life of the actors.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use actix::{Actor, Addr, Recipient, System};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::JoinHandle,
};

use super::{
    agents::{AgentId, AgentMessage, Agents, NodeMap, StudyTerms},
    clock::Clock,
    elastic::{Elastic, StudyTasks, Tasks},
    error::Error,
    exit::{ExitSender, SessionExit},
    group::{ClusterHandles, Observer},
    message::EngineInput,
    pilots::PilotNews,
    programs::{ProgramSpec, Programs},
    session::{WorkerTasks, Workers},
};
use crate::{
    agent::{self, Machine},
    ids::{GpuType, NodeId, StudyId},
    space::{Study, TrialSettings},
    store::{self, Folder},
    trials::{
        agent::{AgentCommand, AgentHello, Work},
        engine::Input,
        group::Limits,
    },
    wire::Secret,
};

/// Seconds from report to report.
const REPORT_EVERY_S: f64 = 1.0;
/// As many real seconds at least, where time is scaled.
const REPORT_EVERY_REAL_S: f64 = 0.25;
/// That of this machine.
const LOCAL: AgentId = AgentId(0);

/// Where trials run.
pub(super) enum Runtime {
    /// In this process: the input that tells the engine of it.
    Local(Input),
    /// On machines.
    Machines(Machines),
}

/// Machines that agents serve.
pub(super) struct Machines {
    /// Lives as long as this.
    _agents: Addr<Agents>,
    programs: Option<Programs>,
    /// The agent of this machine, and how to talk to it.
    local: (UnboundedSender<AgentCommand>, JoinHandle<()>),
}

/// What a runtime of machines has to know.
pub(super) struct Around<'a> {
    pub(super) study: &'a Study,
    pub(super) study_id: StudyId,
    pub(super) folder: Option<&'a Path>,
    pub(super) machine: &'a Machine,
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

    /// Ends it, in an orderly way: all that takes time is waited for.
    pub(super) async fn end(self, is_orderly: bool, notify: impl FnOnce(&str)) {
        let Self::Machines(Machines { programs, local: (commands, served), .. }) = self else { return };
        if let Some(programs) = programs {
            programs.end(notify).await;
        }
        if is_orderly {
            let _ = commands.send(AgentCommand::Leave { reason: "the study is over".to_owned() });
        }
        // Otherwise it learns that it has lost its head.
        drop(commands);
        // It has ended in any case.
        let _ = served.await;
    }

    pub(super) fn programs(around: &Around, spec: ProgramSpec) -> Result<(Programs, Self), Error> {
        let nodes = NodeMap::default();
        let trial: &TrialSettings = &around.study.trial;
        let programs = Programs::new(spec, trial, nodes.clone());
        let machines = Machines::open(around, Work::Programs, nodes, Some(programs.clone()))?;
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
        let machines = Machines::open(around, workers.work, nodes.clone(), None)?;
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
    fn open(around: &Around, work: Work, nodes: NodeMap, programs: Option<Programs>) -> Result<Self, Error> {
        let folder = around.folder.map(absolute).transpose()?;
        if let Some(folder) = &folder {
            Folder::new(folder).create()?;
        }
        let terms = StudyTerms {
            study: around.study_id,
            clock: around.clock,
            epoch: 0,
            work,
            folder: folder.clone().unwrap_or_default(),
            probe: String::new(),
        };
        let (supervisor, exit) = (around.supervisor.clone(), around.exit);
        let agents = Agents::new(terms, nodes, programs.clone(), supervisor, exit);
        let agents = agents.telling(around.pilots.clone()).start();
        let local = serve_here(around.machine.clone(), folder, &agents, exit.clone())?;
        Ok(Self { _agents: agents, programs, local })
    }
}

/// Serves this machine, on this thread.
fn serve_here(
    machine: Machine,
    folder: Option<PathBuf>,
    agents: &Addr<Agents>,
    exit: ExitSender,
) -> Result<(UnboundedSender<AgentCommand>, JoinHandle<()>), Error> {
    let secret = Secret::random()?;
    let (commands, mut received) = mpsc::unbounded_channel();
    let (events, mut happened) = mpsc::unbounded_channel();
    let hello = Box::new(AgentHello {
        build: String::new(),
        incarnation: 0,
        name: store::Runner::this().host,
        address: machine.address,
        island: String::new(),
        nodes: machine.nodes.clone(),
        ends_in_s: None,
        job: None,
        held: Vec::new(),
    });
    agents.do_send(AgentMessage::Joined { agent: LOCAL, hello, commands: commands.clone(), is_local: true });
    let registry = agents.clone();
    actix::spawn(async move {
        while let Some(event) = happened.recv().await {
            registry.do_send(AgentMessage::Event { agent: LOCAL, event });
        }
    });
    let served = actix::spawn(async move {
        let Some(AgentCommand::Welcome(welcome)) = received.recv().await else { return };
        if let Err(error) = agent::serve(&machine, *welcome, folder, secret, &mut received, events).await {
            exit.send(SessionExit::Failed(error.into()));
        }
    });
    Ok((commands, served))
}
