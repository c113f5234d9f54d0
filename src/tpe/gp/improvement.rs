//! ln of the expected improvement (Ament et al. 2023, "Unexpected Improvements to Expected Improvement for
//! Bayesian Optimization"): where the improvement itself is too small for a number, its logarithm still has a
//! slope to follow.

use libm::{exp, log};

use super::{
    super::normal::{LN_SQRT_2PI, cdf},
    posterior::Belief,
};

/// Below this number of standard deviations a series is more exact than the difference of two small numbers.
const FAR: f64 = -25.0;

/// ln of the expected improvement over `best`, and its slopes with the expectation and the standard deviation.
pub(super) fn log_improvement(belief: Belief, best: f64) -> (f64, [f64; 2]) {
    let Belief { mean, sd } = belief;
    let z = (best - mean) / sd;
    // h(z) = density(z) + z cdf(z) is the improvement in standard deviations.
    let log_density = -0.5 * z * z - LN_SQRT_2PI;
    let (log_h, cdf_share, density_share) = if z > FAR {
        let density = exp(log_density);
        let below = cdf(z);
        let h = density + z * below;
        (log(h), below / h, density / h)
    } else {
        // h / density = 1 / z^2 - 3 / z^4 + 15 / z^6 - ...
        let s = 1.0 / (z * z);
        let share = s * (1.0 - s * (3.0 - s * (15.0 - s * (105.0 - s * 945.0))));
        (log_density + log(share), (share - 1.0) / (z * share), 1.0 / share)
    };
    (log_h + log(sd), [-cdf_share / sd, density_share / sd])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_improvement_by_hand() {
        // At the best itself it is sd / sqrt(2 pi).
        let (value, _) = log_improvement(Belief { mean: 1.0, sd: 2.0 }, 1.0);
        assert!((exp(value) - 0.797_884_560_802_865).abs() < 1e-14);
        // One standard deviation better: density(1) + cdf(1).
        let (value, _) = log_improvement(Belief { mean: 0.0, sd: 1.0 }, 1.0);
        assert!((exp(value) - 1.083_315_470_587_686).abs() < 1e-14);
    }

    #[test]
    fn slopes_are_those_of_the_value() {
        for z in [-1e6, -300.0, -25.1, -24.9, -9.0, -1.0, 0.0, 0.7, 5.0, 40.0] {
            for sd in [0.1, 3.0] {
                let at = |mean: f64, sd: f64| log_improvement(Belief { mean, sd }, 0.0);
                let (value, [by_mean, by_sd]) = at(-z * sd, sd);
                assert!(value.is_finite());
                // Far from zero the mean has to move more to make a difference.
                let step = 1e-6 * sd * (1.0 + z.abs());
                let wider = 1e-6 * sd;
                let of_mean = (at(-z * sd + step, sd).0 - at(-z * sd - step, sd).0) / (2.0 * step);
                let of_sd = (at(-z * sd, sd + wider).0 - at(-z * sd, sd - wider).0) / (2.0 * wider);
                for (slope, difference) in [(by_mean, of_mean), (by_sd, of_sd)] {
                    let close = 1e-4 * (1.0 + slope.abs());
                    assert!((slope - difference).abs() < close, "{z} {sd}: {slope} {difference}");
                }
            }
        }
    }

    #[test]
    fn the_series_meets_the_formula() {
        let at = |z: f64| log_improvement(Belief { mean: -z, sd: 1.0 }, 0.0).0;
        let (above, below) = (at(FAR + 1e-9), at(FAR - 1e-9));
        assert!((above - below).abs() < 1e-6, "{above} {below}");
    }
}
