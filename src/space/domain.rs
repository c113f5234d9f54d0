use std::fmt;

use super::{Dim, Error, Value, value::EXACT};

/// The values that a parameter can have.
///
/// ```
/// use pollux_tune::space::{Dim, Domain, Value};
/// let width = Domain::int(64, 500)?.with_step(64)?;
/// assert_eq!(width.dim(), Some(Dim::Discrete { count: 7 })); // 64, 128, ..., 448
/// assert_eq!(width.decode(6.0), Some(Value::Int(448)));
/// assert_eq!(width.encode(&Value::Int(128)), Some(1.0));
/// assert_eq!(width.encode(&Value::Int(100)), None);
/// assert_eq!(width.to_string(), "{int: [64, 500], step: 64}");
/// # Ok::<(), pollux_tune::space::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Domain(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Float { low: f64, high: f64 },
    LogFloat { low: f64, high: f64 },
    FloatStep { low: f64, high: f64, step: f64 },
    Int { low: i64, high: i64, step: i64 },
    LogInt { low: i64, high: i64, cells: Vec<i64> },
    Choice(Vec<Value>),
    Ordinal(Vec<Value>),
    Fixed(Value),
}

/// What a domain is, for those who write it down in other forms than ours.
#[cfg(feature = "cli")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Form<'a> {
    /// Numbers. With a step, `high` is one of them.
    Float { low: f64, high: f64, step: Option<f64>, log: bool },
    /// Whole numbers. `high` is one of them.
    Int { low: i64, high: i64, step: i64, log: bool },
    /// One of these, or always the same.
    Values(&'a [Value]),
}

impl Domain {
    /// The largest number of cells of a float domain with a step.
    pub const STEPS_MAX: u64 = 1_000_000_000;

    /// Numbers from `low` to `high`, all equally likely.
    pub fn float(low: f64, high: f64) -> Result<Self, Error> {
        let fine = low < high && (high - low).is_finite();
        let allowed = "finite numbers, the first below the second";
        let domain = Self(Kind::Float { low, high });
        fine.then_some(domain).ok_or_else(|| bounds(format!("{low:?} and {high:?}"), allowed))
    }

    /// Numbers from `low` to `high` whose logarithms are equally likely.
    pub fn log(low: f64, high: f64) -> Result<Self, Error> {
        let fine = 0.0 < low && low < high && high.is_finite();
        let allowed = "finite numbers above 0 for a log domain, the first below the second";
        let domain = Self(Kind::LogFloat { low, high });
        fine.then_some(domain).ok_or_else(|| bounds(format!("{low:?} and {high:?}"), allowed))
    }

    /// Whole numbers from `low` to `high`, all equally likely.
    pub fn int(low: i64, high: i64) -> Result<Self, Error> {
        let fine = -EXACT <= low && low <= high && high <= EXACT && high - low < EXACT;
        let allowed = "whole numbers of at most 2^53, the first not above the second";
        let domain = Self(Kind::Int { low, high, step: 1 });
        fine.then_some(domain).ok_or_else(|| bounds(format!("{low} and {high}"), allowed))
    }

    /// Whole numbers from `low` to `high` whose logarithms are about equally likely.
    ///
    /// Up to `2 * low` every whole number is a cell, unless there are more than 1024. Otherwise the cells are the distinct
    /// rounded values of `low * 2^(k / n)`, and `high`. There are n of them in a doubling: as many as there is room for
    /// whole numbers just above `low`, but at least 4, and about 1024 in all.
    /// Numbers between two cells are allowed values, and are encoded as the nearest cell.
    pub fn log_int(low: i64, high: i64) -> Result<Self, Error> {
        let fine = 1 <= low && low <= high && high <= EXACT;
        let allowed = "whole numbers from 1 to 2^53 for a log domain, the first not above the second";
        if !fine {
            return Err(bounds(format!("{low} and {high}"), allowed));
        }
        Ok(Self(Kind::LogInt { low, high, cells: log_cells(low, high) }))
    }

    /// Keeps only `low`, `low + step`, `low + 2 * step` and so on, up to `high`.
    ///
    /// `high` itself is kept only if steps lead there.
    pub fn with_step(self, step: impl Into<Value>) -> Result<Self, Error> {
        let step = step.into();
        match self.0 {
            Kind::Int { low, high, .. } => {
                let allowed = "a whole number from 1 to the width of the range";
                let whole = step.as_int().filter(|step| (1..=(high - low).max(1)).contains(step));
                let step = whole.ok_or_else(|| bad("the step is", step.to_string(), allowed))?;
                Ok(Self(Kind::Int { low, high, step }))
            }
            Kind::Float { low, high } => {
                let allowed = "a number above 0, at most the width and at least a billionth of it";
                let min = (high - low) / Self::STEPS_MAX as f64;
                // A step as wide as the range must not be lost to rounding.
                let max = (high - low) * (1.0 + 1e-9);
                let number = step.as_float().filter(|step| min <= *step && *step <= max);
                let step = number.ok_or_else(|| bad("the step is", step.to_string(), allowed))?;
                Ok(Self(Kind::FloatStep { low, high, step }))
            }
            _ => Err(bad(
                "the step is",
                step.to_string(),
                "no step here: only float and int without log have one",
            )),
        }
    }

    /// One of several values without order. Two truth values are always `false` and `true`, in that order.
    pub fn choice<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Result<Self, Error> {
        let values = distinct(values)?;
        let truths = values.len() == 2 && values.iter().all(|value| value.as_bool().is_some());
        Ok(if truths { Self::bool() } else { Self(Kind::Choice(values)) })
    }

    /// One of several values in order: neighbours are alike.
    pub fn ordinal<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Result<Self, Error> {
        distinct(values).map(|values| Self(Kind::Ordinal(values)))
    }

    /// False or true.
    #[must_use]
    pub fn bool() -> Self {
        Self(Kind::Choice(vec![Value::Bool(false), Value::Bool(true)]))
    }

    /// Always the same value.
    pub fn fixed(value: impl Into<Value>) -> Result<Self, Error> {
        let value = finite(value.into())?;
        Ok(Self(Kind::Fixed(value)))
    }

    /// The dimension that suggesters work on; none for a fixed value.
    #[must_use]
    pub fn dim(&self) -> Option<Dim> {
        Some(match &self.0 {
            Kind::Float { .. } | Kind::LogFloat { .. } => Dim::Continuous,
            Kind::FloatStep { low, high, step } => {
                // A step that divides the width must not be lost to rounding.
                Dim::Discrete { count: ((high - low) / step + 1e-9) as u64 + 1 }
            }
            Kind::Int { low, high, step } => Dim::Discrete { count: ((high - low) / step) as u64 + 1 },
            Kind::LogInt { cells, .. } => Dim::Discrete { count: cells.len() as u64 },
            Kind::Ordinal(values) => Dim::Discrete { count: values.len() as u64 },
            Kind::Choice(values) => Dim::Categorical { count: values.len() },
            Kind::Fixed(_) => return None,
        })
    }

    /// The value at a coordinate; none if the dimension has no such coordinate.
    #[must_use]
    pub fn decode(&self, coordinate: f64) -> Option<Value> {
        if self.dim().is_some_and(|dim| !dim.contains(coordinate)) {
            return None;
        }
        Some(match &self.0 {
            Kind::Float { low, high } => Value::Float((low + coordinate * (high - low)).clamp(*low, *high)),
            Kind::LogFloat { low, high } => Value::Float(log_decode(*low, *high, coordinate)),
            Kind::FloatStep { low, high, step } => Value::Float(on_grid(*low, *high, *step, coordinate)),
            Kind::Int { low, step, .. } => Value::Int(low + coordinate as i64 * step),
            Kind::LogInt { cells, .. } => Value::Int(cells[coordinate as usize]),
            Kind::Choice(values) | Kind::Ordinal(values) => values[coordinate as usize].clone(),
            Kind::Fixed(value) => value.clone(),
        })
    }

    /// The coordinate of a value, 0 for a fixed one; none if the value is not in the domain.
    #[must_use]
    pub fn encode(&self, value: &Value) -> Option<f64> {
        match &self.0 {
            Kind::Float { low, high } => {
                let number = value.as_float().filter(|number| (*low..=*high).contains(number))?;
                Some(((number - low) / (high - low)).clamp(0.0, 1.0))
            }
            Kind::LogFloat { low, high } => {
                let number = value.as_float().filter(|number| (*low..=*high).contains(number))?;
                let (ln_low, ln_high) = (libm::log(*low), libm::log(*high));
                Some(((libm::log(number) - ln_low) / (ln_high - ln_low)).clamp(0.0, 1.0))
            }
            Kind::FloatStep { low, high, step } => {
                let number = value.as_float()?;
                let cell = ((number - low) / step).round();
                let inside = self.dim().is_some_and(|dim| dim.contains(cell));
                let near = (on_grid(*low, *high, *step, cell) - number).abs() <= 1e-9 * step;
                (inside && near).then_some(cell)
            }
            Kind::Int { low, high, step } => {
                let number = value.as_int().filter(|number| (*low..=*high).contains(number))?;
                ((number - low) % step == 0).then(|| ((number - low) / step) as f64)
            }
            Kind::LogInt { low, high, cells } => {
                let number = value.as_int().filter(|number| (*low..=*high).contains(number))?;
                Some(nearest(cells, number) as f64)
            }
            Kind::Choice(values) | Kind::Ordinal(values) => {
                values.iter().position(|known| known.same(value)).map(|place| place as f64)
            }
            Kind::Fixed(known) => known.same(value).then_some(0.0),
        }
    }

    /// The value as this domain writes it: `1` for a float becomes `1.0`; none if it is not in the domain.
    pub(super) fn normalize(&self, value: &Value) -> Option<Value> {
        let coordinate = self.encode(value)?;
        match &self.0 {
            Kind::Float { .. } | Kind::LogFloat { .. } => value.as_float().map(Value::Float),
            Kind::LogInt { .. } => value.as_int().map(Value::Int),
            _ => self.decode(coordinate),
        }
    }

    /// What it is.
    #[cfg(feature = "cli")]
    pub(crate) fn form(&self) -> Form<'_> {
        match &self.0 {
            Kind::Float { low, high } => Form::Float { low: *low, high: *high, step: None, log: false },
            Kind::LogFloat { low, high } => Form::Float { low: *low, high: *high, step: None, log: true },
            Kind::FloatStep { low, high, step } => {
                let last = on_grid(*low, *high, *step, ((high - low) / step + 1e-9).floor());
                Form::Float { low: *low, high: last, step: Some(*step), log: false }
            }
            Kind::Int { low, high, step } => {
                Form::Int { low: *low, high: low + (high - low) / step * step, step: *step, log: false }
            }
            Kind::LogInt { low, high, .. } => Form::Int { low: *low, high: *high, step: 1, log: true },
            Kind::Choice(values) | Kind::Ordinal(values) => Form::Values(values),
            Kind::Fixed(value) => Form::Values(std::slice::from_ref(value)),
        }
    }

    /// Values that stand for all of them: every choice, or one of the numbers.
    pub(super) fn samples(&self) -> Vec<Value> {
        match &self.0 {
            Kind::Choice(values) | Kind::Ordinal(values) => values.clone(),
            Kind::Fixed(value) => vec![value.clone()],
            _ => vec![Value::Int(0)],
        }
    }
}

fn bad(what: &'static str, found: String, allowed: &'static str) -> Error {
    Error::BadDomain { what, found, allowed }
}

fn bounds(found: String, allowed: &'static str) -> Error {
    bad("the bounds are", found, allowed)
}

fn finite(value: Value) -> Result<Value, Error> {
    match value {
        Value::Float(number) if !number.is_finite() => {
            Err(bad("a value is", number.to_string(), "a finite number"))
        }
        Value::Int(number) if number.abs() > EXACT => {
            Err(bad("a value is", number.to_string(), "a whole number of at most 2^53"))
        }
        value => Ok(value),
    }
}

fn distinct<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Result<Vec<Value>, Error> {
    let mut all: Vec<Value> = Vec::new();
    for value in values {
        let value = finite(value.into())?;
        if all.iter().any(|known| known.same(&value)) {
            return Err(bad("a choice is given twice:", value.to_string(), "distinct values"));
        }
        all.push(value);
    }
    if all.is_empty() {
        return Err(bad("the choices are", "none".to_owned(), "at least one"));
    }
    Ok(all)
}

/// By way of the portable logarithm and exponential, so that all machines agree on every digit.
fn log_decode(low: f64, high: f64, coordinate: f64) -> f64 {
    if coordinate <= 0.0 {
        return low;
    }
    if coordinate >= 1.0 {
        return high;
    }
    let (ln_low, ln_high) = (libm::log(low), libm::log(high));
    libm::exp(ln_low + coordinate * (ln_high - ln_low)).clamp(low, high)
}

/// A log domain of whole numbers has at most about this number of cells.
const LOG_CELLS: i64 = 1024;

fn log_cells(low: i64, high: i64) -> Vec<i64> {
    if high <= 2 * low && high - low < LOG_CELLS {
        return (low..=high).collect();
    }
    let doublings = libm::log2(high as f64 / low as f64);
    let most = (LOG_CELLS as f64 / doublings).floor();
    let per_doubling = (low as f64 * std::f64::consts::LN_2).floor().clamp(4.0, most);
    let cell = |k: i64| (low as f64 * libm::exp2(k as f64 / per_doubling)).round() as i64;
    // Rounding may leave a few more than the limit.
    let mut cells: Vec<i64> = (0..2 * LOG_CELLS).map(cell).take_while(|value| *value < high).collect();
    cells.push(high);
    cells.dedup();
    cells
}

fn nearest(cells: &[i64], number: i64) -> usize {
    let above = cells.partition_point(|cell| *cell < number);
    let below = above.saturating_sub(1);
    let gap = |place: usize| cells.get(place).map_or(i64::MAX, |cell| (cell - number).abs());
    if gap(below) <= gap(above) { below } else { above }
}

/// `low + cell * step` in the decimals of `low` and `step`, so that three steps of 0.1 are 0.3.
fn on_grid(low: f64, high: f64, step: f64, cell: f64) -> f64 {
    let decimals = |number: f64| number.to_string().split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = decimals(low).max(decimals(step));
    let exact = low + cell * step;
    let rounded = if digits <= 12 { format!("{exact:.digits$}").parse().unwrap_or(exact) } else { exact };
    rounded.clamp(low, high)
}

impl fmt::Display for Domain {
    /// In the form of study files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &[Value]| values.iter().map(Value::to_yaml).collect::<Vec<_>>().join(", ");
        match &self.0 {
            Kind::Float { low, high } => write!(f, "{{float: [{low:?}, {high:?}]}}"),
            Kind::LogFloat { low, high } => write!(f, "{{float: [{low:?}, {high:?}], log: true}}"),
            Kind::FloatStep { low, high, step } => {
                write!(f, "{{float: [{low:?}, {high:?}], step: {step:?}}}")
            }
            Kind::Int { low, high, step: 1 } => write!(f, "{{int: [{low}, {high}]}}"),
            Kind::Int { low, high, step } => write!(f, "{{int: [{low}, {high}], step: {step}}}"),
            Kind::LogInt { low, high, .. } => write!(f, "{{int: [{low}, {high}], log: true}}"),
            Kind::Choice(values) => write!(f, "{{choice: [{}]}}", list(values)),
            Kind::Ordinal(values) => write!(f, "{{ordinal: [{}]}}", list(values)),
            Kind::Fixed(value) => write!(f, "{{fixed: {}}}", value.to_yaml()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_cells_double_exactly_and_end_at_high() {
        assert_eq!(log_cells(1, 16), [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16]);
        let cells = log_cells(16, 1000);
        assert_eq!(cells[..4], [16, 17, 18, 19]);
        assert_eq!([cells[11], cells[22], cells[33], cells[55]], [32, 64, 128, 512]);
        assert_eq!(cells.last(), Some(&1000));
        assert_eq!(log_cells(7, 7), [7]);
        assert!(log_cells(1, EXACT).len() < 220);
        assert!(log_cells(EXACT / 3, EXACT).len() < 1100);
    }

    /// There were six of them.
    #[test]
    fn a_narrow_log_domain_offers_all_its_numbers() {
        assert_eq!(log_cells(1000, 1100), (1000..=1100).collect::<Vec<_>>());
        // Just beyond a doubling there is a cell for each number above the lower bound.
        let cells = log_cells(1000, 2001);
        assert_eq!(cells[..4], [1000, 1001, 1002, 1003]);
        assert!(cells.len() > 650 && cells.windows(2).all(|pair| pair[1] - pair[0] <= 3), "{cells:?}");
        let wide = log_cells(1_000_000, 1_100_000);
        assert!(wide.len() > 900 && wide.windows(2).all(|pair| pair[1] - pair[0] < 200), "{}", wide.len());
    }

    #[test]
    fn a_number_between_log_cells_is_allowed_and_the_nearest_cell() {
        let domain = Domain::log_int(10, 1000).unwrap();
        let cell = domain.encode(&Value::Int(100)).unwrap();
        let back = domain.decode(cell).unwrap().as_int().unwrap();
        assert!((95..=105).contains(&back), "{back}");
        assert_eq!(domain.normalize(&Value::Int(100)), Some(Value::Int(100)));
        assert_eq!(domain.encode(&Value::Int(1001)), None);
    }

    #[test]
    fn ends_are_exact_and_steps_are_decimal() {
        let log = Domain::log(1e-5, 1e-1).unwrap();
        assert_eq!(log.decode(0.0), Some(Value::Float(1e-5)));
        assert_eq!(log.decode(1.0), Some(Value::Float(1e-1)));
        assert!((log.decode(0.5).unwrap().as_float().unwrap() - 1e-3).abs() < 1e-15);
        assert_eq!(log.decode(1.5), None);
        assert_eq!(log.decode(f64::NAN), None);
        let grid = Domain::float(0.0, 1.0).unwrap().with_step(0.1).unwrap();
        assert_eq!(grid.dim(), Some(Dim::Discrete { count: 11 }));
        assert_eq!(grid.decode(3.0), Some(Value::Float(0.3)));
        assert_eq!(grid.encode(&Value::Float(0.1 + 0.2)), Some(3.0));
        assert_eq!(grid.encode(&Value::Float(0.35)), None);
        assert_eq!(grid.decode(3.5), None);
    }

    #[test]
    fn bad_domains_say_what_is_allowed() {
        let message = |domain: Result<Domain, Error>| domain.unwrap_err().to_string();
        assert_eq!(
            message(Domain::log(0.0, 1.0)),
            "the bounds are 0.0 and 1.0; expected finite numbers above 0 for a log domain, \
             the first below the second"
        );
        assert!(message(Domain::float(1.0, f64::NAN)).starts_with("the bounds are 1.0 and NaN"));
        assert!(message(Domain::float(-f64::MAX, f64::MAX)).contains("finite"));
        assert!(message(Domain::int(3, 1)).starts_with("the bounds are 3 and 1"));
        assert!(message(Domain::int(i64::MIN, i64::MAX)).contains("2^53"));
        assert!(message(Domain::int(1, 5).and_then(|int| int.with_step(0))).starts_with("the step is 0"));
        assert!(message(Domain::log_int(1, 5).and_then(|int| int.with_step(2))).contains("without log"));
        assert!(message(Domain::choice(["a", "b", "a"])).contains("twice: a"));
        assert!(message(Domain::choice([1.0, f64::INFINITY])).contains("finite"));
        assert!(message(Domain::choice(Vec::<Value>::new())).contains("at least one"));
    }
}
