//! Where values are on an axis, numbers or names.

use crate::{
    cli::plot::axis::{multiples, plain, round_step},
    space::{Form, Parameter, Value},
};

/// Names beyond that many are not written.
const NAMES: usize = 12;

/// One axis: each value has a place from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Axis {
    Numbers { low: f64, high: f64, log: bool },
    Names(Vec<String>),
}

impl Axis {
    /// With room for all of these numbers.
    pub(super) fn around(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.abs() < 1e90) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let margin = (0.05 * (high - low)).max(1e-3 * high.abs()).max(1e-9);
        Self::Numbers { low: low - margin, high: high + margin, log: false }
    }

    /// From 0.
    pub(super) fn from_zero(high: f64) -> Self {
        Self::Numbers { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, log: false }
    }

    /// For all values that a parameter may have.
    pub(super) fn of(parameter: &Parameter) -> Self {
        match parameter.domain().form() {
            Form::Float { low, high, log, .. } => Self::Numbers { low, high, log },
            Form::Int { low, high, log, .. } => Self::Numbers { low: low as f64, high: high as f64, log },
            Form::Values(values) => Self::Names(values.iter().map(Value::short).collect()),
        }
    }

    /// The place of a number.
    pub(super) fn at(&self, number: f64) -> f64 {
        match *self {
            Self::Numbers { low, high, .. } if high <= low => 0.5,
            Self::Numbers { low, high, log: true } => {
                ((number / low).ln() / (high / low).ln()).clamp(0.0, 1.0)
            }
            Self::Numbers { low, high, log: false } => ((number - low) / (high - low)).clamp(0.0, 1.0),
            Self::Names(_) => 0.5,
        }
    }

    /// The place of a value, if it has one.
    pub(super) fn place(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Numbers { .. } => {
                value.as_float().map(|number| self.at(number)).filter(|at| at.is_finite())
            }
            Self::Names(names) => {
                let text = value.short();
                let found = names.iter().position(|name| *name == text)?;
                Some((found as f64 + 0.5) / names.len() as f64)
            }
        }
    }

    /// What is written at the axis, and where.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Self::Names(names) => {
                let step = names.len().div_ceil(NAMES).max(1);
                let at = |(place, name): (usize, &String)| {
                    ((place as f64 + 0.5) / names.len() as f64, shortened(name))
                };
                names.iter().enumerate().step_by(step).map(at).collect()
            }
            Self::Numbers { low, high, log } => {
                let powers: Vec<f64> = if *log { powers(*low, *high) } else { Vec::new() };
                let values = if powers.len() >= 2 {
                    powers
                } else {
                    multiples(*low, *high, round_step(((high - low) / 5.0).max(1e-300)))
                };
                values.into_iter().map(|value| (self.at(value), number(value))).collect()
            }
        }
    }
}

/// A number at an axis or in a legend.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e5 || (value != 0.0 && size < 1e-3) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    plain(value)
}

fn shortened(name: &str) -> String {
    const MAX: usize = 14;
    if name.chars().count() <= MAX {
        name.to_owned()
    } else {
        name.chars().take(MAX - 1).chain(['…']).collect()
    }
}

/// The powers of ten in a range, at most eight.
fn powers(low: f64, high: f64) -> Vec<f64> {
    if low <= 0.0 {
        return Vec::new();
    }
    let (first, last) = ((low.log10() - 1e-9).ceil() as i32, (high.log10() + 1e-9).floor() as i32);
    let step = ((last - first + 1).max(1) as usize).div_ceil(8);
    (first..=last).step_by(step).map(|power| 10f64.powi(power)).collect()
}
