use std::fmt::{self, Write};

use super::params::short;

/// A value of a parameter.
///
/// ```
/// use pollux_tune::space::Value;
/// assert_eq!(Value::from(0.1).to_string(), "0.1");
/// assert_eq!(Value::from(64).as_float(), Some(64.0));
/// assert_eq!(Value::from("relu").as_int(), None);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text, such as the name of an optimizer.
    Text(String),
}

impl Value {
    /// The number, if it is one; whole numbers are numbers, too.
    #[must_use]
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::Int(number) => Some(number as f64),
            Self::Float(number) => Some(number),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }

    /// The whole number, if it is one; `2.0` is one as well.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Self::Int(number) => Some(number),
            Self::Float(number) if number.fract() == 0.0 && number.abs() <= EXACT as f64 => {
                Some(number as i64)
            }
            Self::Float(_) | Self::Bool(_) | Self::Text(_) => None,
        }
    }

    /// The truth value, if it is one.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            Self::Int(_) | Self::Float(_) | Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => None,
        }
    }

    /// For people: numbers with six significant digits at most.
    ///
    /// ```
    /// use pollux_tune::space::Value;
    /// assert_eq!([1.0 / 3.0, 46.0, 3e-8].map(|number| Value::from(number).short()), ["0.333333", "46", "3e-8"]);
    /// ```
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::Float(number) => short(*number),
            _ => self.to_string(),
        }
    }

    /// Whether both mean the same: `1` and `1.0` do.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        match (self.as_float(), other.as_float()) {
            (Some(one), Some(other)) => one.total_cmp(&other).is_eq(),
            _ => self == other,
        }
    }

    /// As YAML, quoted where a plain text would be read as something else.
    #[must_use]
    pub(super) fn to_yaml(&self) -> String {
        match self {
            Self::Text(text) => text_to_yaml(text),
            _ => self.to_string(),
        }
    }
}

/// Up to this size a whole number has a floating-point number of its own.
pub(super) const EXACT: i64 = 1 << 53;

/// Words that some YAML reader or other takes for something else than text.
const WORDS: [&str; 12] =
    ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"];

pub(super) fn text_to_yaml(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if plain {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c => {
                let _ = write!(quoted, "\\U{:08x}", c as u32);
            }
        }
    }
    quoted + "\""
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(number) => write!(f, "{number}"),
            // The shortest text that is read as the same number, and never as a whole one.
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Int(i64::from(number))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(i64::from(number))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        let shown = ["relu", "No", "1e-4", "a b", "say \"x\"", "", "é", "a\u{1f600}\n"].map(text_to_yaml);
        let wanted = [
            "relu",
            "\"No\"",
            "\"1e-4\"",
            "\"a b\"",
            "\"say \\\"x\\\"\"",
            "\"\"",
            "\"\\U000000e9\"",
            "\"a\\U0001f600\\n\"",
        ];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn numbers_are_read_in_both_ways_where_they_can_be() {
        assert_eq!(Value::Float(2.0).as_int(), Some(2));
        assert_eq!(Value::Float(2.5).as_int(), None);
        assert_eq!(Value::Float(f64::NAN).as_int(), None);
        assert!(Value::Int(1).same(&Value::Float(1.0)));
        assert!(!Value::Int(1).same(&Value::Bool(true)));
    }
}
