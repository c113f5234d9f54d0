//! Where a fit begins, and which variables it leaves alone.

use super::{
    ThroughputPrior,
    kernel::{ALPHA_GRAD, BETA_GRAD, GAMMA, Point, VARIABLES, alpha_sync, beta_sync, logit_from_gamma},
    objective::Layout,
};
use crate::goodput::{Observation, Tier};

/// A cost that is frozen at 0.
const ZERO: f64 = f64::NEG_INFINITY;

/// What the data tell of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Explored {
    /// The tier was used.
    pub(crate) used: bool,
    /// It was used with more than two GPUs.
    pub(crate) beyond_pair: bool,
}

pub(crate) fn explored<'a>(seen: impl Iterator<Item = &'a Observation>) -> [Explored; Tier::COUNT] {
    let mut by_tier = [Explored::default(); Tier::COUNT];
    for observation in seen {
        if let Some(tier) = observation.shape.tier() {
            let entry = &mut by_tier[tier.index()];
            entry.used = true;
            entry.beyond_pair |= observation.shape.gpus() > 2;
        }
    }
    by_tier
}

/// Prior-driven exploration (Pollux OSDI'21 section 4.1): what was not seen costs nothing, unless a prior knows it.
pub(crate) fn layout(seen: &[Observation], prior: Option<&ThroughputPrior>) -> Layout {
    let known = |variable: usize| prior.is_some_and(|prior| prior.knows(variable));
    let tiers = explored(seen.iter());
    let mut layout = Layout { fixed: [ZERO; VARIABLES], free: vec![ALPHA_GRAD, BETA_GRAD], tied: None };
    layout.fixed[GAMMA] = logit_from_gamma(1.0);
    if !known(ALPHA_GRAD) && one_batch(seen) {
        // One batch size cannot tell fixed from proportional cost: half and half, as the authors' code assumes.
        layout.free = vec![BETA_GRAD];
        layout.tied = Some((ALPHA_GRAD, BETA_GRAD, seen[0].per_gpu.ln()));
    }
    for tier in Tier::ALL {
        let Explored { used, beyond_pair } = tiers[tier.index()];
        if used || known(alpha_sync(tier)) {
            layout.free.push(alpha_sync(tier));
        }
        if beyond_pair || known(beta_sync(tier)) {
            layout.free.push(beta_sync(tier));
        }
    }
    if layout.free.iter().any(|&variable| variable >= 2) {
        layout.free.push(GAMMA);
    }
    layout
}

fn one_batch(seen: &[Observation]) -> bool {
    seen.iter().all(|observation| (observation.per_gpu / seen[0].per_gpu).ln().abs() < 0.02)
}

/// A rough model read off the data: the fewest GPUs give the compute cost, what others take longer is synchronization.
pub(crate) fn rough(seen: &[Observation], gamma: f64) -> Point {
    let fewest = seen.iter().map(|observation| observation.shape.gpus()).min().unwrap_or(1);
    let alone: Vec<(f64, f64)> = seen
        .iter()
        .filter(|observation| observation.shape.gpus() == fewest)
        .map(|observation| {
            (observation.per_gpu, observation.iter_time_s / (f64::from(observation.accumulation) + 1.0))
        })
        .collect();
    let (alpha, beta) = line(&alone);
    let mut point = [0.0; VARIABLES];
    point[ALPHA_GRAD] = alpha.ln();
    point[BETA_GRAD] = beta.ln();
    point[GAMMA] = logit_from_gamma(gamma);
    let fallback = 0.1 * seen.iter().map(|observation| observation.iter_time_s).fold(f64::INFINITY, f64::min);
    for tier in Tier::ALL {
        let (mut excess, mut beyond, mut count) = (0.0, 0.0, 0.0);
        for observation in seen.iter().filter(|observation| observation.shape.tier() == Some(tier)) {
            let compute =
                (f64::from(observation.accumulation) + 1.0) * beta.mul_add(observation.per_gpu, alpha);
            let time = observation.iter_time_s;
            excess += (time - compute).max(0.1 * time);
            beyond += f64::from(observation.shape.gpus() - 2);
            count += 1.0;
        }
        let (excess, beyond) = if count > 0.0 { (excess / count, beyond / count) } else { (fallback, 1.0) };
        point[alpha_sync(tier)] = (0.7 * excess).ln();
        point[beta_sync(tier)] = (0.3 * excess / (beyond + 1.0)).ln();
    }
    point
}

/// Least squares through (batch, seconds), kept above 0.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / n, sum.1 + point.1 / n));
    let (mut xx, mut xy) = (0.0, 0.0);
    for point in points {
        xx += (point.0 - x) * (point.0 - x);
        xy += (point.0 - x) * (point.1 - y);
    }
    let slope = if xx > 1e-9 * x * x { xy / xx } else { 0.5 * y / x };
    let beta = slope.clamp(0.02 * y / x, 0.98 * y / x);
    (y - beta * x, beta)
}
