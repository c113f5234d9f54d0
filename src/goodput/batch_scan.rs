//! The best batch where the noise scale grows with the batch.
//!
//! For one total batch, fewer passes are never slower, whatever the noise: so there is one plan to look at for each total. Over the
//! totals, goodput may have two peaks (`d ln EFFICIENCY / d ln M` is no longer monotone), so that a slope that changes its sign is not
//! enough: a coarse scan finds the highest part, and a golden-section search its top.

use super::{BatchLimits, BatchPlan, BestBatch, NoiseCurve, Shape, ThroughputParams};

/// The ratio of two totals of the scan: half an octave.
const STEP: f64 = std::f64::consts::SQRT_2;
/// Steps of the golden section; 8 leave 2 % of two steps of the scan, where goodput is flat.
const SECTIONS: usize = 8;
/// A plan with this share of the goodput of the peak is not worth a longer search.
const CLOSE: f64 = 0.99;
const GOLDEN: f64 = 0.618_033_988_749_895;

pub(super) struct Scan<'a> {
    pub(super) params: &'a ThroughputParams,
    pub(super) shape: Shape,
    pub(super) noise: NoiseCurve,
    pub(super) limits: &'a BatchLimits,
    /// The largest total batch.
    pub(super) max: u32,
}

impl Scan<'_> {
    pub(super) fn run(&self) -> Option<BestBatch> {
        let gpus = f64::from(self.shape.gpus());
        let low = f64::from(self.limits.initial()).max(gpus * f64::from(self.limits.per_gpu_min()));
        let high = f64::from(self.max);
        if low > high {
            return None;
        }
        let mut totals: Vec<f64> =
            std::iter::successors(Some(low), |total| Some(total * STEP).filter(|total| *total < high))
                .collect();
        totals.push(high);
        let values: Vec<f64> = totals.iter().map(|total| self.bound(*total)).collect();
        let top = (0..totals.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]))?;
        let left = totals[top.saturating_sub(1)];
        let right = totals[(top + 1).min(totals.len() - 1)];
        let bound = section(left, right, |total| self.bound(total));
        // The bound is reached with full memories; between two of them there may be a higher top.
        let full = self.full();
        let below = (bound / full).floor() * full;
        let above = (below + full).min(high);
        let peak =
            if below > 0.0 { section(below.max(low), above, |total| self.goodput(total)) } else { bound };
        let candidates = [low, totals[top], bound, peak, below.max(low), above, full, high];
        let plans = candidates.into_iter().flat_map(|total| self.around(total));
        let best = plans.max_by(|a, b| a.goodput.total_cmp(&b.goodput))?;
        Some(self.more_passes(peak, best))
    }

    /// Whole numbers may fall badly where a GPU has few examples: more passes, of fewer examples each, can come closer to the peak. With
    /// each more the peak itself gives less, which ends the search.
    fn more_passes(&self, peak: f64, mut best: BestBatch) -> BestBatch {
        let least = f64::from(self.shape.gpus()) * f64::from(self.limits.per_gpu_min());
        for passes in self.passes(peak) + 1..=(peak / least) as u32 {
            if best.goodput >= CLOSE * self.goodput_in(peak, passes) {
                break;
            }
            best = self
                .in_passes(peak, passes)
                .fold(best, |best, plan| if plan.goodput > best.goodput { plan } else { best });
        }
        best
    }

    /// The total batch of one pass with full memories.
    fn full(&self) -> f64 {
        f64::from(self.shape.gpus()) * f64::from(self.limits.per_gpu_max())
    }

    /// Passes that a total batch takes at least.
    fn passes(&self, total: f64) -> u32 {
        ((total / self.full()) * (1.0 - 1e-12)).ceil().max(1.0) as u32
    }

    /// Goodput of a total batch that need not be whole, in as few passes as memory allows.
    fn goodput(&self, total: f64) -> f64 {
        self.goodput_in(total, self.passes(total))
    }

    fn goodput_in(&self, total: f64, passes: u32) -> f64 {
        let per_gpu = total / (f64::from(self.shape.gpus()) * f64::from(passes));
        let time_s = self.params.iter_time_s(self.shape, per_gpu, passes - 1);
        total / time_s * self.noise.efficiency(f64::from(self.limits.initial()), total)
    }

    /// As if a part of a pass took that part of its time: no total batch gives more, and it has none of the jumps that goodput has where
    /// one pass more is needed.
    fn bound(&self, total: f64) -> f64 {
        let passes = (total / self.full()).max(1.0);
        let per_gpu = total / (f64::from(self.shape.gpus()) * passes);
        let time_s = self.params.iter_time_s(self.shape, per_gpu, 0)
            + (passes - 1.0) * self.params.grad_time_s(per_gpu);
        total / time_s * self.noise.efficiency(f64::from(self.limits.initial()), total)
    }

    /// Whole plans next to a total, if the limits allow any: in as few passes as it takes, and in one less, with a full memory, which may
    /// be a larger batch once all numbers are whole.
    fn around(&self, total: f64) -> impl Iterator<Item = BestBatch> {
        let fewest = self.passes(total);
        (fewest.saturating_sub(1).max(1)..=fewest).flat_map(move |passes| self.in_passes(total, passes))
    }

    fn in_passes(&self, total: f64, passes: u32) -> impl Iterator<Item = BestBatch> {
        let unit = u64::from(self.shape.gpus()) * u64::from(passes);
        let least = u64::from(self.limits.initial()).div_ceil(unit).max(u64::from(self.limits.per_gpu_min()));
        let most = (u64::from(self.max) / unit).min(u64::from(self.limits.per_gpu_max()));
        let below = (total / unit as f64).floor() as u64;
        let whole = [below, below + 1].map(|per_gpu| per_gpu.clamp(least, most.max(least)) as u32);
        whole.into_iter().filter(move |_| least <= most).map(move |per_gpu| self.at(per_gpu, passes - 1))
    }

    fn at(&self, per_gpu: u32, accumulation: u32) -> BestBatch {
        let plan = BatchPlan { per_gpu, accumulation };
        BestBatch::of(plan, self.params, self.shape, self.noise, self.limits)
    }
}

/// The top between two totals, on a logarithmic axis.
fn section(low: f64, high: f64, goodput: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (low.ln(), high.ln());
    let at = |log_total: f64| goodput(log_total.exp());
    let (mut a, mut b) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
    let (mut at_a, mut at_b) = (at(a), at(b));
    for _ in 0..SECTIONS {
        if at_a > at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - GOLDEN * (high - low);
            at_a = at(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + GOLDEN * (high - low);
            at_b = at(b);
        }
    }
    f64::midpoint(low, high).exp()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::goodput::{BatchMode, ComputeCost, NoiseScale, SyncCost, best_batch};

    /// The best goodput of all whole plans.
    fn brute_force(scan: &Scan) -> Option<f64> {
        let mut best = None;
        for per_gpu in scan.limits.per_gpu_min()..=scan.limits.per_gpu_max() {
            for accumulation in 0.. {
                let total = BatchPlan { per_gpu, accumulation }.total(scan.shape.gpus());
                if total > u64::from(scan.max) {
                    break;
                }
                if total >= u64::from(scan.limits.initial()) {
                    let goodput = scan.at(per_gpu, accumulation).goodput;
                    best = Some(f64::max(best.unwrap_or(0.0), goodput));
                }
            }
        }
        best
    }

    #[test]
    fn noise_that_grows_with_the_batch_bears_a_larger_one() {
        let sync = SyncCost { alpha_s: 0.05, beta_s: 0.0 };
        let params =
            ThroughputParams::new(ComputeCost { alpha_s: 0.02, beta_s: 1e-4 }, [sync; 2], 2.0).unwrap();
        let limits = BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 1, 1024).unwrap();
        let shape = Shape::new(4, 1).unwrap();
        let at = |slope: f64| {
            let noise = NoiseCurve::new(NoiseScale::new(500.0).unwrap(), 128.0, slope).unwrap();
            best_batch(&params, shape, noise, &limits).unwrap().plan.total(4)
        };
        assert!(at(0.3) > at(0.0) && at(0.6) > at(0.3), "{} {} {}", at(0.0), at(0.3), at(0.6));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whole examples may fall badly where a GPU has few of them, and the top is found up to 2 %: there it is flat.
        #[test]
        fn no_plan_is_much_better_than_the_one_found(
            (alpha, beta, sync, gamma) in (1e-4..1.0f64, 1e-5..0.1f64, prop_oneof![Just(0.0), 1e-4..3.0f64], 1.0..=10.0f64),
            (phi, slope) in (1.0..1e5f64, 0.01..0.9f64),
            gpus in 1..16u32, nodes in 1..3u32,
            (initial, max, high) in (1..200u32, 0..800u32, 8..80u32),
        ) {
            let sync = SyncCost { alpha_s: sync, beta_s: 0.1 * sync };
            let params = ThroughputParams::new(ComputeCost { alpha_s: alpha, beta_s: beta }, [sync; 2], gamma).unwrap();
            let (max, shape) = (initial + max, Shape::new(gpus, nodes.min(gpus)).unwrap());
            let limits = BatchLimits::new(initial, BatchMode::Adaptive { max }, 1, high).unwrap();
            let noise = NoiseCurve::new(NoiseScale::new(phi).unwrap(), 64.0, slope).unwrap();
            let scan = Scan { params: &params, shape, noise, limits: &limits, max };
            let (exact, found) = (brute_force(&scan), best_batch(&params, shape, noise, &limits));
            prop_assert_eq!(exact.is_some(), found.is_some());
            if let (Some(exact), Some(found)) = (exact, found) {
                prop_assert!(found.goodput >= 0.97 * exact, "{} {exact} {found:?}", found.goodput);
                let total = found.plan.total(gpus);
                prop_assert!(total >= u64::from(initial) && total <= u64::from(max));
                prop_assert!((1..=high).contains(&found.plan.per_gpu));
            }
        }
    }
}
