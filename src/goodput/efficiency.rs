use serde::{Deserialize, Serialize};

use super::Error;

/// The pre-conditioned gradient noise scale, phi of Pollux OSDI'21 eq. 5, in examples.
///
/// It is about the batch size up to which a larger batch saves as many steps as it costs examples.
///
/// ```
/// use pollux_tune::goodput::NoiseScale;
/// let phi = NoiseScale::new(300.0)?;
/// // (300 + 100) / (300 + 500)
/// assert!((phi.efficiency(100.0, 500.0) - 0.5).abs() < 1e-12);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct NoiseScale(f64);

impl TryFrom<f64> for NoiseScale {
    type Error = Error;

    fn try_from(phi: f64) -> Result<Self, Error> {
        Self::new(phi)
    }
}

impl NoiseScale {
    /// The largest noise scale, in examples. At any batch in use the efficiency is then as good as 1, and
    /// sums with a batch are still exact.
    pub const CAP: f64 = 1e12;
    /// No noise: a larger batch brings nothing. Also what to assume while nothing is known, since it
    /// neither raises the learning rate nor counts progress that may not be there.
    pub const ZERO: Self = Self(0.0);
    /// The gradient is lost in its noise: the noise scale cannot be distinguished from infinity.
    pub const UNRESOLVED: Self = Self(Self::CAP);

    /// A noise scale of `phi` examples, at least 0; more than [`NoiseScale::CAP`] counts as the cap.
    pub fn new(phi: f64) -> Result<Self, Error> {
        Error::check_at_least("the gradient noise scale", phi, 0.0, "a finite number, at least 0")?;
        Ok(Self(phi.min(Self::CAP)))
    }

    /// Examples, from 0 to [`NoiseScale::CAP`].
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }

    /// `EFFICIENCY_t(M)`: progress per example at `batch`, relative to the `initial` batch (Pollux
    /// OSDI'21 eq. 6). Both are total batch sizes above 0; the result is at most 1 from `initial` on.
    #[must_use]
    pub fn efficiency(self, initial: f64, batch: f64) -> f64 {
        (self.0 + initial) / (self.0 + batch)
    }

    /// How many steps at the `initial` batch one step at `batch` is worth: the gain of `AdaScale` (Johnson
    /// et al. 2020), which is `M / M0 * EFFICIENCY_t(M)`.
    #[must_use]
    pub fn gain(self, initial: f64, batch: f64) -> f64 {
        batch / initial * self.efficiency(initial, batch)
    }
}

/// Training progress that does not depend on the batch sizes it was made with.
///
/// A step at total batch M counts as `M * EFFICIENCY_t(M)` examples, that is, as many as would have been
/// needed at the initial batch for the same progress (Pollux OSDI'21 fig. 2, "statistical epochs").
///
/// ```
/// use pollux_tune::goodput::{NoiseScale, StatisticalProgress};
/// let mut progress = StatisticalProgress::new(100.0)?;
/// let phi = NoiseScale::new(300.0)?;
/// progress.add_step(100.0, phi)?; // 100 * 1
/// progress.add_step(500.0, phi)?; // 500 * 0.5
/// assert!((progress.epochs(700)? - 0.5).abs() < 1e-12);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatisticalProgress {
    initial_batch: f64,
    examples: f64,
}

impl StatisticalProgress {
    /// No progress yet, for a trial whose initial total batch is `initial_batch`.
    pub fn new(initial_batch: f64) -> Result<Self, Error> {
        Self::resume(initial_batch, 0.0)
    }

    /// The progress of a checkpoint: `examples` is what [`StatisticalProgress::examples`] said then.
    pub fn resume(initial_batch: f64, examples: f64) -> Result<Self, Error> {
        Error::check_positive("the initial batch", initial_batch)?;
        Error::check_at_least("the progress in examples", examples, 0.0, "a finite number, at least 0")?;
        Ok(Self { initial_batch, examples })
    }

    /// Counts one optimizer step at total batch `batch`; an error leaves the progress as it was.
    pub fn add_step(&mut self, batch: f64, phi: NoiseScale) -> Result<(), Error> {
        Error::check_positive("the batch", batch)?;
        let examples = batch.mul_add(phi.efficiency(self.initial_batch, batch), self.examples);
        self.examples = Error::check_finite("the progress in examples", examples)?;
        Ok(())
    }

    /// The initial total batch, M0.
    #[must_use]
    pub const fn initial_batch(&self) -> f64 {
        self.initial_batch
    }

    /// Examples that training at the initial batch would have needed to get here.
    #[must_use]
    pub const fn examples(&self) -> f64 {
        self.examples
    }

    /// Statistical epochs over a training set of `dataset_len` examples: `M / |X| * sum_t EFFICIENCY_t(M)`.
    pub fn epochs(&self, dataset_len: u64) -> Result<f64, Error> {
        if dataset_len == 0 {
            let what = "the length of the data set";
            return Err(Error::OutOfRange { what, value: 0.0, allowed: "at least 1 example" });
        }
        Ok(self.examples / dataset_len as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1.0)
    }

    #[test]
    fn efficiency_and_gain_by_hand() {
        let phi = NoiseScale::new(1000.0).unwrap();
        assert!(near(phi.efficiency(128.0, 128.0), 1.0));
        assert!(near(phi.efficiency(128.0, 1024.0), 1128.0 / 2024.0));
        assert!(near(phi.gain(128.0, 1024.0), 8.0 * 1128.0 / 2024.0));
        assert!(near(NoiseScale::ZERO.efficiency(32.0, 128.0), 0.25));
        assert!(near(NoiseScale::ZERO.gain(32.0, 128.0), 1.0));
        assert!(near(NoiseScale::UNRESOLVED.gain(32.0, 1024.0), 32.0 * (1e12 + 32.0) / (1e12 + 1024.0)));
    }

    #[test]
    fn a_noise_scale_is_finite_and_at_least_0() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e-9] {
            assert!(matches!(NoiseScale::new(bad), Err(Error::OutOfRange { .. })), "{bad}");
        }
        assert_eq!(NoiseScale::new(f64::MAX).unwrap(), NoiseScale::UNRESOLVED);
        assert_eq!(NoiseScale::new(0.0).unwrap(), NoiseScale::ZERO);
    }

    #[test]
    fn the_same_progress_takes_more_examples_at_a_larger_batch() {
        let phi = NoiseScale::new(200.0).unwrap();
        let mut small = StatisticalProgress::new(50.0).unwrap();
        let mut large = small;
        // A step at 400 is worth 8 * 250 / 600 = 10/3 steps at 50.
        for _ in 0..10 {
            small.add_step(50.0, phi).unwrap();
        }
        for _ in 0..3 {
            large.add_step(400.0, phi).unwrap();
        }
        assert!(near(small.examples(), 500.0));
        assert!(near(large.examples(), 500.0));
        assert!(near(large.epochs(250).unwrap(), 2.0));
    }

    #[test]
    fn bad_progress_is_refused_and_changes_nothing() {
        let mut progress = StatisticalProgress::resume(10.0, 40.0).unwrap();
        for bad in [f64::NAN, f64::INFINITY, 0.0, -5.0] {
            assert!(progress.add_step(bad, NoiseScale::ZERO).is_err(), "{bad}");
            assert!(StatisticalProgress::new(bad).is_err(), "{bad}");
        }
        assert!(near(progress.examples(), 40.0));
        assert!(matches!(progress.epochs(0), Err(Error::OutOfRange { .. })));
        assert!(near(progress.epochs(80).unwrap(), 0.5));
        assert!(StatisticalProgress::resume(10.0, -1.0).is_err());
    }

    proptest! {
        #[test]
        fn efficiency_is_a_fraction_from_the_initial_batch_on(
            phi in prop_oneof![0.0..1e6, 0.0..f64::MAX],
            initial in 1.0..1e6_f64,
            ratio in 1.0..1e6_f64,
        ) {
            let phi = NoiseScale::new(phi).unwrap();
            let batch = initial * ratio;
            let efficiency = phi.efficiency(initial, batch);
            prop_assert!(efficiency > 0.0 && efficiency <= 1.0);
            // A larger batch is never worth less than one step, nor more than its size.
            let gain = phi.gain(initial, batch);
            prop_assert!(gain >= 1.0 - 1e-12 && gain <= ratio * (1.0 + 1e-12), "{gain} {ratio}");
        }
    }
}
