use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ids::TrialId,
    space::{Params, Point},
    trials::{
        engine::Metrics,
        stopping::{EndKind, StopReason},
    },
};

/// A trial of a search.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Trial {
    /// Its number.
    pub id: TrialId,
    /// What it tries.
    pub params: Params,
    /// The same as the suggester sees it.
    pub point: Point,
    /// Whether it runs, or how it ended.
    pub state: State,
    /// The furthest report with a finite value: statistical epochs and the value of the first objective.
    pub last: Option<(f64, f64)>,
    /// The last value of each metric that it has reported; for objectives the result, if it ran to its end.
    pub metrics: Metrics,
    /// The number of its last report.
    pub(super) reported: u32,
}

/// Whether a trial runs, or how it ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// It has no result yet.
    Running,
    /// It is over.
    Ended(End),
}

/// How a trial ended, in the terms of the study: values as they were measured, whichever way is better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With a value for each objective. Values that are not finite count as failure.
    Done(Vec<f64>),
    /// Early, because its values were not good enough; and why.
    Stopped(StopReason),
    /// Early, for a reason that has nothing to do with its parameters.
    Cancelled(String),
    /// Without a usable result, and why.
    Failed(String),
}

impl Trial {
    /// The last value of a metric that it has reported; for an objective the result, if it ran to its end.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).map(|number| number.value())
    }

    /// The values of its objectives, if it ran to its end.
    #[must_use]
    pub fn values(&self) -> Option<&[f64]> {
        match &self.state {
            State::Ended(End::Done(values)) => Some(values),
            _ => None,
        }
    }
}

impl End {
    /// The same without values and reasons.
    #[must_use]
    pub const fn kind(&self) -> EndKind {
        match self {
            Self::Done(_) => EndKind::Done,
            Self::Stopped(_) => EndKind::Stopped,
            Self::Cancelled(_) => EndKind::Cancelled,
            Self::Failed(_) => EndKind::Failed,
        }
    }
}

impl From<f64> for End {
    fn from(value: f64) -> Self {
        Self::Done(vec![value])
    }
}

impl From<Vec<f64>> for End {
    fn from(values: Vec<f64>) -> Self {
        Self::Done(values)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(_) => f.write_str("is done"),
            Self::Stopped(StopReason::Stated(why)) if why.is_empty() => f.write_str("was stopped"),
            Self::Stopped(why) => write!(f, "was stopped: {why}"),
            Self::Cancelled(why) if why.is_empty() => f.write_str("was cancelled"),
            Self::Cancelled(why) => write!(f, "was cancelled: {why}"),
            Self::Failed(why) if why.is_empty() => f.write_str("failed"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}
