//! Length scales and noise from the data.

use libm::{exp, log};

use super::{
    kernel::{Axis, Spots, matern},
    linalg::{Matrix, dot},
    minimize::{Effort, minimize},
};

/// The prior of a number: its logarithm is normal.
#[derive(Debug, Clone, Copy)]
struct Prior {
    mean: f64,
    sd: f64,
}

/// Length scales are about half of the range. A prior that grows with the number of parameters (Hvarfner et al.
/// 2024) did worse with six and with ten parameters.
const LENGTH: Prior = Prior { mean: -std::f64::consts::LN_2, sd: 1.0 };
/// Without evidence, the results of two studies at the same point have a correlation of about a half.
const TASK: Prior = Prior { mean: 0.0, sd: 1.0 };
/// Noise is a small share of the variance, if there is any.
const NOISE: Prior = Prior { mean: -6.0, sd: 2.0 };
/// What ln of the noise can be.
const NOISE_BOUNDS: (f64, f64) = (-18.0, 2.3);
/// Shape and scale of the inverse gamma prior of the variance; targets have variance 1.
const SHAPE: f64 = 2.0;
const EFFORT: Effort = Effort { steps: 50, gain: 1e-4 };

fn prior(axis: &Axis) -> Prior {
    if axis.is_task() { TASK } else { LENGTH }
}

/// What the kernel leaves open.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hyper {
    /// For each axis the inverse square of its length scale.
    pub(super) weights: Vec<f64>,
    /// The variance of the noise, as a share of that of the function.
    pub(super) noise: f64,
}

impl Hyper {
    /// Where the search begins.
    pub(super) fn start(axes: &[Axis]) -> Self {
        let weight = |axis: &Axis| exp(-2.0 * prior(axis).mean);
        Self { weights: axes.iter().map(weight).collect(), noise: 1e-3 }
    }
}

/// The variance of the function, given how badly targets with a variance of 1 would fit: y' C^-1 y.
pub(super) fn variance(misfit: f64, count: usize) -> f64 {
    (SHAPE + 0.5 * misfit) / (SHAPE + 0.5 * count as f64)
}

/// Squared distances along each axis of all pairs of trials, and targets.
pub(super) struct Evidence<'a> {
    distances: Vec<Vec<f64>>,
    /// Of the length scales.
    priors: Vec<Prior>,
    targets: &'a [f64],
}

impl<'a> Evidence<'a> {
    pub(super) fn new(axes: &[Axis], spots: &[Spots], targets: &'a [f64]) -> Self {
        let n = targets.len();
        let of_axis = |(axis, spots): (&Axis, &Spots)| {
            let mut distances = vec![0.0; n * n.saturating_sub(1) / 2];
            for i in 1..n {
                axis.add_distances(1.0, spots.get(i), spots, &mut distances[i * (i - 1) / 2..][..i]);
            }
            distances
        };
        let distances = axes.iter().zip(spots).map(of_axis).collect();
        Self { distances, priors: axes.iter().map(prior).collect(), targets }
    }

    /// The kernel of all pairs and its slopes with the squared distance.
    fn kernel(&self, logs: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let n = self.targets.len();
        let mut kernel = vec![0.0; n * n.saturating_sub(1) / 2];
        for (distances, log_weight) in self.distances.iter().zip(logs) {
            let weight = exp(*log_weight);
            for (sum, distance) in kernel.iter_mut().zip(distances) {
                *sum += weight * distance;
            }
        }
        let mut slopes = vec![0.0; kernel.len()];
        for (kernel, slope) in kernel.iter_mut().zip(&mut slopes) {
            (*kernel, *slope) = matern(*kernel);
        }
        (kernel, slopes)
    }

    /// Minus ln of the posterior density, without constants, of ln of the weights and, last, of the noise; the
    /// variance of the function is integrated out over an inverse gamma prior.
    pub(super) fn loss(&self, logs: &[f64], gradient: &mut [f64]) -> f64 {
        let (n, axes) = (self.targets.len(), self.distances.len());
        let noise = exp(logs[axes]);
        let (kernel, mut slopes) = self.kernel(logs);
        let mut factor = Matrix::zeros(n);
        for i in 0..n {
            factor.row_mut(i)[..i].copy_from_slice(&kernel[i * i.saturating_sub(1) / 2..][..i]);
            factor.row_mut(i)[i] = 1.0 + noise;
        }
        if factor.factor().is_none() {
            return f64::INFINITY;
        }
        let mut alpha = self.targets.to_vec();
        factor.solve_lower(&mut alpha);
        let misfit = dot(&alpha, &alpha);
        factor.solve_upper(&mut alpha);
        let (freedom, scale) = (SHAPE + 0.5 * n as f64, SHAPE + 0.5 * misfit);
        let mut loss = freedom * log(scale) + 0.5 * factor.log_determinant();
        // The slope of the loss with the kernel of a pair is the inverse less the ratio times alpha alpha'.
        let inverse = factor.inverse();
        let ratio = freedom / scale;
        let mut trace = 0.0;
        for i in 0..n {
            let (row, slopes) = (inverse.row(i), &mut slopes[i * i.saturating_sub(1) / 2..][..i]);
            let own = ratio * alpha[i];
            for j in 0..i {
                slopes[j] *= row[j] - own * alpha[j];
            }
            trace += row[i] - own * alpha[i];
        }
        for axis in 0..axes {
            gradient[axis] = exp(logs[axis]) * dot(&slopes, &self.distances[axis]);
            let Prior { mean, sd } = self.priors[axis];
            let off = (-0.5 * logs[axis] - mean) / sd;
            loss += 0.5 * off * off;
            gradient[axis] -= 0.5 * off / sd;
        }
        let off = (logs[axes] - NOISE.mean) / NOISE.sd;
        gradient[axes] = 0.5 * noise * trace + off / NOISE.sd;
        loss + 0.5 * off * off
    }

    /// The most likely parameters near a start, and the loss there.
    pub(super) fn fit(&self, start: &Hyper) -> (Hyper, f64) {
        let axes = self.distances.len();
        let log_weight = |prior: &Prior, sds: f64| -2.0 * (prior.mean + sds * prior.sd);
        let bound = |prior| (log_weight(prior, 4.0), log_weight(prior, -4.0));
        let mut bounds: Vec<(f64, f64)> = self.priors.iter().map(bound).collect();
        bounds.push(NOISE_BOUNDS);
        let mut logs: Vec<f64> = start.weights.iter().map(|&weight| log(weight)).collect();
        logs.push(log(start.noise));
        let found = minimize(logs, &bounds, EFFORT, |logs, gradient| self.loss(logs, gradient));
        let weights = found.at[..axes].iter().map(|&log| exp(log)).collect();
        (Hyper { weights, noise: exp(found.at[axes]) }, found.value)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::kernel::tests::{all_kinds, scatter},
        *,
    };
    use crate::space::{Dim, Dims};

    #[test]
    fn slopes_are_those_of_the_loss() {
        let dims = all_kinds();
        let axes = Axis::all(&dims);
        let spots = scatter(&dims, 30, 4);
        let targets: Vec<f64> = (0..30).map(|i| (f64::from(i) * 1.7).sin()).collect();
        let evidence = Evidence::new(&axes, &spots, &targets);
        let logs = [0.3, -0.5, 1.2, 0.0, 2.0, -1.0, -3.0];
        let (mut gradient, mut unused) = ([0.0; 7], [0.0; 7]);
        assert!(evidence.loss(&logs, &mut gradient).is_finite());
        for at in 0..7 {
            let mut moved = |step: f64| {
                let mut logs = logs;
                logs[at] += step;
                evidence.loss(&logs, &mut unused)
            };
            let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((gradient[at] - difference).abs() < 1e-6, "{at}: {} {difference}", gradient[at]);
        }
    }

    #[test]
    fn what_matters_gets_a_short_length() {
        let dims = Dims::flat(vec![Dim::Continuous; 2]).expect("it is a space");
        let axes = Axis::all(&dims);
        let spots = scatter(&dims, 40, 5);
        let targets: Vec<f64> = (0..40).map(|i| (6.0 * spots[1].get(i)[0]).sin()).collect();
        let (hyper, _) = Evidence::new(&axes, &spots, &targets).fit(&Hyper::start(&axes));
        assert!(hyper.weights[1] > 10.0 * hyper.weights[0], "{hyper:?}");
        assert!(hyper.noise < 1e-3, "{hyper:?}");
    }
}
