//! What a step tells about the noise of the gradient.

use tch::{Tensor, no_grad};

use super::{error::Error, flat::Flat, team::Norms};
use crate::goodput::{ConsecutiveNorms, GradientNorms, GradientSample, NoiseEstimator};

/// Gathers the gradient statistics of a training, step by step.
#[derive(Debug)]
pub(super) struct Gradients {
    pub(super) noise: NoiseEstimator,
    /// Of several workers, the means over all of them are known one step later.
    awaited: Option<Awaited>,
    /// Of one worker with one pass, the step before.
    before: Option<Before>,
    /// Of one worker with several passes, the sum of the passes so far, and their squared norms.
    passes: Option<(Tensor, f64)>,
}

#[derive(Debug)]
struct Before {
    gradient: Tensor,
    batch: u32,
    sqr: f64,
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
        let current_sqr = squared_norm(&flat.gradients, weighting)?;
        // In place: vectors of this size cost more to allocate than to compute with.
        let mut vector = match self.before.take() {
            Some(Before { mut gradient, batch, sqr }) if batch == total => {
                // The weighting moves on from step to step.
                let previous_sqr = match weighting {
                    Some(_) => squared_norm(&gradient, weighting)?,
                    None => sqr,
                };
                let _ = no_grad(|| gradient.f_sub_(&flat.gradients))?;
                let difference_sqr = squared_norm(&gradient, weighting)?;
                let batch = f64::from(total);
                self.push(ConsecutiveNorms { batch, previous_sqr, current_sqr, difference_sqr })?;
                gradient
            }
            Some(Before { gradient, .. }) => gradient,
            None => flat.gradients.f_zeros_like()?,
        };
        no_grad(|| vector.f_copy_(&flat.gradients).map(drop))?;
        self.before = Some(Before { gradient: vector, batch: total, sqr: current_sqr });
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
