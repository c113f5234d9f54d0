//! The agents of a study: who is there, and which nodes they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, Recipient, WrapFuture};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender},
    group::NodeHandle,
    message::{EngineInput, ReleaseNode},
    node::{AgentLost, FromAgent, Node, NodeContext},
    pilots::PilotNews,
    programs::Programs,
    session::Notify,
};
use crate::{
    agent,
    ids::{NodeId, StudyId},
    store::Folder,
    trials::{
        agent::{AgentCommand, AgentEvent, AgentHello, AgentNode, Welcome, Work},
        engine::{Checkpoint, GroupEvent, Input},
        node::{NodeDescription, NodeNumbers},
    },
    wire::AgentId,
};

/// The nodes that are there now.
#[derive(Clone, Default)]
pub(super) struct NodeMap(Arc<RwLock<BTreeMap<NodeId, NodeHandle>>>);

impl NodeMap {
    pub(super) fn get(&self, node: NodeId) -> Option<NodeHandle> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    pub(super) fn insert(&self, node: NodeId, handle: NodeHandle) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(node, handle);
    }

    fn remove(&self, node: NodeId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }
}

/// How agents name the job that they run in.
const JOB_PREFIX: &str = "slurm:";

/// Which agent something comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum AgentKey {
    /// That of this machine, in this process.
    Local,
    /// One connection of another one.
    Remote(AgentId),
}

/// What happens to agents. Of each first that it joined, then its events, in the end once that it is gone.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) enum AgentMessage {
    Joined { agent: AgentKey, hello: Box<AgentHello>, commands: UnboundedSender<AgentCommand> },
    Event { agent: AgentKey, event: AgentEvent },
    Lost { agent: AgentKey, reason: String },
}

/// The study is over, or to be resumed: then agents of other machines stay.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct EndAgents {
    pub(super) is_done: bool,
}

/// What agents are welcomed with.
#[derive(Debug, Clone)]
pub(super) struct StudyTerms {
    pub(super) study: StudyId,
    pub(super) clock: Clock,
    pub(super) epoch: u64,
    pub(super) work: Work,
    pub(super) folder: PathBuf,
    pub(super) probe: String,
}

/// The registry: gives agents their nodes, and carries what they say to whom it concerns.
pub(super) struct Agents {
    terms: StudyTerms,
    nodes: NodeMap,
    programs: Option<Programs>,
    notify: Option<Notify>,
    present: BTreeMap<AgentKey, Agent>,
    numbers: NodeNumbers,
    islands: BTreeMap<String, u32>,
    /// Who asks for agents, and wants to know what becomes of them.
    pilots: Option<Recipient<PilotNews>>,
    supervisor: Recipient<EngineInput>,
    exit: ExitSender,
    _guard: ActorGuard,
}

struct Agent {
    name: String,
    incarnation: u64,
    /// The job that it runs in.
    job: Option<String>,
    commands: UnboundedSender<AgentCommand>,
    /// With the actor of each, unless trials are programs.
    nodes: Vec<(NodeId, Option<Addr<Node>>)>,
    /// Those that may go: it leaves when all may.
    released: BTreeSet<NodeId>,
}

impl Agents {
    pub(super) fn new(
        terms: StudyTerms,
        nodes: NodeMap,
        programs: Option<Programs>,
        notify: Option<Notify>,
        supervisor: Recipient<EngineInput>,
        exit: &ExitSender,
    ) -> Self {
        Self {
            terms,
            nodes,
            programs,
            notify,
            present: BTreeMap::new(),
            numbers: NodeNumbers::default(),
            islands: BTreeMap::new(),
            pilots: None,
            supervisor,
            exit: exit.clone(),
            _guard: exit.guard("registry of agents"),
        }
    }

    /// The same, with somebody who is told of agents that run in jobs.
    pub(super) fn telling(mut self, pilots: Option<Recipient<PilotNews>>) -> Self {
        self.pilots = pilots;
        self
    }

    /// Tells of an agent, if it runs in a job.
    fn tell_pilots(&self, job: Option<&str>, news: impl FnOnce(String) -> PilotNews) {
        if let (Some(pilots), Some(job)) = (&self.pilots, job.and_then(|job| job.strip_prefix(JOB_PREFIX))) {
            pilots.do_send(news(job.to_owned()));
        }
    }

    fn notify(&self, notice: &str) {
        tracing::info!("{notice}");
        if let Some(notify) = &self.notify {
            notify(notice);
        }
    }

    /// The name, or another one if somebody has it: a second agent on a machine, or the next one after a loss that is not known yet.
    fn free_name(&self, name: String) -> String {
        let is_free = |name: &String| !self.present.values().any(|agent| agent.name == *name);
        if is_free(&name) {
            return name;
        }
        // Among one more than there are agents there is one that nobody has.
        let mut others = (2..self.present.len() + 3).map(|number| format!("{name}-{number}"));
        others.find(is_free).unwrap_or(name)
    }

    fn island(&mut self, name: &str) -> u32 {
        let next = self.islands.len() as u32;
        *self.islands.entry(name.to_owned()).or_insert(next)
    }

    fn joined(&mut self, id: AgentKey, hello: AgentHello, commands: UnboundedSender<AgentCommand>) {
        let AgentHello { name, incarnation, island, nodes, held, job, .. } = hello;
        // The same process again: its connection of before is of no use, whatever still comes from there.
        let is_same = |agent: &Agent| agent.incarnation == incarnation && id != AgentKey::Local;
        let before = self.present.iter().find(|(_, agent)| is_same(agent)).map(|(id, _)| *id);
        if let Some(before) = before {
            self.lost(before, "its agent has joined again");
        }
        let name = self.free_name(name);
        if id != AgentKey::Local {
            self.notify(&format!("{name} has joined: {}", describe(&nodes)));
        }
        let island = self.island(&island);
        let numbers: Vec<NodeId> = nodes.iter().map(|_| self.numbers.give()).collect();
        let StudyTerms { study, epoch, work, folder, probe, .. } = self.terms.clone();
        let wanted = agent::wanted(study, &Folder::new(&folder), &held);
        let welcome =
            Welcome { study, epoch, nodes: numbers.clone(), work: work.clone(), folder, probe, wanted };
        // Its loss is told by whoever notices it.
        let _ = commands.send(AgentCommand::Welcome(Box::new(welcome)));
        let gpu_type = nodes.first().map(|node| node.gpu_type.clone());
        let taken = numbers.iter().copied().collect();
        self.tell_pilots(job.as_deref(), |job| PilotNews::Joined { job, nodes: taken, gpu_type });
        let mut actors = Vec::with_capacity(nodes.len());
        let is_mixed = nodes.len() > 1;
        for (node, AgentNode { gpu_type, slots }) in numbers.into_iter().zip(nodes) {
            let share = self.programs.as_ref().map_or(1, Programs::share);
            let slots = (slots.len() as u32).saturating_mul(share);
            // A machine that is several nodes has a name for each.
            let name = if is_mixed && !name.is_empty() { format!("{name}/{gpu_type}") } else { name.clone() };
            let actor = if work == Work::Programs {
                self.nodes.insert(node, NodeHandle { agent: commands.clone(), workers: None });
                let joined = Input::NodeJoined { node, name, gpu_type, island, slots };
                self.supervisor.do_send(joined.into());
                None
            } else {
                let of = NodeDescription { node, name, gpu_type, island, processes: work.processes(slots) };
                let around = NodeContext {
                    agent: commands.clone(),
                    is_needed: id == AgentKey::Local,
                    supervisor: self.supervisor.clone(),
                    exit: self.exit.clone(),
                };
                let actor = Node::new(of, around).start();
                let workers = Some((actor.clone().recipient(), actor.clone().recipient()));
                self.nodes.insert(node, NodeHandle { agent: commands.clone(), workers });
                Some(actor)
            };
            actors.push((node, actor));
        }
        self.present
            .insert(id, Agent { name, incarnation, job, commands, nodes: actors, released: BTreeSet::new() });
    }

    fn lost(&mut self, id: AgentKey, reason: &str) {
        let Some(agent) = self.present.remove(&id) else { return };
        self.tell_pilots(agent.job.as_deref(), |job| PilotNews::Lost { job });
        // People are told by the facts about its nodes.
        tracing::info!(agent = agent.name, reason, "an agent is gone");
        for (node, actor) in agent.nodes {
            self.nodes.remove(node);
            let reason = reason.to_owned();
            match actor {
                Some(actor) => actor.do_send(AgentLost { reason }),
                None => self.supervisor.do_send(Input::NodeLost { node, reason }.into()),
            }
            if let Some(programs) = &self.programs {
                programs.node_lost(node);
            }
        }
    }

    fn event(&mut self, id: AgentKey, event: AgentEvent, context: &mut Context<Self>) {
        let Some(agent) = self.present.get(&id) else { return };
        let node = match &event {
            AgentEvent::Ended { node, .. } => *node,
            AgentEvent::WorkerJoined { slot }
            | AgentEvent::Worker { slot, .. }
            | AgentEvent::WorkerLost { slot } => slot.node,
            AgentEvent::Program { trial, generation, event: happened } => {
                let (trial, generation, happened) = (*trial, *generation, happened.clone());
                let is_report = matches!(happened, GroupEvent::Reported(_));
                let (ack, done) = oneshot::channel();
                let input = Input::group(trial, generation, happened);
                self.supervisor.do_send(EngineInput { input, ack: is_report.then_some(ack) });
                if is_report {
                    let commands = agent.commands.clone();
                    let taken = async move {
                        // Without a supervisor nobody takes anything.
                        let _ = done.await;
                        let _ = commands.send(AgentCommand::ReportTaken { trial, generation });
                    };
                    context.spawn(taken.into_actor(self));
                }
                return;
            }
            AgentEvent::ProgramGone { trial, generation } => {
                if self.programs.as_ref().is_some_and(|programs| programs.gone(*trial, *generation)) {
                    // Its state is in its own folder.
                    let paused = GroupEvent::Paused(Checkpoint { name: String::new(), epochs: 0.0 });
                    self.supervisor.do_send(Input::group(*trial, *generation, paused).into());
                }
                return;
            }
            AgentEvent::Draining { within_s, reason } => {
                self.tell_pilots(agent.job.as_deref(), |job| PilotNews::Draining { job });
                let until_s = self.terms.clock.now_s() + within_s / self.terms.work.time_scale();
                for (node, _) in &agent.nodes {
                    let (node, reason) = (*node, reason.clone());
                    self.supervisor.do_send(Input::NodeDraining { node, until_s, reason }.into());
                }
                return;
            }
        };
        let actor = agent.nodes.iter().find(|(of, _)| *of == node).and_then(|(_, actor)| actor.as_ref());
        if let Some(actor) = actor {
            actor.do_send(FromAgent(event));
        }
    }
}

/// What a machine gives, for people.
fn describe(nodes: &[AgentNode]) -> String {
    let one = |node: &AgentNode| format!("{} x {}", node.slots.len(), node.gpu_type);
    nodes.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Actor for Agents {
    type Context = Context<Self>;
}

impl Handler<EndAgents> for Agents {
    type Result = ();

    fn handle(&mut self, EndAgents { is_done }: EndAgents, _: &mut Context<Self>) {
        for (key, agent) in &self.present {
            if is_done && *key != AgentKey::Local {
                let reason = "the study is over".to_owned();
                let _ = agent.commands.send(AgentCommand::Leave { reason });
            }
        }
    }
}

impl Handler<ReleaseNode> for Agents {
    type Result = ();

    fn handle(&mut self, ReleaseNode(node): ReleaseNode, _: &mut Context<Self>) {
        let has = |agent: &Agent| agent.nodes.iter().any(|(of, _)| *of == node);
        let Some((&id, agent)) = self.present.iter_mut().find(|(_, agent)| has(agent)) else { return };
        agent.released.insert(node);
        if agent.released.len() == agent.nodes.len() {
            let reason = "it has left, as it was asked to";
            // If it is gone already, so much the better.
            let _ = agent.commands.send(AgentCommand::Leave { reason: reason.to_owned() });
            self.lost(id, reason);
        }
    }
}

impl Handler<AgentMessage> for Agents {
    type Result = ();

    fn handle(&mut self, message: AgentMessage, context: &mut Context<Self>) {
        match message {
            AgentMessage::Joined { agent, hello, commands } => self.joined(agent, *hello, commands),
            AgentMessage::Event { agent, event } => self.event(agent, event, context),
            AgentMessage::Lost { agent, reason } => self.lost(agent, &reason),
        }
    }
}
