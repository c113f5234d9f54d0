//! The most promising point of a space.

use libm::exp;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    super::{draw::uniform, expert::Expert, history::History, normal::quantile},
    improvement::log_improvement,
    kernel::Spot,
    minimize::{Effort, minimize},
    posterior::Posterior,
};
use crate::space::{Dim, Point};

/// The number of points from anywhere that are looked at,
const ANYWHERE: usize = 300;
/// of points near one of the best trials,
const NEAR: usize = 200;
/// and of these trials.
const CENTERS: usize = 5;
/// The number of points from which a local search starts.
const STARTS: usize = 4;
/// How often it alternates between numbers and other parameters.
const ROUNDS: usize = 8;
const CLIMB: Effort = Effort { steps: 40, gain: 1e-6 };
/// Standard deviations of points near a trial are between the second and the first, on a logarithmic scale.
const WIDTHS: (f64, f64) = (0.3, 0.002);

/// A suggestion differs in some number by more than the first from every trial that ended, and by more than the second from
/// those that run, unless cells or choices differ.
const APART: (f64, f64) = (1e-6, 1e-3);

/// Every fourth trial the search is bold:
const BOLD: usize = 4;
/// it asks for an improvement by more than this number of standard deviations of the targets (Lizotte 2008, "Practical
/// Bayesian Optimization"), which leads away from a minimum that is known well.
const MARGIN: f64 = 0.1;

/// A point and ln of the improvement to expect there.
#[derive(Debug, Clone)]
struct Candidate {
    point: Point,
    promise: f64,
}

/// Looks for the largest expected improvement.
pub(super) struct Search<'a> {
    history: &'a History,
    posterior: &'a Posterior,
    /// What is to be improved.
    goal: f64,
    bold: bool,
    /// What is expected of the parameters, and how much that counts.
    expert: Option<(&'a Expert, f64)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        history: &'a History,
        posterior: &'a Posterior,
        expert: Option<(&'a Expert, f64)>,
    ) -> Self {
        let bold = history.len() % BOLD == 1;
        let margin = if bold { MARGIN } else { 0.0 };
        Self { history, posterior, goal: posterior.best() - margin, bold, expert }
    }

    /// The best point that was found, if there is any that is feasible and, in finite spaces, new.
    pub(super) fn run(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let dims = self.history.dims();
        let mut points: Vec<Point> = (0..ANYWHERE)
            .map(|at| match self.expert {
                Some((expert, _)) if at % 2 == 1 => expert.draw(dims, rng),
                _ => uniform(dims, rng),
            })
            .collect();
        points.retain(|point| self.history.is_worth_it(point));
        let wide = points.len();
        let centers = self.history.best(self.history.informative().min(CENTERS));
        points.extend(centers.iter().cycle().take(NEAR).map(|&row| self.near(row, rng)));
        points.retain(|point| self.history.is_worth_it(point));
        let judged = self.judge(points);
        let refined: Vec<Candidate> =
            starts(judged.clone(), wide).into_iter().map(|start| self.refine(start, rng)).collect();
        let best = refined.iter().max_by(|a, b| a.promise.total_cmp(&b.promise)).cloned();
        // Where the best is known already, all but bold suggestions stay near the good trials.
        let near = if self.bold { Vec::new() } else { judged[wide..].to_vec() };
        let turns = [best.into_iter().collect(), near, refined, judged];
        turns.into_iter().find_map(|candidates| self.best_new(candidates)).map(|best| best.point)
    }

    /// The most promising one that differs from all trials: a result that is known, or will be, is not worth another trial.
    fn best_new(&self, mut candidates: Vec<Candidate>) -> Option<Candidate> {
        candidates.sort_by(|a, b| b.promise.total_cmp(&a.promise));
        let (ended, running) = APART;
        candidates.into_iter().find(|candidate| !self.history.is_near(&candidate.point, ended, running))
    }

    fn spots(&self, point: &Point) -> Vec<Spot> {
        let coordinate = |dim: usize| point.get(dim).copied().flatten().unwrap_or(f64::NAN);
        self.posterior.axes().iter().map(|axis| axis.spot(coordinate(axis.dim))).collect()
    }

    fn judge(&self, points: Vec<Point>) -> Vec<Candidate> {
        let spots: Vec<Vec<Spot>> = points.iter().map(|point| self.spots(point)).collect();
        let beliefs = self.posterior.beliefs(&spots);
        let judge = |(point, belief): (Point, _)| {
            let promise = log_improvement(belief, self.goal).0 + self.expected(&point);
            Candidate { point, promise }
        };
        points.into_iter().zip(beliefs).map(judge).collect()
    }

    /// What experts add to the promise of a point.
    fn expected(&self, point: &Point) -> f64 {
        self.expert.map_or(0.0, |(expert, strength)| strength * expert.log_ratio(point))
    }

    /// A point near a trial: half of them differ in all parameters, half in about two.
    fn near(&self, row: usize, rng: &mut ChaCha8Rng) -> Point {
        let dims = self.history.dims();
        let center = self.history.row(row);
        let sd = WIDTHS.0 * exp(rng.random::<f64>() * libm::log(WIDTHS.1 / WIDTHS.0));
        let few = 2.0 / dims.len() as f64;
        let share = if rng.random() { 1.0 } else { few };
        dims.build(|dim, parameter| {
            let draw: f64 = rng.random();
            let moves = rng.random::<f64>() < share;
            let normal = || quantile(draw.clamp(1e-12, 1.0 - 1e-12));
            match parameter {
                _ if center[dim].is_nan() => parameter.at(draw),
                Dim::Continuous if moves => (center[dim] + sd * normal()).clamp(0.0, 1.0),
                Dim::Discrete { count } if moves => {
                    let width = (sd * count as f64).max(0.7);
                    (center[dim] + width * normal()).round().clamp(0.0, (count - 1) as f64)
                }
                Dim::Categorical { .. } if moves && rng.random::<f64>() < few => parameter.at(draw),
                _ => center[dim],
            }
        })
    }

    /// Local search, by turns along the numbers and among cells and choices.
    fn refine(&self, start: Candidate, rng: &mut ChaCha8Rng) -> Candidate {
        let mut best = start;
        for _ in 0..ROUNDS {
            best = self.climb(best);
            let Some(better) = self.step(&best, rng) else { break };
            best = better;
        }
        best
    }

    /// Along the numbers, with the rest as it is.
    fn climb(&self, start: Candidate) -> Candidate {
        let (dims, axes) = (self.history.dims(), self.posterior.axes());
        let is_number = |at: &usize| axes[*at].dim < dims.len() && dims.dim(axes[*at].dim) == Dim::Continuous;
        let along: Vec<usize> =
            (0..axes.len()).filter(|at| is_number(at) && start.point[axes[*at].dim].is_some()).collect();
        if along.is_empty() {
            return start;
        }
        let (mut spots, mut point) = (self.spots(&start.point), start.point.clone());
        let from: Vec<f64> = along.iter().filter_map(|&at| start.point[axes[at].dim]).collect();
        let found = minimize(from, &vec![(0.0, 1.0); along.len()], CLIMB, |x, gradient| {
            for (&at, &x) in along.iter().zip(x) {
                point[axes[at].dim] = Some(x);
                spots[at] = axes[at].spot(x);
            }
            if !dims.is_feasible(&point) {
                return f64::INFINITY;
            }
            let (belief, slopes) = self.posterior.slopes(&spots, &along);
            let (promise, [by_mean, by_sd]) = log_improvement(belief, self.goal);
            for (gradient, [mean, sd]) in gradient.iter_mut().zip(slopes) {
                *gradient = -(by_mean * mean + by_sd * sd);
            }
            let Some((expert, strength)) = self.expert else { return -promise };
            for ((gradient, &at), &x) in gradient.iter_mut().zip(&along).zip(x) {
                *gradient -= strength * expert.slope(axes[at].dim, x);
            }
            -promise - self.expected(&point)
        });
        if -found.value <= start.promise || !found.value.is_finite() {
            return start;
        }
        let mut point = start.point;
        for (&at, &x) in along.iter().zip(&found.at) {
            point[axes[at].dim] = Some(x);
        }
        Candidate { point, promise: -found.value }
    }

    /// The best of the points that differ in one cell or choice, if it is better. What becomes active by that is
    /// random.
    fn step(&self, from: &Candidate, rng: &mut ChaCha8Rng) -> Option<Candidate> {
        let dims = self.history.dims();
        let mut points = Vec::new();
        for dim in self.posterior.axes().iter().map(|axis| axis.dim) {
            let Some(now) = from.point.get(dim).copied().flatten() else { continue };
            for value in others(dims.dim(dim), now) {
                let point = dims.build(|at, parameter| match from.point[at] {
                    _ if at == dim => value,
                    Some(value) => value,
                    None => parameter.at(rng.random()),
                });
                points.push(point);
            }
        }
        points.retain(|point| self.history.is_worth_it(point));
        let best = self.judge(points).into_iter().max_by(|a, b| a.promise.total_cmp(&b.promise))?;
        (best.promise > from.promise).then_some(best)
    }
}

/// Where local searches start: the best point from anywhere, then the best of all. The first `wide` are from
/// anywhere.
fn starts(candidates: Vec<Candidate>, wide: usize) -> Vec<Candidate> {
    let mut order: Vec<(usize, Candidate)> = candidates.into_iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.promise.total_cmp(&a.promise));
    if let Some(first) = order.iter().position(|(at, _)| *at < wide) {
        order[..=first].rotate_right(1);
    }
    order.into_iter().take(STARTS).map(|(_, candidate)| candidate).collect()
}

/// All other choices, or cells at distances of 1, 2, 4, ...
fn others(parameter: Dim, now: f64) -> Vec<f64> {
    match parameter {
        Dim::Continuous => Vec::new(),
        Dim::Categorical { count } => {
            (0..count).map(|x| x as f64).filter(|x| (x - now).abs() > 0.5).collect()
        }
        Dim::Discrete { count } => {
            let distances = (0..52).map(|power| (1_u64 << power) as f64).take_while(|d| *d < count as f64);
            let both = distances.flat_map(|distance| [now - distance, now + distance]);
            both.filter(|x| parameter.contains(*x)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_other_values() {
        assert_eq!(others(Dim::Categorical { count: 3 }, 1.0), [0.0, 2.0]);
        assert_eq!(others(Dim::Discrete { count: 10 }, 8.0), [7.0, 9.0, 6.0, 4.0, 0.0]);
        assert!(others(Dim::Discrete { count: 1 << 52 }, 0.0).len() == 52);
    }

    #[test]
    fn one_start_is_from_anywhere() {
        let promises = [-9.0, -8.0, -1.0, -2.0, -3.0, -4.0];
        let all = promises.map(|promise| Candidate { point: Point::new(), promise });
        let chosen: Vec<f64> = starts(all.to_vec(), 2).iter().map(|start| start.promise).collect();
        assert_eq!(chosen, [-8.0, -1.0, -2.0, -3.0]);
        assert!(starts(Vec::new(), 0).is_empty());
    }
}
