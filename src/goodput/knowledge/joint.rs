//! One throughput model for all trials of a study on one GPU type.
//!
//! Every variable of the model (Pollux OSDI'21 section 4.1, in logarithms) is linear in the features of a
//! trial: `point_j = B [1, x_j]`. Trials scatter around it by a factor each, of variance tau^2 in the
//! logarithm. B is fitted by generalised least squares; tau^2, the relevance of each feature and the weight
//! of trials that are far off follow from it, in turns, as in expectation maximisation.

use super::features::{Features, Scaler};
use crate::goodput::{
    Error, Observation, ThroughputPrior,
    fit::{
        ALPHA_GRAD, BETA_GRAD, CoefficientPrior, Costs, GAMMA, Group, ITERATIONS, Layout, Matrix, Objective,
        Point, VARIABLES, WEAK_PRECISION, layout, rough, weight,
    },
};

/// Before any slope is seen: one standard deviation of a feature changes a cost by a factor of e.
const SLOPE_VARIANCE: f64 = 1.0;
/// What n trials cannot exclude: that one standard deviation of a feature changes a cost by `exp(1 / (2 n))`.
const SLOPE_SD_MIN: f64 = 0.5;
/// How much less the logit of gamma may depend on a feature than the logarithm of a cost: overlap is a matter
/// of the code, and steps tell little of it.
const GAMMA_SLOPE_SHARE: f64 = 0.01;
/// How much less the costs of synchronization differ among each other in their dependence on a feature: all
/// of them are about the same bytes.
const SYNC_SLOPE_SHARE: f64 = 0.04;
/// Between trials the logit of gamma may differ by 0.5, which is gamma = 1.5 against 1.8.
const GAMMA_VARIANCE: f64 = 0.25;
/// Trials are not believed to be closer than 3 %, nor farther apart than 30 %.
const BETWEEN_MIN: f64 = 0.03 * 0.03;
const BETWEEN_MAX: f64 = 0.3 * 0.3;
/// What trials are believed to scatter before they are seen, 10 %, counting as much as four trials: trials of
/// one study differ by their features first of all.
const BETWEEN_START: f64 = 0.1 * 0.1;
const BETWEEN_START_TRIALS: f64 = 4.0;
/// Degrees of freedom of the Student distribution of the trials: one that is far off counts little.
const TAIL: f64 = 4.0;
/// With a single batch size, half of the compute cost is taken as fixed. Wrong by about a factor of 2.
const HALF_AND_HALF_VARIANCE: f64 = 0.5;
/// Fits in turn with the estimates of spread; more change little.
const ROUNDS: usize = 6;

/// The regression of the throughput model on the features.
#[derive(Debug, Clone)]
pub(super) struct JointModel {
    scaler: Scaler,
    layout: Layout,
    coefficients: Vec<f64>,
    /// For each free variable, the covariance of its coefficients.
    covariance: Vec<Matrix>,
    /// tau^2.
    between: f64,
}

/// What is estimated besides the coefficients.
struct Spread {
    between: f64,
    slope_variance: Vec<f64>,
}

impl JointModel {
    /// Fits all trials, each given with at least one observation.
    pub(super) fn fit(trials: &[(Features, Vec<Observation>)]) -> Result<Self, Error> {
        let scaler = Scaler::new(&trials.iter().map(|(features, _)| features).collect::<Vec<_>>());
        let mut groups: Vec<Group> = trials
            .iter()
            .map(|(features, seen)| Group {
                design: scaler.row(features).design,
                between: BETWEEN_START,
                seen: seen.clone(),
            })
            .collect();
        let pooled: Vec<Observation> = trials.iter().flat_map(|(_, seen)| seen.iter().copied()).collect();
        if pooled.is_empty() {
            return Err(Error::NoObservations);
        }
        let layout = layout(&pooled, None);
        let starts = [rough(&pooled, 1.5), rough(&pooled, 4.0)];
        let slopes = groups[0].design.len() - 1;
        let mut spread = Spread { between: BETWEEN_START, slope_variance: vec![SLOPE_VARIANCE; slopes] };
        let mut tried: Vec<Vec<f64>> =
            starts.iter().map(|start| flat_start(&layout, start, slopes)).collect();
        let mut model = None;
        for _ in 0..ROUNDS {
            let prior = spread.prior(&layout, &starts[0]);
            let objective = Objective { groups: &groups, layout: &layout, prior: &prior };
            let best = tried
                .drain(..)
                .filter_map(|start| objective.minimise(start, ITERATIONS))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let (coefficients, _) = best.ok_or(Error::FitFailed)?;
            let covariance = objective.covariance(&coefficients).ok_or(Error::FitFailed)?;
            let covariance = blocks(&covariance, layout.free.len(), slopes + 1);
            spread.update(&layout, &mut groups, &coefficients, &covariance);
            tried.push(coefficients.clone());
            model = Some((coefficients, covariance));
        }
        let (coefficients, covariance) = model.ok_or(Error::FitFailed)?;
        Ok(Self { scaler, layout, coefficients, covariance, between: spread.between })
    }

    /// What the study believes of a trial: the regression at its features, less sure the farther they are
    /// from those seen and the more the trials scatter. Nothing is claimed of what no trial has explored.
    pub(super) fn prior(&self, features: &Features) -> ThroughputPrior {
        let row = self.scaler.row(features);
        let mean = self.layout.point(&row.design, &self.coefficients);
        let novelty = SLOPE_VARIANCE * row.novel as f64;
        let mut precision = [0.0; VARIABLES];
        for (block, &variable) in self.covariance.iter().zip(&self.layout.free) {
            let between = if variable == GAMMA { GAMMA_VARIANCE } else { self.between + novelty };
            precision[variable] = (between + quadratic(block, &row.design)).recip();
        }
        if let Some((follower, leader, _)) = self.layout.tied {
            let variance = precision[leader].recip() + HALF_AND_HALF_VARIANCE;
            precision[leader] = variance.recip();
            precision[follower] = variance.recip();
        }
        ThroughputPrior::from_parts(mean, precision)
    }
}

impl Spread {
    /// The weight of a trial that is off by `offset` in the logarithm, if trials are Student-distributed.
    fn tail_weight(&self, offset: f64) -> f64 {
        (TAIL + 1.0) / (TAIL + offset * offset / self.between)
    }

    fn prior(&self, layout: &Layout, fresh: &Point) -> CoefficientPrior {
        let mut prior = CoefficientPrior::default();
        for &variable in &layout.free {
            prior.mean.push(fresh[variable]);
            prior.precision.push(WEAK_PRECISION);
        }
        let sync: Vec<usize> = (0..layout.free.len())
            .filter(|&position| ![ALPHA_GRAD, BETA_GRAD, GAMMA].contains(&layout.free[position]))
            .collect();
        for variance in &self.slope_variance {
            let base = prior.mean.len();
            for &variable in &layout.free {
                let share = if variable == GAMMA { GAMMA_SLOPE_SHARE } else { 1.0 };
                prior.mean.push(0.0);
                prior.precision.push((share * variance).recip());
            }
            for pair in sync.windows(2) {
                prior.alike.push((base + pair[0], base + pair[1], (SYNC_SLOPE_SHARE * variance).recip()));
            }
        }
        prior
    }

    fn update(&mut self, layout: &Layout, groups: &mut [Group], at: &[f64], covariance: &[Matrix]) {
        let offsets: Vec<f64> =
            groups.iter().map(|group| mean_error(&layout.point(&group.design, at), &group.seen)).collect();
        let squares: f64 = offsets.iter().map(|offset| self.tail_weight(*offset) * offset * offset).sum();
        let freedom = groups.len().saturating_sub(1 + self.slope_variance.len()) as f64;
        let between = BETWEEN_START_TRIALS.mul_add(BETWEEN_START, squares) / (BETWEEN_START_TRIALS + freedom);
        self.between = between.clamp(BETWEEN_MIN, BETWEEN_MAX);
        for (group, offset) in groups.iter_mut().zip(offsets) {
            // In a Student distribution, a trial that is far off has a larger variance of its own.
            group.between = self.between / self.tail_weight(offset);
        }
        let min_variance = (SLOPE_SD_MIN / groups.len() as f64).powi(2);
        let width = layout.free.len();
        for (slope, variance) in self.slope_variance.iter_mut().enumerate() {
            let (mut sum, mut count) = (0.0, 0.0);
            for (position, &variable) in layout.free.iter().enumerate() {
                if variable != GAMMA {
                    let value = at[(slope + 1) * width + position];
                    sum += value.mul_add(value, covariance[position][slope + 1][slope + 1]);
                    count += 1.0;
                }
            }
            *variance = (sum / count).clamp(min_variance, SLOPE_VARIANCE);
        }
    }
}

fn flat_start(layout: &Layout, start: &Point, slopes: usize) -> Vec<f64> {
    let mut flat: Vec<f64> = layout.free.iter().map(|&variable| start[variable]).collect();
    flat.resize(layout.free.len() * (slopes + 1), 0.0);
    flat
}

/// By how much steps take longer than a model says, as the weighted mean of the logarithm.
fn mean_error(point: &Point, seen: &[Observation]) -> f64 {
    let costs = Costs::new(point);
    let (mut sum, mut total) = (0.0, 0.0);
    for observation in seen {
        let weight = weight(observation.steps);
        sum += weight * (observation.iter_time_s.ln() - costs.log_time(observation).0);
        total += weight;
    }
    sum / total
}

/// The parts of a covariance of coefficients (laid out feature by feature) that belong to one variable each.
fn blocks(covariance: &Matrix, variables: usize, features: usize) -> Vec<Matrix> {
    let block = |variable: usize| {
        let row = |i: usize| {
            (0..features).map(|j| covariance[i * variables + variable][j * variables + variable]).collect()
        };
        (0..features).map(row).collect()
    };
    (0..variables).map(block).collect()
}

fn quadratic(matrix: &Matrix, x: &[f64]) -> f64 {
    let dot = |row: &Vec<f64>| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
    matrix.iter().zip(x).map(|(row, value)| value * dot(row)).sum::<f64>().max(0.0)
}
