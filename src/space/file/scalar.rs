//! What plain texts mean.

use std::time::Duration;

use super::{
    super::Value,
    diagnostic::DiagnosticKind,
    node::{Content, Node, Scalar},
};

const ALLOWED: &str = "a number, a text, true or false";

/// A value by the rules of YAML 1.2, except that `yes`, `no`, `on` and `off` need quotes.
pub(super) fn value(node: &Node) -> Result<Value, DiagnosticKind> {
    match &node.content {
        Content::Scalar(scalar) => resolve(scalar),
        Content::List(_) | Content::Map(_) => Err(bad(node.shown(), ALLOWED)),
    }
}

pub(super) fn resolve(scalar: &Scalar) -> Result<Value, DiagnosticKind> {
    let text = scalar.text.as_str();
    if !scalar.plain {
        return Ok(Value::Text(text.to_owned()));
    }
    match text {
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ if scalar.is_null() => return Err(bad("nothing".to_owned(), ALLOWED)),
        _ => {}
    }
    if ["yes", "no", "on", "off"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Err(DiagnosticKind::Ambiguous(text.to_owned()));
    }
    if let Some(number) = whole(text) {
        return Ok(Value::Int(number));
    }
    Ok(number(text).map_or_else(|| Value::Text(text.to_owned()), Value::Float))
}

pub(super) fn bad(found: String, allowed: impl Into<String>) -> DiagnosticKind {
    DiagnosticKind::BadValue { found, allowed: allowed.into(), hint: None }
}

fn whole(text: &str) -> Option<i64> {
    for (prefix, base) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix).filter(|digits| !digits.starts_with(['+', '-'])) {
            return i64::from_str_radix(digits, base).ok();
        }
    }
    text.parse().ok()
}

fn number(text: &str) -> Option<f64> {
    let unsigned = text.trim_start_matches(['+', '-']);
    match unsigned {
        ".inf" | ".Inf" | ".INF" => {
            return Some(if text.starts_with('-') { -f64::INFINITY } else { f64::INFINITY });
        }
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let looks = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    looks.then(|| text.parse().ok()).flatten()
}

/// A duration such as `30s`, `5m`, `1h30m`, `1.5h`, `2d` or `250ms`, as study files have them.
///
/// ```
/// use pollux_tune::space::duration;
/// assert_eq!(duration("1h30m").map(|time| time.as_secs()), Some(5400));
/// assert_eq!(duration("30"), None);
/// ```
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut last = f64::INFINITY;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        // Large units first, each once: `30m1h` is a mistake.
        if scale >= last {
            return None;
        }
        // Part by part, so that milliseconds are not lost next to days.
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()?;
        sum = sum.checked_add(part)?;
        (rest, last) = (after, scale);
    }
    last.is_finite().then_some(sum)
}

/// A size such as `512`, `4k` (4000), `4Ki` (4096) or `2GiB`.
pub(super) fn size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("", 1),
        ("k", 1000),
        ("K", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
    ];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(scale);
    }
    let exact = number.parse::<f64>().ok()? * scale as f64;
    (exact.fract() == 0.0 && exact <= 9e15).then_some(exact as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Result<Value, DiagnosticKind> {
        resolve(&Scalar { text: text.to_owned(), plain: true })
    }

    #[test]
    fn plain_texts_follow_yaml_1_2() {
        for (text, value) in [
            ("1e-4", Value::Float(1e-4)),
            ("1E5", Value::Float(1e5)),
            (".5", Value::Float(0.5)),
            ("-1.", Value::Float(-1.0)),
            ("+12", Value::Int(12)),
            ("0x10", Value::Int(16)),
            ("0o10", Value::Int(8)),
            ("010", Value::Int(10)),
            ("TRUE", Value::Bool(true)),
            ("relu", Value::from("relu")),
            ("1_000", Value::from("1_000")),
            ("1.2.3", Value::from("1.2.3")),
            ("nan", Value::from("nan")),
            ("inf", Value::from("inf")),
            ("e5", Value::from("e5")),
        ] {
            assert_eq!(plain(text), Ok(value), "{text}");
        }
        assert_eq!(plain("No"), Err(DiagnosticKind::Ambiguous("No".to_owned())));
        assert!(plain("").is_err() && plain("~").is_err());
    }

    #[test]
    fn units_are_understood() {
        let millis = |text| duration(text).map(|duration| duration.as_millis());
        assert_eq!(
            ["30s", "5m", "1h30m", "1.5h", "2d", "250ms", "0s"].map(millis).map(Option::unwrap),
            [30_000, 300_000, 5_400_000, 5_400_000, 172_800_000, 250, 0]
        );
        for text in
            ["", "30", "s", "5 m", "-5m", "30m1h", "1h1h", "1..5h", "1y", "1e9d", "9999999999999999999999d"]
        {
            assert_eq!(millis(text), None, "{text}");
        }
        assert_eq!(
            ["512", "4k", "4Ki", "1.5k", "2GiB", "3MB"].map(size).map(Option::unwrap),
            [512, 4000, 4096, 1500, 2 << 30, 3_000_000]
        );
        for text in ["", "k", "-5", "1.0001k", "5x", "99999999999999999999", "99999999999G", "1 k"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
