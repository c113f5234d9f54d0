use super::{Error, NoiseScale};

/// The noise scale as a function of the total batch M, at one stage of a training: `phi(M) = scale (M / batch)^slope`.
///
/// The formula of eq. 5 does not say so, but trainings at larger batches come to places with more noise: in measured trainings
/// `d ln phi / d ln M` is 0.3 to 0.6 for CIFAR-10, 0.9 for BERT, about 0 for `YOLOv3`. Who takes the noise that was measured at a small
/// batch for that at all batches stays with the small one.
///
/// ```
/// use pollux_tune::goodput::{NoiseCurve, NoiseScale};
/// let curve = NoiseCurve::new(NoiseScale::new(400.0)?, 100.0, 0.5)?;
/// assert!((curve.at(900.0).value() - 1200.0).abs() < 1e-9); // 400 * 9^0.5
/// assert!((curve.efficiency(100.0, 900.0) - 1300.0 / 2100.0).abs() < 1e-12);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseCurve {
    scale: NoiseScale,
    /// Its logarithm.
    log_batch: f64,
    slope: f64,
}

impl NoiseCurve {
    /// The largest slope: with 1, a larger batch would never be less efficient.
    pub const SLOPE_MAX: f64 = 0.9;

    /// A noise scale as measured at a total batch, and how fast it grows with the batch. Slopes outside of 0 to
    /// [`SLOPE_MAX`](Self::SLOPE_MAX) count as the nearest inside.
    pub fn new(scale: NoiseScale, batch: f64, slope: f64) -> Result<Self, Error> {
        Error::check_positive("the batch of a noise scale", batch)?;
        Error::check_finite("the growth of the noise scale with the batch", slope)?;
        Ok(Self { scale, log_batch: batch.ln(), slope: slope.clamp(0.0, Self::SLOPE_MAX) })
    }

    /// The same noise at all batches.
    #[must_use]
    pub const fn constant(scale: NoiseScale) -> Self {
        Self { scale, log_batch: 0.0, slope: 0.0 }
    }

    /// Whether it is the same at all batches, and if so, what.
    pub(super) fn as_constant(self) -> Option<NoiseScale> {
        let is_constant =
            self.slope <= 0.0 || self.scale == NoiseScale::ZERO || self.scale == NoiseScale::UNRESOLVED;
        is_constant.then_some(self.scale)
    }

    /// `d ln phi / d ln M`.
    #[must_use]
    pub const fn slope(self) -> f64 {
        self.slope
    }

    /// The noise scale at a total batch above 0.
    #[must_use]
    pub fn at(self, batch: f64) -> NoiseScale {
        if let Some(scale) = self.as_constant() {
            return scale;
        }
        let factor = (self.slope * (batch.ln() - self.log_batch)).exp();
        NoiseScale::new(self.scale.value() * factor).unwrap_or(NoiseScale::UNRESOLVED)
    }

    /// [`NoiseScale::efficiency`], with the noise that is expected at that batch.
    #[must_use]
    pub fn efficiency(self, initial: f64, batch: f64) -> f64 {
        self.at(batch).efficiency(initial, batch)
    }
}

impl From<NoiseScale> for NoiseCurve {
    fn from(scale: NoiseScale) -> Self {
        Self::constant(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_curves_are_refused_and_steep_ones_bent() {
        let scale = NoiseScale::new(100.0).unwrap();
        for (batch, slope) in [(0.0, 0.1), (f64::NAN, 0.1), (1.0, f64::NAN), (1.0, f64::INFINITY)] {
            assert!(NoiseCurve::new(scale, batch, slope).is_err(), "{batch} {slope}");
        }
        let slope = |slope| NoiseCurve::new(scale, 8.0, slope).unwrap().slope();
        assert_eq!((slope(-0.4).to_bits(), slope(3.0).to_bits()), (0.0_f64.to_bits(), 0.9_f64.to_bits()));
    }

    #[test]
    fn no_noise_and_no_signal_are_so_at_all_batches() {
        for scale in [NoiseScale::ZERO, NoiseScale::UNRESOLVED] {
            let curve = NoiseCurve::new(scale, 128.0, 0.5).unwrap();
            assert_eq!((curve.at(1.0), curve.at(1e9)), (scale, scale));
        }
        let large = NoiseCurve::new(NoiseScale::new(9e11).unwrap(), 1.0, 0.9).unwrap();
        assert_eq!(large.at(1e9), NoiseScale::UNRESOLVED);
    }
}
