//! Moments as texts.

use chrono::{DateTime, Local, SecondsFormat, Utc};

/// Microseconds since 1970.
pub(super) fn micros(at_s: f64) -> i64 {
    (at_s * 1e6).round() as i64
}

/// Milliseconds since 1970.
pub(super) fn millis(at_s: f64) -> i64 {
    (at_s * 1e3).round() as i64
}

fn moment(at_s: f64) -> DateTime<Utc> {
    // Beyond the calendar there is nothing to tell apart.
    DateTime::from_timestamp_micros(micros(at_s)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// As in ISO 8601, in UTC.
pub(super) fn utc(at_s: f64) -> String {
    moment(at_s).to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// As Optuna writes it: what a clock on the wall shows here.
pub(super) fn local(at_s: f64) -> String {
    moment(at_s).with_timezone(&Local).format("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_six_digits_of_a_second() {
        assert_eq!(utc(951_827_696.25), "2000-02-29T12:34:56.250000Z");
        assert_eq!(local(951_827_696.25).len(), "2000-02-29 12:34:56.250000".len());
        assert_eq!((micros(1.5), millis(1.5)), (1_500_000, 1500));
        assert!(utc(1e12).starts_with('+'), "far away, but no panic");
    }
}
