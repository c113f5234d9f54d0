use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Recipient};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    error::Error,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FromWorker, KillWorker, ToWorker, WorkerOwner},
};
use crate::{
    ids::{SlotId, TrialId},
    trials::{
        agent::{AgentCommand, AgentEvent},
        node::{NodeDescription, NodeDriver, NodeOutput, SlotOwner},
    },
};

/// What the agent of this node has to say about it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct FromAgent(pub(super) AgentEvent);

/// The agent of this node is lost, or gone.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct AgentLost {
    pub(super) reason: String,
}

/// Whom a node talks to.
#[derive(Clone)]
pub(super) struct NodeContext {
    pub(super) agent: UnboundedSender<AgentCommand>,
    /// Whether no other machine can take its place: if no worker can be started here, that is the end.
    pub(super) is_needed: bool,
    pub(super) supervisor: Recipient<EngineInput>,
    pub(super) exit: ExitSender,
}

/// The worker processes of one node: has its agent start them, and carries messages between them and the groups. What is done when is up
/// to the pure [`NodeDriver`].
pub(super) struct Node {
    of: NodeDescription,
    around: NodeContext,
    driver: NodeDriver<WorkerOwner>,
    /// What the driver wanted before the actor was there to do it.
    first: Vec<NodeOutput<WorkerOwner>>,
    guard: ActorGuard,
}

impl Node {
    pub(super) fn new(of: NodeDescription, around: NodeContext) -> Self {
        let (driver, first) = NodeDriver::new(of.clone());
        let guard = around.exit.guard("node");
        Self { of, around, driver, first, guard }
    }

    fn tell(&self, command: AgentCommand) {
        // An agent that is lost is told of by whoever has lost it.
        let _ = self.around.agent.send(command);
    }

    fn carry_out(&mut self, outputs: Vec<NodeOutput<WorkerOwner>>, how: &str, context: &mut Context<Self>) {
        let node = self.of.node;
        for output in outputs {
            match output {
                NodeOutput::Send { slot, command } => self.tell(AgentCommand::ToWorker { slot, command }),
                NodeOutput::Group { owner, slot, event } => {
                    owner.events.do_send(FromWorker { slot, event });
                }
                NodeOutput::Engine(input) => self.around.supervisor.do_send(input.into()),
                NodeOutput::Start { process, after: Duration::ZERO } => self.start(process, context),
                NodeOutput::Start { process, after } => {
                    context.run_later(after, move |actor, context| actor.start(process, context));
                }
                NodeOutput::Kill { process } => {
                    self.tell(AgentCommand::Kill { node, process: process as u32 });
                }
                NodeOutput::GiveUp { .. } => self.give_up(how),
            }
        }
    }

    fn start(&mut self, process: usize, context: &mut Context<Self>) {
        self.tell(AgentCommand::Start { node: self.of.node, process: process as u32 });
        let (start, limit) = self.driver.started(process);
        context.run_later(limit, move |actor, context| {
            let outputs = actor.driver.overdue(process, start);
            actor.carry_out(outputs, "", context);
        });
    }

    fn give_up(&self, how: &str) {
        if self.around.is_needed {
            self.around.exit.send(SessionExit::Failed(Error::NoWorkers(how.to_owned())));
        } else {
            tracing::error!(node = %self.of.node, how, "no worker can be started on a machine: it is sent away");
            self.tell(AgentCommand::Leave { reason: format!("no worker can be started here: {how}") });
        }
    }

    /// The place of a slot, if it is one of this node.
    fn place(&self, slot: SlotId) -> Option<usize> {
        (slot.node == self.of.node).then_some(slot.index as usize)
    }
}

impl SlotOwner for WorkerOwner {
    fn trial(&self) -> TrialId {
        self.trial
    }
}

impl Actor for Node {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let first = std::mem::take(&mut self.first);
        self.carry_out(first, "", context);
    }
}

impl Handler<FromAgent> for Node {
    type Result = ();

    fn handle(&mut self, FromAgent(event): FromAgent, context: &mut Context<Self>) {
        match event {
            AgentEvent::Ended { process, how, fault, output, .. } => {
                let outputs = self.driver.ended(process as usize, &how, fault);
                let how = if output.is_empty() { how } else { format!("{how}; {output}") };
                self.carry_out(outputs, &how, context);
            }
            AgentEvent::WorkerJoined { slot } => {
                let Some(place) = self.place(slot) else { return };
                let outputs = self.driver.joined(place);
                self.carry_out(outputs, "", context);
            }
            AgentEvent::Worker { slot, event } => {
                let Some(place) = self.place(slot) else { return };
                let outputs = self.driver.event(place, event);
                self.carry_out(outputs, "", context);
            }
            AgentEvent::WorkerLost { slot } => {
                let Some(place) = self.place(slot) else { return };
                let outputs = self.driver.disconnected(place);
                self.carry_out(outputs, "", context);
            }
            // Not about workers.
            AgentEvent::Program { .. } | AgentEvent::ProgramGone { .. } | AgentEvent::Draining { .. } => {}
        }
    }
}

impl Handler<AgentLost> for Node {
    type Result = ();

    fn handle(&mut self, AgentLost { reason }: AgentLost, context: &mut Context<Self>) {
        let outputs = self.driver.lost(&reason);
        self.carry_out(outputs, "", context);
        self.guard.release();
        context.stop();
    }
}

impl Handler<KillWorker> for Node {
    type Result = ();

    fn handle(&mut self, KillWorker { slot, from, reason }: KillWorker, context: &mut Context<Self>) {
        let outputs = self.driver.kill(slot.index as usize, &from, &reason);
        if !outputs.is_empty() {
            tracing::warn!(%slot, trial = %from.trial, "{reason}");
        }
        self.carry_out(outputs, "", context);
    }
}

impl Handler<ToWorker> for Node {
    type Result = ();

    fn handle(&mut self, ToWorker { slot, from, command }: ToWorker, context: &mut Context<Self>) {
        tracing::trace!(%slot, trial = %from.trial, ?command, "to a worker");
        let outputs = self.driver.command(slot.index as usize, from, command);
        self.carry_out(outputs, "", context);
    }
}
