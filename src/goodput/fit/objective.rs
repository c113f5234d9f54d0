//! What a fit minimises: squared logarithmic errors, with a Gaussian prior on the variables.
//!
//! One objective serves a trial (its variables are the model) and a whole study (the variables are the coefficients
//! of a regression of the model on hyper-parameters): every trial's point is a linear function of the coefficients.

use argmin::core::{CostFunction, Error, Executor, Gradient, Hessian};

use super::{
    kernel::{Costs, Point, VARIABLES},
    solver::{LevenbergMarquardt, Matrix, inverse},
};
use crate::goodput::Observation;

/// Steps of one trial with its row of the regression; `[1.0]` for a fit of its own.
pub(crate) struct Group {
    pub(crate) design: Vec<f64>,
    /// Variance of a factor (its logarithm) by which all steps of the trial are off from those of other
    /// trials; 0 for a fit of its own.
    pub(crate) between: f64,
    pub(crate) seen: Vec<Observation>,
}

/// Which variables of the model are fitted, and what the others are.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Values of the variables that are not fitted.
    pub(crate) fixed: Point,
    /// Fitted variables.
    pub(crate) free: Vec<usize>,
    /// `(follower, leader, offset)`: a variable that follows another one at a fixed distance.
    pub(crate) tied: Option<(usize, usize, f64)>,
}

impl Layout {
    /// The model of one trial: its design row times the coefficients, laid out feature by feature.
    pub(crate) fn point(&self, design: &[f64], coefficients: &[f64]) -> Point {
        let mut point = self.fixed;
        for (position, &variable) in self.free.iter().enumerate() {
            point[variable] = design
                .iter()
                .enumerate()
                .map(|(feature, weight)| weight * coefficients[feature * self.free.len() + position])
                .sum();
        }
        if let Some((follower, leader, offset)) = self.tied {
            point[follower] = point[leader] + offset;
        }
        point
    }
}

/// A Gaussian prior on the coefficients.
#[derive(Debug, Clone, Default)]
pub(crate) struct CoefficientPrior {
    pub(crate) mean: Vec<f64>,
    pub(crate) precision: Vec<f64>,
    /// `(i, j, precision)`: two coefficients that are likely to be about the same.
    pub(crate) alike: Vec<(usize, usize, f64)>,
}

pub(crate) struct Objective<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) layout: &'a Layout,
    pub(crate) prior: &'a CoefficientPrior,
}

/// Squared relative error that is expected of the model itself, (5 %)^2; priors are weighed against it.
pub(super) const MODEL_VARIANCE: f64 = 0.05 * 0.05;

/// How much the steps of one configuration count: few steps are less sure than the model is exact.
/// A single step is taken to scatter twice as much as the model errs.
pub(crate) fn weight(steps: f64) -> f64 {
    steps / (steps + 4.0)
}

impl Objective<'_> {
    /// The best coefficients found from a starting point, with their cost. None if there is no finite cost.
    pub(crate) fn minimise(&self, start: Vec<f64>, iterations: u64) -> Option<(Vec<f64>, f64)> {
        let result = Executor::new(self, LevenbergMarquardt::new())
            .configure(|state| state.param(start).max_iters(iterations))
            .timer(false)
            .run()
            .ok()?;
        let cost = result.state.best_cost;
        Some((result.state.best_param?, cost)).filter(|_| cost.is_finite())
    }

    /// How sure the coefficients are: their covariance if errors are as large as expected of the model.
    pub(crate) fn covariance(&self, at: &[f64]) -> Option<Matrix> {
        inverse(&self.hessian(&at.to_vec()).ok()?)
    }

    /// Calls `visit` for each trial with the sums over its steps.
    fn each_group(&self, at: &[f64], mut visit: impl FnMut(&Group, &Sums)) {
        for group in self.groups {
            let costs = Costs::new(&self.layout.point(&group.design, at));
            let mut sums = Sums::default();
            for seen in &group.seen {
                let (log_time, mut slope) = costs.log_time(seen);
                if let Some((follower, leader, _)) = self.layout.tied {
                    slope[leader] += slope[follower];
                }
                sums.add(log_time - seen.iter_time_s.ln(), weight(seen.steps) / MODEL_VARIANCE, &slope);
            }
            sums.release_common_factor(group.between);
            visit(group, &sums);
        }
    }
}

/// Weighted sums over the steps of one trial.
#[derive(Default)]
struct Sums {
    weight: f64,
    error: f64,
    error_error: f64,
    slope: Point,
    error_slope: Point,
    slope_slope: [Point; VARIABLES],
}

impl Sums {
    fn add_error(&mut self, error: f64, weight: f64) {
        self.weight += weight;
        self.error += weight * error;
        self.error_error += weight * error * error;
    }

    fn add(&mut self, error: f64, weight: f64, slope: &Point) {
        self.add_error(error, weight);
        for (i, value) in slope.iter().enumerate() {
            let scaled = weight * value;
            self.slope[i] += scaled;
            self.error_slope[i] += scaled * error;
            for (sum, other) in self.slope_slope[i].iter_mut().zip(slope) {
                *sum += scaled * other;
            }
        }
    }

    /// Takes out what a factor of variance `between` explains, at its best value for these steps: generalised
    /// least squares with errors that are correlated inside the trial (Sherman-Morrison).
    fn release_common_factor(&mut self, between: f64) {
        let share = between / between.mul_add(self.weight, 1.0);
        self.error_error -= share * self.error * self.error;
        for i in 0..VARIABLES {
            self.error_slope[i] -= share * self.error * self.slope[i];
            for (sum, other) in self.slope_slope[i].iter_mut().zip(&self.slope) {
                *sum -= share * self.slope[i] * other;
            }
        }
    }
}

impl CostFunction for &Objective<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, at: &Self::Param) -> Result<f64, Error> {
        let mut sum = 0.0;
        for group in self.groups {
            let costs = Costs::new(&self.layout.point(&group.design, at));
            let mut sums = Sums::default();
            for seen in &group.seen {
                let error = costs.log_time(seen).0 - seen.iter_time_s.ln();
                sums.add_error(error, weight(seen.steps) / MODEL_VARIANCE);
            }
            sums.release_common_factor(group.between);
            sum += sums.error_error;
        }
        for ((value, mean), precision) in at.iter().zip(&self.prior.mean).zip(&self.prior.precision) {
            sum += precision * (value - mean) * (value - mean);
        }
        for &(i, j, precision) in &self.prior.alike {
            sum += precision * (at[i] - at[j]) * (at[i] - at[j]);
        }
        Ok(0.5 * sum)
    }
}

impl Gradient for &Objective<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, at: &Self::Param) -> Result<Vec<f64>, Error> {
        let prior = at.iter().zip(&self.prior.mean).zip(&self.prior.precision);
        let mut gradient: Vec<f64> =
            prior.map(|((value, mean), precision)| precision * (value - mean)).collect();
        for &(i, j, precision) in &self.prior.alike {
            gradient[i] += precision * (at[i] - at[j]);
            gradient[j] -= precision * (at[i] - at[j]);
        }
        let free = &self.layout.free;
        self.each_group(at, |group, sums| {
            for (block, design) in gradient.chunks_mut(free.len()).zip(&group.design) {
                for (sum, &variable) in block.iter_mut().zip(free) {
                    *sum += design * sums.error_slope[variable];
                }
            }
        });
        Ok(gradient)
    }
}

impl Hessian for &Objective<'_> {
    type Param = Vec<f64>;
    type Hessian = Matrix;

    /// Gauss-Newton: the second derivative of the model itself is left out. Lower triangle only.
    fn hessian(&self, at: &Self::Param) -> Result<Matrix, Error> {
        let free = &self.layout.free;
        let mut hessian = vec![vec![0.0; at.len()]; at.len()];
        for (i, precision) in self.prior.precision.iter().enumerate() {
            hessian[i][i] = *precision;
        }
        for &(i, j, precision) in &self.prior.alike {
            hessian[i][i] += precision;
            hessian[j][j] += precision;
            hessian[i.max(j)][i.min(j)] -= precision;
        }
        self.each_group(at, |group, sums| {
            for (i, row) in hessian.iter_mut().enumerate() {
                let (weight, slopes) =
                    (group.design[i / free.len()], &sums.slope_slope[free[i % free.len()]]);
                for (j, sum) in row[..=i].iter_mut().enumerate() {
                    *sum += weight * group.design[j / free.len()] * slopes[free[j % free.len()]];
                }
            }
        });
        Ok(hessian)
    }
}
