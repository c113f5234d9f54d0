//! What actors say to each other.

use std::sync::Arc;

use actix::Message;
use tokio::sync::oneshot;

use crate::{
    goodput::BatchPlan,
    ids::{SlotId, TrialId},
    space::Params,
    trials::engine::{AllocationSnapshot, Checkpoint, Input, JournalEntry},
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

/// A question to the suggester.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Ask {
    pub(super) revision: u64,
    pub(super) trial: TrialId,
}

/// A question to the allocator.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) enum AllocatorRequest {
    Fit { revision: u64, trial: TrialId },
    Solve { revision: u64, question: Box<AllocationSnapshot> },
}

/// What a group is to do.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) enum GroupCommand {
    Launch(Launch),
    Reshape { generation: u32, slots: Vec<SlotId>, batch: Option<BatchPlan> },
    Retune { batch: BatchPlan },
    Stop { keep: bool },
}

/// The start of a group.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) trial: TrialId,
    pub(super) generation: u32,
    pub(super) slots: Vec<SlotId>,
    pub(super) params: Params,
    pub(super) batch: Option<BatchPlan>,
    pub(super) checkpoint: Option<Checkpoint>,
}
