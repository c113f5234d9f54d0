//! Commands that a worker has received and not executed yet.

use std::collections::VecDeque;

use tokio::sync::mpsc::UnboundedReceiver;

use super::Stop;
use crate::{
    ids::{Round, TrialId},
    trials::group::{Batch, Form, WorkerCommand},
};

#[derive(Debug)]
pub(super) struct Inbox {
    coming: UnboundedReceiver<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
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
        Self { coming, waiting: VecDeque::new() }
    }

    /// Waits for one more command. The future may be dropped.
    pub(super) async fn receive(&mut self) -> Result<(), Stop> {
        let command = self.coming.recv().await.ok_or(Stop::HeadGone)?;
        self.waiting.push_back(command);
        Ok(())
    }

    /// Receives commands, without waiting.
    pub(super) fn poll(&mut self) {
        while let Ok(command) = self.coming.try_recv() {
            self.waiting.push_back(command);
        }
    }

    /// The next command to be done.
    pub(super) async fn next(&mut self) -> Result<WorkerCommand, Stop> {
        loop {
            if let Some(command) = self.waiting.pop_front() {
                return Ok(command);
            }
            self.receive().await?;
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
        reasons.reduce(|one, other| if one == Leave::Broken { one } else { other })
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
