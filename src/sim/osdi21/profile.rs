//! The fit of the authors' simulator (Pollux OSDI'21), for comparison.
//!
//! It sees the time of a pass and of a whole step apart, and minimises the sum of both root mean squared logarithmic errors
//! with two penalties: `1e-3 (gamma - 1)^2`, and `1e-2 (beta / alpha)^2` for either tier. The authors' solver stops early,
//! so it is theirs here as well (`lbfgsb`), from their start and by the same limits.

use std::collections::BTreeMap;

use super::lbfgsb::{Bounds, minimise};
use crate::goodput::{ComputeCost, Error, Shape, SyncCost, ThroughputParams, Tier};

/// Every configuration that a job has run, with the times of a step and of its synchronization: what the authors'
/// simulator knows of a job. Studies use [`Observations`](crate::goodput::Observations).
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::sim) struct Profile {
    rows: BTreeMap<(u32, u32, u32), Timing>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Timing {
    pass_s: f64,
    step_s: f64,
}

/// Costs of compute, of the network between nodes, and of that within a node, each as alpha and beta; then gamma.
const COSTS: usize = 7;
type Costs = [f64; COSTS];
const NODES: usize = 2;
const LOCAL: usize = 4;
const GAMMA: usize = 6;
/// No cost is smaller.
const COST_MIN: f64 = 1e-8;

impl Profile {
    /// Notes a step without accumulation. Returns whether its configuration is new; if not, it changes nothing.
    pub(in crate::sim) fn record(
        &mut self,
        shape: Shape,
        per_gpu: u32,
        step_s: f64,
        sync_s: f64,
    ) -> Result<bool, Error> {
        Error::check_positive("the step time", step_s)?;
        Error::check_positive("the time of a pass", step_s - sync_s)?;
        Error::check_positive("the per-GPU batch", f64::from(per_gpu))?;
        let (key, before) = ((shape.nodes(), shape.gpus(), per_gpu), self.rows.len());
        self.rows.entry(key).or_insert(Timing { pass_s: step_s - sync_s, step_s });
        Ok(self.rows.len() > before)
    }

    /// The throughput model. What was not used is believed to cost next to nothing.
    pub(in crate::sim) fn fit(&self) -> Result<ThroughputParams, Error> {
        if self.rows.is_empty() {
            return Err(Error::NoObservations);
        }
        let rows: Vec<Row> = self.rows.iter().map(|(&key, &timing)| Row::new(key, timing)).collect();
        let (start, bounds) = self.start();
        let mut costs = minimise(start, &bounds, |costs| objective(&rows, costs));
        if self.rows.keys().all(|&(nodes, ..)| nodes == 1) {
            for cost in 0..2 {
                costs[NODES + cost] = costs[NODES + cost].max(1.1 * costs[LOCAL + cost]);
            }
        }
        let compute = ComputeCost { alpha_s: costs[0], beta_s: costs[1] };
        let sync = |at: usize| SyncCost { alpha_s: costs[at], beta_s: costs[at + 1] };
        let sync = Tier::ALL.map(|tier| sync(if tier == Tier::Local { LOCAL } else { NODES }));
        ThroughputParams::new(compute, sync, costs[GAMMA])
    }

    /// Where the fit starts, and how far it may go. What was not seen stays where it is.
    fn start(&self) -> (Costs, Bounds<COSTS>) {
        let mut start = [0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001];
        let mut bounds = Bounds { low: [COST_MIN; COSTS], high: [f64::INFINITY; COSTS] };
        (bounds.low[GAMMA], bounds.high[GAMMA]) = (1.0, 10.0);
        let mut fix = |at: usize, value: f64| {
            (start[at], bounds.low[at], bounds.high[at]) = (value, value, value);
        };
        let any = |seen: fn(u32, u32) -> bool| self.rows.keys().any(|&(nodes, gpus, _)| seen(nodes, gpus));
        let mut batches = self.rows.keys().map(|&(.., per_gpu)| per_gpu);
        let first = batches.next();
        if batches.all(|per_gpu| Some(per_gpu) == first) {
            let sum: f64 = self.rows.values().map(|timing| timing.pass_s).sum();
            fix(0, sum / self.rows.len() as f64 / 2.0);
        }
        let beyond_pair = any(|_, gpus| gpus > 2);
        let seen = [(NODES, any(|nodes, _| nodes > 1)), (LOCAL, any(|nodes, gpus| nodes == 1 && gpus > 1))];
        for (at, seen) in seen {
            if !seen {
                fix(at, COST_MIN);
            }
            if !seen || !beyond_pair {
                fix(at + 1, COST_MIN);
            }
        }
        (start, bounds)
    }
}

/// A configuration as the objective needs it.
struct Row {
    per_gpu: f64,
    /// Where its costs of synchronization are; nowhere for a single GPU.
    sync: Option<usize>,
    /// GPUs beyond a pair.
    further: f64,
    log_pass: f64,
    log_step: f64,
}

impl Row {
    fn new((nodes, gpus, per_gpu): (u32, u32, u32), timing: Timing) -> Self {
        Self {
            per_gpu: f64::from(per_gpu),
            sync: (gpus > 1).then_some(if nodes > 1 { NODES } else { LOCAL }),
            further: (f64::from(gpus) - 2.0).max(COST_MIN),
            log_pass: libm::log(timing.pass_s),
            log_step: libm::log(timing.step_s),
        }
    }
}

/// Root mean square of errors, and its slopes from their sums.
fn root(squares: f64, slopes: Costs, count: f64) -> (f64, Costs) {
    let root = (squares / count).sqrt();
    (root, slopes.map(|slope| if root > 0.0 { slope / count / root } else { 0.0 }))
}

/// What is minimised, and its gradient.
fn objective(rows: &[Row], costs: &Costs) -> (f64, Costs) {
    let gamma = costs[GAMMA];
    let (mut squares, mut slopes) = ([0.0; 2], [[0.0; COSTS]; 2]);
    for row in rows {
        let pass = costs[1].mul_add(row.per_gpu, costs[0]);
        let (alpha, beta) = row.sync.map_or((COST_MIN, COST_MIN), |at| (costs[at], costs[at + 1]));
        let sync = beta.mul_add(row.further, alpha);
        let log_pass = libm::log(pass);
        let error = log_pass - row.log_pass;
        squares[0] += error * error;
        slopes[0][0] += error / pass;
        slopes[0][1] += error * row.per_gpu / pass;
        // ln(pass^gamma + sync^gamma) / gamma, and the share of either part in it.
        let log_sync = libm::log(sync);
        let log_sum = libm::log1p(libm::exp(-gamma * (log_pass - log_sync).abs()));
        let log_step = log_pass.max(log_sync) + log_sum / gamma;
        let (of_pass, of_sync) =
            (libm::exp(gamma * (log_pass - log_step)), libm::exp(gamma * (log_sync - log_step)));
        let error = log_step - row.log_step;
        squares[1] += error * error;
        slopes[1][0] += error * of_pass / pass;
        slopes[1][1] += error * of_pass / pass * row.per_gpu;
        if let Some(at) = row.sync {
            slopes[1][at] += error * of_sync / sync;
            slopes[1][at + 1] += error * of_sync / sync * row.further;
        }
        slopes[1][GAMMA] += error * (of_pass * log_pass + of_sync * log_sync - log_step) / gamma;
    }
    let count = rows.len() as f64;
    let (pass, pass_slopes) = root(squares[0], slopes[0], count);
    let (step, step_slopes) = root(squares[1], slopes[1], count);
    let mut gradient: Costs = std::array::from_fn(|at| pass_slopes[at] + step_slopes[at]);
    let mut value = pass + step + 1e-3 * (gamma - 1.0) * (gamma - 1.0);
    gradient[GAMMA] += 2e-3 * (gamma - 1.0);
    for at in [NODES, LOCAL] {
        let ratio = costs[at + 1] / costs[at];
        value += 1e-2 * ratio * ratio;
        gradient[at] -= 2e-2 * ratio * ratio / costs[at];
        gradient[at + 1] += 2e-2 * ratio / costs[at];
    }
    (value, gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(params: &ThroughputParams, shapes: &[(u32, u32)], batches: &[u32]) -> Profile {
        let mut profile = Profile::default();
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

    /// The solver stops before it has found the model again, and ours must stop where scipy 1.17.1 does.
    #[test]
    fn the_fit_stops_where_that_of_scipy_stops() {
        let shapes = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4)];
        let fitted = profile(&params(), &shapes, &[32, 64, 256, 1024]).fit().unwrap();
        for (gpus, nodes, scipy) in [(1, 1, 1.0), (3, 1, 1.117_475), (12, 3, 1.191_768), (32, 8, 2.486_920)] {
            let shape = Shape::new(gpus, nodes).unwrap();
            let ratio = fitted.iter_time_s(shape, 128.0, 0) / params().iter_time_s(shape, 128.0, 0);
            assert!((ratio - scipy).abs() < 1e-4, "{gpus} GPUs on {nodes} nodes: {ratio}");
        }
    }

    #[test]
    fn what_was_not_used_costs_nothing_or_a_tenth_more() {
        let alone = profile(&params(), &[(1, 1)], &[32, 64]).fit().unwrap();
        assert!(alone.sync_time_s(Shape::new(8, 2).unwrap()).abs() < 1e-6);
        let local = profile(&params(), &[(1, 1), (2, 1)], &[32, 64]).fit().unwrap();
        let ratio = local.sync(Tier::Node).alpha_s / local.sync(Tier::Local).alpha_s;
        assert!((ratio - 1.1).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn a_configuration_counts_once_and_bad_times_are_refused() {
        let mut profile = Profile::default();
        assert_eq!(profile.fit(), Err(Error::NoObservations));
        assert!(profile.record(Shape::single(), 32, 0.5, 0.1).unwrap());
        // With one batch size, half of a pass is taken as fixed cost.
        assert!((profile.fit().unwrap().compute().alpha_s - 0.2).abs() < 1e-6);
        assert!(!profile.record(Shape::single(), 32, 9.0, 0.1).unwrap());
        assert!(profile.record(Shape::single(), 64, f64::NAN, 0.1).is_err());
        assert!(profile.record(Shape::single(), 64, 0.5, 0.5).is_err());
    }

    /// Step times of BERT and `YOLOv3` on T4, and what scipy 1.17.1 makes of the same objective.
    #[test]
    fn fits_are_those_of_scipy() {
        let bert = [(1, 3, 11, 0.815_892_087, 0.892_440_289), (1, 4, 4, 0.410_983_189, 0.533_363_253)];
        let mut bert = bert.to_vec();
        bert.push((1, 4, 10, 0.752_239_903, 0.845_019_519));
        let yolov3 = vec![(1, 4, 4, 0.335_520_635, 0.457_118_839)];
        let expected = [
            (bert, [0.181_261, 0.057_403_8, 0.243_488, 0.013_355_6, 1.589_02]),
            // It stops on the way to the minimum: gamma has hardly moved.
            (yolov3, [0.167_760, 0.041_940_1, 0.098_812_5, 0.011_727_0, 1.002_52]),
        ];
        for (rows, scipy) in expected {
            let mut profile = Profile::default();
            for (nodes, gpus, per_gpu, pass_s, step_s) in rows {
                let shape = Shape::new(gpus, nodes).unwrap();
                profile.record(shape, per_gpu, step_s, step_s - pass_s).unwrap();
            }
            let params = profile.fit().unwrap();
            let (compute, local) = (params.compute(), params.sync(Tier::Local));
            let ours = [compute.alpha_s, compute.beta_s, local.alpha_s, local.beta_s, params.gamma()];
            for (ours, scipy) in ours.into_iter().zip(scipy) {
                assert!((ours / scipy - 1.0).abs() < 1e-3, "{ours} instead of {scipy}");
            }
        }
    }

    #[test]
    fn slopes_are_those_of_the_objective() {
        let row = |key, pass_s, step_s| Row::new(key, Timing { pass_s, step_s });
        let rows = [row((1, 1, 32), 0.5, 0.6), row((1, 4, 64), 0.9, 1.3), row((2, 8, 64), 0.8, 1.9)];
        let costs = [0.12, 0.011, 0.4, 0.02, 0.2, 0.03, 1.7];
        let (_, gradient) = objective(&rows, &costs);
        for at in 0..COSTS {
            let moved = |by: f64| {
                let mut costs = costs;
                costs[at] += by;
                objective(&rows, &costs).0
            };
            let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!(
                (gradient[at] - slope).abs() < 1e-6 * (1.0 + slope.abs()),
                "{at}: {} instead of {slope}",
                gradient[at]
            );
        }
    }
}
