//! What a step measures of the noise of the gradient.

use tch::{Kind, Tensor, no_grad};

use super::{
    Error,
    flat::{FlatParameters, Piece, cut},
    team::Norms,
};
use crate::{
    goodput::{ConsecutiveNorms, GradientNorms, GradientSample, NoiseEstimator},
    trials::group::Batch,
    worker::comparison::Comparison,
};

/// Gathers the gradient statistics of a training, from some of its steps.
#[derive(Debug)]
pub(super) struct Gradients {
    pub(super) noise: NoiseEstimator,
    /// Of several workers, the means over all of them are known one step later.
    awaited: Option<PendingNorms>,
    /// Of one worker with one pass, the step before.
    before: Option<PreviousGradients>,
    /// Of one worker with several passes, the squared norms of the passes so far.
    passes: Option<f64>,
}

#[derive(Debug)]
struct PreviousGradients {
    gradients: Vec<Tensor>,
    batch: u32,
}

#[derive(Debug, Clone, Copy)]
struct PendingNorms {
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

    /// After a pass of a worker that is alone, one of several in a step that is measured.
    pub(super) fn pass(
        &mut self,
        flat: &FlatParameters,
        weighting: Option<&Tensor>,
        first: bool,
    ) -> Result<(), Error> {
        let before = if first { Some(0.0) } else { self.passes.take() };
        // The passes before were not measured.
        let Some(before) = before else { return Ok(()) };
        self.passes = Some(before + squared_norm(&flat.pieces()?, weighting)?);
        Ok(())
    }

    /// After the last pass of a worker that is alone: the statistics are known at once.
    pub(super) fn step_alone(
        &mut self,
        flat: &FlatParameters,
        weighting: Option<&Tensor>,
        comparison: Comparison,
        step: u64,
        batch: Batch,
    ) -> Result<(), Error> {
        let total = batch.total;
        if comparison != Comparison::Steps {
            let Some(norms) = self.passes.take() else { return Ok(()) };
            let passes = comparison.passes(step, batch.accumulation + 1);
            // Each pass has 1 / passes of the loss: its own gradient is that many times as large.
            let (count, n) = (passes, f64::from(passes));
            let sqr_of_mean = squared_norm(&flat.pieces()?, weighting)?;
            let sample =
                GradientNorms { count, examples: f64::from(total) / n, mean_sqr: norms * n, sqr_of_mean };
            return self.push(sample, comparison);
        }
        let before = self.before.take();
        if !comparison.measures(step) {
            // The gradients are there anyway; keeping them costs nothing but the room.
            if comparison.measures(step + 1) {
                self.before = flat.fresh().map(|gradients| PreviousGradients { gradients, batch: total });
            }
            return Ok(());
        }
        let Some(PreviousGradients { gradients, .. }) = before.filter(|before| before.batch == total) else {
            return Ok(());
        };
        let [previous_sqr, current_sqr, product] = products(&cut(&gradients)?, &flat.pieces()?, weighting)?;
        // Rounding must not make a square negative.
        let difference_sqr = 2.0_f64.mul_add(-product, previous_sqr + current_sqr).max(0.0);
        let batch = f64::from(total);
        self.push(ConsecutiveNorms { batch, previous_sqr, current_sqr, difference_sqr }, comparison)
    }

    /// After a step of several workers, of which the norms of the step before are now known if that was measured.
    pub(super) fn step_together(
        &mut self,
        known: Norms,
        step: u64,
        workers: u32,
        total: u32,
    ) -> Result<(), Error> {
        let awaited = self.awaited.take();
        self.awaited = Comparison::Workers.measures(step).then_some(PendingNorms { workers, total });
        let Some(PendingNorms { workers, total }) = awaited else { return Ok(()) };
        let sample = GradientNorms {
            count: workers,
            examples: f64::from(total) / f64::from(workers),
            mean_sqr: known.local_sq,
            sqr_of_mean: known.reduced_sq,
        };
        self.push(sample, Comparison::Workers)
    }

    fn push(&mut self, sample: impl Into<GradientSample>, comparison: Comparison) -> Result<(), Error> {
        Ok(self.noise.push_for(sample, comparison.every())?)
    }
}

/// `Pg` of a piece.
fn weighted(piece: &Piece, weighting: Option<&Tensor>) -> Result<Tensor, Error> {
    match weighting {
        Some(weighting) => Ok(piece.gradient.f_mul(&piece.of(weighting)?)?),
        None => Ok(piece.gradient.shallow_clone()),
    }
}

/// The sum of numbers that may be on a GPU: they are waited for once.
fn total(numbers: &[Tensor]) -> Result<f64, Error> {
    Ok(Tensor::f_stack(numbers, 0)?.f_sum(Kind::Double)?.f_double_value(&[])?)
}

/// `|Pg|^2`.
pub(super) fn squared_norm(pieces: &[Piece], weighting: Option<&Tensor>) -> Result<f64, Error> {
    no_grad(|| {
        let square = |piece| {
            let gradient = weighted(piece, weighting)?;
            Ok(gradient.f_dot(&gradient)?)
        };
        total(&pieces.iter().map(square).collect::<Result<Vec<_>, Error>>()?)
    })
}

/// `|Pa|^2`, `|Pb|^2` and `Pa * Pb` of two gradients, which are read only once.
fn products(a: &[Piece], b: &[Piece], weighting: Option<&Tensor>) -> Result<[f64; 3], Error> {
    no_grad(|| {
        let mut sums = [const { Vec::new() }; 3];
        for (a, b) in a.iter().zip(b) {
            let (a, b) = (weighted(a, weighting)?, weighted(b, weighting)?);
            let each = [a.f_dot(&a)?, b.f_dot(&b)?, a.f_dot(&b)?];
            sums.iter_mut().zip(each).for_each(|(sum, each)| sum.push(each));
        }
        let [aa, bb, ab] = sums;
        Ok([total(&aa)?, total(&bb)?, total(&ab)?])
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, nn};

    use super::*;

    /// The squared norm of the second variable's gradient, if all of it is 1/64: exact in single precision.
    const Q: f64 = 100_000.0 / 4096.0;

    /// A model of two variables, longer than a piece, whose gradients are what the loss is made of.
    fn model() -> (FlatParameters, [Tensor; 2]) {
        let store = nn::VarStore::new(Device::Cpu);
        let variables = [("a", 5), ("b", 100_000)].map(|(name, length)| store.root().zeros(name, &[length]));
        (FlatParameters::new(&store).expect("a model"), variables)
    }

    fn backward(flat: &mut FlatParameters, variables: &[Tensor; 2], slopes: [f64; 2]) {
        let [a, b] = variables;
        let loss = a.sum(Kind::Float) * slopes[0] + b.sum(Kind::Float) * slopes[1];
        flat.backward(&loss).expect("a pass");
    }

    const fn batch(total: u32) -> Batch {
        Batch { total, accumulation: 0 }
    }

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-5 * expected.abs()
    }

    #[test]
    fn one_gradient_is_compared_with_the_next_once_in_four_steps() {
        let (mut flat, variables) = model();
        let mut gradients = Gradients::new(NoiseEstimator::new(10.0).expect("a batch"));
        let mut seen = Vec::new();
        for step in 0..8 {
            // Of 5 and 100000 elements: (1, 1/64) and (2, 1/64) are compared, then (5, 1/64) and (6, 3/64).
            let slopes = [step as f64 + 1.0, if step == 5 { 3.0 } else { 1.0 } / 64.0];
            backward(&mut flat, &variables, slopes);
            let before = gradients.noise.state();
            gradients.step_alone(&flat, None, Comparison::Steps, step, batch(10)).expect("norms");
            if gradients.noise.state() != before {
                seen.push(step);
            }
            if step == 1 {
                // |b - a|^2 = 5, so the variance is 10 * 5 / 2; |a|^2 = 5 + Q, |b|^2 = 20 + Q.
                let stats = gradients.noise.stats().expect("a pair");
                assert!(near(stats.var, 25.0) && near(stats.sqr, 10.0 + Q), "{stats:?}");
            }
        }
        assert_eq!(seen, [1, 5]);
        // |a|^2 = 125 + Q, |b|^2 = 180 + 9 Q, |b - a|^2 = 5 + 4 Q. Each pair stands for four steps.
        let stats = gradients.noise.stats().expect("pairs");
        let theta = 0.999_f64.powi(4);
        let mixed = |first: f64, second: f64| (theta * first + second) / (theta + 1.0);
        assert!(near(stats.var, mixed(25.0, 25.0 + 20.0 * Q)), "{stats:?}");
        assert!(near(stats.sqr, mixed(10.0 + Q, 150.0 + 3.0 * Q)), "{stats:?}");
    }

    #[test]
    fn gradients_of_another_batch_or_from_before_an_interruption_are_not_compared() {
        let (mut flat, variables) = model();
        let mut gradients = Gradients::new(NoiseEstimator::new(10.0).expect("a batch"));
        backward(&mut flat, &variables, [1.0, 1.0]);
        gradients.step_alone(&flat, None, Comparison::Steps, 0, batch(10)).expect("norms");
        gradients.step_alone(&flat, None, Comparison::Steps, 1, batch(20)).expect("norms");
        gradients.step_alone(&flat, None, Comparison::Steps, 4, batch(10)).expect("norms");
        gradients.interrupt();
        gradients.step_alone(&flat, None, Comparison::Steps, 5, batch(10)).expect("norms");
        assert_eq!(gradients.noise.stats(), None);
    }

    #[test]
    fn passes_are_measured_and_added_up() {
        let (mut flat, variables) = model();
        let mut gradients = Gradients::new(NoiseEstimator::new(10.0).expect("a batch"));
        for (pass, slope) in [1.0, 3.0].into_iter().enumerate() {
            // Half of the loss each.
            backward(&mut flat, &variables, [slope / 2.0, 0.0]);
            gradients.pass(&flat, None, pass == 0).expect("norms");
            flat.add_up(pass == 0).expect("a sum");
        }
        gradients.step_alone(&flat, None, Comparison::Halves, 0, batch(10)).expect("norms");
        // The squared norms of the passes are 5 and 45, that of their mean is 20.
        let expected = GradientNorms { count: 2, examples: 5.0, mean_sqr: 25.0, sqr_of_mean: 20.0 }.stats();
        let (expected, found) = (expected.expect("norms"), gradients.noise.stats().expect("a step"));
        assert!(near(found.var, expected.var) && near(found.sqr, expected.sqr), "{found:?}");
    }

    #[test]
    fn a_weighting_weighs() {
        let (mut flat, variables) = model();
        let weighting = flat.weights.zeros_like().fill_(3.0);
        backward(&mut flat, &variables, [1.0, 1.0 / 64.0]);
        let norm = squared_norm(&flat.pieces().expect("pieces"), Some(&weighting)).expect("a norm");
        assert!(near(norm, 9.0 * (5.0 + Q)), "{norm}");
    }
}
