use std::collections::BTreeMap;

use super::{Error, Shape, Tier};

/// Step times of one trial on one GPU type, folded so that neither memory nor the cost of a fit grows with the
/// age of the trial.
///
/// Steps are kept by what the model can tell apart: tier, GPUs, accumulation, and per-GPU batch in classes a quarter
/// octave wide (inside a class the geometric means of batch and time stand for all steps, which shifts the predicted
/// time by less than 0.1 %).
///
/// ```
/// use pollux_tune::goodput::{Observations, Shape};
/// let mut seen = Observations::default();
/// for _ in 0..1000 {
///     seen.record(Shape::single(), 128, 0, 0.25)?;
/// }
/// assert_eq!((seen.len(), seen.largest_gpus()), (1, 1));
/// assert!(seen.record(Shape::single(), 128, 0, f64::NAN).is_err());
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observations {
    cells: BTreeMap<Key, Cell>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tier: Option<Tier>,
    gpus: u32,
    batch_class: u32,
    accumulation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Cell {
    steps: f64,
    log_batch_sum: f64,
    log_time_sum: f64,
}

/// All steps of one configuration: what a fit works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// GPUs and nodes.
    pub shape: Shape,
    /// Geometric mean of the examples on each GPU in one pass.
    pub per_gpu: f64,
    /// Passes before the one that synchronizes.
    pub accumulation: u32,
    /// Geometric mean of the time of an optimizer step, in seconds.
    pub iter_time_s: f64,
    /// How many steps were seen.
    pub steps: f64,
}

impl Observations {
    /// Adds one optimizer step: `accumulation` + 1 passes of `per_gpu` examples on each GPU.
    pub fn record(
        &mut self,
        shape: Shape,
        per_gpu: u32,
        accumulation: u32,
        iter_time_s: f64,
    ) -> Result<(), Error> {
        Error::check_positive("the step time in seconds", iter_time_s)?;
        Error::check_positive("the per-GPU batch size", f64::from(per_gpu))?;
        let log_batch = f64::from(per_gpu).ln();
        let batch_class = (4.0 * f64::from(per_gpu).log2()).round() as u32;
        let key = Key { tier: shape.tier(), gpus: shape.gpus(), batch_class, accumulation };
        let cell = self.cells.entry(key).or_default();
        cell.steps += 1.0;
        cell.log_batch_sum += log_batch;
        cell.log_time_sum += iter_time_s.ln();
        Ok(())
    }

    /// Adds everything another record holds, such as the report of a worker.
    pub fn merge(&mut self, other: &Self) {
        for (key, more) in &other.cells {
            let cell = self.cells.entry(*key).or_default();
            cell.steps += more.steps;
            cell.log_batch_sum += more.log_batch_sum;
            cell.log_time_sum += more.log_time_sum;
        }
    }

    /// The folded configurations, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = Observation> {
        self.cells.iter().map(|(key, cell)| Observation {
            shape: Shape::at_tier(key.gpus, key.tier.unwrap_or(Tier::Local)),
            per_gpu: (cell.log_batch_sum / cell.steps).exp(),
            accumulation: key.accumulation,
            iter_time_s: (cell.log_time_sum / cell.steps).exp(),
            steps: cell.steps,
        })
    }

    /// How many configurations were seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The most GPUs the trial has used; 0 before its first step.
    #[must_use]
    pub fn largest_gpus(&self) -> u32 {
        self.cells.keys().map(|key| key.gpus).max().unwrap_or(0)
    }

    /// The most GPUs a trial may be given next: twice what it has used so far, so that it is not scaled out on
    /// belief alone (Pollux OSDI'21 section 4.1).
    #[must_use]
    pub fn exploration_cap(&self) -> u32 {
        self.largest_gpus().saturating_mul(2).max(1)
    }
}
