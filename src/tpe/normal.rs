//! The normal distribution, truncated at the ends of an interval.
//!
//! Everything is computed with basic arithmetic and the portable functions of `libm`, so that the same numbers
//! come out on every machine.

use libm::{erfc, log, sqrt};

/// ln(sqrt(2 pi)).
pub(super) const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;
/// Beyond this number of standard deviations nothing matters.
const FAR: f64 = 7.0;

/// The probability of less than `z`.
pub(super) fn cdf(z: f64) -> f64 {
    0.5 * erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// The probability of `[low, high]` in standard deviations from the mean.
pub(super) fn mass(low: f64, high: f64) -> f64 {
    // The smaller tail is the exact one.
    if low > 0.0 { cdf(-low) - cdf(-high) } else { cdf(high) - cdf(low) }
}

/// The probability of [0, 1] around a mean inside.
pub(super) fn mass_of_unit(mean: f64, sd: f64) -> f64 {
    let (low, high) = (-mean / sd, (1.0 - mean) / sd);
    if low < -FAR && high > FAR { 1.0 } else { mass(low, high) }
}

/// Draws from a normal distribution truncated at 0 and 1; `uniform` is a draw from [0, 1).
pub(super) fn draw_in_unit(mean: f64, sd: f64, uniform: f64) -> f64 {
    let (low, high) = (cdf(-mean / sd), cdf((1.0 - mean) / sd));
    let share = (low + uniform * (high - low)).clamp(1e-300, 1.0 - 1e-16);
    (mean + sd * quantile(share)).clamp(0.0, 1.0)
}

/// The inverse of [`cdf`] to a relative error of 1e-9 (Acklam's rational approximation), which is plenty for
/// drawing random numbers.
pub(super) fn quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    const TAIL: f64 = 0.024_25;
    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p < TAIL {
        let q = sqrt(-2.0 * log(p));
        return horner(&C, q) / horner(&D, q);
    }
    if p > 1.0 - TAIL {
        return -quantile(1.0 - p);
    }
    let q = p - 0.5;
    let r = q * q;
    q * horner(&A, r) / horner(&B, r)
}

/// ln of a sum of exponentials. The slice is spoiled.
pub(super) fn log_sum_exp(logs: &mut [f64]) -> f64 {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    for value in logs.iter_mut() {
        *value = exp_of_negative(*value - largest);
    }
    largest + log(logs.iter().sum())
}

/// e to the power of a number that is at most 0, to a relative error of 1e-9.
fn exp_of_negative(x: f64) -> f64 {
    exp_by_series(x, |r| {
        let series = 1.0 / 5040.0 + r * (1.0 / 40320.0);
        let series = 1.0 / 120.0 + r * (1.0 / 720.0 + r * series);
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * series))))
    })
}

/// e to the power of a number that is at most 0, by a series for small powers, whose relative error it has; about 1e-304 below
/// -700. Without branches, so that the compiler does several at once.
pub(super) fn exp_by_series(x: f64, series: impl Fn(f64) -> f64) -> f64 {
    /// Adding it leaves the nearest whole number in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_588e-10;
    let bounded = x.max(-700.0);
    let shifted = bounded * std::f64::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = (bounded - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    series(r) * power
}

/// ln of the density of a normal distribution with this standard deviation at its mean.
pub(super) fn log_peak(sd: f64) -> f64 {
    -log(sd) - LN_SQRT_2PI
}

#[cfg(test)]
mod tests {
    use libm::exp;

    use super::*;

    #[test]
    fn tables_of_the_normal_distribution() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_746_068_543), (-3.0, 1.349_898_031_630_1e-3)] {
            assert!((cdf(z) - p).abs() < 1e-14, "{z}");
            assert!((quantile(p) - z).abs() < 1e-8, "{z}");
        }
        assert!((mass(8.0, 9.0) - 6.219_831_986_583e-16).abs() < 1e-24);
        assert!((mass_of_unit(0.0, 0.5) - 0.477_249_868_051_821).abs() < 1e-14);
    }

    #[test]
    fn draws_stay_inside_and_have_the_right_middle() {
        assert!((draw_in_unit(0.3, 0.01, 0.5) - 0.3).abs() < 1e-9);
        for uniform in [0.0, 1e-17, 0.3, 0.999_999_999_999] {
            for (mean, sd) in [(0.0, 1e-3), (1.0, 1e-3), (0.5, 1.0), (1.0, 3.0)] {
                assert!((0.0..=1.0).contains(&draw_in_unit(mean, sd, uniform)));
            }
        }
    }

    #[test]
    fn sums_of_exponentials() {
        for x in [0.0, -1e-9, -0.3, -1.0, -17.3, -300.0, -699.0] {
            assert!((exp_of_negative(x) / exp(x) - 1.0).abs() < 1e-8, "{x}");
        }
        assert!(exp_of_negative(-1e6) < 1e-300);
        assert!((log_sum_exp(&mut [1000.0, 1000.0]) - 1000.0 - std::f64::consts::LN_2).abs() < 1e-9);
        assert!(log_sum_exp(&mut [f64::NEG_INFINITY]) < f64::MIN);
    }
}
