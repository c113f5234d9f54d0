//! The choice of a batch in the authors' simulator.

use crate::goodput::{BatchLimits, BatchPlan, BestBatch, NoiseScale, Shape, ThroughputParams};

/// Of 50 total batches up to `max`, in geometric order, the first that is best after rounding. On one GPU the authors want an
/// accumulation pass with any batch above the initial one, for the sake of their estimate of the noise.
pub(in crate::sim) fn best_batch(
    params: &ThroughputParams,
    shape: Shape,
    noise: NoiseScale,
    limits: &BatchLimits,
    max: u32,
) -> Option<BestBatch> {
    const SAMPLES: u32 = 50;
    const EPS: f64 = 1e-8;
    let gpus = f64::from(shape.gpus());
    let (initial, low) = (f64::from(limits.initial()), f64::from(limits.per_gpu_min()) * gpus);
    let (low, high) = (initial.max(low), f64::from(max));
    let fits = limits.per_gpu_min()..=limits.per_gpu_max();
    let mut best: Option<BestBatch> = None;
    let mut last = None;
    for sample in 0..SAMPLES {
        let share = low * (high / low).powf(f64::from(sample) / f64::from(SAMPLES - 1)) / gpus;
        let mut accumulation = (share / f64::from(limits.per_gpu_max()) - EPS).ceil().max(1.0) - 1.0;
        if shape.gpus() == 1 && share > initial + EPS {
            accumulation = accumulation.max(1.0);
        }
        let per_gpu = (share / (accumulation + 1.0) - EPS).ceil() as u32;
        let plan = BatchPlan { per_gpu, accumulation: accumulation as u32 };
        if last.replace(plan) == Some(plan) || !fits.contains(&per_gpu) {
            continue;
        }
        let found = BestBatch::of(plan, params, shape, noise, limits);
        if best.is_none_or(|best| found.goodput > best.goodput) {
            best = Some(found);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::{self, BatchMode, ComputeCost, SyncCost, Tier};

    #[test]
    fn the_sampled_batch_is_hardly_worse_but_accumulates_on_one_gpu() {
        let limits = BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 32, 1024).unwrap();
        let (compute, sync) =
            (ComputeCost { alpha_s: 0.05, beta_s: 0.001 }, SyncCost { alpha_s: 0.2, beta_s: 0.02 });
        let params = ThroughputParams::new(compute, [sync; 2], 2.0).unwrap();
        let noise = NoiseScale::new(3000.0).unwrap();
        for gpus in [1, 2, 7, 16, 64] {
            let shape = Shape::at_tier(gpus, Tier::Node);
            let exact = goodput::best_batch(&params, shape, noise, &limits).unwrap();
            let sampled = best_batch(&params, shape, noise, &limits, 4096).unwrap();
            let share = sampled.goodput / exact.goodput;
            assert!(
                share < 1.0 + 1e-9 && share > if gpus == 1 { 0.8 } else { 0.995 },
                "{gpus} GPUs: {share}"
            );
            assert!(gpus > 1 || sampled.plan.accumulation > 0);
        }
    }
}
