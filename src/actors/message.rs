//! What actors send to each other.

use std::sync::Arc;

use actix::{Message, Recipient};
use tokio::sync::oneshot;

use crate::{
    ids::{NodeId, Round, SlotId, TrialId},
    trials::{
        engine::{AllocatorRequest, GroupCommand, Input, JournalEntry, SuggestRequest},
        group::{WorkerCommand, WorkerEvent},
    },
};

/// Something for the engine.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct EngineInput {
    pub(super) input: Input,
    /// For those who wait until all that follows is on its way.
    pub(super) ack: Option<oneshot::Sender<()>>,
}

impl From<Input> for EngineInput {
    fn from(input: Input) -> Self {
        Self { input, ack: None }
    }
}

/// New facts, in their order.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) struct FactsAppended(pub(super) Arc<[JournalEntry]>);

/// A question for the suggester.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ForSuggester(pub(super) SuggestRequest);

/// A question for the allocator.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ForAllocator(pub(super) AllocatorRequest);

/// A command for the group of a trial that the engine has not decided on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ForTrial {
    pub(super) trial: TrialId,
    pub(super) command: GroupCommand,
}

/// What a group is to do.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ForGroup(pub(super) GroupCommand);

/// A machine may go: nothing runs there any more, or its time is over.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ReleaseNode(pub(super) NodeId);

/// A command for the worker of a slot. Whoever sends one receives the events of the worker until it has left.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ToWorker {
    pub(super) slot: SlotId,
    pub(super) from: WorkerOwner,
    pub(super) command: WorkerCommand,
}

/// The worker of a slot stands still: its process is to be killed, if the worker still works for whoever asks.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct KillWorker {
    pub(super) slot: SlotId,
    pub(super) from: WorkerOwner,
    pub(super) reason: String,
}

/// The group that a worker works for.
#[derive(Debug, Clone)]
pub(super) struct WorkerOwner {
    pub(super) trial: TrialId,
    /// Where the rounds of the group begin: a trial may have several groups, one after the other.
    pub(super) round: Round,
    pub(super) events: Recipient<FromWorker>,
}

impl PartialEq for WorkerOwner {
    fn eq(&self, other: &Self) -> bool {
        (self.trial, self.round) == (other.trial, other.round)
    }
}

/// What a worker has reported; none if it is gone.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct FromWorker {
    pub(super) slot: SlotId,
    pub(super) event: Option<WorkerEvent>,
}
