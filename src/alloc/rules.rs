use std::fmt;

use super::{Matrix, TrialRequest, realloc_factor};

/// Moving a young trial is never as bad as stopping it: with a factor of 0 both would count the same, and GPUs would
/// stay empty.
pub(super) const MOVED_FACTOR_MIN: f64 = 0.01;

/// What a search may do in another way than ours, so that published results can be repeated. Each method is ours unless it is
/// written again.
pub(crate) trait SearchRules: fmt::Debug + Sync {
    /// How many GPUs of a fair share are on one node, if the largest node has `largest`.
    fn fair_node_gpus(&self, largest: u32) -> u32 {
        largest
    }

    /// The factor on the speedup of any GPUs but those that a trial has; it `waits` if it has none.
    fn moved_factor(&self, trial: &TrialRequest, waits: bool) -> f64 {
        let factor = match trial.horizon_s {
            // A trial that waits, or whose GPUs are gone, has to be started anyway.
            _ if waits => 1.0,
            // It does not train for a part of the horizon.
            Some(horizon_s) if trial.realloc_delay_s > 0.0 => horizon_s / (horizon_s + trial.realloc_delay_s),
            Some(_) => 1.0,
            None => realloc_factor(trial.age_s, trial.reallocations, trial.realloc_delay_s),
        };
        factor.max(MOVED_FACTOR_MIN)
    }

    /// Whether a search starts from the present allocation, besides what it remembers.
    fn starts_from_current(&self, _remembers: bool) -> bool {
        true
    }

    /// Changes which row of a remembered matrix each trial inherits: its own, or none if it is new.
    fn inherit(&self, _rows: &mut [Option<usize>]) {}

    /// Repairs the rows of a matrix before they are walked over. Returns whether it has done all but to fill the nodes.
    fn repair(&self, _matrix: &mut Matrix<'_>) -> bool {
        false
    }
}

/// Ours.
#[derive(Debug)]
pub(super) struct OwnRules;

impl SearchRules for OwnRules {}
