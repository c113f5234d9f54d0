use std::{collections::BTreeSet, sync::Arc};

use super::{Allocation, Cluster, Error, Fairness};
use crate::{
    goodput::{Curve, GoodputTable},
    ids::{GpuType, TrialId},
};

/// What is left of a trial, in a unit that all trials of a [`Problem`] share: divided by goodput it orders trials by the time
/// that they still take.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RemainingWork {
    /// Nobody knows, or nothing is left.
    #[default]
    Unknown,
    /// Examples, at the efficiency of the initial batch.
    Examples(f64),
    /// Statistical epochs.
    Epochs(f64),
    /// Steps of the optimizer.
    Iterations(f64),
}

impl RemainingWork {
    /// How much of its unit is left; 0 if unknown.
    #[must_use]
    pub const fn amount(self) -> f64 {
        match self {
            Self::Unknown => 0.0,
            Self::Examples(amount) | Self::Epochs(amount) | Self::Iterations(amount) => amount,
        }
    }

    /// Whether both can be compared.
    fn has_unit_of(self, other: Self) -> bool {
        self == Self::Unknown
            || other == Self::Unknown
            || std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// One trial as the allocator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRequest {
    /// Its number.
    pub id: TrialId,
    /// How fast it makes progress with which GPUs.
    pub table: Arc<GoodputTable>,
    /// With fewer GPUs it does not run at all; at least 1.
    pub min_gpus: u32,
    /// It never gets more.
    pub max_gpus: u32,
    /// The GPUs it has now; none while it waits.
    pub current: Allocation,
    /// Its GPUs must not change.
    pub pinned: bool,
    /// Its share in the objective, 1 for all trials alike; from 1e-6 to 1e6.
    pub weight: f64,
    /// Seconds since it was created.
    pub age_s: f64,
    /// How often its GPUs were changed.
    pub reallocations: u32,
    /// What such a change costs this trial, in seconds, as measured.
    pub realloc_delay_s: f64,
    /// Seconds in which such a change has to pay off; if none, its age and its past changes decide, as in the paper (see
    /// [`realloc_factor`](super::realloc_factor)).
    pub horizon_s: Option<f64>,
    /// GPU-seconds it has had: `pollux` and `tiresias` serve the least served first.
    pub attained_gpu_s: f64,
    /// The GPUs its user asks for: what `static` and `tiresias` give.
    pub requested_gpus: u32,
    /// What is left of its training: what `optimus` and [`Problem::aim_at_completion`] use.
    pub remaining: RemainingWork,
}

impl TrialRequest {
    /// The smallest weight; beyond these limits sums over trials are lost to rounding.
    pub const WEIGHT_MIN: f64 = 1e-6;
    /// The largest weight.
    pub const WEIGHT_MAX: f64 = 1e6;

    /// A waiting trial that has not run yet, with no limits and the study's defaults.
    #[must_use]
    pub fn new(id: TrialId, table: impl Into<Arc<GoodputTable>>) -> Self {
        Self {
            id,
            table: table.into(),
            min_gpus: 1,
            max_gpus: u32::MAX,
            current: Allocation::none(),
            pinned: false,
            weight: 1.0,
            age_s: 0.0,
            reallocations: 0,
            realloc_delay_s: 0.0,
            horizon_s: None,
            attained_gpu_s: 0.0,
            requested_gpus: 1,
            remaining: RemainingWork::Unknown,
        }
    }

    /// A waiting trial of which nothing is known yet: it is taken to scale perfectly, and starts on one GPU
    /// (Pollux OSDI'21 section 4.1, prior-driven exploration).
    #[must_use]
    pub fn unprofiled(id: TrialId, types: impl IntoIterator<Item = GpuType>) -> Self {
        let table: GoodputTable = types.into_iter().map(|gpu_type| (gpu_type, Curve::linear(1, 1))).collect();
        Self { max_gpus: 1, ..Self::new(id, table) }
    }

    fn check(&self) -> Result<(), Error> {
        let number = |what, value: f64, above_zero: bool| {
            if value.is_finite() && (value > 0.0 || (!above_zero && value >= 0.0)) {
                return Ok(());
            }
            let allowed = if above_zero { "a finite number above 0" } else { "a finite number, at least 0" };
            Err(Error::OutOfRange { owner: format!("trial {}", self.id), what, value, allowed })
        };
        if !(Self::WEIGHT_MIN..=Self::WEIGHT_MAX).contains(&self.weight) {
            let (owner, what) = (format!("trial {}", self.id), "the weight");
            return Err(Error::OutOfRange { owner, what, value: self.weight, allowed: "1e-6 to 1e6" });
        }
        number("the age in seconds", self.age_s, false)?;
        number("the re-allocation delay in seconds", self.realloc_delay_s, false)?;
        number("the horizon in seconds", self.horizon_s.unwrap_or(0.0), false)?;
        number("the attained GPU time in seconds", self.attained_gpu_s, false)?;
        number("the remaining work", self.remaining.amount(), false)?;
        number("the minimum number of GPUs", f64::from(self.min_gpus), true)?;
        if self.min_gpus > self.max_gpus {
            return Err(Error::BadLimits { trial: self.id, min: self.min_gpus, max: self.max_gpus });
        }
        Ok(())
    }
}

/// Everything a policy decides on: one question, complete in itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The machines.
    pub cluster: Cluster,
    /// All trials that run or wait, oldest first.
    pub trials: Vec<TrialRequest>,
    /// The exponent p of the objective.
    pub fairness: Fairness,
    /// At most one distributed trial on each node (section 4.2, interference avoidance).
    pub avoid_interference: bool,
}

impl Problem {
    /// A problem with p = -1 and interference avoidance, the paper's defaults.
    #[must_use]
    pub fn new(cluster: Cluster, trials: Vec<TrialRequest>) -> Self {
        Self { cluster, trials, fairness: Fairness::default(), avoid_interference: true }
    }

    /// Whether every number is usable, every trial appears once, and what is left of them has one unit.
    pub fn check(&self) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        let mut remaining = RemainingWork::Unknown;
        for trial in &self.trials {
            trial.check()?;
            if !seen.insert(trial.id) {
                return Err(Error::DuplicateTrial(trial.id));
            }
            if !trial.remaining.has_unit_of(remaining) {
                return Err(Error::MixedUnits(trial.id));
            }
            if trial.remaining != RemainingWork::Unknown {
                remaining = trial.remaining;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::policy::placement::tests::{problem, trial};

    #[test]
    fn work_in_different_units_is_refused() {
        let trials = |second| {
            let known = |id, remaining| TrialRequest { remaining, ..trial(id, 1) };
            let first = [known(0, RemainingWork::Epochs(3.0)), known(1, RemainingWork::Unknown)];
            problem("1x4xt4", first.into_iter().chain([known(2, second)]).collect()).check()
        };
        assert_eq!(trials(RemainingWork::Epochs(5.0)), Ok(()));
        assert_eq!(trials(RemainingWork::Examples(5.0)), Err(Error::MixedUnits(TrialId(2))));
    }
}
