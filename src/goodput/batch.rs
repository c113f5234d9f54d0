use serde::{Deserialize, Serialize};

use super::{Error, NoiseCurve, NoiseScale, Shape, ThroughputParams, batch_scan::Scan};

/// How the global batch of a trial may vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// From the initial batch `M0` up to a maximum that the user's learning-rate rule still supports.
    Adaptive {
        /// The largest total batch.
        max: u32,
    },
    /// Always the initial batch, split over the GPUs and passes as evenly as possible; efficiency is 1. The smallest
    /// per-GPU batch then only limits how many GPUs share it.
    Fixed,
    /// Always this batch on each GPU, in as few passes as its memory allows: the total grows with the GPUs.
    PerGpu {
        /// Examples on each GPU in one step.
        batch: u32,
    },
}

/// The batch sizes a trial may use on one GPU type.
///
/// ```
/// use pollux_tune::goodput::{BatchLimits, BatchMode};
/// assert!(BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 32, 1024).is_ok());
/// assert!(BatchLimits::new(128, BatchMode::Adaptive { max: 64 }, 32, 1024).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    initial: u32,
    mode: BatchMode,
    per_gpu_min: u32,
    per_gpu_max: u32,
}

impl BatchLimits {
    /// `initial` is the total batch `M0`; `per_gpu_min` and `per_gpu_max` bound one pass on one GPU, the latter by
    /// the memory of this GPU type.
    pub fn new(initial: u32, mode: BatchMode, per_gpu_min: u32, per_gpu_max: u32) -> Result<Self, Error> {
        Error::check_positive("the initial batch size", f64::from(initial))?;
        Error::check_positive("the smallest per-GPU batch size", f64::from(per_gpu_min))?;
        let ordered = |lower, lower_value: u32, upper, upper_value: u32| {
            if lower_value <= upper_value {
                return Ok(());
            }
            let (lower_value, upper_value) = (lower_value.into(), upper_value.into());
            Err(Error::BadLimits { lower, lower_value, upper, upper_value })
        };
        ordered(
            "the smallest per-GPU batch size",
            per_gpu_min,
            "the largest per-GPU batch size",
            per_gpu_max,
        )?;
        match mode {
            BatchMode::Adaptive { max } => {
                ordered("the initial batch size", initial, "the maximum batch size", max)?;
            }
            BatchMode::PerGpu { batch } => {
                Error::check_positive("the per-GPU batch size", f64::from(batch))?;
            }
            BatchMode::Fixed => {}
        }
        Ok(Self { initial, mode, per_gpu_min, per_gpu_max })
    }

    /// The initial total batch `M0`.
    #[must_use]
    pub const fn initial(&self) -> u32 {
        self.initial
    }

    /// The smallest batch of one pass on one GPU.
    #[must_use]
    pub const fn per_gpu_min(&self) -> u32 {
        self.per_gpu_min
    }

    /// The largest batch of one pass on one GPU.
    #[must_use]
    pub const fn per_gpu_max(&self) -> u32 {
        self.per_gpu_max
    }

    /// The same, with passes of at most so many examples on one GPU.
    #[must_use]
    pub fn within(self, per_gpu: u32) -> Self {
        Self { per_gpu_max: self.per_gpu_max.min(per_gpu).max(self.per_gpu_min), ..self }
    }

    /// The largest number of GPUs that can share the largest batch.
    #[must_use]
    pub const fn max_gpus(&self) -> u32 {
        match self.mode {
            BatchMode::Adaptive { max } => max / self.per_gpu_min,
            BatchMode::Fixed => self.initial / self.per_gpu_min,
            BatchMode::PerGpu { .. } => u32::MAX,
        }
    }
}

/// What every replica does in one optimizer step: `accumulation` + 1 passes of `per_gpu` examples.
///
/// Wherever the crate speaks of an accumulation, it counts the passes *before* the one that synchronizes, as the paper does: 0
/// is a single pass, which PyTorch would call 1 accumulation step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Examples in one pass on one GPU, m in the paper.
    pub per_gpu: u32,
    /// Passes before the one that synchronizes, s in the paper; 0 for a single pass.
    pub accumulation: u32,
}

impl BatchPlan {
    /// Divides a total batch as evenly as possible over `gpus` GPUs (at least one), in as few passes as the memory for
    /// `per_gpu_max` examples allows, but `passes` at least. Rounding up may make the total larger.
    #[must_use]
    pub fn split(total: u32, gpus: u32, per_gpu_max: u32, passes: u32) -> Self {
        let share = total.div_ceil(gpus);
        let passes = share.div_ceil(per_gpu_max).max(passes).max(1);
        Self { per_gpu: share.div_ceil(passes), accumulation: passes - 1 }
    }

    /// The total batch M on `gpus` GPUs.
    #[must_use]
    pub fn total(&self, gpus: u32) -> u64 {
        u64::from(gpus) * u64::from(self.per_gpu) * (u64::from(self.accumulation) + 1)
    }
}

/// A batch plan with the goodput that it is predicted to give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestBatch {
    /// The plan.
    pub plan: BatchPlan,
    /// Examples per second times efficiency (Pollux OSDI'21 eq. 4).
    pub goodput: f64,
}

impl BestBatch {
    /// A plan whatever the limits say, with its goodput relative to their initial batch.
    pub(crate) fn of(
        plan: BatchPlan,
        params: &ThroughputParams,
        shape: Shape,
        noise: impl Into<NoiseCurve>,
        limits: &BatchLimits,
    ) -> Self {
        let total = plan.total(shape.gpus()) as f64;
        let noise = noise.into().at(total);
        Search::new(params, shape, noise, limits, u32::MAX).at(plan.per_gpu, plan.accumulation)
    }
}

/// The batch plan of highest goodput on an allocation, `argmax GOODPUT(a, m, s)` (Pollux OSDI'21 eq. 13); none if
/// no allowed batch can be split over these GPUs.
///
/// The paper samples candidates. Here the maximum is exact, at a cost that hardly depends on the limits:
/// - For one total batch, fewer accumulation passes are never slower: with `W` seconds of compute in all,
///   `T_iter = W - T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)` falls as the last pass, `T_grad`, gets longer.
/// - For a fixed number of passes the goodput has one peak: `d ln GOODPUT / d ln m` is `phi / (phi + M)`, which falls
///   with m, minus the elasticity of `T_iter`, which grows.
///
/// So the passes are raised only while memory, not efficiency, holds the batch back, and the best m is where a
/// monotone slope changes sign. Noise that grows with the batch ([`NoiseCurve`]) may give two peaks: there the totals are scanned
/// in half octaves, and the best part of them is searched.
///
/// ```
/// use pollux_tune::goodput::*;
/// let sync = [SyncCost { alpha_s: 0.05, beta_s: 0.0 }, SyncCost { alpha_s: 0.5, beta_s: 0.0 }];
/// let params = ThroughputParams::new(ComputeCost { alpha_s: 0.05, beta_s: 0.001 }, sync, 2.0)?;
/// let limits = BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 1, 1024)?;
/// let early = best_batch(&params, Shape::new(4, 1)?, NoiseScale::new(100.0)?, &limits).unwrap();
/// let late = best_batch(&params, Shape::new(4, 1)?, NoiseScale::new(10_000.0)?, &limits).unwrap();
/// assert!(early.plan.total(4) < late.plan.total(4)); // a noisier gradient bears a larger batch
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[must_use]
pub fn best_batch(
    params: &ThroughputParams,
    shape: Shape,
    noise: impl Into<NoiseCurve>,
    limits: &BatchLimits,
) -> Option<BestBatch> {
    let noise = noise.into();
    match limits.mode {
        BatchMode::Adaptive { max } => match noise.as_constant() {
            Some(scale) => Search::new(params, shape, scale, limits, max).run(),
            None => Scan { params, shape, noise, limits, max }.run().or_else(|| {
                // Limits that leave only a few whole batches.
                let found = Search::new(params, shape, noise.at(f64::from(max)), limits, max).run()?;
                Some(BestBatch::of(found.plan, params, shape, noise, limits))
            }),
        },
        BatchMode::Fixed => fixed_batch(params, shape, limits),
        BatchMode::PerGpu { batch } => {
            let plan = BatchPlan::split(batch, 1, limits.per_gpu_max, 1);
            Some(BestBatch::of(plan, params, shape, noise, limits))
        }
    }
}

fn fixed_batch(params: &ThroughputParams, shape: Shape, limits: &BatchLimits) -> Option<BestBatch> {
    if limits.initial < shape.gpus().saturating_mul(limits.per_gpu_min) {
        return None;
    }
    let plan = BatchPlan::split(limits.initial, shape.gpus(), limits.per_gpu_max, 1);
    let time_s = params.iter_time_s(shape, f64::from(plan.per_gpu), plan.accumulation);
    Some(BestBatch { plan, goodput: f64::from(limits.initial) / time_s })
}

/// Goodputs that differ by less than this share are the same.
const ROUNDING: f64 = 1e-9;
/// Where whole examples fall badly between the limits, at most this many numbers of passes are tried.
const PASSES_MAX: usize = 4096;

struct Search<'a> {
    params: &'a ThroughputParams,
    shape: Shape,
    phi: f64,
    limits: &'a BatchLimits,
    max: u32,
    sync_s: f64,
}

impl<'a> Search<'a> {
    fn new(
        params: &'a ThroughputParams,
        shape: Shape,
        noise: NoiseScale,
        limits: &'a BatchLimits,
        max: u32,
    ) -> Self {
        Self { params, shape, phi: noise.value(), limits, max, sync_s: params.sync_time_s(shape) }
    }

    fn run(&self) -> Option<BestBatch> {
        // Fewest passes with which memory holds the initial batch, most with which the largest batch can be split.
        let gpus = self.shape.gpus();
        let first = self.limits.initial.div_ceil(gpus.saturating_mul(self.limits.per_gpu_max)).max(1) - 1;
        let last = (self.max / gpus.checked_mul(self.limits.per_gpu_min)?).checked_sub(1)?;
        // Up to `held`, the peak lies beyond the memory of the GPU: such plans fill the memory.
        let held = self.held_by_memory(first, last);
        let mut best = (first < held).then(|| self.full(self.best_full(first, held - 1)));
        for accumulation in (held..=last).take(PASSES_MAX) {
            let Some((found, peak)) = self.peak(accumulation) else { continue };
            if best.is_none_or(|best| found.goodput > best.goodput) {
                best = Some(found);
            }
            // No further pass can do better than the real-valued peak of this one.
            if best.is_some_and(|best| best.goodput >= peak * (1.0 - ROUNDING)) {
                break;
            }
        }
        best
    }

    /// The first number of passes from `first` to `last` + 1 at which a full memory is too much, be it for the
    /// efficiency or for the largest batch.
    fn held_by_memory(&self, first: u32, last: u32) -> u32 {
        let full = f64::from(self.limits.per_gpu_max);
        let too_much = |accumulation: u32| {
            let total = u64::from(self.shape.gpus()) * u64::from(self.limits.per_gpu_max);
            total * (u64::from(accumulation) + 1) > u64::from(self.max)
                || self.slope(full, accumulation) <= 0.0
        };
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if too_much(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Among plans that fill the memory with `first` to `last` passes, the best number of passes. The total batch M
    /// takes a + b M seconds, so the goodput peaks at `M = sqrt(phi a / b)`.
    fn best_full(&self, first: u32, last: u32) -> u32 {
        let full = f64::from(self.limits.per_gpu_max);
        let grad_s = self.params.grad_time_s(full);
        let a = self.params.iter_time_s(self.shape, full, 0) - grad_s;
        let unit = full * f64::from(self.shape.gpus());
        let passes = (self.phi * a * unit / grad_s).sqrt() / unit - 1.0;
        let below = (passes.max(0.0) as u32).clamp(first, last);
        let above = below.saturating_add(1).min(last);
        if self.full(above).goodput > self.full(below).goodput { above } else { below }
    }

    fn full(&self, accumulation: u32) -> BestBatch {
        self.at(self.limits.per_gpu_max, accumulation)
    }

    fn at(&self, per_gpu: u32, accumulation: u32) -> BestBatch {
        let plan = BatchPlan { per_gpu, accumulation };
        BestBatch { plan, goodput: self.goodput(f64::from(per_gpu), accumulation) }
    }

    fn goodput(&self, per_gpu: f64, accumulation: u32) -> f64 {
        let total = f64::from(self.shape.gpus()) * per_gpu * (f64::from(accumulation) + 1.0);
        let initial = f64::from(self.limits.initial);
        let time_s = self.params.iter_time_s(self.shape, per_gpu, accumulation);
        total / time_s * (self.phi + initial) / (self.phi + total)
    }

    /// `d ln GOODPUT / d ln m`: positive while a larger per-GPU batch helps.
    fn slope(&self, per_gpu: f64, accumulation: u32) -> f64 {
        let passes = f64::from(accumulation);
        let total = f64::from(self.shape.gpus()) * per_gpu * (passes + 1.0);
        let grad_s = self.params.grad_time_s(per_gpu);
        let proportional = self.params.compute().beta_s * per_gpu / grad_s;
        let elasticity = if self.sync_s > 0.0 {
            // u = T_grad / (T_grad^gamma + T_sync^gamma)^(1/gamma)
            let gamma = self.params.gamma();
            let sum = 1.0 + (self.sync_s / grad_s).min(1e25).powf(gamma);
            let u = sum.powf(-1.0 / gamma);
            proportional * (passes + 1.0 / (sum * u)) / (passes + 1.0 / u)
        } else {
            proportional
        };
        self.phi / (self.phi + total) - elasticity
    }

    /// The best plan with this many passes, and the goodput of the real-valued peak that bounds it.
    fn peak(&self, accumulation: u32) -> Option<(BestBatch, f64)> {
        let unit = u64::from(self.shape.gpus()) * (u64::from(accumulation) + 1);
        let low =
            u64::from(self.limits.initial).div_ceil(unit).max(u64::from(self.limits.per_gpu_min)) as u32;
        let high = (u64::from(self.max) / unit).min(u64::from(self.limits.per_gpu_max)) as u32;
        if low > high {
            return None;
        }
        // The bound is over all real batches that the limits allow, beyond the whole ones.
        let unit = unit as f64;
        let smallest = (f64::from(self.limits.initial) / unit).max(f64::from(self.limits.per_gpu_min));
        let largest = (f64::from(self.max) / unit).min(f64::from(self.limits.per_gpu_max));
        if self.slope(smallest, accumulation) <= 0.0 {
            return Some((self.at(low, accumulation), self.goodput(smallest, accumulation)));
        }
        if self.slope(largest, accumulation) >= 0.0 {
            return Some((self.at(high, accumulation), self.goodput(largest, accumulation)));
        }
        let root = self.root(smallest, largest, accumulation);
        let below = self.at((root as u32).clamp(low, high), accumulation);
        let above = self.at((root as u32 + 1).clamp(low, high), accumulation);
        let found = if above.goodput > below.goodput { above } else { below };
        Some((found, self.goodput(root, accumulation).max(found.goodput)))
    }

    /// Where the slope changes sign between two batches: Newton-like steps from the answer for gamma = 1, kept
    /// inside a shrinking bracket.
    fn root(&self, mut low: f64, mut high: f64, accumulation: u32) -> f64 {
        let passes = f64::from(accumulation) + 1.0;
        let compute = self.params.compute();
        let unit = f64::from(self.shape.gpus()) * passes;
        let fixed_s = passes.mul_add(compute.alpha_s, self.sync_s);
        let mut at = (fixed_s * self.phi / (passes * compute.beta_s * unit)).sqrt();
        let (mut last_at, mut last_slope) = (f64::NAN, f64::NAN);
        for _ in 0..40 {
            if !(at > low && at < high) {
                at = (low * high).sqrt();
            }
            let slope = self.slope(at, accumulation);
            if slope > 0.0 {
                low = at;
            } else {
                high = at;
            }
            // Rounding to whole examples comes next: a hundredth of one is close enough.
            if slope.abs() < 1e-12 || high - low < 0.01 || (at - last_at).abs() < 0.01 {
                break;
            }
            let secant = at - slope * (at - last_at) / (slope - last_slope);
            (last_at, last_slope) = (at, slope);
            at = secant;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::goodput::{ComputeCost, SyncCost};

    fn params(alpha: f64, beta: f64, sync: f64, gamma: f64) -> ThroughputParams {
        let sync = SyncCost { alpha_s: sync, beta_s: 0.1 * sync };
        ThroughputParams::new(ComputeCost { alpha_s: alpha, beta_s: beta }, [sync; 2], gamma).unwrap()
    }

    fn brute_force(
        params: &ThroughputParams,
        shape: Shape,
        noise: NoiseScale,
        limits: &BatchLimits,
        max: u32,
    ) -> Option<f64> {
        let mut best = None;
        for per_gpu in limits.per_gpu_min..=limits.per_gpu_max.min(max) {
            for accumulation in 0..max {
                let total = BatchPlan { per_gpu, accumulation }.total(shape.gpus());
                if total > u64::from(max) {
                    break;
                }
                if total >= u64::from(limits.initial) {
                    let throughput = params.throughput(shape, f64::from(per_gpu), accumulation);
                    let efficiency = noise.efficiency(f64::from(limits.initial), total as f64);
                    best = Some(f64::max(best.unwrap_or(0.0), throughput * efficiency));
                }
            }
        }
        best
    }

    #[test]
    fn without_synchronization_the_peak_is_in_closed_form() {
        // m / ((0.1 + 0.001 m) (400 + m)) peaks at sqrt(0.1 / 0.001 * 400) = 200.
        let limits = BatchLimits::new(10, BatchMode::Adaptive { max: 5000 }, 1, 5000).unwrap();
        let params = params(0.1, 0.001, 0.0, 1.0);
        let best = best_batch(&params, Shape::single(), NoiseScale::new(400.0).unwrap(), &limits).unwrap();
        assert_eq!(best.plan, BatchPlan { per_gpu: 200, accumulation: 0 });
        // 200 / 0.3 s * 410 / 600
        assert!((best.goodput - 455.555_555).abs() < 1e-3);
    }

    #[test]
    fn accumulates_only_when_memory_is_short_and_synchronization_dear() {
        let limits = BatchLimits::new(12, BatchMode::Adaptive { max: 384 }, 1, 12).unwrap();
        let noise = NoiseScale::new(1000.0).unwrap();
        let expensive = best_batch(&params(0.25, 0.05, 1.4, 2.0), Shape::new(8, 2).unwrap(), noise, &limits);
        assert_eq!(expensive.unwrap().plan, BatchPlan { per_gpu: 12, accumulation: 3 });
        let free = best_batch(&params(0.25, 0.05, 0.0, 2.0), Shape::new(8, 2).unwrap(), noise, &limits);
        assert_eq!(free.unwrap().plan.accumulation, 0);
    }

    #[test]
    fn fixed_batches_split_evenly_and_count_only_their_own_examples() {
        let limits = BatchLimits::new(100, BatchMode::Fixed, 1, 10).unwrap();
        let params = params(0.1, 0.01, 0.0, 1.0);
        let best = best_batch(&params, Shape::new(3, 1).unwrap(), NoiseScale::ZERO, &limits).unwrap();
        // 34 each: 4 passes of 9, each 0.19 s.
        assert_eq!(best.plan, BatchPlan { per_gpu: 9, accumulation: 3 });
        assert!((best.goodput - 100.0 / 0.76).abs() < 1e-9);
        assert!(best_batch(&params, Shape::new(101, 1).unwrap(), NoiseScale::ZERO, &limits).is_none());
    }

    #[test]
    fn a_batch_for_each_gpu_grows_with_them() {
        let limits = BatchLimits::new(100, BatchMode::PerGpu { batch: 50 }, 1, 30).unwrap();
        let (params, noise) = (params(0.1, 0.01, 0.0, 1.0), NoiseScale::new(300.0).unwrap());
        let best = best_batch(&params, Shape::new(10, 1).unwrap(), noise, &limits).unwrap();
        // 2 passes of 25 on each, 0.35 s each; 500 examples are worth (300 + 100) / (300 + 500) of them.
        assert_eq!(best.plan, BatchPlan { per_gpu: 25, accumulation: 1 });
        assert!((best.goodput - 500.0 / 0.7 * 0.5).abs() < 1e-9);
        assert_eq!(limits.max_gpus(), u32::MAX);
        assert!(BatchLimits::new(100, BatchMode::PerGpu { batch: 0 }, 1, 30).is_err());
    }

    #[test]
    fn more_gpus_than_the_largest_batch_has_examples_is_no_plan() {
        let limits = BatchLimits::new(8, BatchMode::Adaptive { max: 64 }, 4, 8).unwrap();
        let params = params(0.1, 0.01, 0.1, 1.5);
        assert!(best_batch(&params, Shape::new(16, 2).unwrap(), NoiseScale::ZERO, &limits).is_some());
        assert!(best_batch(&params, Shape::new(17, 2).unwrap(), NoiseScale::ZERO, &limits).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn the_answer_is_the_exact_maximum(
            (alpha, beta, sync, gamma) in (1e-4..1.0f64, 1e-5..0.1f64, prop_oneof![Just(0.0), 1e-4..3.0f64], 1.0..=10.0f64),
            phi in prop_oneof![Just(0.0), 1.0..1e5f64, Just(NoiseScale::CAP)],
            gpus in 1..40u32, nodes in 1..3u32,
            (initial, max, low, high) in
                (1..200u32, 0..800u32, 1..20u32, prop_oneof![9 => 0..60u32, 1 => Just(u32::MAX - 20)]),
        ) {
            let params = params(alpha, beta, sync, gamma);
            let (max, shape) = (initial + max, Shape::new(gpus, nodes.min(gpus)).unwrap());
            let limits = BatchLimits::new(initial, BatchMode::Adaptive { max }, low, low + high).unwrap();
            let noise = NoiseScale::new(phi).unwrap();
            let exact = brute_force(&params, shape, noise, &limits, max);
            let found = best_batch(&params, shape, noise, &limits);
            prop_assert_eq!(exact.is_some(), found.is_some());
            if let (Some(exact), Some(found)) = (exact, found) {
                prop_assert!(found.goodput >= exact * (1.0 - 1e-9), "{} below {exact}: {found:?}", found.goodput);
                let total = found.plan.total(gpus);
                prop_assert!(total >= u64::from(initial) && total <= u64::from(max));
                prop_assert!(found.plan.per_gpu >= low && found.plan.per_gpu <= low + high);
            }
        }
    }

    #[test]
    fn a_batch_is_split_evenly_over_gpus_and_passes() {
        assert_eq!(BatchPlan::split(2048, 6, 1024, 1), BatchPlan { per_gpu: 342, accumulation: 0 });
        assert_eq!(BatchPlan::split(4096, 1, 1024, 1), BatchPlan { per_gpu: 1024, accumulation: 3 });
        assert_eq!(BatchPlan::split(100, 1, 1024, 2), BatchPlan { per_gpu: 50, accumulation: 1 });
    }
}
