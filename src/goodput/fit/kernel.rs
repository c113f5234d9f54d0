//! The throughput model in unconstrained variables, with its gradient.
//!
//! Costs enter by their logarithm, gamma by a logit, so that every point of the space is a valid model and no solver
//! needs bounds. A cost that the data say is 0 drifts to a large negative logarithm, which is as good as 0.

use crate::goodput::{ComputeCost, Error, Observation, SyncCost, ThroughputParams, Tier};

/// Number of variables: two of compute, two for each tier, gamma.
pub(crate) const VARIABLES: usize = 3 + 2 * Tier::COUNT;
pub(crate) const ALPHA_GRAD: usize = 0;
pub(crate) const BETA_GRAD: usize = 1;
pub(crate) const GAMMA: usize = VARIABLES - 1;

pub(crate) const fn alpha_sync(tier: Tier) -> usize {
    2 + 2 * tier.index()
}

pub(crate) const fn beta_sync(tier: Tier) -> usize {
    3 + 2 * tier.index()
}

/// One point of the unconstrained space. A cost of negative infinity is exactly 0.
pub(crate) type Point = [f64; VARIABLES];

const GAMMA_RANGE: f64 = ThroughputParams::GAMMA_MAX - ThroughputParams::GAMMA_MIN;

pub(crate) fn gamma_from_logit(logit: f64) -> f64 {
    ThroughputParams::GAMMA_MIN + GAMMA_RANGE / (1.0 + (-logit).exp())
}

/// d gamma / d logit.
pub(crate) fn gamma_slope(logit: f64) -> f64 {
    let share = (gamma_from_logit(logit) - ThroughputParams::GAMMA_MIN) / GAMMA_RANGE;
    GAMMA_RANGE * share * (1.0 - share)
}

pub(crate) fn logit_from_gamma(gamma: f64) -> f64 {
    let share = ((gamma - ThroughputParams::GAMMA_MIN) / GAMMA_RANGE).clamp(1e-4, 1.0 - 1e-4);
    (share / (1.0 - share)).ln()
}

pub(crate) fn to_params(point: &Point) -> Result<ThroughputParams, Error> {
    let compute = ComputeCost { alpha_s: point[ALPHA_GRAD].exp(), beta_s: point[BETA_GRAD].exp() };
    let sync = Tier::ALL.map(|tier| SyncCost {
        alpha_s: point[alpha_sync(tier)].exp(),
        beta_s: point[beta_sync(tier)].exp(),
    });
    let gamma =
        gamma_from_logit(point[GAMMA]).clamp(ThroughputParams::GAMMA_MIN, ThroughputParams::GAMMA_MAX);
    ThroughputParams::new(compute, sync, gamma)
}

pub(crate) fn from_params(params: &ThroughputParams) -> Point {
    let mut point = [0.0; VARIABLES];
    point[ALPHA_GRAD] = params.compute().alpha_s.ln();
    point[BETA_GRAD] = params.compute().beta_s.ln();
    for tier in Tier::ALL {
        point[alpha_sync(tier)] = params.sync(tier).alpha_s.ln();
        point[beta_sync(tier)] = params.sync(tier).beta_s.ln();
    }
    point[GAMMA] = logit_from_gamma(params.gamma());
    point
}

/// The costs at a point, so that exponentials are taken once for all observations.
pub(crate) struct Costs {
    values: Point,
    gamma: f64,
    /// d gamma / d logit.
    gamma_slope: f64,
}

impl Costs {
    pub(crate) fn new(point: &Point) -> Self {
        let mut values = *point;
        for value in &mut values[..GAMMA] {
            *value = value.exp();
        }
        let gamma = gamma_from_logit(point[GAMMA]);
        Self { values, gamma, gamma_slope: gamma_slope(point[GAMMA]) }
    }

    /// `ln T_iter` (Pollux OSDI'21 eq. 11) of a configuration, and its gradient in the unconstrained variables.
    pub(crate) fn log_time(&self, seen: &Observation) -> (f64, Point) {
        let mut gradient = [0.0; VARIABLES];
        let beta_m = self.values[BETA_GRAD] * seen.per_gpu;
        let grad = self.values[ALPHA_GRAD] + beta_m;
        let passes = f64::from(seen.accumulation);
        let (mut by_grad, mut time) = (passes + 1.0, (passes + 1.0) * grad);
        if let Some(tier) = seen.shape.tier() {
            let (alpha, beta) = (alpha_sync(tier), beta_sync(tier));
            let beta_k = self.values[beta] * f64::from(seen.shape.gpus() - 2);
            let sync = self.values[alpha] + beta_k;
            if sync > 0.0 {
                // ratio^gamma against the larger one never overflows.
                let (large, small) = if grad >= sync { (grad, sync) } else { (sync, grad) };
                let log_ratio = (small / large).ln();
                let small_power = (self.gamma * log_ratio).exp();
                let log_sum = small_power.ln_1p();
                let overlapped = large * (log_sum / self.gamma).exp();
                let (large_share, small_share) =
                    (1.0 / (1.0 + small_power), small_power / (1.0 + small_power));
                let (grad_share, sync_share) =
                    if grad >= sync { (large_share, small_share) } else { (small_share, large_share) };
                time = passes.mul_add(grad, overlapped);
                by_grad = grad_share.mul_add(overlapped / grad, passes);
                let by_sync = sync_share * overlapped / sync;
                gradient[alpha] = by_sync * self.values[alpha] / time;
                gradient[beta] = by_sync * beta_k / time;
                let by_gamma =
                    small_share.mul_add(log_ratio, -log_sum / self.gamma) / self.gamma * overlapped;
                gradient[GAMMA] = by_gamma * self.gamma_slope / time;
            }
        }
        gradient[ALPHA_GRAD] = by_grad * self.values[ALPHA_GRAD] / time;
        gradient[BETA_GRAD] = by_grad * beta_m / time;
        (time.ln(), gradient)
    }
}
