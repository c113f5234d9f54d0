//! `train`: one trainable with given hyper-parameters, on slots that may change while it trains.

#[cfg(feature = "torch")]
mod run;

use std::time::Duration;

#[cfg(feature = "torch")]
pub(super) use self::run::{Error, run};

/// What to train, and how.
#[cfg(feature = "torch")]
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) params: Vec<(String, serde_json::Value)>,
    pub(super) epochs: f64,
    pub(super) batch: u32,
    pub(super) max_batch: Option<u32>,
    pub(super) max_batch_per_worker: u32,
    pub(super) lr_rule: crate::goodput::LrRule,
    pub(super) seed: u64,
    pub(super) evaluate_every: f64,
    pub(super) mixed_precision: bool,
    pub(super) slots: Option<u32>,
    pub(super) start: Option<u32>,
    pub(super) rescale: Vec<Rescale>,
    pub(super) threads: Option<u32>,
    pub(super) cpu: bool,
    pub(super) checkpoint: Option<std::path::PathBuf>,
    pub(super) checkpoint_every: Duration,
    pub(super) report_every: Duration,
    pub(super) json: bool,
}

/// A change of slots.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rescale {
    pub(super) when: When,
    pub(super) on: Slots,
    /// As the user wrote it.
    pub(super) entry: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum When {
    After(Duration),
    Steps(u64),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Slots {
    Count(u32),
    List(Vec<u32>),
}

impl Slots {
    pub(super) fn list(&self) -> Vec<u32> {
        match self {
            Self::Count(count) => (0..*count).collect(),
            Self::List(slots) => slots.clone(),
        }
    }
}

/// Says what is missing.
#[cfg(not(feature = "torch"))]
pub(super) fn run(name: &str) -> Result<(), super::Error> {
    Err(Error::NotBuilt(name.to_owned()).into())
}

#[cfg(not(feature = "torch"))]
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "cannot train `{0}`: this program was built without libtorch; build it with \
         `scripts/with-libtorch.sh cargo build --features torch`"
    )]
    NotBuilt(String),
}

#[cfg(not(feature = "torch"))]
impl Error {
    /// Whether the user can correct it.
    pub(super) const fn is_of_input(&self) -> bool {
        matches!(self, Self::NotBuilt(_))
    }
}
