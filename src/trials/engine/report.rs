//! What the group of a trial reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::goodput::{NoiseScale, Observation};

/// What a trial has measured since its last report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// 1 for the first report of a generation, then 2, and so on: what comes again is old.
    pub number: u32,
    /// Statistical epochs so far.
    pub epochs: f64,
    /// What was measured, by name; those of the objectives among them.
    pub metrics: Metrics,
    /// How long its steps took; empty for trials that are not elastic.
    pub steps: Vec<Observation>,
    /// The smoothed noise scale of its gradients, once there is one.
    pub noise: Option<NoiseScale>,
    /// The total batch that it belongs to; none is that of the last steps.
    pub noise_batch: Option<f64>,
}

/// Metrics by name.
pub type Metrics = BTreeMap<String, Number>;

/// A measured number. All that are not finite are equal: `null` in JSON.
#[derive(Debug, Clone, Copy)]
pub struct Number(f64);

impl Number {
    /// The number; NaN if it is not finite.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(if value.is_finite() { value } else { f64::NAN })
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.total_cmp(&other.0).is_eq()
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.is_finite().then_some(self.0).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::from(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN)))
    }
}

/// The state of a trial on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its name below the folder of the study.
    pub name: String,
    /// Statistical epochs that it holds.
    pub epochs: f64,
}

/// The objective of studies without one: its trials are trained for their own sake.
pub(crate) const NO_METRIC: &str = "(none)";

/// Names of metrics for people.
pub(super) fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: std::collections::BTreeSet<&String> = names.collect();
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { "nothing".to_owned() } else { quoted.join(", ") }
}
