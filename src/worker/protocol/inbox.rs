//! Commands that a worker has received and not executed yet.

use std::collections::VecDeque;

use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};

use crate::{
    ids::{Round, TrialId},
    trials::group::{Batch, Form, WorkerCommand},
};

#[derive(Debug)]
pub(super) struct Inbox {
    coming: UnboundedReceiver<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
    /// The head is gone, and nothing more comes.
    is_over: bool,
}

/// How a group is to be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// At the end of the step.
    Orderly,
    /// At once: it has lost a member.
    Broken,
}

impl Inbox {
    pub(super) const fn new(coming: UnboundedReceiver<WorkerCommand>) -> Self {
        Self { coming, waiting: VecDeque::new(), is_over: false }
    }

    /// Waits until there is something new: one more command, or that there will be none. The future may be dropped.
    pub(super) async fn receive(&mut self) {
        if self.is_over {
            std::future::pending::<()>().await;
        }
        match self.coming.recv().await {
            Some(command) => self.waiting.push_back(command),
            None => self.is_over = true,
        }
    }

    /// Receives commands, without waiting.
    pub(super) fn poll(&mut self) {
        loop {
            match self.coming.try_recv() {
                Ok(command) => self.waiting.push_back(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }

    /// Whether the head is gone, as far as is known.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next command to be done; none when the head is gone. Then nobody knows whether other workers have heard of a new group, and
    /// only what ends is still done.
    pub(super) async fn next(&mut self) -> Option<WorkerCommand> {
        loop {
            match self.waiting.pop_front() {
                Some(command) if !self.is_over || matches!(command, WorkerCommand::Release { .. }) => {
                    return Some(command);
                }
                Some(_) => {}
                None if self.is_over => return None,
                None => self.receive().await,
            }
        }
    }

    /// Whether the group of a trial is to be left.
    pub(super) fn leave(&self, trial: TrialId, round: Round) -> Option<Leave> {
        let reasons = self.waiting.iter().filter_map(|command| match command {
            WorkerCommand::Form(Form { trial: of, round: newer, broken, .. })
                if *of == trial && *newer > round =>
            {
                Some(if *broken { Leave::Broken } else { Leave::Orderly })
            }
            WorkerCommand::Release { trial: of, .. } if *of == trial => Some(Leave::Orderly),
            _ => None,
        });
        let gone = self.is_over.then_some(Leave::Orderly);
        reasons.chain(gone).reduce(|one, other| if one == Leave::Broken { one } else { other })
    }

    /// The next batch that the group was given.
    pub(super) fn batch(&self, trial: TrialId, round: Round) -> Option<Batch> {
        self.waiting.iter().find_map(|command| batch_for(command, trial, round))
    }

    /// The group uses that batch.
    pub(super) fn remove_batch(&mut self, trial: TrialId, round: Round) {
        let at = self.waiting.iter().position(|command| batch_for(command, trial, round).is_some());
        if let Some(at) = at {
            self.waiting.remove(at);
        }
    }
}

fn batch_for(command: &WorkerCommand, trial: TrialId, round: Round) -> Option<Batch> {
    match command {
        WorkerCommand::Retune { trial: of, round: to, batch } if *of == trial && *to == round => Some(*batch),
        _ => None,
    }
}
