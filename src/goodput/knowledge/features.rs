use crate::goodput::Error;

/// The hyper-parameters of a trial as numbers, for regressions on them.
///
/// The caller chooses the numbers so that effects on the logarithm of a cost are about linear: `ln(width)`
/// for a size, 0 or 1 for each choice of a category. Scale and offset do not matter.
///
/// ```
/// use pollux_tune::goodput::Features;
/// let features = Features::new(vec![512_f64.ln(), 1.0, 0.0])?;
/// assert_eq!(features.values().len(), 3);
/// assert!(Features::new(vec![f64::NAN]).is_err());
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Features(Vec<f64>);

impl Features {
    /// Finite numbers, in the same order for every trial of a study.
    pub fn new(values: Vec<f64>) -> Result<Self, Error> {
        for value in &values {
            Error::check_finite("a feature of a trial", *value)?;
        }
        Ok(Self(values))
    }

    /// The numbers.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}

/// A row of the regression, and how much of the trial it does not describe.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// 1, then the standardised features.
    pub(super) design: Vec<f64>,
    /// Features that differ from the only value the study has seen of them.
    pub(super) novel: usize,
}

/// Turns features into rows of a regression: mean 0, variance 1; those that never varied are left out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scaler {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Column {
    mean: f64,
    /// 0 for a feature that did not vary.
    sd: f64,
}

impl Scaler {
    /// Farther out, a straight line is not believed: its value at this many standard deviations stands.
    const FARTHEST: f64 = 5.0;
    /// Spread below this share of the value is rounding.
    const ROUNDING: f64 = 1e-9;

    /// Learns mean and spread from trials with equally many features.
    pub(super) fn new(trials: &[&Features]) -> Self {
        let count = trials.len().max(1) as f64;
        let width = trials.first().map_or(0, |first| first.0.len());
        let column = |index: usize| {
            // Values divided by the largest one: squares of finite numbers may overflow.
            let largest = trials.iter().map(|trial| trial.0[index].abs()).fold(f64::MIN_POSITIVE, f64::max);
            let scaled = |trial: &&Features| trial.0[index] / largest;
            let mean = trials.iter().map(scaled).sum::<f64>() / count;
            let variance = trials.iter().map(|trial| (scaled(trial) - mean).powi(2)).sum::<f64>() / count;
            let sd = if variance.sqrt() > Self::ROUNDING { variance.sqrt() * largest } else { 0.0 };
            Column { mean: mean * largest, sd }
        };
        Self { columns: (0..width).map(column).collect() }
    }

    pub(super) fn row(&self, features: &Features) -> Row {
        let mut row = Row { design: vec![1.0], novel: 0 };
        for (column, value) in self.columns.iter().zip(&features.0) {
            if column.sd > 0.0 {
                // Halves first: the difference of two finite numbers may overflow.
                let offset = (0.5 * value - 0.5 * column.mean) / column.sd * 2.0;
                row.design.push(offset.clamp(-Self::FARTHEST, Self::FARTHEST));
            } else if (value - column.mean).abs() > Self::ROUNDING * column.mean.abs() {
                row.novel += 1;
            }
        }
        row
    }
}
