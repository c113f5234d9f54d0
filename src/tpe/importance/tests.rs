use rand::{RngExt, SeedableRng};

use super::*;
use crate::space::{Dim, Parent};

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(5)
}

fn flat(dims: &[Dim]) -> Dims {
    Dims::flat(dims.to_vec()).expect("it is a space")
}

/// The shares of a function at random points.
fn shares(dims: &Dims, trials: usize, value: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let rng = &mut rng();
    let points: Vec<Point> = (0..trials).map(|_| dims.build(|_, dim| dim.at(rng.random()))).collect();
    let values: Vec<f64> = points
        .iter()
        .map(|point| value(&point.iter().map(|x| x.unwrap_or(f64::NAN)).collect::<Vec<_>>()))
        .collect();
    let shares = importance(dims, &points, &values, rng).expect("there are enough trials");
    assert!(
        shares.iter().all(|share| *share >= 0.0) && shares.iter().sum::<f64>() < 1.0 + 1e-9,
        "{shares:?}"
    );
    shares
}

fn near(shares: &[f64], expected: &[f64], tolerance: f64) {
    let off = shares.iter().zip(expected).any(|(share, expected)| (share - expected).abs() > tolerance);
    assert!(shares.len() == expected.len() && !off, "{shares:?} instead of {expected:?}");
}

/// The variance of 3 a is 9 times that of b.
#[test]
fn shares_of_a_sum_are_those_of_the_variances() {
    let dims = flat(&[Dim::Continuous; 3]);
    near(&shares(&dims, 500, |x| 3.0 * x[0] + x[1]), &[0.9, 0.1, 0.0], 0.05);
}

/// (a - 1/2) (b - 1/2) has no effect of a or b alone.
#[test]
fn interactions_belong_to_nobody() {
    let dims = flat(&[Dim::Continuous; 2]);
    near(&shares(&dims, 500, |x| (x[0] - 0.5) * (x[1] - 0.5)), &[0.0, 0.0], 0.12);
}

/// Three choices of 0, 0 and 3: the variance is 2. Cells 0 to 4: the variance is 2 as well.
#[test]
fn choices_and_cells_count_as_numbers_do() {
    let dims =
        flat(&[Dim::Categorical { count: 3 }, Dim::Discrete { count: 5 }, Dim::Categorical { count: 4 }]);
    near(&shares(&dims, 300, |x| if x[0] > 1.5 { 3.0 } else { 0.0 } + x[1]), &[0.5, 0.5, 0.0], 0.05);
    let wide = flat(&[Dim::Discrete { count: 1000 }, Dim::Categorical { count: 100 }]);
    near(&shares(&wide, 500, |x| x[0]), &[1.0, 0.0], 0.05);
}

/// A choice of two. With the first one, the value is a child c of variance 1/12; with the second one, it is 1/2
/// again, so that the choice itself has no effect.
#[test]
fn children_count_where_they_are_active() {
    let dims = vec![Dim::Categorical { count: 2 }, Dim::Continuous, Dim::Continuous];
    let parent = |choice| Some(Parent { dim: 0, choices: vec![choice] });
    let dims = Dims::new(dims, vec![None, parent(0), parent(1)]).expect("it is a space");
    near(&shares(&dims, 500, |x| if x[0] < 0.5 { x[1] } else { 0.5 }), &[0.0, 1.0, 0.0], 0.05);
    // Half of the space has c (variance 1/12), half has 1 + 2 d (variance 4/12); the means 1/2 and 2 have the
    // variance 9/16. In all: 1/24 + 4/24 + 9/16 = 37/48.
    let expected = [27.0 / 37.0, 2.0 / 37.0, 8.0 / 37.0];
    near(&shares(&dims, 500, |x| if x[0] < 0.5 { x[1] } else { 1.0 + 2.0 * x[2] }), &expected, 0.05);
}

/// Grandchildren, and a parent with enough cells that several share a bin.
#[test]
fn conditions_may_be_deep_and_wide() {
    let dims = vec![Dim::Discrete { count: 200 }, Dim::Categorical { count: 2 }, Dim::Continuous];
    let upper = Parent { dim: 0, choices: (100..200).collect() };
    let first = Parent { dim: 1, choices: vec![0] };
    let dims = Dims::new(dims, vec![None, Some(upper), Some(first)]).expect("it is a space");
    let shares = shares(&dims, 600, |x| {
        if x[1].is_nan() {
            0.5
        } else if x[1] < 0.5 {
            x[2]
        } else {
            0.5
        }
    });
    near(&shares, &[0.0, 0.0, 1.0], 0.1);
}

/// The leaves of a tree cover the space once, and everything is 1.
#[test]
fn boxes_of_a_tree_add_up_to_the_space() {
    let dims =
        vec![Dim::Categorical { count: 3 }, Dim::Continuous, Dim::Discrete { count: 4 }, Dim::Continuous];
    let child = |dim, choices: &[u64]| Some(Parent { dim, choices: choices.to_vec() });
    let dims =
        Dims::new(dims, vec![None, child(0, &[0, 2]), child(0, &[1]), child(2, &[1, 2, 3])]).expect("fine");
    let rng = &mut rng();
    let points: Vec<Point> = (0..200).map(|_| dims.build(|_, dim| dim.at(rng.random()))).collect();
    let values: Vec<f64> = (0..200).map(|_| rng.random()).collect();
    let bins = Bins::new(&dims, &points.iter().collect::<Vec<_>>());
    assert!((bins.measure(&bins.everything()) - 1.0).abs() < 1e-12);
    let leaves = grow(&bins, &values, (0..200).collect());
    assert!(leaves.len() > 100, "{}", leaves.len());
    let total: f64 = leaves.iter().map(|leaf| bins.measure(&leaf.masks)).sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    // Each trial is in one leaf.
    for trial in &bins.trials {
        let inside = |leaf: &&Leaf| trial.iter().zip(&leaf.masks).all(|(bin, mask)| mask >> bin & 1 == 1);
        assert_eq!(leaves.iter().filter(inside).count(), 1);
    }
}

#[test]
fn the_same_generator_gives_the_same_shares() {
    let dims = flat(&[Dim::Continuous; 2]);
    assert_eq!(shares(&dims, 50, |x| x[0] * x[1]), shares(&dims, 50, |x| x[0] * x[1]));
}

#[test]
fn trials_without_a_finite_value_are_left_out() {
    let dims = flat(&[Dim::Continuous; 2]);
    let rng = &mut rng();
    let points: Vec<Point> = (0..40).map(|_| dims.build(|_, dim| dim.at(rng.random()))).collect();
    let mut values: Vec<f64> = points.iter().map(|point| point[0].expect("it is active")).collect();
    values.extend([f64::NAN, f64::INFINITY]);
    let more = [points.clone(), points[..2].to_vec()].concat();
    let all = importance(&dims, &more, &values, &mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(all, importance(&dims, &points, &values[..40], &mut ChaCha8Rng::seed_from_u64(1)));
}

#[test]
fn equal_values_make_nothing_important() {
    let dims = flat(&[Dim::Continuous; 2]);
    assert_eq!(shares(&dims, 20, |_| 0.1), [0.0, 0.0]);
    let huge = shares(&dims, 100, |x| if x[0] < 0.5 { -1e308 } else { 1e308 });
    near(&huge, &[1.0, 0.0], 0.05);
}

#[test]
fn mistakes_are_named() {
    let dims = flat(&[Dim::Continuous]);
    let points = vec![vec![Some(0.5)]; 12];
    let error = |points: &[Point], values: &[f64]| {
        importance(&dims, points, values, &mut rng()).expect_err("it is wrong").to_string()
    };
    assert_eq!(error(&points, &[1.0; 11]), "12 points have 11 values; expected one for each");
    let mut values = vec![1.0; 12];
    values[..3].fill(f64::NAN);
    assert_eq!(error(&points, &values), "this needs 10 trials with a finite result, there are 9");
    let outside = [points, vec![vec![Some(1.5)]]].concat();
    assert_eq!(error(&outside, &[1.0; 13]), "point 12 is not in the search space");
}
