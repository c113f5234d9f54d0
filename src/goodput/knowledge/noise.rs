//! How the noise scale grows over training and with the batch, learned from all trials of a study.
//!
//! `ln phi = level(progress) + slope(progress) ln M + offset(trial)`. Progress falls into classes; each has a regression on
//! the logarithm of the batch, whose slope is shrunk to that of the whole study, and that to what trainings usually show.

use std::collections::BTreeMap;

use crate::goodput::{Error, NoiseCurve, NoiseScale};

/// Progress as an axis on which the noise scale is smooth: fine at the start, logarithmic later, and no coarser than a fiftieth of the
/// training, where its length is known: a learning rate that falls near the end changes the noise at once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Axis {
    /// Statistical epochs of a whole training.
    pub(super) epochs: Option<f64>,
}

/// Classes of equal parts of the training.
const PARTS: f64 = 50.0;

impl Axis {
    fn position(self, progress_epochs: f64) -> f64 {
        let logarithmic = 4.0 * (16.0 * progress_epochs).ln_1p() / std::f64::consts::LN_2;
        let linear = self.epochs.map_or(0.0, |epochs| PARTS * (progress_epochs / epochs).min(2.0));
        logarithmic + linear
    }
}

/// The number of classes beyond the ends of a curve (a factor of 2 in late progress) up to which it is believed.
const NEAR: f64 = 4.0;
/// Classes that a trial must have been seen in for half of its offset to be believed.
const KAPPA: f64 = 2.0;
/// Rounds of estimating offsets and levels in turns.
const ROUNDS: usize = 20;
/// What the noise scale is taken to grow with the batch before that was seen: trainings show 0 to 0.9.
const SLOPE: f64 = 0.3;
/// The spread of `ln M`, summed over measurements, that counts as much as that belief. 0.5 is one measurement at half and one at twice
/// the batch of the others, about.
const SLOPE_SPREAD: f64 = 1.0;
/// The same for the slope of a class against that of the study.
const CLASS_SPREAD: f64 = 4.0;
/// Measurements more than levels and offsets, from which on their scatter is known.
const FREEDOM_MIN: f64 = 16.0;

/// The noise scale of one trial by class of progress: bounded memory, however long the trial runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Track {
    classes: BTreeMap<u32, Cell>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Cell {
    count: f64,
    log_phi_sum: f64,
    log_batch_sum: f64,
}

impl Cell {
    fn log_phi(&self) -> f64 {
        self.log_phi_sum / self.count
    }

    fn log_batch(&self) -> f64 {
        self.log_batch_sum / self.count
    }
}

impl Track {
    /// Adds a measurement, if it says something: one at the cap only says that there was no signal.
    pub(super) fn record(
        &mut self,
        axis: Axis,
        progress_epochs: f64,
        batch: f64,
        phi: NoiseScale,
    ) -> Result<(), Error> {
        let allowed = "a finite number of epochs, at least 0";
        Error::check_at_least("training progress", progress_epochs, 0.0, allowed)?;
        Error::check_positive("the batch of a noise scale", batch)?;
        if phi < NoiseScale::UNRESOLVED {
            let cell = self.classes.entry(axis.position(progress_epochs).round() as u32).or_default();
            cell.count += 1.0;
            // Less noise than that of a single example makes no difference to any batch.
            cell.log_phi_sum += phi.value().max(1.0).ln();
            cell.log_batch_sum += batch.ln();
        }
        Ok(())
    }

    /// The surface that follows from this trial alone.
    pub(super) fn surface(&self, axis: Axis) -> NoiseSurface {
        NoiseSurface::fit(axis, std::slice::from_ref(self))
    }

    /// How far the trial lies above a surface, in the logarithm, shrunk towards 0 while little is seen of it.
    pub(super) fn offset(&self, surface: &NoiseSurface) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for (&class, cell) in &self.classes {
            if let Some(log_phi) = surface.log_phi(f64::from(class), cell.log_batch()) {
                sum += cell.log_phi() - log_phi;
                count += 1.0;
            }
        }
        sum / (count + KAPPA)
    }
}

/// The logarithm of the noise scale by class of progress and logarithm of the batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct NoiseSurface {
    axis: Axis,
    classes: BTreeMap<u32, Line>,
    scatter: Option<f64>,
}

/// The regression of a class: through its means, with a slope.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    log_batch: f64,
    log_phi: f64,
    slope: f64,
}

impl Line {
    fn at(self, log_batch: f64) -> f64 {
        self.slope.mul_add(log_batch - self.log_batch, self.log_phi)
    }
}

/// Sums over the trials seen in a class, offsets taken off.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Moments {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// Spread of x, and that of x and y together, around their means.
    fn spread(&self) -> (f64, f64) {
        let xx = self.xx - self.x * self.x / self.count;
        (xx.max(0.0), self.xy - self.x * self.y / self.count)
    }
}

impl NoiseSurface {
    /// The surface of a study. Offsets keep it smooth where some trials end, since those that continue are not a random choice.
    pub(super) fn fit(axis: Axis, tracks: &[Track]) -> Self {
        let mut surface = Self { axis, ..Self::default() };
        for round in 0..ROUNDS {
            let mut classes: BTreeMap<u32, Moments> = BTreeMap::new();
            for track in tracks {
                let offset = if round == 0 { 0.0 } else { track.offset(&surface) };
                for (&class, cell) in &track.classes {
                    classes.entry(class).or_default().add(cell.log_batch(), cell.log_phi() - offset);
                }
            }
            surface.classes = lines(&classes);
        }
        surface.scatter = surface.scatter_of(tracks);
        surface
    }

    /// By how much single measurements are off, as a standard deviation of the logarithm; none before that is known.
    pub(super) const fn scatter(&self) -> Option<f64> {
        self.scatter
    }

    fn scatter_of(&self, tracks: &[Track]) -> Option<f64> {
        let (mut squares, mut count) = (0.0, 0.0);
        for track in tracks {
            let offset = track.offset(self);
            for (class, cell) in &track.classes {
                if let Some(line) = self.classes.get(class) {
                    squares += (cell.log_phi() - offset - line.at(cell.log_batch())).powi(2);
                    count += 1.0;
                }
            }
        }
        let freedom = count - (self.classes.len() + tracks.len()) as f64;
        (freedom >= FREEDOM_MIN).then(|| (squares / freedom).sqrt())
    }

    /// The noise scale at some progress over the batch, shifted by an offset; none if no trial has been near.
    pub(super) fn curve(&self, progress_epochs: f64, offset: f64) -> Option<NoiseCurve> {
        let line = self.line(self.axis.position(progress_epochs))?;
        let scale = NoiseScale::new((line.log_phi + offset).exp()).ok()?;
        NoiseCurve::new(scale, line.log_batch.exp(), line.slope).ok()
    }

    fn log_phi(&self, position: f64, log_batch: f64) -> Option<f64> {
        self.line(position).map(|line| line.at(log_batch))
    }

    /// Linear between classes, constant a little beyond the ends.
    fn line(&self, position: f64) -> Option<Line> {
        let below = self.classes.range(..=position.floor() as u32).next_back();
        let above = self.classes.range(position.ceil() as u32..).next();
        match (below, above) {
            (Some((&left, from)), Some((&right, to))) => {
                let share = (position - f64::from(left)) / f64::from(right - left).max(1.0);
                let mix = |from: f64, to: f64| share.mul_add(to - from, from);
                let log_batch = mix(from.log_batch, to.log_batch);
                let log_phi = mix(from.at(log_batch), to.at(log_batch));
                Some(Line { log_batch, log_phi, slope: mix(from.slope, to.slope) })
            }
            (Some((&class, line)), None) | (None, Some((&class, line))) => {
                Some(*line).filter(|_| (position - f64::from(class)).abs() <= NEAR)
            }
            (None, None) => None,
        }
    }
}

/// The regression of each class, its slope shrunk to that of all.
fn lines(classes: &BTreeMap<u32, Moments>) -> BTreeMap<u32, Line> {
    let spreads = classes.values().map(Moments::spread);
    let (xx, xy) = spreads.fold((0.0, 0.0), |sum, spread| (sum.0 + spread.0, sum.1 + spread.1));
    let study = SLOPE_SPREAD.mul_add(SLOPE, xy) / (SLOPE_SPREAD + xx);
    let line = |moments: &Moments| {
        let (xx, xy) = moments.spread();
        let slope = CLASS_SPREAD.mul_add(study, xy) / (CLASS_SPREAD + xx);
        let slope = slope.clamp(0.0, NoiseCurve::SLOPE_MAX);
        Line { log_batch: moments.x / moments.count, log_phi: moments.y / moments.count, slope }
    };
    classes.iter().map(|(&class, moments)| (class, line(moments))).collect()
}
