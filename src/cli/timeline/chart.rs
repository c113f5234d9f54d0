//! The objective over time, below the slots.

use std::collections::BTreeSet;

use super::history::{History, loss};
use crate::{
    cli::plot::axis::{multiples, plain, round_step},
    ids::TrialId,
};

/// The share of values that have room; worse ones are drawn at the edge.
const SHOWN: f64 = 0.95;
/// Values beyond are left out, so that no range overflows.
const DRAWN: f64 = 1e90;

/// A diagram of the first objective.
pub(super) struct Chart {
    pub(super) top: f64,
    pub(super) height: f64,
    pub(super) metric: String,
    /// Numbers at its left edge.
    pub(super) ticks: Vec<(f64, String)>,
    /// What the best trials measured; those without a curve are missing.
    pub(super) curves: Vec<(TrialId, Vec<(f64, f64)>)>,
    /// Results, each place once.
    pub(super) results: Vec<(TrialId, f64, f64)>,
    /// The best result so far.
    pub(super) record: Vec<(f64, f64)>,
}

impl Chart {
    /// None if nothing was measured yet.
    pub(super) fn new(history: &History, top: f64, height: f64, x: impl Fn(f64) -> f64) -> Option<Self> {
        let objective = history.objective()?;
        let measured = history.curves.values().flatten().map(|(_, value)| *value);
        let results = history.results.iter().map(|(_, _, value)| *value);
        let mut values: Vec<f64> = measured.chain(results).filter(|value| value.abs() <= DRAWN).collect();
        values.sort_by(|a, b| loss(objective, *a).total_cmp(&loss(objective, *b)));
        let (best, worst) = (*values.first()?, values[(SHOWN * (values.len() - 1) as f64).ceil() as usize]);
        let margin = (0.06 * (best - worst).abs()).max(1e-3 * best.abs()).max(1e-9);
        let (low, high) = (best.min(worst) - margin, best.max(worst) + margin);
        let y = |value: f64| top + height * ((high - value) / (high - low)).clamp(0.0, 1.0);
        let ticks = multiples(low, high, round_step((high - low) / 5.0));
        let mut chart = Self {
            top,
            height,
            metric: objective.metric.clone(),
            ticks: ticks.into_iter().map(|value| (y(value), plain(value))).collect(),
            curves: Vec::new(),
            results: Vec::new(),
            record: Vec::new(),
        };
        for &trial in &history.best {
            let curve = history.curves.get(&trial).into_iter().flatten();
            let places = thinned(curve.map(|&(at_s, value)| (x(at_s), y(value))));
            chart.curves.extend((places.len() > 1).then_some((trial, places)));
        }
        let mut taken = BTreeSet::new();
        let mut lowest = f64::INFINITY;
        for &(at_s, trial, value) in &history.results {
            let place = (x(at_s), y(value));
            if taken.insert(((2.0 * place.0) as i64, (2.0 * place.1) as i64)) {
                chart.results.push((trial, place.0, place.1));
            }
            if loss(objective, value) < lowest {
                lowest = loss(objective, value);
                let before = chart.record.last().map(|(_, y)| (place.0, *y));
                chart.record.extend(before);
                chart.record.push(place);
            }
        }
        let last = chart.record.last().map(|(_, y)| (x(history.length_s), *y));
        chart.record.extend(last);
        Some(chart)
    }
}

/// The places of a curve without those that are hardly further right than the one before.
fn thinned(places: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for place in places {
        match kept.last_mut() {
            Some(last) if place.0 - last.0 < 0.5 => last.1 = place.1,
            _ => kept.push(place),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_at_most_two_places_for_a_pixel() {
        let dense = (0..1000).map(|k| (f64::from(k) / 100.0, f64::from(k)));
        let kept = thinned(dense);
        assert_eq!(kept.len(), 20);
        assert_eq!(kept[0], (0.0, 49.0));
    }
}
