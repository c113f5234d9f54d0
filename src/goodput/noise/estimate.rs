use serde::{Deserialize, Serialize};

use crate::goodput::{Error, NoiseScale};

/// The signal and the noise of a gradient, both after pre-conditioning.
///
/// For a single step they are raw: unbiased, but so noisy that `sqr` is often negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GradientStats {
    /// `|Pg|^2`, the squared norm of the true gradient.
    pub sqr: f64,
    /// `tr(P Sigma P^T)`, the summed variance of the gradient of one example.
    pub var: f64,
}

impl GradientStats {
    /// phi (Pollux OSDI'21 eq. 5), always finite: a signal that is not above 0 is not resolved and gives
    /// [`NoiseScale::UNRESOLVED`]; without any noise the result is [`NoiseScale::ZERO`], even if there is
    /// no signal either, so that a trial whose gradients vanish attracts no GPUs.
    #[must_use]
    pub fn noise_scale(self) -> NoiseScale {
        if self.var.is_nan() || self.var <= 0.0 {
            return NoiseScale::ZERO;
        }
        if self.sqr.is_nan() || self.sqr <= 0.0 {
            return NoiseScale::UNRESOLVED;
        }
        NoiseScale::new(self.var / self.sqr).unwrap_or(NoiseScale::UNRESOLVED)
    }
}

/// Squared norms of several independent gradients of one step: one for each replica and accumulation pass.
///
/// ```
/// use pollux_tune::goodput::GradientNorms;
/// // Two gradients of 10 examples: (3, 1) and (1, 3), with mean (2, 2).
/// let stats = GradientNorms { count: 2, examples: 10.0, mean_sqr: 10.0, sqr_of_mean: 8.0 }.stats()?;
/// assert!((stats.sqr - 6.0).abs() < 1e-12); // (20 * 8 - 10 * 10) / (20 - 10)
/// assert!((stats.var - 40.0).abs() < 1e-12); // (10 - 8) / (1/10 - 1/20)
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientNorms {
    /// Gradients, n, at least 2.
    pub count: u32,
    /// Examples behind each of them, m.
    pub examples: f64,
    /// The mean over the gradients of `|P g_i|^2`.
    pub mean_sqr: f64,
    /// `|P g|^2` of the mean g of the gradients.
    pub sqr_of_mean: f64,
}

impl GradientNorms {
    /// The total batch, `n * m` examples.
    #[must_use]
    pub fn batch(&self) -> f64 {
        f64::from(self.count) * self.examples
    }

    /// The unbiased estimates of `McCandlish` et al. 2018, app. A.1, with `B_small = m` and `B_big = n * m`.
    pub fn stats(&self) -> Result<GradientStats, Error> {
        let n = f64::from(self.count);
        Error::check_at_least("the number of independent gradients", n, 2.0, "at least 2")?;
        Error::check_positive("the examples of a gradient", self.examples)?;
        let small = check_norm("the mean squared norm of the gradients", self.mean_sqr)?;
        let big = check_norm("the squared norm of the mean gradient", self.sqr_of_mean)?;
        // B_big / B_small is n, which turns both of the paper's fractions into one over n - 1.
        let sqr = n.mul_add(big, -small) / (n - 1.0);
        let var = (small - big) * self.batch() / (n - 1.0);
        check_stats(sqr, var)
    }
}

/// Squared norms of the gradients of two consecutive steps, both at the same batch and pre-conditioned alike.
///
/// This is the differenced variance estimator that Pollux OSDI'21, section 3.1, falls back to. The parameters
/// move between the steps, so that `var` is too large by `M / 2` times the squared change of the true `Pg`.
///
/// ```
/// use pollux_tune::goodput::ConsecutiveNorms;
/// // The gradients (3, 1) and (1, 3), of 10 examples each, differ by (-2, 2).
/// let norms = ConsecutiveNorms { batch: 10.0, previous_sqr: 10.0, current_sqr: 10.0, difference_sqr: 8.0 };
/// let stats = norms.stats()?;
/// assert!((stats.var - 40.0).abs() < 1e-12); // 10 * 8 / 2
/// assert!((stats.sqr - 6.0).abs() < 1e-12); // (10 + 10) / 2 - 40 / 10
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConsecutiveNorms {
    /// Examples behind each of the two gradients, M.
    pub batch: f64,
    /// `|P g(t-1)|^2`, with the pre-conditioner of step t.
    pub previous_sqr: f64,
    /// `|P g(t)|^2`.
    pub current_sqr: f64,
    /// `|P (g(t) - g(t-1))|^2`.
    pub difference_sqr: f64,
}

impl ConsecutiveNorms {
    /// The estimates for two independent gradients, by polarization from their difference.
    pub fn stats(&self) -> Result<GradientStats, Error> {
        Error::check_positive("the batch", self.batch)?;
        let previous = check_norm("the squared norm of the previous gradient", self.previous_sqr)?;
        let current = check_norm("the squared norm of the gradient", self.current_sqr)?;
        let difference = check_norm("the squared norm of the change of the gradient", self.difference_sqr)?;
        let var_of_gradient = difference / 2.0;
        check_stats(f64::midpoint(previous, current) - var_of_gradient, self.batch * var_of_gradient)
    }
}

/// What one step tells about the noise of the gradient.
///
/// Use [`GradientNorms`] whenever the step has at least two gradients, that is, when
/// `replicas * (accumulation + 1) >= 2`, and [`ConsecutiveNorms`] for one replica without accumulation. The
/// caller keeps the previous gradient for the latter, and drops it when the batch, the pre-conditioner's kind
/// or the replicas change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GradientSample {
    /// Several gradients of one step.
    Independent(GradientNorms),
    /// One gradient each of two steps.
    Consecutive(ConsecutiveNorms),
}

impl GradientSample {
    /// The total batch of the step, in examples.
    #[must_use]
    pub fn batch(&self) -> f64 {
        match self {
            Self::Independent(norms) => norms.batch(),
            Self::Consecutive(norms) => norms.batch,
        }
    }

    /// The raw estimates of this step.
    pub fn stats(&self) -> Result<GradientStats, Error> {
        match self {
            Self::Independent(norms) => norms.stats(),
            Self::Consecutive(norms) => norms.stats(),
        }
    }
}

impl From<GradientNorms> for GradientSample {
    fn from(norms: GradientNorms) -> Self {
        Self::Independent(norms)
    }
}

impl From<ConsecutiveNorms> for GradientSample {
    fn from(norms: ConsecutiveNorms) -> Self {
        Self::Consecutive(norms)
    }
}

fn check_norm(what: &'static str, value: f64) -> Result<f64, Error> {
    Error::check_at_least(what, value, 0.0, "a finite number, at least 0")
}

/// Norms near the largest number overflow on the way.
fn check_stats(sqr: f64, var: f64) -> Result<GradientStats, Error> {
    Error::check_finite("the estimate of |Pg|^2", sqr)?;
    Error::check_finite("the estimate of tr(P Sigma P^T)", var)?;
    Ok(GradientStats { sqr, var })
}
