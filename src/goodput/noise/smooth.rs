use super::{GradientSample, GradientStats};
use crate::goodput::{Error, NoiseScale};

/// The whole state of a [`NoiseEstimator`], as plain numbers for a checkpoint or a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct NoiseState {
    /// The initial total batch M0, in examples.
    pub initial_batch: f64,
    /// What a step at the initial batch leaves of the weight of earlier ones, from 0 to below 1.
    pub smoothing: f64,
    /// The average of `|Pg|^2`.
    pub sqr: f64,
    /// The average of `tr(P Sigma P^T)`.
    pub var: f64,
    /// The weight behind the averages, from 0 (nothing seen) to 1 (the window is full).
    pub weight: f64,
    /// The average of the logarithm of the total batch of the steps; none if they were taken by a version that did not keep it.
    #[serde(default)]
    pub log_batch: Option<f64>,
}

/// The noise scale of a trial as it trains: exponential moving averages of `|Pg|^2` and `tr(P Sigma P^T)`.
///
/// The two are averaged before they are divided, because a quotient of single estimates is biased and has
/// no bounded variance. A step at total batch M leaves `smoothing^(M / M0)` of the earlier weight, so that
/// the window is a number of examples and not of steps. The averages are corrected for their start: they
/// are unbiased from the first value on.
///
/// Going from one replica to several forgets nothing of [`ConsecutiveNorms`](super::ConsecutiveNorms): the
/// noise scale would otherwise depend on a single step just when the learning rate is scaled by it.
///
/// ```
/// use pollux_tune::goodput::{GradientNorms, NoiseEstimator};
/// let mut estimator = NoiseEstimator::new(20.0)?;
/// assert!(estimator.noise_scale().is_none());
/// estimator.push(GradientNorms { count: 2, examples: 10.0, mean_sqr: 10.0, sqr_of_mean: 8.0 })?;
/// let phi = estimator.noise_scale().expect("one step is in");
/// assert!((phi.value() - 40.0 / 6.0).abs() < 1e-9);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseEstimator {
    state: NoiseState,
}

impl NoiseEstimator {
    /// The default of what a step at the initial batch leaves of earlier ones: a window of 1000 such steps.
    pub const SMOOTHING: f64 = 0.999;

    /// The weight from which on the averages are to be acted on.
    const SETTLED: f64 = 0.095;

    /// An estimator that has seen nothing, for a trial whose initial total batch is `initial_batch` examples.
    pub fn new(initial_batch: f64) -> Result<Self, Error> {
        Self::with_smoothing(initial_batch, Self::SMOOTHING)
    }

    /// The same with another smoothing, from 0 (the last step only) to below 1.
    pub fn with_smoothing(initial_batch: f64, smoothing: f64) -> Result<Self, Error> {
        let (sqr, var, weight, log_batch) = (0.0, 0.0, 0.0, None);
        Self::restore(NoiseState { initial_batch, smoothing, sqr, var, weight, log_batch })
    }

    /// The estimator that `state` was taken from, exactly.
    pub fn restore(state: NoiseState) -> Result<Self, Error> {
        Error::check_positive("the initial batch", state.initial_batch)?;
        if !(0.0..1.0).contains(&state.smoothing) {
            let allowed = "0 to below 1";
            return Err(Error::OutOfRange { what: "the smoothing", value: state.smoothing, allowed });
        }
        if !(0.0..=1.0).contains(&state.weight) {
            let what = "the weight of the averages";
            return Err(Error::OutOfRange { what, value: state.weight, allowed: "0 to 1" });
        }
        Error::check_finite("the average of |Pg|^2", state.sqr)?;
        Error::check_finite("the average of tr(P Sigma P^T)", state.var)?;
        let log_batch = state.log_batch.unwrap_or(0.0);
        Error::check_finite("the average of the logarithm of the batch", log_batch)?;
        Ok(Self { state })
    }

    /// Everything needed to resume later, or elsewhere.
    #[must_use]
    pub const fn state(&self) -> NoiseState {
        self.state
    }

    /// Takes in one step; an error leaves the averages as they were.
    pub fn push(&mut self, sample: impl Into<GradientSample>) -> Result<(), Error> {
        let sample = sample.into();
        self.push_stats(sample.stats()?, sample.batch())
    }

    /// Takes in a step that stands for `steps` steps like it, where only some are measured: the same as if all of them had been
    /// and had looked like this one.
    pub fn push_for(&mut self, sample: impl Into<GradientSample>, steps: u32) -> Result<(), Error> {
        let sample = sample.into();
        self.push_weighted(sample.stats()?, sample.batch(), f64::from(steps))
    }

    /// Takes in the raw estimates of one step at total batch `batch`; an error leaves all as it was.
    pub fn push_stats(&mut self, raw: GradientStats, batch: f64) -> Result<(), Error> {
        self.push_weighted(raw, batch, 1.0)
    }

    /// The same for a step that stands for several.
    pub(crate) fn push_weighted(&mut self, raw: GradientStats, batch: f64, steps: f64) -> Result<(), Error> {
        let examples = batch * steps;
        Error::check_positive("the batch", batch)?;
        Error::check_positive("the batch", examples)?;
        let state = self.state;
        // 1 - theta with theta = smoothing^(M / M0), without cancellation where theta is close to 1.
        let exponent = examples / state.initial_batch * state.smoothing.ln();
        let fresh = (-exponent.exp_m1()).clamp(f64::MIN_POSITIVE, 1.0);
        let weight = (1.0 - fresh).mul_add(state.weight, fresh).min(1.0);
        // A running mean with this share is the bias-corrected average; the first share is exactly 1.
        let share = fresh / weight;
        let mix = |mean: f64, value: f64| (1.0 - share) * mean + share * value;
        let sqr = Error::check_finite("the average of |Pg|^2", mix(state.sqr, raw.sqr))?;
        let var = Error::check_finite("the average of tr(P Sigma P^T)", mix(state.var, raw.var))?;
        // Where the batches of earlier steps are not known, these are the best guess.
        let log_batch = Some(mix(state.log_batch.unwrap_or_else(|| batch.ln()), batch.ln()));
        self.state = NoiseState { sqr, var, weight, log_batch, ..state };
        Ok(())
    }

    /// Forgets all steps, for when the norms change their unit: see [`Optimizer::changes_unit`].
    ///
    /// [`Optimizer::changes_unit`]: super::Optimizer::changes_unit
    pub const fn reset(&mut self) {
        self.state = NoiseState { sqr: 0.0, var: 0.0, weight: 0.0, log_batch: None, ..self.state };
    }

    /// The averages, once there is enough behind them to act on: a tenth of the window, 100 steps at the initial batch with
    /// the usual smoothing. The noise scale of a handful of steps may come out as anything, infinity included, and a batch that
    /// follows it can ruin a training from which no better estimate will ever come.
    ///
    /// ```
    /// use pollux_tune::goodput::{GradientNorms, NoiseEstimator};
    /// let mut estimator = NoiseEstimator::new(20.0)?;
    /// let step = GradientNorms { count: 2, examples: 10.0, mean_sqr: 10.0, sqr_of_mean: 8.0 };
    /// (0..80).try_for_each(|_| estimator.push(step))?;
    /// assert!(estimator.stats().is_some() && estimator.settled().is_none());
    /// (0..20).try_for_each(|_| estimator.push(step))?;
    /// assert_eq!(estimator.settled(), estimator.stats());
    /// # Ok::<(), pollux_tune::goodput::Error>(())
    /// ```
    #[must_use]
    pub fn settled(&self) -> Option<GradientStats> {
        self.stats().filter(|_| self.state.weight >= Self::SETTLED)
    }

    /// The averages; none before the first step. `sqr` can still be negative where noise prevails.
    #[must_use]
    pub fn stats(&self) -> Option<GradientStats> {
        let NoiseState { sqr, var, weight, .. } = self.state;
        (weight > 0.0).then_some(GradientStats { sqr, var })
    }

    /// The total batch that the averages belong to: the geometric mean of those of the steps, with the same weights; none before
    /// the first step. The noise scale depends on the batch, and for a window after a change most of what is averaged was
    /// measured at the one before.
    ///
    /// ```
    /// use pollux_tune::goodput::{GradientStats, NoiseEstimator};
    /// let mut estimator = NoiseEstimator::with_smoothing(10.0, 0.5)?;
    /// estimator.push_stats(GradientStats { sqr: 1.0, var: 10.0 }, 10.0)?;
    /// estimator.push_stats(GradientStats { sqr: 1.0, var: 40.0 }, 20.0)?;
    /// let batch = estimator.batch().expect("two steps are in"); // weights 1/7 and 6/7
    /// assert!((batch - 10.0 * 2.0_f64.powf(6.0 / 7.0)).abs() < 1e-9);
    /// # Ok::<(), pollux_tune::goodput::Error>(())
    /// ```
    #[must_use]
    pub fn batch(&self) -> Option<f64> {
        self.state.log_batch.map(f64::exp)
    }

    /// phi from the averages (see [`GradientStats::noise_scale`]); none before the first step.
    #[must_use]
    pub fn noise_scale(&self) -> Option<NoiseScale> {
        self.stats().map(GradientStats::noise_scale)
    }
}
