//! What a step tells about the noise of the gradient.

use tch::{Tensor, no_grad};

use super::{
    error::Error,
    flat::{Flat, copy},
    team::Norms,
};
use crate::goodput::{ConsecutiveNorms, GradientNorms, GradientSample, NoiseEstimator};

/// Gathers the gradient statistics of a training, step by step.
#[derive(Debug)]
pub(super) struct Gradients {
    pub(super) noise: NoiseEstimator,
    /// Of several workers, the means over all of them are known one step later.
    awaited: Option<Awaited>,
    /// Of one worker with one pass, the gradient of the step before, and its batch.
    before: Option<(Tensor, u32)>,
    /// Of one worker with several passes, the sum of the passes so far, and their squared norms.
    passes: Option<(Tensor, f64)>,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    workers: u32,
    total: u32,
}

impl Gradients {
    pub(super) const fn new(noise: NoiseEstimator) -> Self {
        Self { noise, awaited: None, before: None, passes: None }
    }

    /// Workers, batch or weighting have changed: gradients from before cannot be compared with those to come.
    pub(super) fn interrupt(&mut self) {
        self.awaited = None;
        self.before = None;
        self.passes = None;
    }

    /// After a pass of a worker that is alone, one of several in the step.
    pub(super) fn pass(&mut self, flat: &Flat, weighting: Option<&Tensor>, first: bool) -> Result<(), Error> {
        no_grad(|| {
            let (mut sum, norms) = match self.passes.take() {
                Some((sum, norms)) if !first => (sum, norms),
                _ => (flat.gradients.f_zeros_like()?, 0.0),
            };
            let norm = squared_norm(&flat.gradients.f_sub(&sum)?, weighting)?;
            sum.f_copy_(&flat.gradients)?;
            self.passes = Some((sum, norms + norm));
            Ok(())
        })
    }

    /// After the last pass of a worker that is alone: the statistics are known at once.
    pub(super) fn step_alone(
        &mut self,
        flat: &Flat,
        weighting: Option<&Tensor>,
        total: u32,
        passes: u32,
    ) -> Result<(), Error> {
        if passes >= 2 {
            let Some((_, norms)) = self.passes.take() else { return Ok(()) };
            // Each pass has 1 / passes of the loss: its own gradient is that many times as large.
            let (count, n) = (passes, f64::from(passes));
            let sqr_of_mean = squared_norm(&flat.gradients, weighting)?;
            let sample =
                GradientNorms { count, examples: f64::from(total) / n, mean_sqr: norms * n, sqr_of_mean };
            return self.push(sample);
        }
        let now = copy(&flat.gradients, flat.gradients.device())?;
        if let Some((before, batch)) = self.before.take()
            && batch == total
        {
            let difference = no_grad(|| now.f_sub(&before))?;
            self.push(ConsecutiveNorms {
                batch: f64::from(total),
                previous_sqr: squared_norm(&before, weighting)?,
                current_sqr: squared_norm(&now, weighting)?,
                difference_sqr: squared_norm(&difference, weighting)?,
            })?;
        }
        self.before = Some((now, total));
        Ok(())
    }

    /// After a step of several workers, of which the norms of the step before are now known.
    pub(super) fn step_together(&mut self, known: Norms, workers: u32, total: u32) -> Result<(), Error> {
        let awaited = self.awaited.replace(Awaited { workers, total });
        let Some(Awaited { workers, total }) = awaited else { return Ok(()) };
        self.push(GradientNorms {
            count: workers,
            examples: f64::from(total) / f64::from(workers),
            mean_sqr: known.local_sq,
            sqr_of_mean: known.reduced_sq,
        })
    }

    fn push(&mut self, sample: impl Into<GradientSample>) -> Result<(), Error> {
        Ok(self.noise.push(sample)?)
    }
}

/// `|Pg|^2`.
fn squared_norm(gradient: &Tensor, weighting: Option<&Tensor>) -> Result<f64, Error> {
    no_grad(|| {
        let norm = match weighting {
            Some(weighting) => gradient.f_mul(weighting)?.f_norm()?,
            None => gradient.f_norm()?,
        };
        let norm = norm.f_double_value(&[])?;
        Ok(norm * norm)
    })
}
