//! What happens in a study, for programs that show or use it.

use tokio::sync::mpsc;

use crate::{
    ids::TrialId,
    space::Params,
    trials::{
        End,
        engine::{Fact, JournalEntry, Metrics},
    },
};

/// Something that has happened in a study and is in its journal. A study that is resumed shows what is new only.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// There is a new trial. It begins once it has its slots.
    Created {
        /// Its number.
        trial: TrialId,
        /// What it tries.
        params: Params,
    },
    /// A trial has reported something.
    Reported {
        /// The trial.
        trial: TrialId,
        /// How far it is, in statistical epochs.
        epochs: f64,
        /// What it has measured.
        metrics: Metrics,
    },
    /// A trial has ended.
    Ended {
        /// The trial.
        trial: TrialId,
        /// How.
        end: End,
    },
    /// A trial that had failed or was cancelled runs again.
    Retried {
        /// The trial.
        trial: TrialId,
    },
    /// Somebody has asked the study to stop.
    StopRequested,
    /// The study has all its results.
    Done,
}

impl Event {
    /// The event that a fact is, if it is one.
    #[must_use]
    pub fn of(entry: &JournalEntry) -> Option<Self> {
        if let Some((trial, end)) = entry.fact.end() {
            return Some(Self::Ended { trial, end });
        }
        Some(match &entry.fact {
            Fact::TrialCreated { trial, params, .. } => {
                Self::Created { trial: *trial, params: params.clone() }
            }
            Fact::Measured { trial, epochs, metrics, .. } if !metrics.is_empty() => {
                Self::Reported { trial: *trial, epochs: *epochs, metrics: metrics.clone() }
            }
            Fact::TrialRetried { trial } => Self::Retried { trial: *trial },
            Fact::StopRequested {} => Self::StopRequested,
            Fact::StudyDone {} => Self::Done,
            _ => return None,
        })
    }
}

/// The events of a study as they come, for one reader; see [`Runner::events`](super::Runner::events).
///
/// It ends with the study. The study does not wait for the reader: events that were not read yet are kept in memory.
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// A stream, and where its events come from.
    pub(super) fn new() -> (mpsc::UnboundedSender<Event>, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, Self(receiver))
    }

    /// Waits for the next event; none once the study has ended. For asynchronous code of any runtime.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The events for code that is not asynchronous: each step waits for the next one.
    ///
    /// # Panics
    ///
    /// If it is used in asynchronous code.
    pub fn blocking(mut self) -> impl Iterator<Item = Event> {
        std::iter::from_fn(move || self.0.blocking_recv())
    }
}
