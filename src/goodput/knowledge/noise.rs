//! How the noise scale grows over training, learned from all trials of a study.

use std::collections::BTreeMap;

use crate::goodput::{Error, NoiseScale};

/// Progress on an axis on which the noise scale is smooth: fine at the start, logarithmic later.
fn position(progress_epochs: f64) -> f64 {
    4.0 * (16.0 * progress_epochs).ln_1p() / std::f64::consts::LN_2
}

/// The number of classes beyond the ends of a curve (a factor of 2 in late progress) up to which it is believed.
const NEAR: f64 = 4.0;
/// Classes that a trial must have been seen in for half of its offset to be believed.
const KAPPA: f64 = 2.0;
/// Rounds of estimating offsets and curve in turns.
const ROUNDS: usize = 20;

/// The noise scale of one trial by class of progress: bounded memory, however long the trial runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Track {
    classes: BTreeMap<u32, Class>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Class {
    count: f64,
    log_phi_sum: f64,
}

impl Class {
    fn log_phi(&self) -> f64 {
        self.log_phi_sum / self.count
    }
}

impl Track {
    /// Adds a measurement, if it says something: one at the cap only says that there was no signal.
    pub(super) fn record(&mut self, progress_epochs: f64, phi: NoiseScale) -> Result<(), Error> {
        let allowed = "a finite number of epochs, at least 0";
        Error::check_at_least("training progress", progress_epochs, 0.0, allowed)?;
        if phi < NoiseScale::UNRESOLVED {
            let class = self.classes.entry(position(progress_epochs).round() as u32).or_default();
            class.count += 1.0;
            // Less noise than that of a single example makes no difference to any batch.
            class.log_phi_sum += phi.value().max(1.0).ln();
        }
        Ok(())
    }

    pub(super) fn curve(&self) -> NoiseCurve {
        NoiseCurve { log_phi: self.classes.iter().map(|(&class, cell)| (class, cell.log_phi())).collect() }
    }

    /// How far the trial lies above a curve, in the logarithm, shrunk towards 0 while little is seen of it.
    pub(super) fn offset(&self, curve: &NoiseCurve) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for (&class, cell) in &self.classes {
            if let Some(log_phi) = curve.at(f64::from(class)) {
                sum += cell.log_phi() - log_phi;
                count += 1.0;
            }
        }
        sum / (count + KAPPA)
    }
}

/// The logarithm of the noise scale by class of progress.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct NoiseCurve {
    log_phi: BTreeMap<u32, f64>,
}

impl NoiseCurve {
    /// The curve of a study: `ln phi = curve(progress) + offset(trial)`. Offsets keep the curve smooth where
    /// some trials end, since those that continue are not a random choice.
    pub(super) fn fit(tracks: &[Track]) -> Self {
        let mut curve = Self::default();
        for round in 0..ROUNDS {
            let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
            for track in tracks {
                let offset = if round == 0 { 0.0 } else { track.offset(&curve) };
                for (&class, cell) in &track.classes {
                    let entry = sums.entry(class).or_default();
                    entry.0 += cell.log_phi() - offset;
                    entry.1 += 1.0;
                }
            }
            curve.log_phi = sums.into_iter().map(|(class, (sum, count))| (class, sum / count)).collect();
        }
        curve
    }

    pub(super) fn at_progress(&self, progress_epochs: f64) -> Option<f64> {
        self.at(position(progress_epochs))
    }

    /// Linear between classes, constant a little beyond the ends.
    fn at(&self, position: f64) -> Option<f64> {
        let below = self.log_phi.range(..=position.floor() as u32).next_back();
        let above = self.log_phi.range(position.ceil() as u32..).next();
        match (below, above) {
            (Some((&left, &from)), Some((&right, &to))) => {
                let share = (position - f64::from(left)) / f64::from(right - left).max(1.0);
                Some(share.mul_add(to - from, from))
            }
            (Some((&class, &log_phi)), None) | (None, Some((&class, &log_phi))) => {
                Some(log_phi).filter(|_| (position - f64::from(class)).abs() <= NEAR)
            }
            (None, None) => None,
        }
    }
}
