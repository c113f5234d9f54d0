//! What the model expects at a point, and how sure it is.

use super::{
    fit::{Hyper, variance},
    kernel::{Axis, Spot, Spots, matern},
    linalg::{LANES, Matrix, dot},
};

/// How often noise may be added to make a matrix positive definite.
const ATTEMPTS: usize = 8;

/// A Gaussian process given trials that ended and some that still run.
#[derive(Debug)]
pub(super) struct Posterior {
    axes: Vec<Axis>,
    weights: Vec<f64>,
    spots: Vec<Spots>,
    factor: Matrix,
    /// The inverse of the kernel times the targets; only of trials that ended.
    alpha: Vec<f64>,
    /// The variance of the function.
    scale: f64,
    best: f64,
}

/// The expectation and the standard deviation of the function at a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Belief {
    pub(super) mean: f64,
    pub(super) sd: f64,
}

impl Posterior {
    /// The first trials have targets, the others run; the first `foreign` are of an earlier study. A running trial counts as if it ended as expected, which
    /// leaves all expectations as they are and makes the model surer around it (a "kriging believer", Ginsbourger et
    /// al. 2010).
    pub(super) fn new(
        axes: Vec<Axis>,
        spots: Vec<Spots>,
        rows: usize,
        foreign: usize,
        targets: &[f64],
        hyper: &Hyper,
    ) -> Option<Self> {
        let mut noise = hyper.noise;
        let mut factored = None;
        for _ in 0..ATTEMPTS {
            factored = factor(&axes, &spots, rows, &hyper.weights, noise);
            if factored.is_some() {
                break;
            }
            noise = 100.0 * noise.max(1e-10);
        }
        let factor = factored?;
        let mut alpha = targets.to_vec();
        factor.solve_lower(&mut alpha);
        let scale = variance(dot(&alpha, &alpha), targets.len());
        factor.solve_upper(&mut alpha);
        // At its own trials the model misses the targets by what it takes for noise.
        let seen = targets.iter().zip(&alpha).map(|(y, a)| y - noise * a);
        let all: Vec<f64> = seen.collect();
        // What an earlier study has reached is there, not here.
        let own = if foreign < all.len() { &all[foreign..] } else { &all };
        let best = own.iter().copied().fold(f64::INFINITY, f64::min);
        let mut posterior = Self { axes, weights: hyper.weights.clone(), spots, factor, alpha, scale, best };
        let spots_of = |row| posterior.spots.iter().map(|spots| spots.get(row)).collect();
        let running: Vec<Vec<Spot>> = (targets.len()..rows).map(spots_of).collect();
        let expected = posterior.beliefs(&running).into_iter().map(|belief| belief.mean);
        posterior.best = expected.fold(best, f64::min);
        Some(posterior)
    }

    /// What it sees of a point.
    pub(super) fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The smallest expectation at a trial. With noise it is safer than the best result (Vazquez et al. 2008, "Global
    /// optimization based on noisy evaluations"). Trials that run count: what they will improve on is no longer to be
    /// improved by others.
    pub(super) fn best(&self) -> f64 {
        self.best
    }

    /// Weighted squared distances to all trials.
    fn distances(&self, spots: &[Spot], sums: &mut Vec<f64>) {
        sums.clear();
        sums.resize(self.factor.len(), 0.0);
        for (((axis, weight), &spot), trials) in
            self.axes.iter().zip(&self.weights).zip(spots).zip(&self.spots)
        {
            axis.add_distances(*weight, spot, trials, sums);
        }
    }

    /// Several points at once: fewer passes over the factor.
    pub(super) fn beliefs(&self, points: &[Vec<Spot>]) -> Vec<Belief> {
        let mut beliefs = Vec::with_capacity(points.len());
        let (mut sums, mut block) = (Vec::new(), vec![[0.0; LANES]; self.factor.len()]);
        for chunk in points.chunks(LANES) {
            let mut means = [0.0; LANES];
            for (lane, point) in chunk.iter().enumerate() {
                self.distances(point, &mut sums);
                for sum in &mut sums {
                    *sum = matern(*sum).0;
                }
                means[lane] = dot(&sums[..self.alpha.len()], &self.alpha);
                for (block, &kernel) in block.iter_mut().zip(&sums) {
                    block[lane] = kernel;
                }
            }
            self.factor.solve_lower_lanes(&mut block);
            let mut known = [0.0; LANES];
            for row in &block {
                for lane in 0..LANES {
                    known[lane] += row[lane] * row[lane];
                }
            }
            beliefs.extend((0..chunk.len()).map(|lane| self.belief(means[lane], known[lane])));
        }
        beliefs
    }

    fn belief(&self, mean: f64, known: f64) -> Belief {
        Belief { mean, sd: (self.scale * (1.0 - known).max(1e-14)).sqrt() }
    }

    /// The belief at a point and its slopes along some axes: of the expectation and of the standard deviation.
    pub(super) fn slopes(&self, point: &[Spot], along: &[usize]) -> (Belief, Vec<[f64; 2]>) {
        let mut sums = Vec::new();
        self.distances(point, &mut sums);
        let n = self.alpha.len();
        let mut of_mean = vec![0.0; sums.len()];
        let mut slopes = vec![0.0; sums.len()];
        for (sum, slope) in sums.iter_mut().zip(&mut slopes) {
            (*sum, *slope) = matern(*sum);
        }
        let mean = dot(&sums[..n], &self.alpha);
        for ((of_mean, slope), alpha) in of_mean.iter_mut().zip(&slopes).zip(&self.alpha) {
            *of_mean = slope * alpha;
        }
        self.factor.solve_lower(&mut sums);
        let belief = self.belief(mean, dot(&sums, &sums));
        self.factor.solve_upper(&mut sums);
        for (slope, beta) in slopes.iter_mut().zip(&sums) {
            *slope *= beta;
        }
        let along = along.iter().map(|&at| {
            let [mean, known] = self.axes[at].slopes(point[at], &self.spots[at], [&of_mean, &slopes]);
            let weight = self.weights[at];
            [weight * mean, -weight * known * self.scale / belief.sd]
        });
        let along = along.collect();
        (belief, along)
    }
}

/// The Cholesky factor of the kernel of all trials.
fn factor(axes: &[Axis], spots: &[Spots], rows: usize, weights: &[f64], noise: f64) -> Option<Matrix> {
    let mut matrix = Matrix::zeros(rows);
    for i in 0..rows {
        let row = &mut matrix.row_mut(i)[..i];
        for ((axis, weight), spots) in axes.iter().zip(weights).zip(spots) {
            axis.add_distances(*weight, spots.get(i), spots, row);
        }
        for value in row.iter_mut() {
            *value = matern(*value).0;
        }
        matrix.row_mut(i)[i] = 1.0 + noise;
    }
    matrix.factor()?;
    Some(matrix)
}

#[cfg(test)]
mod tests {
    use super::{
        super::kernel::tests::{all_kinds, scatter},
        *,
    };
    use crate::space::{Dim, Dims};

    fn line(xs: &[f64]) -> (Vec<Axis>, Vec<Spots>) {
        let axes = Axis::all(&Dims::flat(vec![Dim::Continuous]).expect("it is a space"));
        let mut spots = Spots::default();
        for &x in xs {
            spots.push(axes[0].spot(x));
        }
        (axes, vec![spots])
    }

    fn unit(noise: f64) -> Hyper {
        Hyper { weights: vec![1.0], noise }
    }

    #[test]
    fn two_trials_by_hand() {
        let (axes, spots) = line(&[0.0, 1.0]);
        let posterior =
            Posterior::new(axes.clone(), spots, 2, 0, &[-1.0, 1.0], &unit(0.0)).expect("it has a factor");
        let at = |x: f64| posterior.beliefs(&[vec![axes[0].spot(x)]])[0];
        // k(1) = 0.523994, k(1/2) = 0.828648. Halfway the expectation is 0 by symmetry and the variance
        // 1 - 2 k(1/2)^2 / (1 + k(1)) = 0.098870 of the function's, which is
        // (2 + y' C^-1 y / 2) / (2 + 1) with y' C^-1 y = 2 / (1 - k(1)).
        let scale = (2.0 + 1.0 / (1.0 - 0.523_994_1)) / 3.0;
        assert!(at(0.5).mean.abs() < 1e-12);
        assert!((at(0.5).sd * at(0.5).sd - scale * 0.098_870).abs() < 2e-6, "{:?}", at(0.5));
        assert!((at(0.0).mean + 1.0).abs() < 1e-9 && at(0.0).sd < 1e-5);
        assert!((posterior.best() + 1.0).abs() < 1e-12);
    }

    #[test]
    fn noise_draws_the_best_towards_the_others() {
        let (axes, spots) = line(&[0.0, 0.01, 1.0]);
        let posterior =
            Posterior::new(axes, spots, 3, 0, &[-1.0, 1.0, 0.0], &unit(1.0)).expect("it has a factor");
        assert!(posterior.best() > -0.2 && posterior.best() < 0.0, "{}", posterior.best());
    }

    #[test]
    fn a_running_trial_makes_sure_and_changes_no_expectation() {
        let (axes, spots) = line(&[0.0, 1.0]);
        let before =
            Posterior::new(axes.clone(), spots, 2, 0, &[-1.0, 1.0], &unit(1e-6)).expect("it has a factor");
        let (_, spots) = line(&[0.0, 1.0, 0.5]);
        let after =
            Posterior::new(axes.clone(), spots, 3, 0, &[-1.0, 1.0], &unit(1e-6)).expect("it has a factor");
        let points = [vec![axes[0].spot(0.4)], vec![axes[0].spot(0.5)]];
        let (before, after) = (before.beliefs(&points), after.beliefs(&points));
        assert!((before[0].mean - after[0].mean).abs() < 1e-12);
        assert!(after[1].sd < 0.01 && before[1].sd > 0.1);
    }

    #[test]
    fn trials_at_one_place_do_no_harm() {
        let (axes, spots) = line(&[0.5; 40]);
        let targets: Vec<f64> = (0..40).map(f64::from).collect();
        let posterior =
            Posterior::new(axes.clone(), spots, 40, 0, &targets, &unit(0.0)).expect("noise helps");
        let belief = posterior.beliefs(&[vec![axes[0].spot(0.5)]])[0];
        assert!(belief.mean.is_finite() && belief.sd > 0.0, "{belief:?}");
    }

    #[test]
    fn slopes_are_those_of_the_belief() {
        let dims = all_kinds();
        let axes = Axis::all(&dims);
        let spots = scatter(&dims, 25, 9);
        let targets: Vec<f64> = (0..20).map(|i| (f64::from(i) * 1.3).sin()).collect();
        let hyper = Hyper { weights: vec![2.0, 0.5, 1.0, 3.0, 0.7, 1.0], noise: 1e-2 };
        let posterior =
            Posterior::new(axes.clone(), spots, 25, 0, &targets, &hyper).expect("it has a factor");
        let point = |x: f64, y: f64| -> Vec<Spot> {
            [x, 0.0, 2.0, y, 1.0, f64::NAN].iter().zip(&axes).map(|(x, axis)| axis.spot(*x)).collect()
        };
        let (belief, slopes) = posterior.slopes(&point(0.3, 0.6), &[0, 3]);
        assert_eq!(slopes.len(), 2);
        let alone = posterior.beliefs(&[point(0.3, 0.6)])[0];
        assert!((belief.mean - alone.mean).abs() < 1e-12 && (belief.sd - alone.sd).abs() < 1e-12);
        let step = 1e-6;
        let ends = [(step, 0.0), (-step, 0.0), (0.0, step), (0.0, -step)];
        let ends: Vec<Vec<Spot>> = ends.iter().map(|(x, y)| point(0.3 + x, 0.6 + y)).collect();
        let beliefs = posterior.beliefs(&ends);
        for (at, [mean, sd]) in slopes.into_iter().enumerate() {
            let (above, below) = (beliefs[2 * at], beliefs[2 * at + 1]);
            assert!((mean - (above.mean - below.mean) / (2.0 * step)).abs() < 1e-7);
            assert!((sd - (above.sd - below.sd) / (2.0 * step)).abs() < 1e-7);
        }
    }
}
