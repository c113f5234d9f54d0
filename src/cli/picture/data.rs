//! What pictures show of a study.

use std::{collections::BTreeMap, path::Path};

use super::Error;
use crate::{
    cli,
    ids::TrialId,
    space::{Objective, Parameter, Study},
    store::{Reader, TrialRow, TrialState},
    trials::engine::Fact,
};

/// The most trials that have a line of their own.
pub(super) const LINES: usize = 600;
/// A curve is drawn with so many points at most.
const POINTS: usize = 200;

/// A study with one of its objectives.
#[derive(Debug)]
pub(super) struct Data {
    /// What people call it.
    pub(super) name: String,
    pub(super) study: Study,
    /// The place of the objective.
    pub(super) objective: usize,
    /// Trials that ran to their end with their results, in the order of their numbers.
    pub(super) results: Vec<(TrialRow, f64)>,
    /// Trials that were stopped early, with what they reported last.
    pub(super) stopped: Vec<(TrialId, f64)>,
    /// Epochs and values of the trials that have reported.
    pub(super) curves: BTreeMap<TrialId, Vec<(f64, f64)>>,
}

impl Data {
    pub(super) fn read(reader: &Reader, folder: &Path, objective: Option<&str>) -> Result<Self, cli::Error> {
        let study = reader.study()?;
        let places = || study.objectives.iter().map(|known| known.metric.as_str());
        let objective = match objective {
            None => 0,
            Some(name) => places().position(|known| known == name).ok_or_else(|| Error::NoObjective {
                name: name.to_owned(),
                allowed: places().collect::<Vec<_>>().join(", "),
            })?,
        };
        let metric = study.objectives.get(objective).map(|known| known.metric.clone()).unwrap_or_default();
        let (mut results, mut stopped) = (Vec::new(), Vec::new());
        for row in reader.trials()? {
            let result = row.values.as_ref().and_then(|values| values.get(objective).copied());
            let last = row.metrics.get(&metric).map(|value| value.value());
            match (result, last) {
                (Some(value), _) if value.is_finite() => results.push((row, value)),
                (None, Some(value)) if row.state == TrialState::Stopped && value.is_finite() => {
                    stopped.push((row.trial, value));
                }
                _ => {}
            }
        }
        let mut curves: BTreeMap<TrialId, Vec<(f64, f64)>> = BTreeMap::new();
        reader.replay(|entry| -> Result<(), cli::Error> {
            if let Fact::Measured { trial, epochs, metrics, .. } = entry.fact
                && let Some(value) =
                    metrics.get(&metric).map(|value| value.value()).filter(|value| value.is_finite())
            {
                let curve = curves.entry(trial).or_default();
                // What was reported again after a restart takes the place of what was before.
                while curve.last().is_some_and(|(before, _)| *before >= epochs) {
                    curve.pop();
                }
                curve.push((epochs, value));
            }
            Ok(())
        })?;
        for curve in curves.values_mut().filter(|curve| curve.len() > POINTS) {
            *curve = evenly(curve, POINTS);
        }
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { name, study, objective, results, stopped, curves })
    }

    pub(super) fn metric(&self) -> &str {
        self.goal().map_or("value", |goal| goal.metric.as_str())
    }

    pub(super) fn goal(&self) -> Option<&Objective> {
        self.study.objectives.get(self.objective)
    }

    /// What is better is less.
    pub(super) fn loss(&self, value: f64) -> f64 {
        self.goal().map_or(value, |goal| goal.loss(value))
    }

    /// The parameters of these names, or all that are searched.
    pub(super) fn chosen(&self, names: &[String]) -> Result<Vec<&Parameter>, Error> {
        let searched = || self.study.space.parameters().iter().filter(|known| known.dim().is_some());
        if names.is_empty() {
            return Ok(searched().collect());
        }
        let find = |name: &String| {
            searched().find(|known| known.name() == name).ok_or_else(|| Error::NoParameter {
                name: name.clone(),
                allowed: searched().map(Parameter::name).collect::<Vec<_>>().join(", "),
            })
        };
        names.iter().map(find).collect()
    }

    /// The values of all results but outliers, which would take all of a scale: from the worst to the best.
    pub(super) fn range(&self) -> (f64, f64) {
        let mut values: Vec<f64> = self.results.iter().map(|(_, value)| *value).collect();
        values.sort_by(|a, b| self.loss(*b).total_cmp(&self.loss(*a)));
        let worst = values.get(values.len() / 50).copied().unwrap_or(0.0);
        (worst, values.last().copied().unwrap_or(1.0))
    }

    /// Where a value is between the worst (0) and the best one (1).
    pub(super) fn merit(&self, (worst, best): (f64, f64), value: f64) -> f64 {
        let (worst, best, value) = (self.loss(worst), self.loss(best), self.loss(value));
        if worst - best > 0.0 { ((worst - value) / (worst - best)).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// At most `max` of them, evenly chosen, the first and the last one among them.
pub(super) fn evenly<T: Clone>(all: &[T], max: usize) -> Vec<T> {
    if all.len() <= max || max < 2 {
        return all.to_vec();
    }
    (0..max).map(|place| all[place * (all.len() - 1) / (max - 1)].clone()).collect()
}
