//! Where values are on an axis, and which of them are written below it.

use std::ops::RangeInclusive;

/// How an axis divides its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0, evenly.
    Linear,
    /// By factors, for whole numbers from 1, with powers of two.
    Log2,
    /// By factors, with decimal round numbers.
    Log10,
}

/// A value written at an axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    /// Its place: 0 is the beginning of the axis, 1 the end.
    pub(super) share: f64,
    pub(super) label: String,
}

/// One axis of a diagram.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<Tick>,
}

/// Fewer ticks say too little.
const MIN_TICKS: usize = 3;
/// More ticks are crowded.
const MAX_TICKS: usize = 8;
/// Values beyond are drawn at the ends of the axis, so that no range overflows.
const DRAWN: RangeInclusive<f64> = 1e-90..=1e90;

impl Axis {
    /// An axis that has room for all values, which are above 0 where the scale is logarithmic.
    pub(super) fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| DRAWN.contains(value)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                let step = round_step(high / 6.0);
                (low, high) = (0.0, step * (1.02 * high / step).ceil());
            }
            Scale::Log2 | Scale::Log10 => {
                let margin = if high / low < 1.001 { 1.5 } else { (high / low).powf(0.04) };
                (low, high) = (low / margin, high * margin);
            }
        }
        let mut axis = Self { scale, low, high, ticks: Vec::new() };
        let values = tick_values(scale, low, high);
        let label = |value: f64| if scale == Scale::Log10 { short(value) } else { plain(value) };
        axis.ticks =
            values.into_iter().map(|value| Tick { share: axis.share(value), label: label(value) }).collect();
        axis
    }

    /// The place of a value: 0 is the beginning of the axis, 1 the end.
    pub(super) fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value / self.high,
            Scale::Log2 | Scale::Log10 => (value / self.low).ln() / (self.high / self.low).ln(),
        }
        .clamp(0.0, 1.0)
    }
}

/// Round numbers from `low` to `high`: the finest set that has enough of them and not too many.
fn tick_values(scale: Scale, low: f64, high: f64) -> Vec<f64> {
    let (base, sets): (f64, &[&[f64]]) = match scale {
        Scale::Linear => return multiples(low, high, round_step((high - low) / 6.0)),
        Scale::Log2 => (2.0, &[&[1.0], &[1.0, 1.5]]),
        Scale::Log10 => (10.0, &[&[1.0, 2.0, 5.0], &[1.0]]),
    };
    for factors in sets {
        let mut values = powers(base, factors, low, high);
        if scale == Scale::Log2 {
            values.retain(|value| value.fract() < 1e-9);
        }
        if (MIN_TICKS..=MAX_TICKS).contains(&values.len()) {
            return values;
        }
    }
    let values = powers(base, &[1.0], low, high);
    if values.len() < MIN_TICKS {
        let step = round_step((high - low) / 6.0);
        return multiples(low, high, if scale == Scale::Log2 { step.max(1.0) } else { step });
    }
    let stride = values.len().div_ceil(MAX_TICKS);
    values.into_iter().step_by(stride).collect()
}

/// The numbers `factor * base^k` in a range.
fn powers(base: f64, factors: &[f64], low: f64, high: f64) -> Vec<f64> {
    let first = low.log(base).floor() as i32 - 1;
    let last = high.log(base).ceil() as i32;
    let all = (first..=last).flat_map(|k| factors.iter().map(move |factor| factor * base.powi(k)));
    all.filter(|value| (low..=high).contains(value)).collect()
}

/// The multiples of a step in a range.
pub(crate) fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|k| k as f64 * step).collect()
}

/// The smallest of 1, 2, 5, 10, ... that is not below `step`, at any power of ten.
pub(crate) fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= step * (1.0 - 1e-9));
    power * factor.unwrap_or(10.0)
}

/// A number without the noise of floating point.
pub(crate) fn plain(value: f64) -> String {
    if value.abs() >= 1e9 || (value != 0.0 && value.abs() < 1e-4) {
        return format!("{value:e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number with k for thousands, M for millions, G for billions.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= unit * (1.0 - 1e-9)) {
        Some((unit, suffix)) if value < 1e12 => format!("{}{suffix}", plain(value / unit)),
        _ => plain(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        Axis::new(scale, values.iter().copied()).ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(Scale::Linear, &[35.0, 104.0]), ["0", "20", "40", "60", "80", "100", "120"]);
        assert_eq!(labels(Scale::Linear, &[0.27, 0.28]), ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]);
        assert_eq!(labels(Scale::Log2, &[1.0, 64.0]), ["1", "2", "4", "8", "16", "32", "64"]);
        assert_eq!(labels(Scale::Log2, &[32.0, 32768.0]), ["32", "128", "512", "2048", "8192", "32768"]);
        assert_eq!(labels(Scale::Log10, &[900.0, 9000.0]), ["1k", "2k", "5k"]);
        assert_eq!(labels(Scale::Log10, &[9.0, 2e6]), ["10", "100", "1k", "10k", "100k", "1M"]);
    }

    #[test]
    fn narrow_ranges_have_ticks_too() {
        assert_eq!(labels(Scale::Log2, &[5.0, 7.0]), ["5", "6", "7"]);
        assert_eq!(labels(Scale::Log2, &[12.0]), ["8", "12", "16"]);
        assert_eq!(labels(Scale::Log2, &[4.0, 12.0]), ["4", "6", "8", "12"]);
        assert_eq!(labels(Scale::Log2, &[1.0, 4.0]), ["1", "2", "4"]);
        assert_eq!(labels(Scale::Log2, &[1.0, 3.0]), ["1", "2", "3"]);
        assert_eq!(labels(Scale::Log2, &[1.0]), ["1"]);
        assert_eq!(labels(Scale::Log10, &[110.0, 140.0]), ["110", "120", "130", "140"]);
    }

    #[test]
    fn any_range_has_a_few_ticks_in_order() {
        for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
            for low in [1e-12, 3e-4, 0.7, 1.0, 42.0, 4e9] {
                if scale == Scale::Log2 && low < 1.0 {
                    continue;
                }
                for factor in [1.0, 1.001, 1.3, 2.0, 7.0, 90.0, 5e3, 1e7] {
                    let axis = Axis::new(scale, [low, low * factor].into_iter());
                    let shares: Vec<f64> = axis.ticks.iter().map(|tick| tick.share).collect();
                    let fewest = if scale == Scale::Log2 { 1 } else { 2 };
                    assert!((fewest..=9).contains(&shares.len()), "{scale:?} {low} {factor}: {axis:?}");
                    assert!(shares.is_sorted_by(|a, b| a < b), "{scale:?} {low} {factor}: {axis:?}");
                    assert!(axis.share(low) <= axis.share(low * factor) && axis.share(low) >= 0.0);
                }
            }
        }
    }

    #[test]
    fn an_axis_without_values_is_drawn_all_the_same() {
        let axis = Axis::new(Scale::Log10, [f64::NAN, f64::INFINITY].into_iter());
        assert!(axis.ticks.len() > 1 && axis.share(1.0).is_finite());
    }
}
