use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;

use super::{Error, Value, error::similar};

/// A value for every active parameter, in the order of the space. Copies share their memory.
///
/// ```
/// use pollux_tune::space::Params;
/// let values = [("lr", 0.1.into()), ("layers", 3.into()), ("act", "relu".into())];
/// let assignment = Params::from_iter(values);
/// assert_eq!(assignment.float("lr")?, 0.1);
/// assert_eq!(assignment.int("layers")?, 3);
/// assert_eq!(assignment.text("act")?, "relu");
/// assert_eq!(assignment.to_string(), "lr=0.1 layers=3 act=relu");
/// assert_eq!(assignment.int("lr").unwrap_err().to_string(), "`lr` is 0.1, which is not a whole number");
/// let error = assignment.int("layer").unwrap_err().to_string();
/// assert_eq!(error, "there is no parameter `layer` in this assignment; did you mean `layers`?");
/// # Ok::<(), pollux_tune::space::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Params {
    names: Arc<[String]>,
    /// One for each name.
    values: Arc<[Value]>,
}

impl Params {
    /// The value of a parameter; none if it is inactive or not in the space.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// A number; a whole one will do.
    pub fn float(&self, name: &str) -> Result<f64, Error> {
        self.read(name, "a number", Value::as_float)
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<i64, Error> {
        self.read(name, "a whole number", Value::as_int)
    }

    /// A truth value.
    pub fn bool(&self, name: &str) -> Result<bool, Error> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<&str, Error> {
        self.read(name, "a text", Value::as_text)
    }

    /// All of them as a type of the program, with a field for each parameter; those that can be inactive are an `Option`.
    ///
    /// ```
    /// use pollux_tune::space::Params;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Settings {
    ///     lr: f64,
    ///     layers: usize,
    ///     momentum: Option<f64>,
    /// }
    ///
    /// let params = Params::from_iter([("lr", 0.1.into()), ("layers", 3.into())]);
    /// let settings: Settings = params.to()?;
    /// assert_eq!((settings.lr, settings.layers, settings.momentum), (0.1, 3, None));
    /// # Ok::<(), pollux_tune::space::Error>(())
    /// ```
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let wrong = |error: serde_json::Error| Error::WrongStruct(error.to_string());
        serde_json::from_value(serde_json::to_value(self).map_err(wrong)?).map_err(wrong)
    }

    /// All values, in the order of the space.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.names.iter().map(String::as_str).zip(self.values.iter())
    }

    /// How many parameters have a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no parameter has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The same, with the memory of equal names shared: those of most trials of a study are.
    #[cfg(feature = "runtime")]
    #[must_use]
    pub(crate) fn sharing_names(self, with: &Self) -> Self {
        if self.names == with.names { Self { names: with.names.clone(), values: self.values } } else { self }
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T, Error> {
        let Some(value) = self.get(name) else {
            let similar = similar(name, self.iter().map(|(known, _)| known)).map(str::to_owned);
            return Err(Error::Unknown { name: name.to_owned(), place: "in this assignment", similar });
        };
        let wrong = || Error::WrongType { name: name.to_owned(), value: value.to_string(), wanted };
        read(value).ok_or_else(wrong)
    }
}

impl<S: Into<String>> FromIterator<(S, Value)> for Params {
    /// A later value of the same name replaces an earlier one.
    fn from_iter<I: IntoIterator<Item = (S, Value)>>(values: I) -> Self {
        let mut all: Vec<(String, Value)> = Vec::new();
        for (name, value) in values {
            let name = name.into();
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some(entry) => entry.1 = value,
                None => all.push((name, value)),
            }
        }
        let (names, values): (Vec<String>, Vec<Value>) = all.into_iter().unzip();
        Self { names: names.into(), values: values.into() }
    }
}

impl fmt::Display for Params {
    /// `name=value` with spaces between; numbers with six digits, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.iter().enumerate() {
            let space = if place > 0 { " " } else { "" };
            match value {
                Value::Float(number) => write!(f, "{space}{name}={}", short(*number))?,
                _ => write!(f, "{space}{name}={value}")?,
            }
        }
        Ok(())
    }
}

/// A number with six significant digits at most.
pub(super) fn short(number: f64) -> String {
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    format!("{rounded:?}").trim_end_matches(".0").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.003_162_277_66, 1e-5, 0.1 + 0.2, 64.0, 123_456_789.0, -0.5].map(short);
        assert_eq!(shown, ["0.00316228", "1e-5", "0.3", "64", "123457000", "-0.5"]);
    }

    #[cfg(feature = "runtime")]
    #[test]
    fn equal_names_can_be_shared() {
        let first = Params::from_iter([("a", 1.into()), ("b", 2.into())]);
        let second = Params::from_iter([("a", 3.into()), ("b", "x".into())]);
        let shared = second.clone().sharing_names(&first);
        assert!(shared == second && Arc::ptr_eq(&shared.names, &first.names));
        let other = Params::from_iter([("a", 1.into())]);
        assert_eq!(other.clone().sharing_names(&first), other);
    }

    #[test]
    fn later_values_replace_earlier_ones() {
        let assignment = Params::from_iter([("a", 1.into()), ("b", 2.into()), ("a", 3.into())]);
        assert_eq!(assignment.to_string(), "a=3 b=2");
        assert_eq!((assignment.len(), assignment.is_empty()), (2, false));
        assert_eq!(assignment.bool("a").unwrap_err().to_string(), "`a` is 3, which is not true or false");
    }
}
