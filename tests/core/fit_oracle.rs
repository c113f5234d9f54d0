//! Our fit against the paper's solver, L-BFGS-B in the bounded parameters themselves, on the measured profiles.

#![expect(clippy::print_stdout, reason = "the figures are read with --nocapture")]

use std::convert::Infallible;

use basin::{
    BoxBounds, ConstraintDescription, ConstraintSet, Constraints, CostFunction, Executor, FirstOrderState,
    Gradient, Lbfgsb, State,
};
use pollux_tune::goodput::{ComputeCost, Observation, Observations, SyncCost, ThroughputParams, fit, rmsle};

use crate::measured::{MODELS, measured};

struct Rmsle {
    seen: Vec<Observation>,
    lower: Vec<f64>,
    upper: Vec<f64>,
}

fn params(at: &[f64]) -> ThroughputParams {
    let sync = [2, 4].map(|first| SyncCost { alpha_s: at[first], beta_s: at[first + 1] });
    let compute = ComputeCost { alpha_s: at[0], beta_s: at[1] };
    ThroughputParams::new(compute, sync, at[6].clamp(1.0, 10.0)).expect("bounds are kept")
}

impl Constraints for Rmsle {
    type Set = ConstraintSet<BoxBounds<Vec<f64>>>;
    fn constraints(&self) -> <Self::Set as ConstraintDescription>::Borrowed<'_> {
        ConstraintSet::new().with_bounds(BoxBounds::new(Some(&self.lower), Some(&self.upper)))
    }
}

impl CostFunction for Rmsle {
    type Param = Vec<f64>;
    type Output = f64;
    type Error = Infallible;
    fn cost(&self, at: &Vec<f64>) -> Result<f64, Infallible> {
        Ok(rmsle(&params(at), &self.seen).powi(2))
    }
}

impl Gradient for Rmsle {
    type Gradient = Vec<f64>;
    fn gradient(&self, at: &Vec<f64>) -> Result<Vec<f64>, Infallible> {
        let slope = |variable: usize| {
            let step = 1e-6 * at[variable].max(1e-6);
            let moved = |by: f64| {
                let mut other = at.clone();
                other[variable] = (other[variable] + by).clamp(self.lower[variable], self.upper[variable]);
                (other[variable], rmsle(&params(&other), &self.seen).powi(2))
            };
            let (high, low) = (moved(step), moved(-step));
            (high.1 - low.1) / (high.0 - low.0)
        };
        Ok((0..at.len()).map(slope).collect())
    }
}

/// The best of several starts, the authors' among them.
fn with_lbfgsb(seen: &[Observation]) -> f64 {
    let fastest = seen.iter().map(|seen| seen.iter_time_s).fold(f64::INFINITY, f64::min);
    let mut starts = vec![vec![0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001]];
    for gamma in [1.5, 4.0] {
        let per_example = fastest / 100.0;
        starts.push(vec![
            fastest / 2.0,
            per_example,
            fastest,
            fastest / 10.0,
            fastest,
            fastest / 10.0,
            gamma,
        ]);
    }
    let run = |start: Vec<f64>| {
        let (mut lower, mut upper) = (vec![1e-8; 7], vec![1e3; 7]);
        (lower[6], upper[6]) = (1.0, 10.0);
        let problem = Rmsle { seen: seen.to_vec(), lower, upper };
        let solver = Lbfgsb::new().with_m_capacity(10).with_absolute_projected_gradient_tolerance(1e-9);
        let result = Executor::new(problem, solver, FirstOrderState::new(start)).max_iter(3000).run();
        result.map_or(f64::INFINITY, |result| rmsle(&params(result.state.param()), seen))
    };
    starts.into_iter().map(run).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_change_of_variables_loses_nothing_against_bounds() {
    for model in MODELS {
        for gpu in ["t4", "a100"] {
            let mut folded = Observations::default();
            for row in measured(model, gpu) {
                folded.record(row.shape, row.per_gpu, 0, row.step_s).unwrap();
            }
            // As many steps of each configuration, so that both solvers weigh them alike.
            let mut even = Observations::default();
            for seen in folded.iter() {
                for _ in 0..100 {
                    even.record(seen.shape, seen.per_gpu.round() as u32, 0, seen.iter_time_s).unwrap();
                }
            }
            let seen: Vec<Observation> = even.iter().collect();
            let (ours, theirs) = (fit(&even, None, None).unwrap().rmsle, with_lbfgsb(&seen));
            println!("{model} {gpu}: RMSLE {ours:.4}, L-BFGS-B {theirs:.4}");
            assert!(ours <= 1.005 * theirs + 1e-4, "{model} on {gpu}: {ours} above {theirs}");
        }
    }
}
