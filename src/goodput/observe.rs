use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{Error, Shape, Tier};

/// Step times of one trial on one GPU type, folded so that neither memory nor the cost of a fit grows with the
/// age of the trial.
///
/// Steps are kept by what the model can tell apart: tier, GPUs, accumulation, and per-GPU batch in classes a quarter
/// octave wide (inside a class the geometric means of batch and time stand for all steps, which shifts the predicted
/// time by less than 0.1 %). Of each configuration about the last 200 steps count, so that a machine that has become
/// slower or faster is noticed. Leave out the first step after a change of GPUs: it pays for things the others do not.
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

/// Steps of a configuration that count.
const WINDOW: f64 = 200.0;

impl Cell {
    /// Adds newer steps; older ones fade as far as the window requires.
    fn absorb(&mut self, newer: Self) {
        let kept = (WINDOW - newer.steps).clamp(0.0, self.steps);
        let fade = if self.steps > 0.0 { kept / self.steps } else { 0.0 };
        self.steps = fade.mul_add(self.steps, newer.steps);
        self.log_batch_sum = fade.mul_add(self.log_batch_sum, newer.log_batch_sum);
        self.log_time_sum = fade.mul_add(self.log_time_sum, newer.log_time_sum);
    }
}

/// All steps of one configuration: what a fit works on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Row", into = "Row")]
pub struct Observation {
    /// GPUs and nodes.
    pub shape: Shape,
    /// Geometric mean of the examples on each GPU in one pass.
    pub per_gpu: f64,
    /// Passes before the one that synchronizes.
    pub accumulation: u32,
    /// Geometric mean of the time of an optimizer step, in seconds.
    pub iter_time_s: f64,
    /// How many steps these are means of, at most 200.
    pub steps: f64,
}

impl Observation {
    /// Whether these can be times of steps: positive, finite numbers.
    pub fn check(&self) -> Result<(), Error> {
        Error::check_positive("the step time in seconds", self.iter_time_s)?;
        Error::check_positive("the per-GPU batch size", self.per_gpu)?;
        Error::check_positive("the number of steps", self.steps)?;
        Ok(())
    }
}

/// As journals keep it.
#[derive(Serialize, Deserialize)]
struct Row {
    gpus: u32,
    nodes: u32,
    #[serde(serialize_with = "short")]
    per_gpu: f64,
    accumulation: u32,
    seconds: f64,
    #[serde(serialize_with = "short")]
    steps: f64,
}

/// Whole numbers without a fraction: most are, and journals have many of them.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn short<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && (0.0..1e15).contains(number) {
        to.serialize_u64(*number as u64)
    } else {
        to.serialize_f64(*number)
    }
}

impl From<Observation> for Row {
    fn from(Observation { shape, per_gpu, accumulation, iter_time_s, steps }: Observation) -> Self {
        let (gpus, nodes) = (shape.gpus(), shape.nodes());
        Self { gpus, nodes, per_gpu, accumulation, seconds: iter_time_s, steps }
    }
}

impl TryFrom<Row> for Observation {
    type Error = Error;

    fn try_from(Row { gpus, nodes, per_gpu, accumulation, seconds, steps }: Row) -> Result<Self, Error> {
        Ok(Self { shape: Shape::new(gpus, nodes)?, per_gpu, accumulation, iter_time_s: seconds, steps })
    }
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
        let per_gpu = f64::from(per_gpu);
        self.add(&Observation { shape, per_gpu, accumulation, iter_time_s, steps: 1.0 })
    }

    /// Adds steps that were folded elsewhere, such as those in the report of a worker; they count as newer.
    pub fn add(&mut self, folded: &Observation) -> Result<(), Error> {
        let Observation { shape, per_gpu, accumulation, iter_time_s, steps } = *folded;
        folded.check()?;
        let batch_class = (4.0 * per_gpu.log2()).round() as u32;
        let key = Key { tier: shape.tier(), gpus: shape.gpus(), batch_class, accumulation };
        let cell =
            Cell { steps, log_batch_sum: steps * per_gpu.ln(), log_time_sum: steps * iter_time_s.ln() };
        self.cells.entry(key).or_default().absorb(cell);
        Ok(())
    }

    /// Adds everything another record holds, such as the report of a worker; it counts as newer.
    pub fn merge(&mut self, other: &Self) {
        for (key, more) in &other.cells {
            self.cells.entry(*key).or_default().absorb(*more);
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

    /// The largest number of GPUs the trial has used; 0 before its first step.
    #[must_use]
    pub fn largest_gpus(&self) -> u32 {
        self.cells.keys().map(|key| key.gpus).max().unwrap_or(0)
    }

    /// The largest number of GPUs a trial may be given next: twice what it has used so far, so that it is not scaled out on
    /// belief alone (Pollux OSDI'21 section 4.1).
    #[must_use]
    pub fn exploration_cap(&self) -> u32 {
        self.largest_gpus().saturating_mul(2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_s(seen: &Observations) -> f64 {
        seen.iter().next().unwrap().iter_time_s
    }

    #[test]
    fn a_machine_that_changed_its_speed_is_noticed() {
        let mut seen = Observations::default();
        for step in 0..11_000 {
            seen.record(Shape::single(), 64, 0, if step < 10_000 { 1.0 } else { 0.5 }).unwrap();
        }
        assert!((time_s(&seen) / 0.5 - 1.0).abs() < 0.01, "{}", time_s(&seen));
        assert!((seen.iter().next().unwrap().steps - WINDOW).abs() < 1e-9);
    }

    #[test]
    fn a_report_counts_as_its_steps() {
        let (mut whole, mut head, mut tail) = Default::default();
        for step in 0..150 {
            let part: &mut Observations = if step < 70 { &mut head } else { &mut tail };
            for record in [&mut whole, part] {
                record
                    .record(Shape::new(4, 2).unwrap(), 60 + step % 9, 1, 0.1 + 0.001 * f64::from(step))
                    .unwrap();
            }
        }
        head.merge(&tail);
        assert_eq!((head.len(), head.largest_gpus(), head.exploration_cap()), (whole.len(), 4, 8));
        for (merged, whole) in head.iter().zip(whole.iter()) {
            assert!((merged.iter_time_s / whole.iter_time_s - 1.0).abs() < 1e-12);
            assert!((merged.steps - whole.steps).abs() < 1e-9);
        }
        // A long report pushes everything older out.
        let mut long = Observations::default();
        (0..500).for_each(|_| long.record(Shape::new(4, 2).unwrap(), 60, 1, 9.0).unwrap());
        head.merge(&long);
        assert!(head.iter().any(|seen| (seen.iter_time_s - 9.0).abs() < 1e-9));
    }

    #[test]
    fn unusable_steps_are_refused_and_leave_nothing_behind() {
        let mut seen = Observations::default();
        for time in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(seen.record(Shape::single(), 8, 0, time).is_err());
        }
        assert!(seen.record(Shape::single(), 0, 0, 1.0).is_err());
        assert!(seen.is_empty() && seen.exploration_cap() == 1);
    }
}
