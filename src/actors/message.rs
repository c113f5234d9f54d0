//! What actors say to each other.

use std::sync::Arc;

use actix::Message;
use tokio::sync::oneshot;

use crate::{
    goodput::BatchPlan,
    space::Assignment,
    tpe::TrialId,
    trials::engine::{Checkpoint, Entry, Input, Question, SlotId},
};

/// Something for the engine.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Happened {
    pub(super) input: Input,
    /// For those who wait until all that follows is on its way.
    pub(super) heard: Option<oneshot::Sender<()>>,
}

impl From<Input> for Happened {
    fn from(input: Input) -> Self {
        Self { input, heard: None }
    }
}

/// New facts, in their order.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) struct Learn(pub(super) Arc<[Entry]>);

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
pub(super) enum Consider {
    Fit { revision: u64, trial: TrialId },
    Solve { revision: u64, question: Box<Question> },
}

/// What a group is to do.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) enum Order {
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
    pub(super) params: Assignment,
    pub(super) batch: Option<BatchPlan>,
    pub(super) checkpoint: Option<Checkpoint>,
}
