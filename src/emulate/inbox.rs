//! Commands that have come to a worker and are not done yet.

use std::collections::VecDeque;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    ids::{Round, TrialId},
    trials::group::{Batch, Form, WorkerCommand},
};

/// The head is gone: there is nobody to work for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

#[derive(Debug)]
pub(super) struct Inbox {
    coming: UnboundedReceiver<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
}

/// Why a group is to be left.
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

    /// Waits for one more command. May be given up and asked again.
    pub(super) async fn hear(&mut self) -> Result<(), Gone> {
        let command = self.coming.recv().await.ok_or(Gone)?;
        self.waiting.push_back(command);
        Ok(())
    }

    /// The next command to be done.
    pub(super) async fn next(&mut self) -> Result<WorkerCommand, Gone> {
        loop {
            if let Some(command) = self.waiting.pop_front() {
                return Ok(command);
            }
            self.hear().await?;
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

    /// Takes the next batch that the group was given.
    pub(super) fn retuned(&mut self, trial: TrialId, round: Round) -> Option<Batch> {
        let meant = |command: &WorkerCommand| match command {
            WorkerCommand::Retune { trial: of, round: to, batch } if *of == trial && *to == round => {
                Some(*batch)
            }
            _ => None,
        };
        let at = self.waiting.iter().position(|command| meant(command).is_some())?;
        self.waiting.remove(at).as_ref().and_then(meant)
    }
}
