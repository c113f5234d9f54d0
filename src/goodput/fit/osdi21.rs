//! The fit of the authors' simulator (Pollux OSDI'21), for comparison.
//!
//! It sees the time of a pass and of a whole step apart, and minimises the sum of both root mean squared logarithmic errors
//! with two penalties: `1e-3 (gamma - 1)^2`, and `1e-2 (beta / alpha)^2` for either tier. The authors use L-BFGS-B; here
//! each root is replaced by the parabola that touches it from above (majorize-minimize), and what is left are least
//! squares again.

use std::collections::BTreeMap;

use super::{
    ALPHA_GRAD, BETA_GRAD, GAMMA, Matrix, Point, VARIABLES, alpha_sync, beta_sync, distant_at_least_local,
    kernel::{Costs, gamma_from_logit, gamma_slope, logit_from_gamma},
    solver::damped_step,
    to_params,
};
use crate::goodput::{Error, Observation, Shape, ThroughputParams, Tier};

/// Every configuration that a job has run, with the times of a step and of its synchronization: what the authors'
/// simulator knows of a job. Studies use [`Observations`](crate::goodput::Observations).
///
/// ```
/// use pollux_tune::goodput::{Osdi21Profile, Shape};
/// let mut profile = Osdi21Profile::default();
/// assert!(profile.record(Shape::single(), 64, 0.5, 0.0)?);
/// // With one batch size, half of a pass is taken as fixed cost.
/// let params = profile.fit()?;
/// assert!((params.compute().alpha_s - 0.25).abs() < 1e-6);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Osdi21Profile {
    rows: BTreeMap<(u32, u32, u32), Timing>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Timing {
    pass_s: f64,
    step_s: f64,
}

/// Errors smaller than this are as good as none.
const ERROR_MIN: f64 = 1e-4;
/// Parabolas tried, and steps on each.
const ROUNDS: u32 = 12;
const STEPS: u32 = 25;

impl Osdi21Profile {
    /// Notes a step without accumulation. Returns whether its configuration is new; if not, it changes nothing.
    pub fn record(&mut self, shape: Shape, per_gpu: u32, step_s: f64, sync_s: f64) -> Result<bool, Error> {
        Error::check_positive("the step time", step_s)?;
        Error::check_positive("the time of a pass", step_s - sync_s)?;
        Error::check_positive("the per-GPU batch", f64::from(per_gpu))?;
        let (key, before) = ((shape.nodes(), shape.gpus(), per_gpu), self.rows.len());
        self.rows.entry(key).or_insert(Timing { pass_s: step_s - sync_s, step_s });
        Ok(self.rows.len() > before)
    }

    /// The throughput model. What was not used is believed to cost nothing.
    pub fn fit(&self) -> Result<ThroughputParams, Error> {
        if self.rows.is_empty() {
            return Err(Error::NoObservations);
        }
        let rows = self.rows.iter().map(|(&(nodes, gpus, per_gpu), timing)| {
            let per_gpu = f64::from(per_gpu);
            let (shape, iter_time_s) = (Shape::new(gpus, nodes)?, timing.step_s);
            Ok((Observation { shape, per_gpu, accumulation: 0, iter_time_s, steps: 1.0 }, timing.pass_s.ln()))
        });
        let problem = Problem { rows: rows.collect::<Result<_, Error>>()? };
        let mut point = problem.start();
        let free = problem.free();
        let mut last = f64::INFINITY;
        for _ in 0..ROUNDS {
            let [pass, step] = problem.errors(&point);
            let value = pass + step + penalty(&point);
            if last - value < 1e-7 {
                break;
            }
            last = value;
            problem.minimise(&mut point, &free, [pass, step].map(|error| 0.5 / error.max(ERROR_MIN)));
        }
        let seen: Vec<Observation> = problem.rows.iter().map(|row| row.0).collect();
        distant_at_least_local(&to_params(&point)?, &seen, None)
    }
}

struct Problem {
    /// Each configuration with its step time, and the logarithm of the time of a pass.
    rows: Vec<(Observation, f64)>,
}

impl Problem {
    /// The authors' start; unused costs are 0.
    fn start(&self) -> Point {
        let mut point = [f64::NEG_INFINITY; VARIABLES];
        for variable in self.free() {
            point[variable] = if variable % 2 == 0 { 0.1_f64.ln() } else { 0.01_f64.ln() };
        }
        point[GAMMA] = logit_from_gamma(1.001);
        if self.one_batch() {
            let mean = self.rows.iter().map(|row| row.1.exp()).sum::<f64>() / self.rows.len() as f64;
            point[ALPHA_GRAD] = (0.5 * mean).ln();
        }
        point
    }

    fn one_batch(&self) -> bool {
        self.rows.iter().all(|row| row.0.per_gpu.total_cmp(&self.rows[0].0.per_gpu).is_eq())
    }

    fn free(&self) -> Vec<usize> {
        let mut free = if self.one_batch() { vec![BETA_GRAD] } else { vec![ALPHA_GRAD, BETA_GRAD] };
        let beyond_pair = self.rows.iter().any(|row| row.0.shape.gpus() > 2);
        for tier in Tier::ALL {
            if self.rows.iter().any(|row| row.0.shape.tier() == Some(tier)) {
                free.push(alpha_sync(tier));
                free.extend(beyond_pair.then_some(beta_sync(tier)));
            }
        }
        if self.rows.iter().any(|row| row.0.shape.gpus() > 1) {
            free.push(GAMMA);
        }
        free
    }

    /// Root mean squared logarithmic errors of passes and steps.
    fn errors(&self, point: &Point) -> [f64; 2] {
        let costs = Costs::new(point);
        let mut sums = [0.0; 2];
        for row in &self.rows {
            sums[0] += (pass(point, row.0.per_gpu).0 - row.1).powi(2);
            sums[1] += (costs.log_time(&row.0).0 - row.0.iter_time_s.ln()).powi(2);
        }
        sums.map(|sum| (sum / self.rows.len() as f64).sqrt())
    }

    fn cost(&self, point: &Point, weights: [f64; 2]) -> f64 {
        let [pass, step] = self.errors(point);
        weights[0] * pass * pass + weights[1] * step * step + penalty(point)
    }

    /// Levenberg-Marquardt on the weighted squares.
    fn minimise(&self, point: &mut Point, free: &[usize], weights: [f64; 2]) {
        let (mut cost, mut damping) = (self.cost(point, weights), 1e-3);
        for _ in 0..STEPS {
            let (gradient, hessian) = self.slopes(point, free, weights);
            let before = cost;
            while damping < 1e8 {
                let mut tried = *point;
                if let Some(step) = damped_step(&hessian, &gradient, damping) {
                    // A cost falls by at most e^4 in one step, so that none is lost at 0 by a long step.
                    free.iter().zip(step).for_each(|(&at, step)| tried[at] -= step.clamp(-4.0, 4.0));
                    let new = self.cost(&tried, weights);
                    if new < cost {
                        (*point, cost, damping) = (tried, new, (damping * 0.2).max(1e-9));
                        break;
                    }
                }
                damping *= 5.0;
            }
            if before - cost < 1e-8 * (1.0 + cost) {
                return;
            }
        }
    }

    /// Half of the gradient and of the Gauss-Newton matrix of [`Problem::cost`].
    fn slopes(&self, point: &Point, free: &[usize], weights: [f64; 2]) -> (Vec<f64>, Matrix) {
        let mut gradient = vec![0.0; free.len()];
        let mut hessian = vec![vec![0.0; free.len()]; free.len()];
        let mut add = |weight: f64, residual: f64, slopes: &Point| {
            for (i, &a) in free.iter().enumerate() {
                gradient[i] += weight * residual * slopes[a];
                for (j, &b) in free.iter().enumerate().take(i + 1) {
                    hessian[i][j] += weight * slopes[a] * slopes[b];
                }
            }
        };
        let costs = Costs::new(point);
        let count = self.rows.len() as f64;
        for row in &self.rows {
            let (log_pass, slopes) = pass(point, row.0.per_gpu);
            add(weights[0] / count, log_pass - row.1, &slopes);
            let (log_step, slopes) = costs.log_time(&row.0);
            add(weights[1] / count, log_step - row.0.iter_time_s.ln(), &slopes);
        }
        for tier in Tier::ALL {
            let ratio = (point[beta_sync(tier)] - point[alpha_sync(tier)]).exp();
            if ratio.is_finite() {
                let mut slopes = [0.0; VARIABLES];
                (slopes[beta_sync(tier)], slopes[alpha_sync(tier)]) = (ratio, -ratio);
                add(1e-2, ratio, &slopes);
            }
        }
        let mut slopes = [0.0; VARIABLES];
        slopes[GAMMA] = gamma_slope(point[GAMMA]);
        add(1e-3, gamma_from_logit(point[GAMMA]) - 1.0, &slopes);
        (gradient, hessian)
    }
}

/// What draws gamma to 1 and the costs of further GPUs to 0.
fn penalty(point: &Point) -> f64 {
    let ratio = |tier| (point[beta_sync(tier)] - point[alpha_sync(tier)]).exp();
    let ratios: f64 = Tier::ALL.into_iter().map(ratio).filter(|ratio| ratio.is_finite()).map(|r| r * r).sum();
    1e-2 * ratios + 1e-3 * (gamma_from_logit(point[GAMMA]) - 1.0).powi(2)
}

/// The logarithm of the time of a pass, and its slopes.
fn pass(point: &Point, per_gpu: f64) -> (f64, Point) {
    let (fixed, growing) = (point[ALPHA_GRAD].exp(), point[BETA_GRAD].exp() * per_gpu);
    let mut slopes = [0.0; VARIABLES];
    slopes[ALPHA_GRAD] = fixed / (fixed + growing);
    slopes[BETA_GRAD] = growing / (fixed + growing);
    ((fixed + growing).ln(), slopes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::{ComputeCost, SyncCost};

    fn profile(params: &ThroughputParams, shapes: &[(u32, u32)], batches: &[u32]) -> Osdi21Profile {
        let mut profile = Osdi21Profile::default();
        for &(gpus, nodes) in shapes {
            for &per_gpu in batches {
                let shape = Shape::new(gpus, nodes).unwrap();
                let step_s = params.iter_time_s(shape, f64::from(per_gpu), 0);
                let sync_s = step_s - params.grad_time_s(f64::from(per_gpu));
                assert!(profile.record(shape, per_gpu, step_s, sync_s).unwrap());
            }
        }
        profile
    }

    fn params() -> ThroughputParams {
        let sync = [SyncCost { alpha_s: 0.03, beta_s: 0.002 }, SyncCost { alpha_s: 0.2, beta_s: 0.001 }];
        ThroughputParams::new(ComputeCost { alpha_s: 0.02, beta_s: 0.0006 }, sync, 2.0).unwrap()
    }

    #[test]
    fn times_that_the_model_made_are_found_again() {
        let shapes = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4)];
        let fitted = profile(&params(), &shapes, &[32, 64, 256, 1024]).fit().unwrap();
        for (gpus, nodes) in [(1, 1), (3, 1), (12, 3), (32, 8)] {
            let shape = Shape::new(gpus, nodes).unwrap();
            let ratio = fitted.iter_time_s(shape, 128.0, 0) / params().iter_time_s(shape, 128.0, 0);
            assert!((ratio - 1.0).abs() < 0.02, "{gpus} GPUs on {nodes} nodes: {ratio}");
        }
    }

    #[test]
    fn what_was_not_used_costs_nothing_or_a_tenth_more() {
        let alone = profile(&params(), &[(1, 1)], &[32, 64]).fit().unwrap();
        assert!(alone.sync_time_s(Shape::new(8, 2).unwrap()).abs() < 1e-12);
        let local = profile(&params(), &[(1, 1), (2, 1)], &[32, 64]).fit().unwrap();
        let ratio = local.sync(Tier::Node).alpha_s / local.sync(Tier::Local).alpha_s;
        assert!((ratio - 1.1).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn a_configuration_counts_once_and_bad_times_are_refused() {
        let mut profile = Osdi21Profile::default();
        assert_eq!(profile.fit(), Err(Error::NoObservations));
        assert!(profile.record(Shape::single(), 32, 0.5, 0.1).unwrap());
        assert!(!profile.record(Shape::single(), 32, 9.0, 0.1).unwrap());
        assert!(profile.record(Shape::single(), 64, f64::NAN, 0.1).is_err());
        assert!(profile.record(Shape::single(), 64, 0.5, 0.5).is_err());
    }
}
