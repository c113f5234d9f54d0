//! What trials run on, for one life of the actors.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use actix::{Actor, Addr, Recipient, System};
use tokio::sync::mpsc::Receiver;

use super::{
    command::Programs,
    elastic::{Elastic, StudyTasks, Tasks},
    error::Error,
    exit::ExitSender,
    group::{ClusterHandles, NodeHandle, Observer},
    message::EngineInput,
    node::{FromGateway, Node, NodeContext},
    process::SystemSpawner,
    session::{WorkerTasks, Workers},
};
use crate::{
    ids::{GpuType, NodeId, StudyId},
    space::Study,
    store::Folder,
    trials::{engine::Input, group::Limits},
    wire::{Gateway, GatewayEvent, Secret, SocketFolder, WorkerId},
};

/// Seconds from report to report.
const REPORT_EVERY_S: f64 = 1.0;
/// As many real seconds at least, where time is scaled.
const REPORT_EVERY_REAL_S: f64 = 0.25;

/// Where trials run.
pub(super) enum Runtime {
    /// In this process: the input that tells the engine of it.
    Local(Input),
    /// In processes of their own: the same input, and all that run.
    Programs(Input, Programs),
    /// On worker processes, which last as long as this.
    #[expect(dead_code, reason = "they are dropped with it, and that is all")]
    Workers { gateway: Gateway, nodes: Vec<Addr<Node>>, socket: SocketFolder },
}

impl Runtime {
    pub(super) fn local(slots: u32) -> Result<Self, Error> {
        Ok(Self::Local(this_machine(slots)?))
    }

    pub(super) fn programs(slots: u32, programs: Programs) -> Result<Self, Error> {
        Ok(Self::Programs(this_machine(slots)?, programs))
    }

    /// What the engine has to know of it at the beginning.
    pub(super) const fn joined(&self) -> Option<&Input> {
        match self {
            Self::Local(joined) | Self::Programs(joined, _) => Some(joined),
            // Each node tells of itself.
            Self::Workers { .. } => None,
        }
    }

    /// Ends it, in an orderly way where that takes time.
    pub(super) async fn end(self, notify: impl FnOnce(&str)) {
        if let Self::Programs(_, programs) = &self {
            programs.end(notify).await;
        }
    }

    pub(super) fn workers(
        (study, study_id): (&Study, StudyId),
        workers: &Workers,
        folder: Option<&Path>,
        observer: Option<Observer>,
        (supervisor, exit): (&Recipient<EngineInput>, &ExitSender),
    ) -> Result<(Elastic, Self), Error> {
        let (tasks, logs) = match &workers.tasks {
            WorkerTasks::OfStudy { trainable } => {
                let folder = std::path::absolute(folder.ok_or(Error::NoFolder)?)
                    .map_err(Error::io("finding the folder"))?;
                let logs = Folder::new(&folder).logs();
                let report_every_s = REPORT_EVERY_S.max(REPORT_EVERY_REAL_S / workers.time_scale);
                let (study, trainable) = (study.clone(), trainable.clone());
                (
                    Tasks::OfStudy(Box::new(StudyTasks {
                        study,
                        study_id,
                        trainable,
                        folder,
                        report_every_s,
                    })),
                    Some(logs),
                )
            }
            WorkerTasks::Given { tasks, .. } => (Tasks::Given(tasks.clone()), None),
        };
        // Paths of sockets must be short, and those of studies may be long.
        let socket = SocketFolder::new()?;
        let secret = Secret::random()?;
        let (gateway, events) = Gateway::open(&socket.address(), &secret)?;
        let around = NodeContext {
            address: gateway.address().clone(),
            secret,
            logs,
            spawner: Arc::new(SystemSpawner),
            supervisor: supervisor.clone(),
            exit: exit.clone(),
        };
        let nodes: BTreeMap<NodeId, Addr<Node>> = workers
            .nodes
            .iter()
            .map(|spec| (spec.node, Node::new(spec.clone(), around.clone()).start()))
            .collect();
        let handle = |address: &Addr<Node>| NodeHandle {
            commands: address.clone().recipient(),
            kills: address.clone().recipient(),
        };
        let handles = nodes.iter().map(|(node, address)| (*node, handle(address))).collect();
        let limits = Limits {
            silence_s: study.trial.silence.map(|silence| silence.as_secs_f64()),
            time_scale: workers.time_scale,
        };
        let cluster = ClusterHandles { nodes: Arc::new(handles), limits, observer, exit: exit.clone() };
        let arbiter = System::current().arbiter().clone();
        let elastic = Elastic { tasks, cluster, arbiter, groups: BTreeMap::new() };
        let addresses = nodes.values().cloned().collect();
        actix::spawn(route(events, nodes));
        Ok((elastic, Self::Workers { gateway, nodes: addresses, socket }))
    }
}

/// The slots of this process.
fn this_machine(slots: u32) -> Result<Input, Error> {
    let gpu_type = GpuType::new("cpu")?;
    Ok(Input::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots })
}

/// Carries the events of the gateway to the nodes that they concern.
async fn route(mut events: Receiver<GatewayEvent>, nodes: BTreeMap<NodeId, Addr<Node>>) {
    let mut homes: BTreeMap<WorkerId, NodeId> = BTreeMap::new();
    while let Some(event) = events.recv().await {
        let node = match &event {
            GatewayEvent::Joined { worker, hello, .. } => {
                homes.insert(*worker, hello.slot.node);
                Some(hello.slot.node)
            }
            GatewayEvent::Event { worker, .. } => homes.get(worker).copied(),
            GatewayEvent::Lost { worker } => homes.remove(worker),
            GatewayEvent::Refused { slot, reason } => {
                tracing::warn!(?slot, reason, "a worker was refused");
                None
            }
        };
        if let Some(node) = node.and_then(|node| nodes.get(&node)) {
            node.do_send(FromGateway(event));
        }
    }
}
