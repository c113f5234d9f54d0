//! What is expected of the parameters, as a density over the space.

use libm::{exp, log, sqrt};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    draw::uniform,
    history::History,
    normal::{LN_SQRT_2PI, draw_in_unit, mass, mass_of_unit},
};
use crate::space::{Confidence, Dim, DimPrior, Dims, Point};

/// The share of the uniform distribution: no value is ruled out.
const ANYTHING: f64 = 0.1;
/// A kernel is at least this wide compared to a cell.
const MIN_CELLS: f64 = 0.5;
/// What is expected counts in full up to this number of results.
const PATIENCE: f64 = 10.0;
/// Less than this is none.
const MIN_STRENGTH: f64 = 0.05;

/// What is expected of one parameter.
#[derive(Debug, Clone, Copy)]
enum Density {
    /// A normal distribution of numbers, truncated at 0 and 1; `log_peak` is ln of its density at the mean.
    Number { mean: f64, sd: f64, log_peak: f64 },
    /// The same over cells in order, around the middle of one.
    Cells { count: f64, mean: f64, sd: f64, inside: f64 },
    /// One of some choices, and the probability that it is just this one.
    Choice { count: f64, choice: f64, share: f64 },
}

impl Density {
    fn new(dim: Dim, prior: DimPrior) -> Self {
        let (sd, share) = match prior.confidence {
            Confidence::Low => (0.3, 0.3),
            Confidence::Medium => (0.15, 0.6),
            Confidence::High => (0.075, 0.85),
        };
        match dim {
            Dim::Continuous => {
                let mean = prior.coordinate;
                let log_peak = -log(sd * mass_of_unit(mean, sd)) - LN_SQRT_2PI;
                Self::Number { mean, sd, log_peak }
            }
            Dim::Discrete { count } => {
                let count = count as f64;
                let (mean, sd) = ((prior.coordinate + 0.5) / count, sd.max(MIN_CELLS / count));
                Self::Cells { count, mean, sd, inside: mass_of_unit(mean, sd) }
            }
            Dim::Categorical { count } => {
                Self::Choice { count: count as f64, choice: prior.coordinate, share }
            }
        }
    }

    /// The density over that of the uniform distribution, without its share.
    fn ratio(&self, x: f64) -> f64 {
        match *self {
            Self::Number { mean, sd, log_peak } => exp(log_peak - 0.5 * (x - mean) * (x - mean) / (sd * sd)),
            Self::Cells { count, mean, sd, inside } => {
                let [low, high] = [x, x + 1.0].map(|edge| (edge / count - mean) / sd);
                mass(low, high) / inside * count
            }
            Self::Choice { count, choice, share } => {
                1.0 - share + if (x - choice).abs() < 0.5 { share * count } else { 0.0 }
            }
        }
    }

    /// ln of the density over that of the uniform distribution.
    fn log_ratio(&self, x: f64) -> f64 {
        log(ANYTHING + (1.0 - ANYTHING) * self.ratio(x))
    }

    /// The slope of that along a number.
    fn slope(&self, x: f64) -> f64 {
        let Self::Number { mean, sd, .. } = *self else { return 0.0 };
        let density = (1.0 - ANYTHING) * self.ratio(x);
        density / (ANYTHING + density) * (mean - x) / (sd * sd)
    }

    fn draw(&self, dim: Dim, rng: &mut ChaCha8Rng) -> f64 {
        let (source, share): (f64, f64) = (rng.random(), rng.random());
        if source < ANYTHING {
            return dim.at(share);
        }
        match *self {
            Self::Number { mean, sd, .. } | Self::Cells { mean, sd, .. } => {
                dim.at(draw_in_unit(mean, sd, share))
            }
            Self::Choice { choice, share: certain, .. } if share < certain => choice,
            Self::Choice { share: certain, .. } => dim.at((share - certain) / (1.0 - certain)),
        }
    }
}

/// What is expected of all parameters together. Those of which nothing is expected are uniform.
#[derive(Debug)]
pub(super) struct Expert {
    densities: Vec<Option<Density>>,
}

impl Expert {
    /// The expectations of a space, if it has any.
    pub(super) fn new(dims: &Dims) -> Option<Self> {
        let densities: Vec<Option<Density>> = dims
            .iter()
            .enumerate()
            .map(|(dim, parameter)| dims.prior(dim).map(|prior| Density::new(parameter, prior)))
            .collect();
        densities.iter().any(Option::is_some).then_some(Self { densities })
    }

    /// The point that is expected to be best; the rest of it is random.
    pub(super) fn favourite(dims: &Dims, rng: &mut ChaCha8Rng) -> Point {
        dims.build(|dim, parameter| {
            dims.prior(dim).map_or_else(|| parameter.at(rng.random()), |prior| prior.coordinate)
        })
    }

    /// A point as likely as it is expected.
    pub(super) fn draw(&self, dims: &Dims, rng: &mut ChaCha8Rng) -> Point {
        dims.build(|dim, parameter| match &self.densities[dim] {
            Some(density) => density.draw(parameter, rng),
            None => parameter.at(rng.random()),
        })
    }

    /// One of the first points: what is expected to be best, then by turns points as likely as expected, and points from anywhere, which show
    /// what the expectations are worth.
    pub(super) fn begin(&self, dims: &Dims, trial: usize, rng: &mut ChaCha8Rng) -> Point {
        match trial {
            0 => Self::favourite(dims, rng),
            _ if trial % 2 == 1 => self.draw(dims, rng),
            _ => uniform(dims, rng),
        }
    }

    /// ln of the density at a point over that of the uniform distribution.
    pub(super) fn log_ratio(&self, point: &[Option<f64>]) -> f64 {
        let terms = self.densities.iter().zip(point);
        terms.filter_map(|(density, x)| Some(density.as_ref()?.log_ratio((*x)?))).sum()
    }

    /// The slope of that along a number.
    pub(super) fn slope(&self, dim: usize, x: f64) -> f64 {
        self.densities[dim].as_ref().map_or(0.0, |density| density.slope(x))
    }

    /// How much the expectations count, from 1 without results to 0.
    pub(super) fn strength(&self, history: &History) -> f64 {
        strength(history, PATIENCE, |row| self.log_ratio(&history.point(row)))
    }
}

/// How much it counts what was known before, from 1 to 0: as the square of `patience` over the number of results, which fades faster than
/// the first power of piBO (Hvarfner et al. 2022, "Augmenting Acquisition Functions with User Beliefs for Bayesian Optimization"), and
/// the less the worse its scores agree with the results, of which the first ones say little. With several objectives there is no one order to
/// agree with.
pub(super) fn strength(history: &History, patience: f64, mut score: impl FnMut(usize) -> f64) -> f64 {
    let results = history.results();
    let n = results.len() as f64;
    let share = (patience / n).min(1.0);
    let faded = share * share;
    if faded < MIN_STRENGTH {
        return 0.0;
    }
    if history.objectives() > 1 {
        return faded;
    }
    let rows: Vec<usize> = results.iter().map(|&row| row as usize).collect();
    let scores: Vec<f64> = rows.iter().map(|&row| -score(row)).collect();
    let at_most = correlation(&rows, &scores, history) + 1.0 / sqrt(n.max(1.0));
    let strength = faded * (2.0 * at_most).clamp(0.0, 1.0);
    if strength < MIN_STRENGTH { 0.0 } else { strength }
}

/// Spearman's rank correlation of scores and results.
fn correlation(rows: &[usize], scores: &[f64], history: &History) -> f64 {
    let n = rows.len();
    if n < 3 {
        return 0.0;
    }
    let ranks = |order: Vec<usize>| {
        let mut ranks = vec![0.0; n];
        for (rank, at) in order.into_iter().enumerate() {
            ranks[at] = rank as f64;
        }
        ranks
    };
    let mut by_score: Vec<usize> = (0..n).collect();
    by_score.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    let mut by_result: Vec<usize> = (0..n).collect();
    by_result.sort_by(|&a, &b| history.compare(rows[a], rows[b]));
    let squares: f64 = ranks(by_score).iter().zip(ranks(by_result)).map(|(a, b)| (a - b) * (a - b)).sum();
    let n = n as f64;
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::{ids::TrialId, tpe::Outcome};

    const KINDS: [Dim; 4] = [
        Dim::Continuous,
        Dim::Discrete { count: 7 },
        Dim::Discrete { count: 200 },
        Dim::Categorical { count: 5 },
    ];

    fn densities() -> impl Iterator<Item = (Dim, Density)> {
        let priors = [(0.2, Confidence::Low), (0.2, Confidence::Medium), (0.95, Confidence::High)];
        KINDS.into_iter().flat_map(move |dim| {
            priors.map(|(share, confidence)| {
                (dim, Density::new(dim, DimPrior { coordinate: dim.at(share), confidence }))
            })
        })
    }

    #[test]
    fn densities_add_up_to_one_and_draws_follow_them() {
        let rng = &mut ChaCha8Rng::seed_from_u64(1);
        for (dim, density) in densities() {
            let steps = dim.cells().unwrap_or(1000);
            let x =
                |step: u64| if dim.cells().is_some() { step as f64 } else { (step as f64 + 0.5) / 1000.0 };
            let share = |step| exp(density.log_ratio(x(step))) / steps as f64;
            let total: f64 = (0..steps).map(share).sum();
            assert!((total - 1.0).abs() < 1e-3, "{density:?}: {total}");
            let lower = (0..steps).map(share).take(steps as usize / 2).sum::<f64>();
            let edge = x(steps / 2) - if dim.cells().is_some() { 0.0 } else { 0.5 / 1000.0 };
            let drawn = (0..4000).filter(|_| density.draw(dim, rng) < edge).count() as f64 / 4000.0;
            assert!((drawn - lower).abs() < 0.03, "{density:?}: {drawn} {lower}");
        }
    }

    #[test]
    fn slopes_are_those_of_the_density() {
        for (_, density) in densities().filter(|(dim, _)| dim.cells().is_none()) {
            for x in [0.05, 0.3, 0.9] {
                let difference = (density.log_ratio(x + 1e-6) - density.log_ratio(x - 1e-6)) / 2e-6;
                assert!((density.slope(x) - difference).abs() < 1e-5, "{density:?} {x}");
            }
        }
    }

    #[test]
    fn the_surer_the_more_likely() {
        let [low, medium, high] = [Confidence::Low, Confidence::Medium, Confidence::High];
        for dim in KINDS {
            let at_best = [low, medium, high].map(|confidence| {
                let prior = DimPrior { coordinate: dim.at(0.4), confidence };
                Density::new(dim, prior).log_ratio(prior.coordinate)
            });
            assert!(0.0 < at_best[0] && at_best[0] < at_best[1] && at_best[1] < at_best[2], "{dim:?}");
        }
    }

    /// It fades with the number of results, and at once where they contradict.
    #[test]
    fn what_is_expected_gives_way_to_results() {
        let prior = DimPrior { coordinate: 0.9, confidence: Confidence::Medium };
        let dims = Dims::flat(vec![Dim::Continuous]).expect("it is a space");
        let dims = dims.with_priors([(0, prior)]).expect("it is inside");
        let expert = Expert::new(&dims).expect("there is a prior");
        let strength = |count: u32, best: f64| {
            let mut history = History::new(dims.clone());
            for id in (0..count).map(TrialId) {
                let x = f64::from(id.0) / f64::from(count);
                history.insert(id, &vec![Some(x)]).expect("it is new");
                history.tell(id, &Outcome::Done(vec![(x - best).abs()])).expect("it is running");
            }
            expert.strength(&history)
        };
        assert!((strength(0, 0.9) - 1.0).abs() < 1e-12 && (strength(9, 0.9) - 1.0).abs() < 1e-12);
        assert!((strength(20, 0.9) - 0.25).abs() < 1e-12);
        assert!(
            strength(9, 0.0) < 0.3 && strength(20, 0.0) == 0.0,
            "{} {}",
            strength(9, 0.0),
            strength(20, 0.0)
        );
        assert!(strength(60, 0.9) == 0.0);
    }
}
