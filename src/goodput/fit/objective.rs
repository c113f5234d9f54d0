//! What a fit minimises: squared logarithmic errors, with a Gaussian prior on the variables.
//!
//! One objective serves a trial (its variables are the model) and a whole study (the variables are the coefficients
//! of a regression of the model on hyper-parameters): every trial's point is a linear function of the coefficients.

use argmin::core::{CostFunction, Error, Executor, Gradient, Hessian};

use super::{
    kernel::{Costs, Point},
    solver::{LevenbergMarquardt, Matrix},
};
use crate::goodput::Observation;

/// Steps of one trial with its row of the regression; `[1.0]` for a fit of its own.
pub(crate) struct Group {
    pub(crate) design: Vec<f64>,
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
#[derive(Debug, Clone)]
pub(crate) struct CoefficientPrior {
    pub(crate) mean: Vec<f64>,
    pub(crate) precision: Vec<f64>,
}

pub(crate) struct Objective<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) layout: &'a Layout,
    pub(crate) prior: &'a CoefficientPrior,
}

/// Squared relative error that is expected of the model itself, (5 %)^2; priors are weighed against it.
const MODEL_VARIANCE: f64 = 0.05 * 0.05;

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

    /// Calls `visit` for each observation with the error of its logarithm, its weight and the slope in the
    /// coefficients' variables.
    fn each_error(&self, at: &[f64], mut visit: impl FnMut(&Group, f64, f64, &Point)) {
        for group in self.groups {
            let costs = Costs::new(&self.layout.point(&group.design, at));
            for seen in &group.seen {
                let (log_time, mut slope) = costs.log_time(seen);
                if let Some((follower, leader, _)) = self.layout.tied {
                    slope[leader] += slope[follower];
                }
                visit(group, log_time - seen.iter_time_s.ln(), weight(seen.steps) / MODEL_VARIANCE, &slope);
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
            for seen in &group.seen {
                let error = costs.log_time(seen).0 - seen.iter_time_s.ln();
                sum += weight(seen.steps) / MODEL_VARIANCE * error * error;
            }
        }
        for ((value, mean), precision) in at.iter().zip(&self.prior.mean).zip(&self.prior.precision) {
            sum += precision * (value - mean) * (value - mean);
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
        let free = &self.layout.free;
        self.each_error(at, |group, error, weight, slope| {
            for (block, design) in gradient.chunks_mut(free.len()).zip(&group.design) {
                for (sum, &variable) in block.iter_mut().zip(free) {
                    *sum += weight * error * design * slope[variable];
                }
            }
        });
        Ok(gradient)
    }
}

impl Hessian for &Objective<'_> {
    type Param = Vec<f64>;
    type Hessian = Matrix;

    /// Gauss-Newton: the second derivative of the model itself is left out.
    fn hessian(&self, at: &Self::Param) -> Result<Matrix, Error> {
        let free = &self.layout.free;
        let mut hessian = vec![vec![0.0; at.len()]; at.len()];
        for (i, precision) in self.prior.precision.iter().enumerate() {
            hessian[i][i] = *precision;
        }
        let mut row = vec![0.0; at.len()];
        self.each_error(at, |group, _, weight, slope| {
            for (block, design) in row.chunks_mut(free.len()).zip(&group.design) {
                for (entry, &variable) in block.iter_mut().zip(free) {
                    *entry = design * slope[variable];
                }
            }
            for (i, entry) in row.iter().enumerate() {
                let scaled = weight * entry;
                for (sum, other) in hessian[i][..=i].iter_mut().zip(&row) {
                    *sum += scaled * other;
                }
            }
        });
        Ok(hessian)
    }
}
