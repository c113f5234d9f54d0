//! How far a trial has come.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::goodput::NoiseState;

/// The progress of a trial: what is handed over besides the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Optimizer steps.
    pub(super) steps: u64,
    /// Examples: the position in the order.
    pub(super) examples: u64,
    /// Examples at full statistical efficiency.
    pub(super) useful: f64,
    /// Gradient statistics.
    pub(super) noise: NoiseState,
    /// Evaluations.
    pub(super) evaluations: u64,
    /// When the last step ended, in seconds of UNIX time: only for how long training was interrupted.
    pub(super) stepped_at: f64,
}

/// Seconds since 1970.
pub(super) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
