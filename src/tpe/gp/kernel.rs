//! How alike two points are: a Matern 5/2 kernel over all parameters.
//!
//! Each parameter has a squared distance of its own and a weight, the inverse square of its length scale. Numbers
//! and cells lie on a line; choices are 1 apart. A parameter that is not always active lies on an arc of one
//! radian and radius 1 around the place where it is inactive (after Swersky et al. 2014, "Raiders of the Lost
//! Architecture"): every value is 1 away from being inactive, and values are about as far from each other as on a
//! line. All these are distances in a Euclidean space, so the kernel is positive definite.

use libm::{cos, sin};

use super::linalg::LANES;
use crate::{
    space::{Dim, Dims},
    tpe::normal::exp_by_series,
};

/// Where the values of a parameter lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Line,
    Arc,
    Simplex,
    /// Whether a trial is of an earlier study.
    Task,
}

/// A parameter with more than one value, as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    /// Where it stands among the parameters.
    pub(super) dim: usize,
    shape: Shape,
    /// Takes its largest coordinate to 1; choices remain as they are.
    scale: f64,
}

/// A value of a parameter in the plane: lines use the first number only, choices are their own number.
pub(super) type Spot = [f64; 2];

impl Axis {
    /// The parameters of a space that matter.
    pub(super) fn all(dims: &Dims) -> Vec<Self> {
        let axis = |(dim, parameter): (usize, Dim)| {
            let scale = match parameter {
                Dim::Discrete { count: 0 | 1 } | Dim::Categorical { count: 0 | 1 } => return None,
                Dim::Continuous | Dim::Categorical { .. } => 1.0,
                Dim::Discrete { count } => 1.0 / (count - 1) as f64,
            };
            let shape = match parameter {
                Dim::Categorical { .. } => Shape::Simplex,
                _ if dims.is_conditional(dim) => Shape::Arc,
                _ => Shape::Line,
            };
            Some(Self { dim, shape, scale })
        };
        dims.iter().enumerate().filter_map(axis).collect()
    }

    /// One more axis, behind those of `dims` parameters, on which the trials of an earlier study lie apart.
    pub(super) fn task(dims: usize) -> Self {
        Self { dim: dims, shape: Shape::Task, scale: 1.0 }
    }

    pub(super) fn is_task(&self) -> bool {
        self.shape == Shape::Task
    }

    /// Where a coordinate lies; NaN is inactive, and this study.
    pub(super) fn spot(&self, coordinate: f64) -> Spot {
        let x = coordinate * self.scale;
        match self.shape {
            Shape::Simplex if x.is_nan() => [-1.0, 0.0],
            Shape::Arc | Shape::Task if x.is_nan() => [0.0, 0.0],
            Shape::Arc => [cos(x), sin(x)],
            Shape::Line | Shape::Simplex | Shape::Task => [x, 0.0],
        }
    }

    /// Adds the weighted squared distances from a spot to others.
    pub(super) fn add_distances(&self, weight: f64, from: Spot, to: &Spots, sums: &mut [f64]) {
        match self.shape {
            Shape::Line | Shape::Task => {
                for (sum, x) in sums.iter_mut().zip(&to.x) {
                    *sum += weight * (from[0] - x) * (from[0] - x);
                }
            }
            Shape::Arc => {
                for ((sum, x), y) in sums.iter_mut().zip(&to.x).zip(&to.y) {
                    let (dx, dy) = (from[0] - x, from[1] - y);
                    *sum += weight * (dx * dx + dy * dy);
                }
            }
            Shape::Simplex => {
                for (sum, x) in sums.iter_mut().zip(&to.x) {
                    *sum += if (from[0] - x).abs() < 0.5 { 0.0 } else { weight };
                }
            }
        }
    }

    /// The slopes of the squared distances to others along the coordinate of a spot, summed with two sets of
    /// factors.
    pub(super) fn slopes(&self, from: Spot, to: &Spots, factors: [&[f64]; 2]) -> [f64; 2] {
        let [mut first, mut second] = [[0.0; LANES]; 2];
        let arc = if self.shape == Shape::Arc { 1.0 } else { 0.0 };
        let direction = if self.shape == Shape::Arc { [-from[1], from[0]] } else { [1.0, 0.0] };
        for (at, (x, y)) in to.x.iter().zip(&to.y).enumerate() {
            let along = (from[0] - x) * direction[0] + arc * (from[1] - y) * direction[1];
            first[at % LANES] += along * factors[0][at];
            second[at % LANES] += along * factors[1][at];
        }
        let total = |lanes: [f64; LANES]| 2.0 * self.scale * lanes.iter().sum::<f64>();
        [total(first), total(second)]
    }
}

/// Where trials lie along one axis.
#[derive(Debug, Clone, Default)]
pub(super) struct Spots {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Spots {
    pub(super) fn push(&mut self, [x, y]: Spot) {
        self.x.push(x);
        self.y.push(y);
    }

    pub(super) fn get(&self, at: usize) -> Spot {
        [self.x[at], self.y[at]]
    }
}

/// The kernel at a weighted squared distance, and its slope there.
pub(super) fn matern(square: f64) -> (f64, f64) {
    let r = (5.0 * square).sqrt();
    let e = exp_of_negative(-r);
    ((1.0 + r + r * r * (1.0 / 3.0)) * e, -5.0 / 6.0 * (1.0 + r) * e)
}

/// e to the power of a number that is at most 0, to a relative error of 1e-15.
fn exp_of_negative(x: f64) -> f64 {
    exp_by_series(x, |r| {
        let mut series = 1.0 / 479_001_600.0;
        for factorial in FACTORIALS {
            series = factorial + r * series;
        }
        series
    })
}

/// 1 / 11! to 1 / 0!.
const FACTORIALS: [f64; 12] = [
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

#[cfg(test)]
pub(super) mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{
        space::Parent,
        tpe::{draw::uniform, gp::linalg::Matrix},
    };

    /// All kinds of parameters, with and without parents.
    pub(in super::super) fn all_kinds() -> Dims {
        let dims = vec![
            Dim::Continuous,
            Dim::Categorical { count: 3 },
            Dim::Discrete { count: 5 },
            Dim::Continuous,
            Dim::Categorical { count: 2 },
            Dim::Discrete { count: 4 },
            Dim::Discrete { count: 1 },
        ];
        let child = |choices| Some(Parent { dim: 1, choices });
        let parents = vec![None, None, None, child(vec![0]), child(vec![0, 2]), child(vec![1]), None];
        Dims::new(dims, parents).expect("it is a space")
    }

    /// Random points of a space along its axes.
    pub(in super::super) fn scatter(dims: &Dims, count: usize, seed: u64) -> Vec<Spots> {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let axes = Axis::all(dims);
        let mut spots = vec![Spots::default(); axes.len()];
        for _ in 0..count {
            let point = uniform(dims, rng);
            for (axis, spots) in axes.iter().zip(&mut spots) {
                spots.push(axis.spot(point[axis.dim].unwrap_or(f64::NAN)));
            }
        }
        spots
    }

    #[test]
    fn the_kernel_is_positive_definite() {
        let dims = all_kinds();
        let axes = Axis::all(&dims);
        assert_eq!(axes.len(), 6, "a parameter with one value does not matter");
        for seed in 0..20 {
            let spots = scatter(&dims, 60, seed);
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let weights: Vec<f64> = axes.iter().map(|_| libm::exp(rng.random_range(-3.0..3.0))).collect();
            let mut matrix = Matrix::zeros(60);
            for i in 0..60 {
                let row = matrix.row_mut(i);
                for ((axis, &weight), spots) in axes.iter().zip(&weights).zip(&spots) {
                    axis.add_distances(weight, spots.get(i), spots, &mut row[..=i]);
                }
                for value in row.iter_mut() {
                    *value = matern(*value).0;
                }
                row[i] += 1e-9;
            }
            assert!(matrix.factor().is_some(), "seed {seed}");
        }
    }

    #[test]
    fn every_value_is_as_far_from_inactive() {
        let dims = all_kinds();
        let axes = Axis::all(&dims);
        for axis in [axes[3], axes[4], axes[5]] {
            let mut inactive = Spots::default();
            inactive.push(axis.spot(f64::NAN));
            for coordinate in [0.0, 1.0] {
                let mut distance = [0.0];
                axis.add_distances(1.0, axis.spot(coordinate), &inactive, &mut distance);
                assert!((distance[0] - 1.0).abs() < 1e-15, "{axis:?}");
            }
        }
    }

    #[test]
    fn slopes_of_distances_are_those_of_the_distances() {
        let dims = all_kinds();
        let spots = scatter(&dims, 11, 3);
        let factors: Vec<f64> = (0..11).map(|i| (f64::from(i) * 0.7).sin()).collect();
        let zeros = vec![0.0; 11];
        for (axis, spots) in
            Axis::all(&dims).iter().zip(&spots).filter(|(axis, _)| axis.shape != Shape::Simplex)
        {
            let sum = |coordinate: f64| {
                let mut distances = vec![0.0; 11];
                axis.add_distances(1.0, axis.spot(coordinate), spots, &mut distances);
                distances.iter().zip(&factors).map(|(distance, factor)| distance * factor).sum::<f64>()
            };
            let difference = (sum(0.3 + 1e-6) - sum(0.3 - 1e-6)) / 2e-6;
            let [slope, none] = axis.slopes(axis.spot(0.3), spots, [&factors, &zeros]);
            assert!((slope - difference).abs() < 1e-8, "{axis:?}: {slope} {difference}");
            assert!(none.abs() < 1e-300);
        }
    }

    #[test]
    fn matern_by_hand() {
        // At distance 1: (1 + sqrt(5) + 5/3) exp(-sqrt(5)).
        assert!((matern(1.0).0 - 0.523_994_108_831_273).abs() < 1e-12);
        assert!((matern(0.0).0 - 1.0).abs() < 1e-15);
        for square in [1e-8, 0.3, 7.0, 400.0] {
            let step = 1e-4 * square;
            let difference = (matern(square + step).0 - matern(square - step).0) / (2.0 * step);
            assert!((matern(square).1 - difference).abs() < 1e-5 * difference.abs(), "{square}");
        }
        for x in [0.0, -1e-9, -0.3, -17.3, -300.0, -699.0] {
            assert!((exp_of_negative(x) / libm::exp(x) - 1.0).abs() < 1e-14, "{x}");
        }
    }
}
