use serde::{Deserialize, Serialize};

use super::{Error, Shape, Tier};

/// Time of one forward and backward pass: `alpha_s + beta_s * m` seconds for `m` examples on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ComputeCost {
    /// Seconds that do not depend on the batch.
    pub alpha_s: f64,
    /// Seconds per example.
    pub beta_s: f64,
}

/// Time to average gradients: `alpha_s + beta_s * (K - 2)` seconds among K GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SyncCost {
    /// Seconds between two GPUs.
    pub alpha_s: f64,
    /// Seconds more for every further GPU.
    pub beta_s: f64,
}

/// The throughput model of one trial on one GPU type: `theta_sys`, Pollux OSDI'21 eq. 12.
///
/// ```
/// use pollux_tune::goodput::{ComputeCost, Shape, SyncCost, ThroughputParams};
/// let params = ThroughputParams::new(
///     ComputeCost { alpha_s: 0.1, beta_s: 0.01 },
///     [SyncCost { alpha_s: 0.02, beta_s: 0.0 }, SyncCost { alpha_s: 0.2, beta_s: 0.01 }],
///     1.0,
/// )?;
/// // One node: 0.1 + 0.01 * 40 + 0.02 seconds for 2 * 40 examples.
/// assert!((params.iter_time_s(Shape::new(2, 1)?, 40.0, 0) - 0.52).abs() < 1e-12);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Costs")]
pub struct ThroughputParams {
    compute: ComputeCost,
    sync: [SyncCost; Tier::COUNT],
    gamma: f64,
}

/// The same before it is checked.
#[derive(Deserialize)]
struct Costs {
    compute: ComputeCost,
    sync: [SyncCost; Tier::COUNT],
    gamma: f64,
}

impl TryFrom<Costs> for ThroughputParams {
    type Error = Error;

    fn try_from(costs: Costs) -> Result<Self, Error> {
        Self::new(costs.compute, costs.sync, costs.gamma)
    }
}

impl ThroughputParams {
    /// The smallest overlap exponent: synchronization starts after the backward pass.
    pub const GAMMA_MIN: f64 = 1.0;
    /// The largest overlap exponent: synchronization is as good as hidden behind the backward pass.
    pub const GAMMA_MAX: f64 = 10.0;

    /// Parameters with every cost finite and at least 0, some compute cost above 0, and gamma in [1, 10].
    pub fn new(compute: ComputeCost, sync: [SyncCost; Tier::COUNT], gamma: f64) -> Result<Self, Error> {
        let allowed = "a finite number of seconds, at least 0";
        Error::check_at_least("alpha_grad", compute.alpha_s, 0.0, allowed)?;
        Error::check_at_least("beta_grad", compute.beta_s, 0.0, allowed)?;
        Error::check_positive("alpha_grad + beta_grad", compute.alpha_s + compute.beta_s)?;
        for cost in sync {
            Error::check_at_least("alpha_sync", cost.alpha_s, 0.0, allowed)?;
            Error::check_at_least("beta_sync", cost.beta_s, 0.0, allowed)?;
        }
        if !(Self::GAMMA_MIN..=Self::GAMMA_MAX).contains(&gamma) {
            return Err(Error::OutOfRange { what: "gamma", value: gamma, allowed: "1 to 10" });
        }
        Ok(Self { compute, sync, gamma })
    }

    /// The cost of a forward and backward pass.
    #[must_use]
    pub const fn compute(&self) -> ComputeCost {
        self.compute
    }

    /// The cost of averaging gradients at a tier.
    #[must_use]
    pub const fn sync(&self, tier: Tier) -> SyncCost {
        self.sync[tier.index()]
    }

    /// The overlap exponent: 1 adds compute and synchronization up, 10 nearly takes the longer one.
    #[must_use]
    pub const fn gamma(&self) -> f64 {
        self.gamma
    }

    /// `T_grad` in seconds for `per_gpu` examples on each GPU (eq. 8 of the paper).
    #[must_use]
    pub fn grad_time_s(&self, per_gpu: f64) -> f64 {
        self.compute.beta_s.mul_add(per_gpu, self.compute.alpha_s)
    }

    /// `T_sync` in seconds (eq. 9 of the paper); 0 for one GPU.
    #[must_use]
    pub fn sync_time_s(&self, shape: Shape) -> f64 {
        shape.tier().map_or(0.0, |tier| {
            let cost = self.sync(tier);
            cost.beta_s.mul_add(f64::from(shape.gpus() - 2), cost.alpha_s)
        })
    }

    /// `T_iter` in seconds of one optimizer step with `accumulation` passes before the one that
    /// synchronizes (eq. 11 of the paper).
    #[must_use]
    pub fn iter_time_s(&self, shape: Shape, per_gpu: f64, accumulation: u32) -> f64 {
        let grad = self.grad_time_s(per_gpu);
        f64::from(accumulation).mul_add(grad, overlap(grad, self.sync_time_s(shape), self.gamma))
    }

    /// Examples per second (eq. 7 of the paper).
    #[must_use]
    pub fn throughput(&self, shape: Shape, per_gpu: f64, accumulation: u32) -> f64 {
        let batch = f64::from(shape.gpus()) * per_gpu * (f64::from(accumulation) + 1.0);
        batch / self.iter_time_s(shape, per_gpu, accumulation)
    }
}

/// `(grad^gamma + sync^gamma)^(1/gamma)` (eq. 10 of the paper), scaled by the larger one so that nothing overflows.
pub(crate) fn overlap(grad: f64, sync: f64, gamma: f64) -> f64 {
    let (large, small) = if grad >= sync { (grad, sync) } else { (sync, grad) };
    if small <= 0.0 {
        return large;
    }
    large * ((small / large).powf(gamma).ln_1p() / gamma).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(gamma: f64) -> ThroughputParams {
        let local = SyncCost { alpha_s: 0.03, beta_s: 0.005 };
        let node = SyncCost { alpha_s: 0.3, beta_s: 0.02 };
        ThroughputParams::new(ComputeCost { alpha_s: 0.1, beta_s: 0.002 }, [local, node], gamma).unwrap()
    }

    fn shape(gpus: u32, nodes: u32) -> Shape {
        Shape::new(gpus, nodes).unwrap()
    }

    #[test]
    fn synchronization_depends_on_gpus_and_tier() {
        let params = params(1.0);
        for (gpus, nodes, seconds) in [(1, 1, 0.0), (2, 1, 0.03), (4, 1, 0.04), (2, 2, 0.3), (8, 2, 0.42)] {
            assert!((params.sync_time_s(shape(gpus, nodes)) - seconds).abs() < 1e-12, "{gpus} on {nodes}");
        }
    }

    #[test]
    fn overlap_goes_from_the_sum_to_the_maximum() {
        // 100 examples: T_grad = 0.3; on 2 nodes T_sync = 0.3 as well.
        for (gamma, seconds) in [(1.0, 0.6), (2.0, 0.3 * 2f64.sqrt()), (10.0, 0.3 * 2f64.powf(0.1))] {
            let time = params(gamma).iter_time_s(shape(2, 2), 100.0, 0);
            assert!((time - seconds).abs() < 1e-12, "gamma {gamma}: {time}");
        }
        // 3-4-5: T_grad = 0.4, T_sync = 0.3.
        assert!((params(2.0).iter_time_s(shape(2, 2), 150.0, 0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn accumulation_adds_passes_without_synchronization() {
        // Two passes of 0.3 s, then one of 0.3 s plus 0.42 s; 8 * 100 * 3 examples.
        let params = params(1.0);
        assert!((params.iter_time_s(shape(8, 2), 100.0, 2) - 1.32).abs() < 1e-12);
        assert!((params.throughput(shape(8, 2), 100.0, 2) - 2400.0 / 1.32).abs() < 1e-9);
    }

    #[test]
    fn one_gpu_does_not_synchronize() {
        assert!((params(3.0).iter_time_s(Shape::single(), 50.0, 0) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let (fine, sync) =
            (ComputeCost { alpha_s: 0.1, beta_s: 0.1 }, SyncCost { alpha_s: 0.0, beta_s: 0.0 });
        assert!(ThroughputParams::new(fine, [sync; 2], 1.0).is_ok());
        for alpha_s in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(ThroughputParams::new(ComputeCost { alpha_s, ..fine }, [sync; 2], 1.0).is_err());
            assert!(ThroughputParams::new(fine, [sync, SyncCost { alpha_s, ..sync }], 1.0).is_err());
        }
        assert!(ThroughputParams::new(ComputeCost { alpha_s: 0.0, beta_s: 0.0 }, [sync; 2], 1.0).is_err());
        for gamma in [0.99, 10.01, f64::NAN] {
            assert!(ThroughputParams::new(fine, [sync; 2], gamma).is_err());
        }
    }
}
